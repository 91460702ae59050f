"""Our API server forwards requests to pods as the real one does, where there is a real one (KUBE_BIN)."""

import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from gpu_device_plugin.kubernetes.client.api_client import Client, PatchType
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from tests import patience
from tests.builders import pod
from tests.cluster_double.api_server import ApiServer
from tests.kubernetes.conftest import RealServer
from tests.ports import free_ports

PAGE = b"a 1\n" * 1000


def own_address() -> str:
    """Return an address of this machine that is not loopback, which API servers proxy to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return ""


@dataclass
class World:
    """An API server, and a server that stands for a pod."""

    client: Client
    stranger: ClusterConfig
    address: str
    port: int
    seen: list[web.Request]

    async def pod(self, address: str | None = None) -> str:
        """Make a pod with an address, by default that of the server; return its name."""
        name = f"t{uuid.uuid4().hex[:10]}"
        await self.client.create(PODS, pod(name, node="somewhere"), namespace="default")
        address = self.address if address is None else address
        ips: Any = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
        body = {"status": {"phase": "Running", **ips}}
        await self.client.patch(PODS, name, body, namespace="default", subresource="status", how=PatchType.MERGE)
        return name

    async def get(self, name: str, path: str = "/metrics", *, port: int = 0, most: int = 1 << 20) -> bytes:
        return await self.client.from_pod(
            "default", name, port or self.port, path, most=most, timeout_s=patience.stretched()
        )


@pytest.fixture(params=["double", "real"] if os.environ.get("KUBE_BIN") else ["double"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    seen: list[web.Request] = []

    async def answer(http: web.Request) -> web.StreamResponse:
        seen.append(http)
        match http.path:
            case "/metrics":
                return web.Response(body=PAGE)
            case "/away":
                raise web.HTTPFound("http://192.0.2.1/")
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    address = own_address() if request.param == "real" else "127.0.0.1"
    if not address:
        pytest.skip("this machine has no address but loopback, to which API servers do not proxy")
    site = web.TCPSite(runner, address, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        if request.param == "real":
            real: RealServer = request.getfixturevalue("real_server")
            async with Client(real.config) as client:
                yield World(client, real.stranger, address, port, seen)
        else:
            async with ApiServer() as double, ApiServer(allowed=()) as closed:
                double.network[f"10.1.2.3:{port}"] = f"http://127.0.0.1:{port}"
                async with Client(ClusterConfig(double.url, token="admin-token")) as client:  # noqa: S106
                    yield World(client, ClusterConfig(closed.url), "10.1.2.3", port, seen)
    finally:
        await runner.cleanup()


async def test_a_pod_answers_and_never_sees_our_token(world: World) -> None:
    assert await world.get(await world.pod()) == PAGE
    (request,) = world.seen
    assert request.method == "GET"
    assert "Authorization" not in request.headers


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(world: World) -> None:
    name = await world.pod()
    with pytest.raises(UnavailableError, match="longer than 2 KiB"):
        await world.get(name, most=2048)
    assert await world.get(name, most=len(PAGE)) == PAGE


async def test_a_pod_that_is_gone_is_not_found(world: World) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await world.get("nobody")


async def test_a_path_that_the_pod_does_not_have_is_not_found(world: World) -> None:
    with pytest.raises(NotFoundError):
        await world.get(await world.pod(), "/other")


async def test_a_pod_without_an_address_cannot_be_asked(world: World) -> None:
    with pytest.raises(InvalidError, match="address not allowed"):
        await world.get(await world.pod(""))


async def test_a_port_where_nobody_listens_is_unavailable(world: World) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match=r"error trying to reach service.*connection refused"):
        await world.get(await world.pod(), port=port)


async def test_a_pod_cannot_send_us_elsewhere(world: World) -> None:
    with pytest.raises(ApiError) as caught:
        await world.get(await world.pod(), "/away")
    assert caught.value.status == 302
    assert [request.path for request in world.seen] == ["/away"]


async def test_who_may_not_use_the_proxy_is_told_the_right(world: World) -> None:
    name = await world.pod()
    async with Client(world.stranger) as client:
        with pytest.raises(ForbiddenError, match="grant 'get' on 'pods/proxy'"):
            await client.from_pod("default", name, world.port, "/metrics", most=9999, timeout_s=patience.stretched())
    assert not world.seen


async def test_a_name_leads_to_no_other_path(world: World) -> None:
    with pytest.raises(ApiError):
        await world.get("../../secrets")

"""What our account may do, and what the server says of itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Server
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError
from tests.cluster_double.api_server import ApiServer


async def test_a_right_is_what_the_server_grants() -> None:
    async with ApiServer(allowed={("patch", "events")}) as api, Client(ClusterConfig(api.url)) as client:
        assert await client.may(Call("patch", "events", "events.k8s.io"))
        assert not await client.may(Call("patch", "nodes"))


async def test_the_server_tells_its_version_and_the_time() -> None:
    async with ApiServer() as api, Client(ClusterConfig(api.url)) as client:
        found = await client.server()
    assert found.version == "v1.36.2"
    assert found.clock_s is not None


@asynccontextmanager
async def saying(body: bytes, *headers: str) -> AsyncIterator[Client]:
    """A server that says the same to everybody."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", "Connection: close", *headers]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Client(ClusterConfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "clock_s"),
    [((), None), (("Date: yesterday",), None), (("Date: Fri, 20 Nov 2026 16:00:00 GMT",), 1795190400.0)],
)
async def test_a_server_without_a_clock_is_one_all_the_same(headers: tuple[str, ...], clock_s: float | None) -> None:
    async with saying(b'{"gitVersion": "v1.30.0"}', *headers) as client:
        assert await client.server() == Server("v1.30.0", clock_s)


async def test_whoever_answers_something_else_is_no_api_server() -> None:
    """A proxy on the way that wants people to sign in."""
    async with saying(b"<html>") as client:
        with pytest.raises(UnavailableError, match="not a version"):
            await client.server()
        with pytest.raises(UnavailableError, match="not a review"):
            await client.may(Call("get", "nodes"))

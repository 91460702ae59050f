"""The kubelet double keeps the rules by which a real one treats DRA drivers."""

from __future__ import annotations

import json
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grpc import aio

from gpu_device_plugin.kubelet._proto import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from gpu_device_plugin.testing import builders
from gpu_device_plugin.testing.cluster import ApiServer
from gpu_device_plugin.testing.dra_kubelet import DraKubelet
from tests.patience import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DRIVER, NODE = "gpu.example.com", "n1"


@dataclass
class Driver:
    """A driver that does what a test says, and remembers what it was asked."""

    registry: Path
    folder: Path
    services: tuple[str, ...] = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
    kind: str = "DRAPlugin"
    errors: dict[str, str] = field(default_factory=dict)
    """By UID of a claim: why it is not prepared, or not unprepared."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """What the kubelet said of each registration: its error, or nothing."""
    _servers: list[aio.Server] = field(default_factory=list)

    async def start(self, name: str = "a", endpoint: str = "") -> Path:
        """Serve, and return the socket by which the kubelet finds us."""
        service, entry = self.folder / f"{endpoint or name}.sock", self.registry / f"{name}-reg.sock"
        if not endpoint:
            server = aio.server()
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Plugin(self), server)
            dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(), server)
            server.add_insecure_port(f"unix:{service}")
            await server.start()
            self._servers.append(server)
        server = aio.server()
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(_Entry(self, service), server)
        server.add_insecure_port(f"unix:{entry}")
        await server.start()
        self._servers.append(server)
        return entry

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()


class _Entry(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: Driver, endpoint: Path) -> None:
        self._driver, self._endpoint = driver, endpoint

    async def GetInfo(self, request: Any, context: Any) -> pluginregistration_pb2.PluginInfo:
        return pluginregistration_pb2.PluginInfo(
            type=self._driver.kind,
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=self._driver.services,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self._driver.told.append("" if request.plugin_registered else request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()


class _Plugin(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodePrepareResources(self, request: Any, context: Any) -> dra_v1_pb2.NodePrepareResourcesResponse:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            self._driver.asked.append(("prepare", claim.name))
            answer.claims[claim.uid].error = self._driver.errors.get(claim.uid, "")
            answer.claims[claim.uid].devices.add(pool_name=NODE, device_name="d", cdi_device_ids=[f"v/c={claim.name}"])
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self._driver.asked.append(("unprepare", claim.name))
            answer.claims[claim.uid].error = self._driver.errors.get(claim.uid, "")
        return answer


class _Health(dra_health_pb2_grpc.DRAResourceHealthServicer):
    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        device = dra_health_pb2.DeviceIdentifier(pool_name=NODE, device_name="d")
        health = dra_health_pb2.DeviceHealth(device=device, health=dra_health_pb2.UNHEALTHY, message="lost")
        yield dra_health_pb2.NodeWatchResourcesResponse(devices=[health])


@dataclass
class World:
    api: ApiServer
    kubelet: DraKubelet
    driver: Driver

    def claim(self, name: str, *pods: str, reserved: bool = True) -> str:
        """Make an allocated claim, the pods that use it, and what a container gets by it; return its UID."""
        uids = {}
        for pod in pods:
            body = builders.pod(pod, builders.container("main"), phase="Pending")
            body["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name}]
            uids[pod] = self.api.add(body)["metadata"]["uid"]
        result = {"request": "r", "driver": DRIVER, "pool": NODE, "device": "d"}
        users = [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in uids.items()] if reserved else []
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        made = self.api.add({"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {}, "status": status})
        edits = {"env": [f"CLAIM={name}"]}
        content = {"kind": "v/c", "devices": [{"name": name, "containerEdits": edits}]}
        (self.kubelet.cdi / f"{name}.json").write_text(json.dumps(content))
        uid: str = made["metadata"]["uid"]
        return uid

    def slice(self, driver: str, node: str = NODE) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        self.api.add({"kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec})

    @property
    def slices(self) -> list[str]:
        return [found["metadata"]["name"] for found in self.api.all("resourceslices")]


@asynccontextmanager
async def world(**driver: Any) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        async with ApiServer() as api:
            kubelet = DraKubelet(Path(folder), api, NODE)
            kubelet.retry_s = 0.05
            made = Driver(kubelet.registry, kubelet.plugins, **driver)
            async with kubelet:
                try:
                    yield World(api, kubelet, made)
                finally:
                    await made.stop()


async def test_a_driver_is_found_by_its_socket_and_prepares_before_a_pod_starts() -> None:
    async with world() as here:
        here.claim("c1", "p1")
        assert (await here.kubelet.start_pod("p1")).error == f"DRA driver {DRIVER} is not registered"
        await here.driver.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        assert (await here.kubelet.start_pod("p1")).environ == {"CLAIM": "c1"}
        assert here.driver.told == [""]
        await eventually(lambda: here.kubelet.health == {(NODE, "d"): (False, "lost")})


async def test_each_claim_is_prepared_once_and_unprepared_after_its_last_pod_over_restarts_too() -> None:
    async with world() as here:
        here.claim("c1", "p1", "p2")
        await here.driver.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        for pod in ("p1", "p2", "p1"):
            assert (await here.kubelet.start_pod(pod)).error == ""
        await here.kubelet.stop()
        await here.kubelet.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        assert (await here.kubelet.start_pod("p2")).error == ""
        assert await here.kubelet.end_pod("p1") == ""
        assert here.driver.asked == [("prepare", "c1")]
        assert await here.kubelet.end_pod("p2") == ""
        assert here.driver.asked == [("prepare", "c1"), ("unprepare", "c1")]


async def test_errors_of_the_driver_are_told_and_tried_again() -> None:
    async with world() as here:
        uid = here.claim("c1", "p1")
        await here.driver.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        here.driver.errors[uid] = "no room"
        assert (await here.kubelet.start_pod("p1")).error == "prepare devices: no room"
        here.driver.errors.clear()
        assert (await here.kubelet.start_pod("p1")).error == ""
        here.driver.errors[uid] = "busy"
        assert await here.kubelet.end_pod("p1") == "busy"
        here.driver.errors.clear()
        assert await here.kubelet.end_pod("p1") == ""


async def test_a_claim_that_is_not_reserved_for_a_pod_does_not_start_it() -> None:
    async with world() as here:
        here.claim("c1", "p1", reserved=False)
        assert "is not allowed to use" in (await here.kubelet.start_pod("p1")).error


async def test_a_container_whose_cdi_file_is_gone_does_not_start() -> None:
    async with world() as here:
        here.claim("c1", "p1")
        await here.driver.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        (here.kubelet.cdi / "c1.json").unlink()
        assert (await here.kubelet.start_pod("p1")).error == "unresolvable CDI devices v/c=c1"


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ({"kind": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"services": ("v2.DRAPlugin",)}, "no supported gRPC service"),
    ],
)
async def test_what_is_no_driver_is_refused(driver: dict[str, Any], words: str) -> None:
    async with world(**driver) as here:
        await here.driver.start()
        await eventually(lambda: bool(here.driver.told))
        assert words in here.driver.told[0]
        assert not here.kubelet.drivers


async def test_of_two_endpoints_the_latest_is_used_and_none_is_known_twice() -> None:
    async with world() as here:
        first = await here.driver.start("a")
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        await here.driver.start("b")
        await eventually(lambda: len(here.kubelet.drivers[DRIVER].endpoints) == 2)
        await here.driver.start("c", endpoint="a")
        await eventually(lambda: len(here.driver.told) == 3)
        assert "already registered" in here.driver.told[2]
        first.unlink()
        await eventually(lambda: len(here.kubelet.drivers[DRIVER].endpoints) == 1)
        here.claim("c1", "p1")
        assert (await here.kubelet.start_pod("p1")).error == ""


async def test_a_kubelet_removes_its_nodes_slices_at_its_start_and_those_of_a_driver_that_is_gone() -> None:
    async with world() as here:
        for driver, node in ((DRIVER, NODE), ("other", NODE), (DRIVER, "n2")):
            here.slice(driver, node)
        await here.kubelet.stop()
        await here.kubelet.start()
        assert here.slices == [f"n2-{DRIVER}"]
        here.kubelet.wipe_s = 0.05
        entry = await here.driver.start()
        await eventually(lambda: here.kubelet.reaches(DRIVER))
        for driver in (DRIVER, "other"):
            here.slice(driver)
        entry.unlink()
        await eventually(lambda: here.slices == [f"{NODE}-other", f"n2-{DRIVER}"])

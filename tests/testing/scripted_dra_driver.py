"""A DRA driver that does what a test says, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
from grpc import aio

from gpu_device_plugin.kubelet._proto import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

DRIVER = "gpu.example.com"
POOL, DEVICE = "pool", "d"


@dataclass
class ScriptedDriver:
    """Serves any number of sockets of one driver."""

    registry: Path
    """The kubelet's directory of sockets, as we see it."""
    folder: Path
    """The driver's own, as we see it."""
    seen: Path
    """The same, as the kubelet sees it."""
    services: tuple[str, ...] = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
    kind: str = "DRAPlugin"
    errors: dict[str, str] = field(default_factory=dict)
    """By name of a claim: why it is not prepared, or not unprepared."""
    health: tuple[bool, str] = (True, "")
    """Of the one device: whether it is healthy, and a message."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """The name of the socket, the call, and the name of the claim."""
    hears: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the kubelet has to wait until it can tell of a registration."""
    deaf: int = 0
    """How many times yet the kubelet cannot tell of a registration."""
    told: list[str] = field(default_factory=list)
    """What the kubelet said of each registration: its error, or nothing."""
    _servers: dict[str, list[aio.Server]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hears.set()

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls and their claims, whichever socket they came to."""
        return [(call, claim) for _, call, claim in self.asked]

    async def start(self, name: str = "a", endpoint: str = "") -> Path:
        """Serve, and return the socket by which the kubelet finds us; `endpoint`: name the socket of an earlier one."""
        entry, servers = self.registry / f"{name}-reg.sock", self._servers.setdefault(name, [])
        if not endpoint:
            server = aio.server()
            new = cast("dra_v1_pb2_grpc.DRAPluginServicer", _Plugin(self, name, dra_v1_pb2))
            old = cast("dra_v1beta1_pb2_grpc.DRAPluginServicer", _Plugin(self, f"{name} by v1beta1", dra_v1beta1_pb2))
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(new, server)
            dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(old, server)
            dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(self), server)
            server.add_insecure_port(f"unix:{self.folder / name}.sock")
            await server.start()
            servers.append(server)
        server = aio.server()
        service = _Entry(self, self.seen / f"{endpoint or name}.sock")
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{entry}")
        await server.start()
        servers.append(server)
        return entry

    async def stop(self, *names: str) -> None:
        """End what was started by these names, or all of it; their sockets go with them."""
        for name in names or tuple(self._servers):
            (self.registry / f"{name}-reg.sock").unlink(missing_ok=True)
            for server in self._servers.pop(name):
                await server.stop(None)


class _Entry(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: ScriptedDriver, endpoint: Path) -> None:
        self._driver, self._endpoint = driver, endpoint

    async def GetInfo(self, request: Any, context: Any) -> pluginregistration_pb2.PluginInfo:
        return pluginregistration_pb2.PluginInfo(
            type=self._driver.kind,
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=self._driver.services,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        await self._driver.hears.wait()
        if self._driver.deaf:
            self._driver.deaf -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "it hears nothing")
        self._driver.told.append("" if request.plugin_registered else request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()


class _Plugin:
    """The service of the version whose messages it is given; both versions are alike."""

    def __init__(self, driver: ScriptedDriver, name: str, messages: Any) -> None:
        self._driver, self._name, self._messages = driver, name, messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        answer = self._messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            self._driver.asked.append((self._name, "prepare", claim.name))
            answer.claims[claim.uid].error = self._driver.errors.get(claim.name, "")
            names = [f"{DRIVER}/claim={claim.name}"]
            answer.claims[claim.uid].devices.add(pool_name=POOL, device_name=DEVICE, cdi_device_ids=names)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        answer = self._messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self._driver.asked.append((self._name, "unprepare", claim.name))
            answer.claims[claim.uid].error = self._driver.errors.get(claim.name, "")
        return answer


class _Health(dra_health_pb2_grpc.DRAResourceHealthServicer):
    def __init__(self, driver: ScriptedDriver) -> None:
        self._driver = driver

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        healthy, message = self._driver.health
        yield dra_health_pb2.NodeWatchResourcesResponse(
            devices=[
                dra_health_pb2.DeviceHealth(
                    device=dra_health_pb2.DeviceIdentifier(pool_name=POOL, device_name=DEVICE),
                    health=dra_health_pb2.HEALTHY if healthy else dra_health_pb2.UNHEALTHY,
                    message=message,
                )
            ]
        )

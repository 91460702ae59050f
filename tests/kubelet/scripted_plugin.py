"""A device plugin that answers as it is told, over a real socket, while it notes every call."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    ContainerPreferredAllocationResponse,
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    NUMANode,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
    PreStartContainerResponse,
    RegisterRequest,
    TopologyInfo,
)
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpu_device_plugin.testing.kubelet.device_manager import HEALTHY
from tests.kubelet.any_version import RpcStatusError
from tests.kubelet.gated_kubelet import Gate


@dataclass(frozen=True, slots=True)
class Preferred:
    """The arguments of a GetPreferredAllocation call."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


def _tell_ids(ids: Sequence[str]) -> ContainerAllocateResponse:
    return ContainerAllocateResponse(envs={"IDS": ",".join(sorted(ids))})


@dataclass
class Script:
    """What a plugin answers; a test replaces parts of it while the plugin runs. RpcStatusError: that status instead."""

    options: DevicePluginOptions = field(default_factory=DevicePluginOptions)
    allocate: Callable[[Sequence[str]], ContainerAllocateResponse | None] = _tell_ids
    """The answer for one container; None stands for an answer without any container."""
    prefer: Callable[[Preferred], Sequence[str]] = field(default=lambda asked: asked.available[: asked.size])


class ScriptedPlugin(DevicePluginServicer):
    """Serves `resource` on a socket in a kubelet's plugin directory, as far as it is told to."""

    def __init__(
        self,
        directory: Path,
        resource: str,
        healthy: Mapping[str, bool],
        *,
        script: Script | None = None,
        endpoint: str | None = None,
        numa_nodes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.resource = resource
        self.endpoint = endpoint or resource.replace("/", "_") + ".sock"
        self.socket = directory / self.endpoint
        self.kubelet_socket = directory / "kubelet.sock"
        self.script = script or Script()
        self.numa_nodes = numa_nodes or {}
        self.options_gate = Gate()
        """GetDevicePluginOptions passes here; each of the others has a gate too."""
        self.prefer_gate = Gate()
        self.allocate_gate = Gate()
        self.start_gate = Gate()
        self.allocations: list[tuple[str, ...]] = []
        self.preferences: list[Preferred] = []
        self.starts: list[tuple[str, ...]] = []
        self.options_asked = 0
        self.listeners = 0
        """Open ListAndWatch streams."""
        self.listened = 0
        """ListAndWatch streams that were ever opened."""
        self._healthy = Observable(dict(healthy))
        self._server: grpc.aio.Server | None = None

    def __repr__(self) -> str:
        return f"<ScriptedPlugin {self.resource} at {self.endpoint}: {len(self._healthy.value)} devices>"

    @property
    def healthy(self) -> Mapping[str, bool]:
        """The device IDs now listed, and whether each is healthy."""
        return self._healthy.value

    def list(self, healthy: Mapping[str, bool]) -> None:
        """Send this list to everyone who listens, in place of the one before."""
        self._healthy.set(dict(healthy))

    async def serve(self) -> None:
        """Open the socket; one that lies there already is replaced."""
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def register(self, *, version: str = "v1beta1", timeout_s: float = 30) -> None:
        """Tell the kubelet about the socket. grpc.aio.AioRpcError: it does not want it, or is not there."""
        async with grpc.aio.insecure_channel(
            f"unix:{self.kubelet_socket}",
            options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
        ) as channel:
            stub: RegistrationStub[Any] = RegistrationStub(channel)
            request = RegisterRequest(
                version=version,
                endpoint=self.endpoint,
                resource_name=self.resource,
                options=self.script.options,
            )
            await stub.Register(request, timeout=timeout_s)

    async def start(self) -> None:
        """Serve, then register."""
        await self.serve()
        await self.register()

    async def stop(self) -> None:
        """End all streams and close the socket; does nothing when it does not serve."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def GetDevicePluginOptions(
        self, request: Empty, context: grpc.aio.ServicerContext[Empty, DevicePluginOptions]
    ) -> DevicePluginOptions:
        """Answer with the script's options."""
        del request
        self.options_asked += 1
        await self._pass(self.options_gate, context)
        return self.script.options

    async def ListAndWatch(
        self, request: Empty, context: grpc.aio.ServicerContext[Empty, ListAndWatchResponse]
    ) -> AsyncIterator[ListAndWatchResponse]:
        """Send the list there is, then every newer one."""
        del request, context
        self.listeners += 1
        self.listened += 1
        try:
            async for healthy in self._healthy.values():
                yield ListAndWatchResponse(
                    devices=[
                        Device(
                            ID=device,
                            health=HEALTHY if well else "Unhealthy",
                            topology=TopologyInfo(nodes=[NUMANode(ID=node) for node in self.numa_nodes[device]])
                            if device in self.numa_nodes
                            else None,
                        )
                        for device, well in healthy.items()
                    ]
                )
        finally:
            self.listeners -= 1

    async def GetPreferredAllocation(
        self,
        request: PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[PreferredAllocationRequest, PreferredAllocationResponse],
    ) -> PreferredAllocationResponse:
        """Answer with what the script prefers."""
        (one,) = request.container_requests
        asked = Preferred(tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs), one.allocation_size)
        self.preferences.append(asked)
        await self._pass(self.prefer_gate, context)
        try:
            preferred = self.script.prefer(asked)
        except RpcStatusError as refusal:
            await context.abort(refusal.code, refusal.details)
        return PreferredAllocationResponse(
            container_responses=[ContainerPreferredAllocationResponse(deviceIDs=preferred)]
        )

    async def Allocate(
        self,
        request: AllocateRequest,
        context: grpc.aio.ServicerContext[AllocateRequest, AllocateResponse],
    ) -> AllocateResponse:
        """Answer with what the script gives."""
        (one,) = request.container_requests
        self.allocations.append(tuple(one.devices_ids))
        await self._pass(self.allocate_gate, context)
        try:
            answer = self.script.allocate(one.devices_ids)
        except RpcStatusError as refusal:
            await context.abort(refusal.code, refusal.details)
        return AllocateResponse(container_responses=[] if answer is None else [answer])

    async def PreStartContainer(
        self,
        request: PreStartContainerRequest,
        context: grpc.aio.ServicerContext[PreStartContainerRequest, PreStartContainerResponse],
    ) -> PreStartContainerResponse:
        """Note the start."""
        self.starts.append(tuple(request.devices_ids))
        await self._pass(self.start_gate, context)
        return PreStartContainerResponse()

    async def _pass(self, gate: Gate, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await gate.passed()
        except RpcStatusError as refusal:
            await context.abort(refusal.code, refusal.details)

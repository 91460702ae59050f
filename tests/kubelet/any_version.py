"""What plugins and the agent see of a kubelet, by the rules of any version, and with a memory of what plugins did."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    RegisterRequest,
)
from gpu_device_plugin.testing.kubelet.device_manager import NO_NUMA_NODE, DeviceManager
from gpu_device_plugin.testing.kubelet.kubelet_services import (
    PluginRegistry,
    PodResources,
    described,
    entry,
)
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError, PluginClient
from gpu_device_plugin.testing.pod_specs import ContainerSpec
from tests.kubelet import kubelet_versions as versions


class RpcStatusError(Exception):
    """The caller of an RPC gets this status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


async def _at_once(*_: object) -> None:
    pass


@dataclass(slots=True)
class Registration:
    """One Register call and its outcome."""

    request: RegisterRequest
    """Kubelets since 1.25 ignore its options."""
    error: str | None = None


@dataclass(slots=True)
class DeviceStream:
    """One ListAndWatch call, from its start to its end."""

    resource: str
    endpoint: str
    """The socket's file name."""
    lists: list[ListAndWatchResponse] = field(default_factory=list)
    open: bool = True
    error: str | None = None
    """The error that ended it, in the words of Go's gRPC. None while it is open, or if the kubelet closed it."""


class _OlderClient(PluginClient):
    given: DevicePluginOptions | None = None
    """The options in the Register request."""

    async def options(self) -> DevicePluginOptions:
        return await super().options() if self.given is None else self.given


@dataclass(eq=False)
class Registry(PluginRegistry):
    """Remembers what plugins did."""

    minor: int = 36
    registrations: list[Registration] = field(default_factory=list)
    streams: list[DeviceStream] = field(default_factory=list)
    before_register: Callable[[RegisterRequest], Awaitable[None]] = _at_once
    """Every Register call waits for it; it may raise RpcStatusError, AdmissionError."""

    async def Register(  # noqa: N802 - gRPC calls it so, like the next
        self, request: RegisterRequest, context: grpc.aio.ServicerContext[RegisterRequest, Empty]
    ) -> Empty:
        try:
            return await super().Register(request, context)
        except RpcStatusError as refusal:
            return await context.abort(refusal.code, refusal.details)

    async def register(self, request: RegisterRequest) -> None:
        registration = Registration(request)
        self.registrations.append(registration)
        try:
            await self.before_register(request)
            if self.minor in versions.ASKS_OPTIONS:
                await super().register(request)
            else:
                self.spawn(self._connect_later(registration), f"dialling {request.endpoint}")
        except (RpcStatusError, AdmissionError) as error:
            registration.error = str(error)
            raise

    async def _connect_later(self, registration: Registration) -> None:
        try:
            await super().register(registration.request)
        except AdmissionError as error:
            registration.error = str(error)

    def client_of(self, request: RegisterRequest) -> PluginClient:
        if self.minor in versions.DIALS_AS_LOCALHOST:
            return super().client_of(request)
        socket = self.directory / request.endpoint
        client = _OlderClient(request.resource_name, socket, authority=str(socket))
        client.given = None if self.minor in versions.ASKS_OPTIONS else request.options
        return client

    async def stream_ended(self, client: PluginClient) -> None:
        if self.minor in versions.OLD_STREAM_ENDS_NEW_PLUGIN or self._clients.get(client.resource) is client:
            await super().stream_ended(client)

    async def listen(self, client: PluginClient, endpoint: str) -> None:
        stream = DeviceStream(client.resource, endpoint)
        self.streams.append(stream)

        def believe(answer: ListAndWatchResponse) -> None:
            stream.lists.append(answer)
            self.manager.update(client.resource, answer.devices)

        try:
            stream.error = await client.follow(believe)
        finally:
            stream.open = False


@dataclass(frozen=True)
class Lister(PodResources):
    """Also serves what the agent does not call."""

    before: Callable[[], Awaitable[None]] = _at_once
    """Every call waits for it; it may raise RpcStatusError."""
    minor: int = 36

    async def passed(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Wait for `before`, and end a call that it refuses."""
        try:
            await self.before()
        except RpcStatusError as refusal:
            await context.abort(refusal.code, refusal.details)

    async def List(  # noqa: N802
        self,
        request: v1.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.ListPodResourcesRequest, v1.ListPodResourcesResponse],
    ) -> v1.ListPodResourcesResponse:
        await self.passed(context)
        return await super().List(request, context)

    async def Get(  # noqa: N802
        self,
        request: v1.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.GetPodResourcesRequest, v1.GetPodResourcesResponse],
    ) -> v1.GetPodResourcesResponse:
        """Describe one active pod. Frees nothing."""
        await self.passed(context)
        if self.minor not in versions.DESCRIBES_ONE_POD:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self.pods():
            if (pod.spec.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return v1.GetPodResourcesResponse(pod_resources=described(self.manager, pod))
        return await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )

    async def GetAllocatableResources(  # noqa: N802
        self,
        _request: v1.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[v1.AllocatableResourcesRequest, v1.AllocatableResourcesResponse],
    ) -> v1.AllocatableResourcesResponse:
        """List every healthy device, allocated or free."""
        await self.passed(context)
        return v1.AllocatableResourcesResponse(
            devices=[
                entry(resource, device, node)
                for resource, ids in self.manager.healthy.items()
                for device in sorted(ids)
                for node in self.manager.numa_nodes(resource, device)
            ]
        )


class Manager(DeviceManager):
    """Allocates by the rules of any version."""

    minor = 36
    _admitted_last: str | None = None
    """UID of the pod of the last allocation, even without devices; the real kubelet's pendingAdmissionPod."""

    async def allocate(self, pod_uid: str, container: ContainerSpec) -> None:
        self._admitted_last = pod_uid
        await super().allocate(pod_uid, container)

    def received(self, pod_uid: str, container: str) -> ContainerAllocateResponse:
        answer = super().received(pod_uid, container)
        if self.minor not in versions.PASSES_CDI_DEVICES:
            answer.ClearField("cdi_devices")
        return answer

    def numa_nodes(self, resource: str, device: str) -> tuple[int, ...]:
        if device not in self.listed[resource] and self.minor not in versions.PANICS_OF_A_DEVICE_WITHDRAWN:
            return (NO_NUMA_NODE,)
        return super().numa_nodes(resource, device)

    def ended(self) -> set[str]:
        return {
            uid
            for uid in super().ended()
            if uid != self._admitted_last or self.minor not in versions.KEEPS_POD_ADMITTED_LAST
        }

    def _needs_devices(self, pod_uid: str, container: str, resource: str, required: int) -> bool:
        held = self.held(pod_uid, container).get(resource)
        if held is not None and len(held.ids) == required and self.minor not in versions.CHECKS_DEVICES_HELD:
            return False
        return super()._needs_devices(pod_uid, container, resource, required)

"""The kubelet double's services: Registration with its registered plugins, and PodResources."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import DevicePluginOptions, Empty
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import RegistrationServicer
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import PodResourcesListerServicer
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet import kubelet_versions as versions
from gpu_device_plugin.testing.kubelet.device_manager import NO_NUMA_NODE, Endpoint
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError, DeviceStream, PluginClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from pathlib import Path

    from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import RegisterRequest
    from gpu_device_plugin.testing.kubelet.device_manager import DeviceManager
    from gpu_device_plugin.testing.pod_specs import Pod


class RpcStatusError(Exception):
    """The caller of an RPC gets this status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


# --- Registration -----------------------------------------------------------------------------------------------------

API_VERSION = "v1beta1"

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_extended_resource_name(name: str) -> bool:
    """Return whether a plugin may register this name (IsExtendedResourceName in pkg/apis/core/v1/helper)."""
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith("requests.")
        # The name is checked with "requests." before it, as quotas write it.
        and len("requests." + domain) <= 253
        and len(rest) <= 63
        and _DOMAIN.fullmatch(domain) is not None
        and _NAME.fullmatch(rest) is not None
    )


@dataclass(slots=True)
class Registration:
    """One Register call and its outcome."""

    request: RegisterRequest
    """Kubelets since 1.25 ignore its options."""
    error: str | None = None


@dataclass(eq=False)
class PluginRegistry(RegistrationServicer):
    """The registration server of one kubelet process."""

    directory: Path
    manager: DeviceManager
    before_register: Callable[[], Awaitable[None]]
    dial_timeout_s: float
    registrations: list[Registration]
    streams: list[DeviceStream]
    """Like `registrations`, of all processes of a kubelet."""
    _clients: dict[str, PluginClient] = field(default_factory=dict, init=False)
    connections: set[PluginClient] = field(default_factory=set, init=False)
    """Every open connection. A plugin that was replaced keeps talking, and its connection is never closed."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def Register(
        self, request: RegisterRequest, context: grpc.aio.ServicerContext[RegisterRequest, Empty]
    ) -> Empty:
        """Register a plugin after dialing back (kubelets before 1.25 answer first and dial then)."""
        registration = Registration(request)
        self.registrations.append(registration)
        try:
            await self.before_register()
            self._validate(request)
            if self.manager.minor in versions.ASKS_OPTIONS:
                await self._connect(request.resource_name, request.endpoint)
            else:
                self._spawn(self._connect_later(request, registration), f"dialling {request.endpoint}")
        except (RpcStatusError, AdmissionError) as error:
            registration.error = str(error)
            # A plain error in a Go handler reaches the client as Unknown.
            code = error.code if isinstance(error, RpcStatusError) else grpc.StatusCode.UNKNOWN
            await context.abort(code, registration.error)
        return Empty()

    async def close(self) -> None:
        """Close every connection at once, without changes to the device manager: the process is ending."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for client in {*self.connections, *self._clients.values()}:  # the latter may still be dialling
            await client.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _validate(self, request: RegisterRequest) -> None:
        if request.version != API_VERSION:
            raise AdmissionError(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{API_VERSION}"]'
            )
        if not is_extended_resource_name(request.resource_name):
            raise AdmissionError(f'the ResourceName "{request.resource_name}" is invalid')

    async def _connect_later(self, request: RegisterRequest, registration: Registration) -> None:
        try:
            await self._connect(request.resource_name, request.endpoint, request.options)
        except AdmissionError as error:
            registration.error = str(error)

    async def _connect(self, resource: str, endpoint: str, options: DevicePluginOptions | None = None) -> None:
        socket = self.directory / endpoint
        authority = "localhost" if self.manager.minor in versions.DIALS_AS_LOCALHOST else str(socket)
        client = PluginClient(resource, socket, authority)
        self._clients[resource] = client
        try:
            await client.dial(self.dial_timeout_s)
            self.manager.endpoints[resource] = Endpoint(client, await client.options() if options is None else options)
        except BaseException:
            # By name, so the client of a working plugin is forgotten too, and the end of its stream goes unnoticed.
            self._clients.pop(resource, None)
            await client.close()
            raise
        self.connections.add(client)
        self._spawn(self._follow(client, endpoint), f"the list of {resource} from {endpoint}")

    async def _follow(self, client: PluginClient, endpoint: str) -> None:
        stream = DeviceStream(client.resource, endpoint)
        self.streams.append(stream)
        await client.follow(stream, partial(self.manager.update, client.resource))
        current = self._clients.get(client.resource)
        if current is client or (current is not None and self.manager.minor in versions.OLD_STREAM_ENDS_NEW_PLUGIN):
            del self._clients[client.resource]
            self.manager.disconnected(client.resource)
            self.connections.discard(current)
            await current.close()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        # A failed task is kept, so that `close` raises its error.
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)


# --- PodResources v1, which lists the devices of the pods -------------------------------------------------------------


def _entry(resource: str, device: str, numa_node: int) -> v1.ContainerDevices:
    # One message for every ID and NUMA node, ungrouped.
    topology = None if numa_node == NO_NUMA_NODE else v1.TopologyInfo(nodes=[v1.NUMANode(ID=numa_node)])
    return v1.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def _describe(manager: DeviceManager, pod: Pod) -> v1.PodResources:
    described = v1.PodResources(name=pod.name, namespace=pod.spec.namespace)
    for spec in pod.spec.containers:
        if spec.kind is not ContainerKind.INIT:
            described.containers.add(name=spec.name).devices.extend(
                _entry(resource, device, node)
                for resource, grant in manager.held(pod.uid, spec.name).items()
                for node, ids in grant.devices.items()
                for device in ids
            )
    return described


async def _pass(before: Callable[[], Awaitable[None]], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    try:
        await before()
    except RpcStatusError as refusal:
        await context.abort(refusal.code, refusal.details)


@dataclass(frozen=True)
class PodResources(PodResourcesListerServicer):
    """The v1.PodResourcesLister service."""

    manager: DeviceManager
    pods: Callable[..., Iterable[Pod]]
    """Returns the pods that the kubelet's sources have delivered; with `active_only`, without ended ones."""
    before: Callable[[], Awaitable[None]]
    """Every call waits for it; it may raise RpcStatusError."""

    async def List(
        self,
        request: v1.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.ListPodResourcesRequest, v1.ListPodResourcesResponse],
    ) -> v1.ListPodResourcesResponse:
        """List the pods, and free the devices of ended pods."""
        await _pass(self.before, context)
        pods = tuple(self.pods(active_only=self.manager.minor not in versions.LISTS_TERMINAL_PODS))
        self.manager.collect()
        return v1.ListPodResourcesResponse(pod_resources=[_describe(self.manager, pod) for pod in pods])

    async def Get(
        self,
        request: v1.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.GetPodResourcesRequest, v1.GetPodResourcesResponse],
    ) -> v1.GetPodResourcesResponse:
        """Describe one active pod. Frees nothing."""
        await _pass(self.before, context)
        if self.manager.minor not in versions.DESCRIBES_ONE_POD:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self.pods(active_only=True):
            if (pod.spec.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return v1.GetPodResourcesResponse(pod_resources=_describe(self.manager, pod))
        return await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )

    async def GetAllocatableResources(
        self,
        request: v1.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[v1.AllocatableResourcesRequest, v1.AllocatableResourcesResponse],
    ) -> v1.AllocatableResourcesResponse:
        """List every healthy device, allocated or free."""
        await _pass(self.before, context)
        return v1.AllocatableResourcesResponse(
            devices=[
                _entry(resource, device, node)
                for resource, ids in self.manager.healthy.items()
                for device in sorted(ids)
                for node in self.manager.numa_nodes(resource, device)
            ]
        )

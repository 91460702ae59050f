"""The kubelet double's services: Registration with its registered plugins, and PodResources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import Empty
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import RegistrationServicer
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import PodResourcesListerServicer
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet.device_manager import NO_NUMA_NODE, DeviceManager, Endpoint
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError, PluginClient
from gpu_device_plugin.testing.pod_specs import Pod

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import RegisterRequest


# --- Registration -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class PluginRegistry(RegistrationServicer):
    """The registration server of one kubelet process."""

    directory: Path
    manager: DeviceManager
    dial_timeout_s: float
    _clients: dict[str, PluginClient] = field(default_factory=dict, init=False)
    connections: set[PluginClient] = field(default_factory=set, init=False)
    """Every open connection. A plugin that was replaced keeps talking, and its connection is never closed."""
    _tasks: set[asyncio.Task[object]] = field(default_factory=set, init=False)

    async def Register(
        self, request: RegisterRequest, context: grpc.aio.ServicerContext[RegisterRequest, Empty]
    ) -> Empty:
        """Register a plugin after dialing back."""
        try:
            await self.register(request)
        except AdmissionError as error:
            # A plain error in a Go handler reaches the client as Unknown.
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
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

    def client_of(self, request: RegisterRequest) -> PluginClient:
        """Return the kubelet's end of a connection to a plugin."""
        return PluginClient(request.resource_name, self.directory / request.endpoint)

    async def register(self, request: RegisterRequest) -> None:
        """Dial a plugin, and follow its list from now on. AdmissionError: it does not answer."""
        resource, client = request.resource_name, self.client_of(request)
        self._clients[resource] = client
        try:
            await client.dial(self.dial_timeout_s)
            self.manager.endpoints[resource] = Endpoint(client, await client.options())
        except BaseException:
            # By name, so the client of a working plugin is forgotten too, and the end of its stream goes unnoticed.
            self._clients.pop(resource, None)
            await client.close()
            raise
        self.connections.add(client)
        self.spawn(self._follow(client, request.endpoint), f"the list of {resource} from {request.endpoint}")

    async def listen(self, client: PluginClient, _endpoint: str) -> None:
        """Believe the lists of a plugin, which listens at the socket `_endpoint`, until its stream ends."""
        await client.follow(lambda answer: self.manager.update(client.resource, answer.devices))

    async def _follow(self, client: PluginClient, endpoint: str) -> None:
        await self.listen(client, endpoint)
        await self.stream_ended(client)

    async def stream_ended(self, client: PluginClient) -> None:
        """Disconnect the plugin that is registered now under the name of one whose stream has ended."""
        if (current := self._clients.pop(client.resource, None)) is not None:
            self.manager.disconnected(client.resource)
            self.connections.discard(current)
            await current.close()

    def spawn(self, work: Coroutine[None, None, object], name: str) -> None:
        """Do something while the process lasts."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        # A failed task is kept, so that `close` raises its error.
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)


# --- PodResources v1, which lists the devices of the pods -------------------------------------------------------------


def entry(resource: str, device: str, numa_node: int) -> v1.ContainerDevices:
    """Return the message for an ID and a NUMA node; the kubelet does not group them."""
    topology = None if numa_node == NO_NUMA_NODE else v1.TopologyInfo(nodes=[v1.NUMANode(ID=numa_node)])
    return v1.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def described(manager: DeviceManager, pod: Pod) -> v1.PodResources:
    """Return a pod with its devices."""
    message = v1.PodResources(name=pod.name, namespace=pod.spec.namespace)
    for spec in pod.spec.containers:
        if spec.kind is not ContainerKind.INIT:
            message.containers.add(name=spec.name).devices.extend(
                entry(resource, device, node)
                for resource, grant in manager.held(pod.uid, spec.name).items()
                for node, ids in grant.devices.items()
                for device in ids
            )
    return message


@dataclass(frozen=True)
class PodResources(PodResourcesListerServicer):
    """The v1.PodResourcesLister service."""

    manager: DeviceManager
    pods: Callable[[], Iterable[Pod]]
    """Returns the pods that the kubelet's sources have delivered, without ended ones."""

    async def List(
        self,
        request: v1.ListPodResourcesRequest,
        _context: grpc.aio.ServicerContext[v1.ListPodResourcesRequest, v1.ListPodResourcesResponse],
    ) -> v1.ListPodResourcesResponse:
        """List the pods, and free the devices of ended pods."""
        pods = tuple(self.pods())
        self.manager.collect()
        return v1.ListPodResourcesResponse(pod_resources=[described(self.manager, pod) for pod in pods])

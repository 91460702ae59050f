"""The kubelet double's PodResources service v1, which lists the devices of its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import PodResourcesListerServicer
from gpu_device_plugin.testing.device_manager import NO_NUMA_NODE
from gpu_device_plugin.testing.gate import Gate, RefusedError
from gpu_device_plugin.testing.pods import Kind
from gpu_device_plugin.testing.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.testing.device_manager import DeviceManager
    from gpu_device_plugin.testing.pods import Pod


class PodsSeen(Protocol):
    """The pods that the sources of one kubelet process have delivered, in no order."""

    def __call__(self, *, active_only: bool) -> Iterable[Pod]:
        """Return the pods; with `active_only`, without ended pods."""


def _entry(resource: str, device: str, numa_node: int) -> v1.ContainerDevices:
    # One message for every ID and NUMA node, ungrouped.
    topology = None if numa_node == NO_NUMA_NODE else v1.TopologyInfo(nodes=[v1.NUMANode(ID=numa_node)])
    return v1.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def _devices(manager: DeviceManager, pod_uid: str, container: str) -> list[v1.ContainerDevices]:
    return [
        _entry(resource, device, node)
        for resource, grant in manager.held(pod_uid, container).items()
        for node, ids in grant.devices.items()
        for device in ids
    ]


def _describe(manager: DeviceManager, pod: Pod) -> v1.PodResources:
    return v1.PodResources(
        name=pod.name,
        namespace=pod.spec.namespace,
        containers=[
            v1.ContainerResources(name=spec.name, devices=_devices(manager, pod.uid, spec.name))
            for spec in pod.spec.containers
            if spec.kind is not Kind.INIT
        ],
    )


async def _pass(gate: Gate, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    try:
        await gate.passed()
    except RefusedError as refusal:
        await context.abort(refusal.code, refusal.details)


async def _unknown(context: grpc.aio.ServicerContext[Any, Any], method: str) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method} for service v1.PodResourcesLister")


class PodResources(PodResourcesListerServicer):
    """The v1.PodResourcesLister service."""

    def __init__(self, manager: DeviceManager, pods: PodsSeen, gate: Gate) -> None:
        self._manager = manager
        self._pods = pods
        self._gate = gate

    async def List(
        self,
        request: v1.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.ListPodResourcesRequest, v1.ListPodResourcesResponse],
    ) -> v1.ListPodResourcesResponse:
        """List the pods, and free the devices of ended pods."""
        await _pass(self._gate, context)
        pods = tuple(self._pods(active_only=not self._manager.version.lists_terminal_pods))
        self._manager.collect()
        return v1.ListPodResourcesResponse(pod_resources=[_describe(self._manager, pod) for pod in pods])

    async def Get(
        self,
        request: v1.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[v1.GetPodResourcesRequest, v1.GetPodResourcesResponse],
    ) -> v1.GetPodResourcesResponse:
        """Describe one active pod. Frees nothing."""
        await _pass(self._gate, context)
        if self._manager.version < Version(1, 27):
            await _unknown(context, "Get")
        if not self._manager.version.describes_one_pod:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self._pods(active_only=True):
            if (pod.spec.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return v1.GetPodResourcesResponse(pod_resources=_describe(self._manager, pod))
        return await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )

    async def GetAllocatableResources(
        self,
        request: v1.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[v1.AllocatableResourcesRequest, v1.AllocatableResourcesResponse],
    ) -> v1.AllocatableResourcesResponse:
        """List every healthy device, allocated or free."""
        await _pass(self._gate, context)
        if self._manager.version < Version(1, 21):
            await _unknown(context, "GetAllocatableResources")
        if self._manager.version < Version(1, 23):
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API GetAllocatableResources disabled")
        return v1.AllocatableResourcesResponse(
            devices=[
                _entry(resource, device, node)
                for resource, ids in self._manager.healthy.items()
                for device in sorted(ids)
                for node in self._manager.numa_nodes(resource, device)
            ]
        )

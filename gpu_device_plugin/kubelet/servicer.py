"""Serve one resource as a v1beta1 device plugin; `Answers` makes every decision."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.rounds import Streams
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.node.rules.advertised_devices import Offer
from gpu_device_plugin.node.rules.container_grants import Grant

if TYPE_CHECKING:
    from grpc import aio


_MOST_CONTAINERS = 64
"""Most containers in one call. A kubelet asks for one."""
_MOST_IDS = 10_000
"""Most device IDs of one container in a call. A kubelet knows those of our list, about 4,000 at most."""
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


class RefusalError(Exception):
    """A request for a container is refused; the message is a sentence for the owner of its pod."""


class Answers(Protocol):
    """The decisions behind the RPCs, made from memory: the kubelet calls from its one sync loop, without a timeout."""

    async def prefer(
        self, resource: Resource, available: Iterable[str], must: Iterable[str], amount: int, *, waits: bool
    ) -> Sequence[str]:
        """Return the preferred IDs; never raises. Only with `waits` it may wait until the API shows the pod."""

    async def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Grant:
        """Allocate these IDs to a container. Raises RefusedError."""

    async def before_start(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Check the devices of a container that is about to start. Raises RefusedError."""


def device_list(resource: Resource, offers: Iterable[Offer]) -> pb.ListAndWatchResponse:
    """Return the whole list of a resource's devices, as the kubelet receives it.

    It has no topology: with one, a kubelet whose topology manager has a policy allocates devices without calling
    GetPreferredAllocation.
    """
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=name, health=HEALTHY if healthy else UNHEALTHY)
            for offer in offers
            for name, healthy in offer.devices(resource.listing)
        ]
    )


@dataclass(eq=False, repr=False)
class PluginServicer(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Serves one resource to any number of ListAndWatch streams, each with its own cursor."""

    _resource: Resource
    _answers: Answers
    _lists: Observable[pb.ListAndWatchResponse]
    _: KW_ONLY
    pre_start: bool = True
    """The kubelet calls PreStartContainer. Then it does not start a container whose devices it has forgotten
    (callPreStartContainerIfNeeded); otherwise it starts that container without its variables."""
    observe: Callable[[Resource, str, float], None]
    """Called with (resource, RPC, seconds) after each call."""

    def __post_init__(self) -> None:
        self.streams = Streams()
        """The kubelet's ListAndWatch."""
        self.options = pb.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=True
        )

    async def GetDevicePluginOptions(
        self, request: pb.Empty, context: aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        return self.options

    async def ListAndWatch(
        self, request: pb.Empty, context: aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        async with self.streams.of(self._lists) as lists:
            async for devices in lists:
                yield devices

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],
    ) -> pb.PreferredAllocationResponse:
        began = time.perf_counter()
        wanted = request.container_requests
        ids = (max(len(each.available_deviceIDs), len(each.must_include_deviceIDs)) for each in wanted)
        await _check_size(context, len(wanted), ids)
        responses = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=await self._answers.prefer(
                    self._resource,
                    asked.available_deviceIDs,
                    asked.must_include_deviceIDs,
                    asked.allocation_size,
                    # All of them are of one pod, and the kubelet's only sync loop waits for us.
                    waits=number == 0,
                )
            )
            for number, asked in enumerate(wanted)
        ]
        self.observe(self._resource, "GetPreferredAllocation", time.perf_counter() - began)
        return pb.PreferredAllocationResponse(container_responses=responses)

    async def Allocate(
        self, request: pb.AllocateRequest, context: aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        began = time.perf_counter()
        wanted = request.container_requests
        await _check_size(context, len(wanted), (len(each.devices_ids) for each in wanted))
        try:
            grants = [await self._answers.allocate(self._resource, tuple(asked.devices_ids)) for asked in wanted]
        except RefusalError as refused:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refused))
        finally:
            self.observe(self._resource, "Allocate", time.perf_counter() - began)
        return pb.AllocateResponse(container_responses=[_response(grant) for grant in grants])

    async def PreStartContainer(
        self,
        request: pb.PreStartContainerRequest,
        context: aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        began = time.perf_counter()
        await _check_size(context, 1, (len(request.devices_ids),))
        try:
            await self._answers.before_start(self._resource, tuple(request.devices_ids))
        except RefusalError as refused:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        finally:
            self.observe(self._resource, "PreStartContainer", time.perf_counter() - began)
        return pb.PreStartContainerResponse()


async def _check_size(context: aio.ServicerContext[Any, Any], containers: int, ids: Iterable[int]) -> None:
    """End a call that is larger than any of a kubelet, before its IDs are copied, for `ids` of each container."""
    if containers > _MOST_CONTAINERS or max(ids, default=0) > _MOST_IDS:
        most = f"{_MOST_CONTAINERS} containers and {_MOST_IDS} IDs of each at most"
        why = f"the call is larger than one of a kubelet: {most}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)


def _response(grant: Grant) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=grant.envs,
        devices=[pb.DeviceSpec(container_path=node, host_path=node, permissions="rw") for node in grant.device_nodes],
        cdi_devices=[pb.CDIDevice(name=name) for name in grant.cdi_devices],
        annotations={variables.GRANTED_TO: grant.granted_to} if grant.granted_to else {},
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in grant.mounts
        ],
    )

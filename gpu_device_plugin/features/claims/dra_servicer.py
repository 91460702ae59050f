"""Serve the kubelet's API for DRA drivers; `ClaimHandler` makes every decision."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpu_device_plugin.kubelet._proto import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
)
from gpu_device_plugin.kubelet.rounds import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from grpc import aio

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim

T = TypeVar("T")

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""In the order of preference: the kubelet takes the first that it knows (1.36, dra_plugin_manager.go)."""

REPEAT_S = 10.0
"""Seconds between two lists of healths without a change: after `TIMEOUT_S` the kubelet forgets one."""
TIMEOUT_S = 30
_LONGEST = 1024
"""Characters of a message about a device; the kubelet cuts longer ones."""


class NotPreparedError(Exception):
    """A claim is not prepared, or not unprepared; the owner of the pod reads the message in an Event."""


class ClaimHandler(Protocol):
    """Makes the decisions."""

    async def prepare(self, claim: dra_v1_pb2.Claim) -> PreparedClaim:
        """Prepare a claim. Raises NotPreparedError; the kubelet tries again."""

    async def unprepare(self, uid: str) -> None:
        """Undo it for the claim with this UID, which needs nothing if it was not prepared. Raises NotPreparedError."""


@dataclass(eq=False, repr=False)
class DraServicer(dra_health_pb2_grpc.DRAResourceHealthServicer):
    """The services behind one socket."""

    claims: ClaimHandler
    _pool: str
    _health: Observable[Mapping[str, str]]
    """Why each device of the pool is not healthy, by its name; empty: it is."""
    _observe: Callable[[str, float], None]
    """Called with the name of a call and the seconds that it took."""

    def __post_init__(self) -> None:
        self.streams = Streams()
        """Of health. The kubelet opens one as soon as it knows the driver."""

    def register(self, server: aio.Server) -> None:
        """Add all services to a server."""
        v1: Any = _Plugin(self, dra_v1_pb2)
        v1beta1: Any = _Plugin(self, dra_v1beta1_pb2)
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(v1, server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(v1beta1, server)
        dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(self, server)

    async def for_each(
        self, rpc: str, request: Any, act: Callable[[dra_v1_pb2.Claim], Awaitable[T]]
    ) -> dict[str, T | str]:
        """Answer for all claims of a call side by side: several that wait take no longer than one."""

        async def answer(claim: dra_v1_pb2.Claim) -> T | str:
            try:
                return await act(claim)
            except NotPreparedError as error:
                return str(error) or "it is not known why"

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = {
                claim.uid: group.create_task(answer(claim), name=f"{rpc} of {claim.uid}") for claim in request.claims
            }
        if tasks:  # without a claim it was our own call, see `answers`
            self._observe(rpc, time.perf_counter() - began)
        return {uid: task.result() for uid, task in tasks.items()}

    async def NodeWatchResources(
        self,
        request: dra_health_pb2.NodeWatchResourcesRequest,
        context: aio.ServicerContext[
            dra_health_pb2.NodeWatchResourcesRequest, dra_health_pb2.NodeWatchResourcesResponse
        ],
    ) -> AsyncIterator[dra_health_pb2.NodeWatchResourcesResponse]:
        """Yield the health of all devices: now, after every change, and every `REPEAT_S` seconds."""
        self.streams.expected = True  # from now on: this kubelet reads the health of devices
        async with self.streams.of(self._health, REPEAT_S) as healths:
            async for devices in healths:
                yield _healths(self._pool, devices)


def _healths(pool: str, devices: Mapping[str, str]) -> dra_health_pb2.NodeWatchResourcesResponse:
    return dra_health_pb2.NodeWatchResourcesResponse(
        devices=[
            dra_health_pb2.DeviceHealth(
                device=dra_health_pb2.DeviceIdentifier(pool_name=pool, device_name=name),
                health=dra_health_pb2.UNHEALTHY if why else dra_health_pb2.HEALTHY,
                last_updated_time=int(time.time()),
                health_check_timeout_seconds=TIMEOUT_S,
                message=why[:_LONGEST],
            )
            for name, why in devices.items()
        ]
    )


class _Plugin:
    """One version of the service, by the module of its messages. Before 1.34 (v1beta1) devices have no share IDs."""

    def __init__(self, servicer: DraServicer, messages: Any) -> None:
        self._servicer = servicer
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: object) -> Any:
        answer = self._messages.NodePrepareResourcesResponse()
        claims = await self._servicer.for_each("NodePrepareResources", request, self._servicer.claims.prepare)
        for uid, found in claims.items():
            if isinstance(found, str):
                answer.claims[uid].error = found
                continue
            for prepared in found.devices:
                device = answer.claims[uid].devices.add(
                    request_names=(prepared.request,),
                    pool_name=prepared.pool,
                    device_name=prepared.device,
                    cdi_device_ids=found.cdi_names,
                )
                if prepared.share_id and self._messages is dra_v1_pb2:
                    device.share_id = prepared.share_id
        return answer

    async def NodeUnprepareResources(self, request: Any, context: object) -> Any:
        answer = self._messages.NodeUnprepareResourcesResponse()
        unprepared = await self._servicer.for_each(
            "NodeUnprepareResources", request, lambda claim: self._servicer.claims.unprepare(claim.uid)
        )
        for uid, why in unprepared.items():
            answer.claims[uid].error = why or ""
        return answer

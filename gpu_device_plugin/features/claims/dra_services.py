"""Serve the kubelet's API for DRA drivers, and keep the driver registered; `NodeClaims` makes every decision.

The kubelet watches the directory `plugins_registry` for sockets and asks each who listens there. It does so again after
its own restart, without our doing; what can be lost is a socket, a directory, or the connection.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.claims.claim_handler import NodeClaims, NotPreparedError
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2_grpc,
)
from gpu_device_plugin.kubelet._proto import pluginregistration_pb2 as pb
from gpu_device_plugin.kubelet.rounds import OnEvent, RegistrationEvent, RegistrationRounds, RoundTimings, Streams

if TYPE_CHECKING:
    from grpc import aio


T = TypeVar("T")

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""In the order of preference: the kubelet takes the first that it knows (1.36, dra_plugin_manager.go)."""

REPEAT_S = 10.0
"""Seconds between two lists of healths without a change: after `TIMEOUT_S` the kubelet forgets one."""
TIMEOUT_S = 30
_LONGEST = 1024
"""Characters of a message about a device; the kubelet cuts longer ones."""
_SILENCE_S = 20.0
"""How long a kubelet that listened to us may not listen, before we offer it new sockets, in seconds. It dials again by
itself after a restart of its own, and tries every 5 s where a stream of health has ended."""


@dataclass(eq=False, repr=False)
class DraServicer(dra_health_pb2_grpc.DRAResourceHealthServicer):
    """The services behind one socket."""

    claims: NodeClaims
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


# --- Their sockets, known to the kubelet ------------------------------------------------------------------------------


class DraLoop(RegistrationRounds, pluginregistration_pb2_grpc.RegistrationServicer):
    """Serves the driver, round after round, and tells the kubelet who we are. Probes read `unmet`."""

    def __init__(self, kubelet_root: Path, servicer: Callable[[], DraServicer], on_event: OnEvent) -> None:
        """Serve below the kubelet's root directory, ``/var/lib/kubelet`` on most nodes.

        `servicer` makes the services of a round.
        """
        self.registry = kubelet_root / "plugins_registry"
        """Where the kubelet looks for plugins."""
        self.plugin = kubelet_root / "plugins" / DRIVER
        """Ours: the socket of the services."""
        self.claims = self.plugin / "claims"
        """Ours: the prepared claims."""
        super().__init__(self.registry, on_event, RoundTimings(stream_grace=_SILENCE_S))
        self._servicer = servicer
        self._registered = False
        self._refusal = ""
        self._streams: Streams | None = None
        """Those of this round; None between rounds."""
        self.reached: Observable[bool] = Observable(value=False)
        """Whether the kubelet can call the driver, as far as we know. The end of a kubelet ends its stream of health;
        without such streams (before 1.36) we do not hear of it."""
        self._endpoint = Path()
        """The socket of the services."""
        self.registrations = 0
        """How often the kubelet has registered the driver."""

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why the kubelet cannot use the driver yet, as sentences; empty if it can."""
        if self._registered:
            return ()
        why = f": {self._refusal}" if self._refusal else ""
        unusable = () if self._obstacle is None else (str(self._obstacle[1]["why"]),)
        return (f"the DRA driver {DRIVER} is not registered with the kubelet{why}", *unusable)

    def _find_obstacle(self) -> tuple[RegistrationEvent, dict[str, object]] | None:
        try:
            self._prepare()
        except sockets.DirectoryError as error:
            return RegistrationEvent.NOT_SERVED, {"why": str(error)}
        return None

    def _prepare(self) -> None:
        """Make what is missing, and remove the sockets of earlier instances. Only for the holder of the node's lock.

        Raises:
            DirectoryError: a directory cannot be used.
            DirectoryGoneError: see `sockets.is_there`.
        """
        for mounted in (self.registry, self.plugin.parent):
            sockets.is_there(mounted)
        for path in self._new_sockets():
            if len(os.fsencode(path)) > sockets.LONGEST_PATH:
                raise sockets.DirectoryError(
                    f"{path} is too long for a socket, whose path may have {sockets.LONGEST_PATH} bytes"
                )
        try:
            self.claims.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self.registry.is_dir():
                raise sockets.DirectoryError(
                    f"{self.registry} is not a directory; mount the kubelet's directories plugins_registry and plugins "
                    "into the agent's pod, as deploy/patches/dra-agent.yaml and the chart do"
                )
            for directory in (self.registry, self.plugin):
                for path in directory.glob(f"{DRIVER}-*.sock"):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise sockets.DirectoryError(
                f"preparing {error.filename or self.registry}: {error.strerror}{sockets.advice(error)}"
            ) from error

    def _new_sockets(self) -> tuple[Path, Path]:
        """Return paths that no instance has used before: of the registration, and of the services.

        The kubelet refuses to know one path twice, and an instance that ends late must not remove another's socket.
        """
        instance = f"{DRIVER}-{os.getpid()}-{os.urandom(3).hex()}"
        return self.registry / f"{instance}-reg.sock", self.plugin / f"{instance}.sock"

    async def _begin(self) -> None:
        entry, self._endpoint = self._new_sockets()
        self._registered, self._refusal = False, ""
        servicer = self._servicer()
        self._streams = servicer.streams
        self._streams.changed = lambda _open: self._update_reached()
        # Who is found has to serve already.
        await self._serve(DRIVER, self._endpoint, servicer.register, _prepare_nothing, self._streams)
        add_to = partial(pluginregistration_pb2_grpc.add_RegistrationServicer_to_server, self)
        await self._serve(f"the registration of {DRIVER}", entry, add_to, _ask_who)

    def _ended(self) -> None:
        self._streams, self._registered = None, False
        self._update_reached()

    def _update_reached(self) -> None:
        self.reached.change(self._registered and self._streams is not None and not self._streams.deserted)

    async def GetInfo(
        self, request: pb.InfoRequest, context: aio.ServicerContext[pb.InfoRequest, pb.PluginInfo]
    ) -> pb.PluginInfo:
        endpoint = str(self._endpoint.absolute())
        return pb.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=SERVICES)

    async def NotifyRegistrationStatus(
        self,
        request: pb.RegistrationStatus,
        context: aio.ServicerContext[pb.RegistrationStatus, pb.RegistrationStatusResponse],
    ) -> pb.RegistrationStatusResponse:
        self._registered = request.plugin_registered
        self._refusal = "" if self._registered else request.error or "it does not say why"
        if self._refusal:
            self._on_event(RegistrationEvent.NOT_REGISTERED, {"resource": DRIVER, "why": self._refusal})
        else:
            self.registrations += 1
            self._on_event(RegistrationEvent.REGISTERED, {"resource": DRIVER})
        self._update_reached()
        return pb.RegistrationStatusResponse()


async def _ask_who(entry: aio.Channel, timeout_s: float) -> object:
    return await pluginregistration_pb2_grpc.RegistrationStub(entry).GetInfo(pb.InfoRequest(), timeout=timeout_s)


async def _prepare_nothing(services: aio.Channel, timeout_s: float) -> object:
    nothing = dra_v1_pb2.NodePrepareResourcesRequest()
    return await dra_v1_pb2_grpc.DRAPluginStub(services).NodePrepareResources(nothing, timeout=timeout_s)

"""Keep a DRA driver registered with the kubelet.

The kubelet watches the directory `plugins_registry` for sockets and asks each who listens there. It does so again after
its own restart, without our doing; what can be lost is a socket, a directory, or the connection.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.claims.dra_servicer import SERVICES
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import dra_v1_pb2, dra_v1_pb2_grpc, pluginregistration_pb2_grpc
from gpu_device_plugin.kubelet._proto import pluginregistration_pb2 as pb
from gpu_device_plugin.kubelet.rounds import RegistrationEvent, RegistrationRounds, RoundTimings

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc import aio

    from gpu_device_plugin.features.claims.dra_servicer import DraServicer
    from gpu_device_plugin.kubelet.rounds import OnEvent, Streams

_SILENCE_S = 20.0
"""How long a kubelet that listened to us may not listen, before we offer it new sockets, in seconds. It dials again by
itself after a restart of its own, and tries every 5 s where a stream of health has ended."""


class DraDirectories:
    """The directories of the kubelet in which the sockets are."""

    def __init__(self, kubelet_root: Path) -> None:
        """Name them below the kubelet's root directory, ``/var/lib/kubelet`` on most nodes."""
        self.registry = kubelet_root / "plugins_registry"
        """Where the kubelet looks for plugins."""
        self.plugin = kubelet_root / "plugins" / DRIVER
        """Ours: the socket of the services."""
        self.claims = self.plugin / "claims"
        """Ours: the prepared claims."""

    def prepare(self) -> None:
        """Make what is missing, and remove the sockets of earlier instances. Only for the holder of the node's lock.

        Raises:
            DirectoryError: a directory cannot be used.
            DirectoryGoneError: see `sockets.is_there`.
        """
        for mounted in (self.registry, self.plugin.parent):
            sockets.is_there(mounted)
        for path in self.new_sockets():
            if len(os.fsencode(path)) > sockets.LONGEST_PATH:
                raise sockets.DirectoryError(
                    f"{path} is too long for a socket, of which the path has {sockets.LONGEST_PATH}"
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

    def new_sockets(self) -> tuple[Path, Path]:
        """Return paths that no instance has used before: of the registration, and of the services.

        The kubelet refuses to know one path twice, and an instance that ends late must not remove another's socket.
        """
        instance = f"{DRIVER}-{os.getpid()}-{os.urandom(3).hex()}"
        return self.registry / f"{instance}-reg.sock", self.plugin / f"{instance}.sock"


class DraLoop(RegistrationRounds, pluginregistration_pb2_grpc.RegistrationServicer):
    """Serves the driver, round after round, and tells the kubelet who we are. Probes read `unmet`."""

    def __init__(self, directories: DraDirectories, servicer: Callable[[], DraServicer], on_event: OnEvent) -> None:
        """Serve in `directories`; `servicer` makes the services of a round."""
        super().__init__(directories.registry, on_event, RoundTimings(stream_grace=_SILENCE_S))
        self._directories = directories
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
            self._directories.prepare()
        except sockets.DirectoryError as error:
            return RegistrationEvent.NOT_SERVED, {"why": str(error)}
        return None

    async def _begin(self) -> None:
        entry, self._endpoint = self._directories.new_sockets()
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

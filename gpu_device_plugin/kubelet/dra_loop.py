"""Keep a DRA driver registered with the kubelet, in rounds: serve, be found, watch, tear down.

The kubelet watches the directory `plugins_registry` for sockets and asks each who listens there. It does so again after
its own restart, without our doing; what can be lost is a socket, a directory, or the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from grpc import aio

from gpu_device_plugin.aio.directory_watch import watching
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.core.contract.dra import DRIVER
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import pluginregistration_pb2 as pb
from gpu_device_plugin.kubelet._proto import pluginregistration_pb2_grpc
from gpu_device_plugin.kubelet.calls import channel
from gpu_device_plugin.kubelet.dra_servicer import SERVICES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.kubelet.dra_servicer import DraServicer

_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True, slots=True)
class DraTimings:
    """Intervals and timeouts of the loop, in seconds."""

    poll: float = 1.0
    """Interval between checks of the sockets; inotify usually reports changes sooner."""
    silence: float = 20.0
    """How long a kubelet that listened to us may not listen, before we offer it new sockets. It dials again by itself
    after a restart of its own, and tries every 5 s where a stream of health has ended."""
    retry: float = 1.0
    """Pause after a round that failed at once."""
    stop: float = 1.0
    """Grace period for calls in flight when a server stops."""


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

        Raises:
            DirectoryError: a path is too long for a socket.
        """
        instance = f"{DRIVER}-{os.getpid()}-{os.urandom(3).hex()}"
        found = self.registry / f"{instance}-reg.sock", self.plugin / f"{instance}.sock"
        for path in found:
            if len(os.fsencode(path)) > sockets.LONGEST_PATH:
                raise sockets.DirectoryError(
                    f"{path} is too long for a socket, of which the path has {sockets.LONGEST_PATH}"
                )
        return found


@dataclass(eq=False, repr=False)
class DraLoop(pluginregistration_pb2_grpc.RegistrationServicer):
    """Serves the driver, round after round, and tells the kubelet who we are. Probes read `unmet`."""

    _directories: DraDirectories
    _servicer: Callable[[], DraServicer]
    """Makes the services of a round."""
    _on_event: Callable[[str, dict[str, object]], None]
    """Called with a sentence and details when a registration succeeded, failed or ended, for the log."""

    def __post_init__(self) -> None:
        self.timings = DraTimings()
        self._registered = False
        self._refusal = ""
        self._services: DraServicer | None = None
        """The services of this round; None between rounds."""
        self.reached: Observable[bool] = Observable(value=False)
        """Whether the kubelet can call the driver, as far as we know. The end of a kubelet ends its stream of health;
        without such streams (before 1.36) we do not hear of it."""
        self._entry: Path | None = None
        """The socket at which the kubelet asks who we are; None between rounds."""
        self._endpoint = Path()
        """The socket of the services."""
        self.registrations = 0
        """How often the kubelet has registered the driver."""

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why the kubelet cannot use the driver yet, as sentences; empty if it can."""
        if self._registered:
            return ()
        why = f": {self._refusal}" if self._refusal else ""
        return (f"the DRA driver {DRIVER} is not registered with the kubelet{why}",)

    async def answers_ourselves(self, timeout_s: float = 5.0) -> bool:
        """Call our own socket as the kubelet would; return whether it answers. True between rounds."""
        path = self._entry
        if path is None:
            return True
        try:
            async with channel(path) as opened:
                await pluginregistration_pb2_grpc.RegistrationStub(opened).GetInfo(pb.InfoRequest(), timeout=timeout_s)
        except aio.AioRpcError:
            return self._entry != path
        return True

    async def run(self) -> NoReturn:
        """Serve until cancelled; then, and between rounds, end the streams and remove the sockets.

        Raises:
            DirectoryError: a directory cannot be used.
            DirectoryGoneError: see `sockets.is_there`.
        """
        while True:
            began = time.monotonic()
            reason = await self._round()
            self._on_event("the registration of the DRA driver has ended, starting over", {"reason": reason})
            if time.monotonic() - began < self.timings.retry:
                await asyncio.sleep(self.timings.retry)

    async def _round(self) -> str:
        """Serve once and watch; return the reason for the end."""
        directories = self._directories
        directories.prepare()
        registration, endpoint = directories.new_sockets()
        self._endpoint, self._refusal = endpoint, ""
        servicer = self._services = self._servicer()
        servicer.streams_changed = self._look
        services, entry = aio.server(options=_OPTIONS), aio.server(options=_OPTIONS)
        servicer.register(services)
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, entry)
        changed = asyncio.Event()
        try:
            with watching(directories.registry, changed):
                for server, path in ((services, endpoint), (entry, registration)):  # who is found has to serve already
                    try:
                        server.add_insecure_port(f"unix:{path}")
                        await server.start()
                    except RuntimeError as error:
                        return f"listening on {path}: {error}"
                self._entry = registration
                return await self._watch(servicer, (registration, endpoint), changed)
        finally:
            self._entry = self._services = None
            self._registered = False
            self._look()
            servicer.close()
            try:
                # The entry first: the kubelet forgets the driver when that socket goes. Before Python 3.12 the wait_for
                # within stop can swallow a cancellation; gather raises it.
                await asyncio.gather(entry.stop(None))
                await asyncio.gather(services.stop(self.timings.stop))
            finally:
                await asyncio.gather(entry.stop(None), services.stop(None))
                for path in (registration, endpoint):
                    with contextlib.suppress(OSError):
                        path.unlink()

    async def _watch(self, servicer: DraServicer, paths: tuple[Path, Path], changed: asyncio.Event) -> str:
        """Return why the round is over, once it is."""
        were = [sockets.identity(path) for path in paths]
        silent_since: float | None = None
        while True:
            await within(self.timings.poll, changed.wait())
            changed.clear()
            for path, was in zip(paths, were, strict=True):
                if was is None or sockets.identity(path) != was:  # it may have gone before we looked for the first time
                    return f"the socket {path.name} was removed"
            now = time.monotonic()
            if not servicer.deserted:
                silent_since = None
            elif silent_since is None:
                silent_since = now
            elif now - silent_since >= self.timings.silence:
                return "the kubelet stopped listening to the health of devices"

    def _look(self) -> None:
        reached = self._registered and self._services is not None and not self._services.deserted
        self.reached.change(reached)

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
            self._on_event("the kubelet does not register the DRA driver", {"why": self._refusal})
        else:
            self.registrations += 1
            self._on_event("the DRA driver is registered", {"driver": DRIVER})
        self._look()
        return pb.RegistrationStatusResponse()

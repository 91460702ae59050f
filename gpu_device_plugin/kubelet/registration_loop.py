"""Keep device plugins registered, in rounds: prepare, serve, register, watch, tear down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from grpc import aio

from gpu_device_plugin.aio.directory_watch import watching
from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.calls import NotRegisteredError, answers, register

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.kubelet.servicer import PluginServicer

_SERVER_OPTIONS = (
    # GetPreferredAllocation sends every free ID, twice at most: 4,000 are 192 KB. A million would take 245 MiB.
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class RegistrationTimings:
    """Intervals and timeouts of the loop, in seconds."""

    poll: float = 1.0
    """Interval between checks of the sockets; inotify usually reports changes sooner."""
    stream_grace: float = 5.0
    """How long a registered resource may have no ListAndWatch stream. The kubelet never redials by itself."""
    retry_first: float = 0.2
    retry_most: float = 15.0
    self_check: float = 10.0
    """Interval between calls to our own sockets, which detect a server that no longer accepts connections."""
    stop: float = 1.0
    """Grace period for calls in flight when a server stops."""


@dataclass(slots=True)
class _Outage:
    """How long the kubelet has not listened to a resource, in seconds."""

    total: float = 0.0
    since: float | None = None

    def streams_changed(self, streams: int) -> None:
        now = time.monotonic()
        if streams == 0 and self.since is None:
            self.since = now
        elif streams and self.since is not None:
            self.total += now - self.since
            self.since = None

    def seconds(self) -> float:
        return self.total + (0.0 if self.since is None else time.monotonic() - self.since)


@dataclass(slots=True)
class _Served:
    resource: Resource
    servicer: PluginServicer
    server: aio.Server
    socket: Path
    identity: sockets.Identity | None
    registered: bool = False
    streamless_since: float | None = None


class RegistrationEvent(StrEnum):
    """The steps of a registration, for the log and the metrics."""

    REGISTERED = "registered"
    NOT_REGISTERED = "not registered, trying again"
    OVER = "registration ended, starting over"
    NO_DIRECTORY = "the device-plugin directory is missing, waiting"


class RegistrationOverError(Exception):
    """This registration has ended; the message gives the reason."""


class RegistrationLoop:
    """Serves all resources of a node, with one registration after another.

    Probes and metrics read `unmet`, `registrations` and `outages`.
    """

    def __init__(
        self,
        directory: Path,
        resources: Callable[[], Sequence[Resource]],
        servicer: Callable[[Resource], PluginServicer],
        prepare: Callable[[], Awaitable[None]],
        on_event: Callable[[RegistrationEvent, dict[str, object]], None],
        *,
        timings: RegistrationTimings | None = None,
    ) -> None:
        """Serve `resources` in `directory`, the kubelet's; more may come later, see `serve_more`, and none goes.

        `servicer` makes a new servicer of a resource for every registration. `prepare` runs before each: no resource
        is registered then, so the kubelet cannot allocate through us, and its records are complete. `on_event` is
        called with every event and its details, for the log.
        """
        self._directory = directory
        self._wanted = resources
        self._resources: Sequence[Resource] = ()
        self._servicer = servicer
        self._more = asyncio.Event()
        self._prepare = prepare
        self._on_event = on_event
        self.timings = timings or RegistrationTimings()
        """May be replaced at any time."""
        self._served: list[_Served] = []
        self._answering = True
        """Whether our sockets answered when we last called them; True before that."""
        self._directory_missing = False
        self._rounds = 0
        self.registrations: dict[str, int] = {}
        """How often each resource was registered."""
        self._outages: dict[str, _Outage] = {}
        self._take_over_resources()

    def outages(self) -> dict[str, tuple[bool, float]]:
        """Return for each resource whether the kubelet listens, and the total seconds in which it did not."""
        return {name: (outage.since is None, outage.seconds()) for name, outage in self._outages.items()}

    def serve_more(self) -> None:
        """Serve and register the resources that have come since, without a new registration of the others."""
        self._more.set()

    def _take_over_resources(self) -> Sequence[Resource]:
        """Take over the resources to serve; return those that have come since."""
        new = [resource for resource in self._wanted() if resource.name not in self.registrations]
        for resource in new:
            self.registrations[resource.name] = 0
            self._outages[resource.name] = _Outage(since=time.monotonic())
        self._resources = (*self._resources, *new)
        return new

    @property
    def listener(self) -> int | None:
        """A number for the kubelet process that listens to every resource; None while there is none.

        It identifies one kubelet process: a process that ends closes its streams, and no other process opens streams in
        the same round.
        """
        return None if self.unmet() else self._rounds

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why this node cannot serve pods yet, as sentences; empty if it can."""
        registered = {one.resource.name: one.servicer for one in self._served if one.registered}
        missing = [f"the device-plugin directory {self._directory} is missing"] if self._directory_missing else []
        for name in (resource.name for resource in self._resources):
            if name not in registered:
                missing.append(f"{name} is not registered with the kubelet")
            elif registered[name].streams == 0:
                missing.append(f"the kubelet does not listen to {name}")
        return tuple(missing)

    async def answer_ourselves(self) -> bool:
        """Call all our sockets as a client; return whether each answers.

        While nothing is served, as during a wait for the kubelet's directory or for what must be known before a
        registration, no new process could serve either: then return what our last own call found.
        """
        served = self._served
        answering = all([await answers(one.socket) for one in served])
        return answering if served and served is self._served else self._answering

    async def run(self) -> NoReturn:
        """Serve until cancelled; then, and between rounds, end the streams and remove our sockets.

        Raises:
            DirectoryGoneError: see `sockets.is_there`.
            DirectoryError: another instance took over the node, or the directory is unusable.
        """
        wait = 0.0
        while True:
            began = time.monotonic()
            reason = await self._round()
            self._on_event(RegistrationEvent.OVER, {"reason": reason})
            # Rounds that end at once must not follow each other in a busy loop.
            short = time.monotonic() - began < self.timings.retry_first * 10
            wait = min(max(wait * 2, self.timings.retry_first), self.timings.retry_most) if short else 0.0
            await asyncio.sleep(wait)

    async def _round(self) -> str:
        """Register once and watch; return the reason for the end."""
        self._rounds += 1
        await self._directory_there()
        changed, again = asyncio.Event(), asyncio.Event()
        over = asyncio.get_running_loop().create_future()
        try:
            with watching(self._directory, changed):
                await self._prepare()
                self._more.clear()
                self._take_over_resources()
                for resource in self._resources:
                    self._served.append(await self._serve(resource))
                async with asyncio.TaskGroup() as tasks:
                    parts = [
                        tasks.create_task(_until(over, lambda: self._watch(changed, again)), name="watch the sockets"),
                        tasks.create_task(_until(over, self._keep_checking), name="call our own sockets"),
                        tasks.create_task(_until(over, lambda: self._keep_registering(again)), name="register"),
                    ]
                    reason: str = await over
                    for part in parts:
                        part.cancel()
        except RegistrationOverError as error:
            return str(error)
        except sockets.DirectoryError as error:
            if sockets.is_there(self._directory):
                raise
            return f"the device-plugin directory was removed: {error}"
        finally:
            await self._tear_down()
        return reason

    async def _directory_there(self) -> None:
        while not sockets.is_there(self._directory):
            if not self._directory_missing:
                self._on_event(RegistrationEvent.NO_DIRECTORY, {"directory": str(self._directory)})
            self._directory_missing, self._answering = True, True  # what did not answer is gone with the directory
            await asyncio.sleep(self.timings.poll)
        self._directory_missing = False

    async def _serve(self, resource: Resource) -> _Served:
        kind, profile = resource.listing
        socket = sockets.new_socket(self._directory, f"{kind}-{profile}" if profile else kind)
        servicer = self._servicer(resource)
        servicer.streams_changed = self._outages[resource.name].streams_changed
        server = aio.server(options=_SERVER_OPTIONS)
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
        try:
            server.add_insecure_port(f"unix:{socket}")
            await server.start()
        except BaseException as error:
            # A server that failed to start leaves its socket behind when it is stopped.
            _remove(socket)
            await server.stop(None)
            if isinstance(error, RuntimeError):
                raise RegistrationOverError(f"listening on {socket}: {error}") from error
            raise
        return _Served(resource, servicer, server, socket, sockets.identity(socket))

    async def _keep_registering(self, again: asyncio.Event) -> NoReturn:
        while True:
            await self._register_all(again)
            await self._more.wait()
            self._more.clear()
            for resource in self._take_over_resources():
                self._served.append(await self._serve(resource))

    async def _register_all(self, again: asyncio.Event) -> None:
        await self._check()  # kubelets before 1.25 accept a registration without dialing the plugin first
        kubelet = self._directory / sockets.KUBELET_SOCKET
        wait, complaint, name = self.timings.retry_first, "", ""
        while True:
            try:
                for served in self._served:
                    if not served.registered:
                        name = served.resource.name
                        await register(kubelet, served.socket, name, served.servicer.options)
                        served.registered = True
                        self.registrations[name] += 1
                        self._on_event(RegistrationEvent.REGISTERED, {"resource": name})
            except NotRegisteredError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._on_event(RegistrationEvent.NOT_REGISTERED, {"resource": name, "why": complaint})
                await within(wait, again.wait())
                again.clear()
                wait = min(wait * 2, self.timings.retry_most)
            else:
                return

    async def _watch(self, changed: asyncio.Event, again: asyncio.Event) -> NoReturn:
        """Raise RegistrationOverError once the registration has ended; set `again` when an immediate retry may work."""
        kubelet = self._directory / sockets.KUBELET_SOCKET
        was = sockets.identity(kubelet)
        while True:
            await within(self.timings.poll, changed.wait())
            changed.clear()
            for served in self._served:
                if sockets.identity(served.socket) != served.identity:
                    raise RegistrationOverError(f"the socket of {served.resource.name} was removed")
                self._look_at_stream(served, time.monotonic())
            now = sockets.identity(kubelet)
            if now is not None and was is not None and now != was:
                raise RegistrationOverError("the kubelet was restarted")
            if was is None and now is not None:
                again.set()
            was = now or was

    def _look_at_stream(self, served: _Served, now: float) -> None:
        if served.servicer.streams or not served.registered:
            served.streamless_since = None
        elif served.streamless_since is None:
            served.streamless_since = now
        elif now - served.streamless_since >= self.timings.stream_grace:
            raise RegistrationOverError(f"the kubelet stopped listening to {served.resource.name}")

    async def _check(self) -> None:
        for served in self._served:
            self._answering = await answers(served.socket)
            if not self._answering:
                raise RegistrationOverError(f"the socket of {served.resource.name} does not answer")

    async def _keep_checking(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.timings.self_check)
            await self._check()

    async def _tear_down(self) -> None:
        ended, self._served = self._served, []
        for served in ended:
            served.servicer.close()
        try:
            await asyncio.gather(*(served.server.stop(self.timings.stop) for served in ended))
        finally:  # also after a cancellation during the wait for calls in flight, which are then cut off
            await asyncio.gather(*(served.server.stop(None) for served in ended))
            for served in ended:
                # grpcio usually has removed our socket; the path may belong to another instance now.
                if sockets.identity(served.socket) == served.identity:
                    _remove(served.socket)


def _remove(socket: Path) -> None:
    with contextlib.suppress(OSError):  # the next round, or the next instance, removes it or reports the error
        socket.unlink()


async def _until(over: asyncio.Future[str], work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it raises RegistrationOverError, and set its message as the result of `over`.

    The task must not fail with that error: up to Python 3.12, a task group that is cancelled while one of its tasks
    fails loses the cancellation, and a caller that stops us at that moment would wait for ever.
    """
    try:
        await work()
    except RegistrationOverError as error:
        if not over.done():
            over.set_result(str(error))

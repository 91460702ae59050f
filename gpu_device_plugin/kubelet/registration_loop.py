"""Keep device plugins registered: prepare, serve, register, watch, tear down, and the same again, for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from grpc import aio

from gpu_device_plugin.aio.watching import watching
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.registration import NotRegisteredError, answers, register

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.kubelet.servicer import PluginServicer

_SERVER_OPTIONS = (
    # GetPreferredAllocation sends every free ID: 10,000 are 481 KB, and grpcio's limit is 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
)


class DirectoryGoneError(Exception):
    """The device-plugin directory was deleted under a process that cannot see its successor; a restart can."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How patient the loop is, in seconds."""

    poll: float = 1.0
    """Between two looks at the sockets; inotify usually is quicker."""
    stream_grace: float = 5.0
    """How long a registered resource may be without a ListAndWatch stream. The kubelet never dials again by itself."""
    retry_first: float = 0.2
    retry_most: float = 15.0
    self_check: float = 10.0
    """Between two calls to our own sockets, which find a server that accepts nothing any more."""
    stop: float = 1.0
    """Grace for calls in flight when a server stops."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One resource and how to serve it."""

    resource: Resource
    servicer: Callable[[], PluginServicer]
    """A new servicer for every registration."""


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
    plugin: Plugin
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
    """Something made this registration worthless; the message says what."""


class RegistrationLoop:
    """All resources of a node, served by one registration after another.

    For probes and metrics there are `unmet`, `registrations` and `outages`.
    """

    def __init__(
        self,
        directory: Path,
        plugins: Sequence[Plugin],
        prepare: Callable[[], Awaitable[None]],
        on_event: Callable[[RegistrationEvent, dict[str, object]], None],
        timings: Timings | None = None,
    ) -> None:
        """Serve `plugins` in `directory`.

        Args:
            directory: the kubelet's device-plugin directory.
            plugins: what to serve.
            prepare: run before every registration, when nothing is registered: nothing can be allocated through us
                then, so that what the kubelet's records show is complete.
            on_event: called with every event and its details, for the log.
            timings: how patient to be.
        """
        self._directory = directory
        self._plugins = plugins
        self._prepare = prepare
        self._on_event = on_event
        self.timings = Timings() if timings is None else timings
        """May be replaced at any time."""
        self._served: list[_Served] = []
        self._rounds = 0
        self.registrations: dict[str, int] = {plugin.resource.name: 0 for plugin in plugins}
        """How often each resource was registered."""
        self._outages = {plugin.resource.name: _Outage(since=time.monotonic()) for plugin in plugins}

    def __repr__(self) -> str:
        return f"<RegistrationLoop in {self._directory}: {'; '.join(self.unmet()) or 'all registered'}>"

    def outages(self) -> dict[str, tuple[bool, float]]:
        """Return for each resource whether the kubelet listens, and for how many seconds in all it has not."""
        return {name: (outage.since is None, outage.seconds()) for name, outage in self._outages.items()}

    @property
    def listener(self) -> int | None:
        """A number for the kubelet process that listens to every resource; None while there is none.

        It stays the same only as long as the process does: one that ends takes its streams with it, and no other
        opens them again in the same round.
        """
        return None if self.unmet() else self._rounds

    def unmet(self) -> tuple[str, ...]:
        """Return what is missing for this node to serve pods, as sentences; empty when nothing is."""
        served = {one.plugin.resource.name: one for one in self._served}
        missing = []
        for plugin in self._plugins:
            one = served.get(plugin.resource.name)
            if one is None or not one.registered:
                missing.append(f"{plugin.resource.name} is not registered with the kubelet")
            elif one.servicer.streams == 0:
                missing.append(f"the kubelet does not listen to {plugin.resource.name}")
        return tuple(missing)

    async def answer_ourselves(self) -> bool:
        """Whether all sockets answer, seen from outside."""
        return bool(self._served) and all([await answers(served.socket) for served in self._served])

    async def run(self) -> NoReturn:
        """Serve until cancelled; then, and between two rounds, streams are ended and our sockets removed.

        Raises:
            DirectoryGoneError: only a restart of the process can help.
            DirectoryError: another instance took the node over, or the directory cannot be used.
        """
        wait = 0.0
        while True:
            began = time.monotonic()
            reason = await self._round()
            self._on_event(RegistrationEvent.OVER, {"reason": reason})
            # A round that ends as soon as it began would otherwise be followed by another at once, and so on.
            short = time.monotonic() - began < self.timings.retry_first * 10
            wait = min(max(wait * 2, self.timings.retry_first), self.timings.retry_most) if short else 0.0
            await asyncio.sleep(wait)

    async def _round(self) -> str:
        """Register once, and watch; return why that ended."""
        self._rounds += 1
        await self._directory_there()
        changed, again = asyncio.Event(), asyncio.Event()
        over = asyncio.get_running_loop().create_future()
        try:
            with watching(self._directory, changed):
                await self._prepared()
                for plugin in self._plugins:
                    self._served.append(await self._serve(plugin))
                async with asyncio.TaskGroup() as tasks:
                    parts = [
                        tasks.create_task(_until(over, lambda: self._watch(changed, again)), name="watch the sockets"),
                        tasks.create_task(_until(over, self._keep_checking), name="call our own sockets"),
                        tasks.create_task(_until(over, lambda: self._register_all(again)), name="register"),
                    ]
                    reason: str = await over
                    for part in parts:
                        part.cancel()
        except RegistrationOverError as error:
            return str(error)
        finally:
            await self._tear_down()
        return reason

    async def _prepared(self) -> None:
        try:
            await self._prepare()
        except sockets.DirectoryError as error:
            if sockets.links(self._directory) is not None:
                raise
            raise RegistrationOverError(f"the device-plugin directory was removed: {error}") from error

    async def _directory_there(self) -> None:
        reported = False
        while (links := sockets.links(self._directory)) is None:
            if not reported:
                self._on_event(RegistrationEvent.NO_DIRECTORY, {"directory": str(self._directory)})
                reported = True
            await asyncio.sleep(self.timings.poll)
        if links == 0:
            raise DirectoryGoneError(
                f"{self._directory} was deleted on the host, and this container sees only the old one; restarting it"
            )

    async def _serve(self, plugin: Plugin) -> _Served:
        socket = sockets.new_socket(self._directory, plugin.resource.kind)
        servicer = plugin.servicer()
        servicer.streams_changed = self._outages[plugin.resource.name].streams_changed
        server = aio.server(options=_SERVER_OPTIONS)
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
        try:
            server.add_insecure_port(f"unix:{socket}")
            await server.start()
        except BaseException as error:
            # A server that did not get as far as running leaves its socket behind when it is stopped.
            _remove(socket)
            await server.stop(None)
            if isinstance(error, RuntimeError):
                raise RegistrationOverError(f"listening on {socket}: {error}") from error
            raise
        return _Served(plugin, servicer, server, socket, sockets.identity(socket))

    async def _register_all(self, again: asyncio.Event) -> None:
        await self._check()  # kubelets before 1.25 take a registration before they look whether anybody answers
        kubelet = self._directory / sockets.KUBELET_SOCKET
        wait, complaint, name = self.timings.retry_first, "", ""
        while True:
            try:
                for served in self._served:
                    if not served.registered:
                        name = served.plugin.resource.name
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
        """End a registration that has become worthless; set `again` when it is worth trying to register at once."""
        kubelet = self._directory / sockets.KUBELET_SOCKET
        was = sockets.identity(kubelet)
        while True:
            await within(self.timings.poll, changed.wait())
            changed.clear()
            for served in self._served:
                if sockets.identity(served.socket) != served.identity:
                    raise RegistrationOverError(f"the socket of {served.plugin.resource.name} was removed")
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
            raise RegistrationOverError(f"the kubelet stopped listening to {served.plugin.resource.name}")

    async def _check(self) -> None:
        for served in self._served:
            if not await answers(served.socket):
                raise RegistrationOverError(f"the socket of {served.plugin.resource.name} does not answer")

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
        finally:  # also where we are cancelled while we wait for calls in flight, which are then cut off
            await asyncio.gather(*(served.server.stop(None) for served in ended))
            for served in ended:
                # grpcio usually has removed it; what stands at the path now may be no longer ours.
                if sockets.identity(served.socket) == served.identity:
                    _remove(served.socket)


def _remove(socket: Path) -> None:
    with contextlib.suppress(OSError):  # the next round, or the next instance, removes it or says why not
        socket.unlink()


async def _until(over: asyncio.Future[str], work: Callable[[], Awaitable[None]]) -> None:
    """Do this until it finds that the registration is over, and say so.

    Its task does not fail by that: up to Python 3.12 a task group that is cancelled while a task of it fails forgets
    that it was cancelled, and a caller that stops us at that moment would wait for ever.
    """
    try:
        await work()
    except RegistrationOverError as error:
        if not over.done():
            over.set_result(str(error))

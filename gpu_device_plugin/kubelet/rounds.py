"""Serve sockets to a kubelet, in rounds: prepare, serve, register, watch, tear down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

from grpc import aio

from gpu_device_plugin.aio.directory_watch import watching
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet.calls import answers

_SERVER_OPTIONS = (
    # GetPreferredAllocation sends every free ID, twice at most: 4,000 are 192 KB. A million would take 245 MiB.
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class RoundTimings:
    """Intervals and timeouts of the rounds, in seconds."""

    poll: float = 1.0
    """Interval between checks of the sockets; inotify usually reports changes sooner."""
    stream_grace: float = 5.0
    """How long a kubelet that has to listen to a stream may not listen."""
    retry_first: float = 0.2
    retry_most: float = 15.0
    self_check: float = 10.0
    """Interval between calls to our own sockets, which detect a server that no longer accepts connections."""
    stop: float = 1.0
    """Grace period for calls in flight when a server stops."""


class RegistrationEvent(StrEnum):
    """The steps of a registration, for the log and the metrics."""

    REGISTERED = "registered"
    NOT_REGISTERED = "not registered, trying again"
    OVER = "registration ended, starting over"
    NO_DIRECTORY = "the device-plugin directory is missing, waiting"
    NOT_SERVED = "claims cannot be served, trying again"


OnEvent: TypeAlias = "Callable[[RegistrationEvent, dict[str, object]], None]"
T = TypeVar("T")


class Streams:
    """The open streams of a servicer, by which it sends the newest value to the kubelet for as long as that listens."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self.open = 0
        """How many there are."""
        self.expected = False
        """The kubelet should listen to one."""
        self.changed: Callable[[int], None] = lambda _open: None
        """Called with the number of open streams whenever it changes."""

    @property
    def deserted(self) -> bool:
        """Whether a kubelet that should listen does not: it is not there, or does not know us (yet)."""
        return self.expected and not self.open

    def close(self) -> None:
        """End every stream: a stopping server otherwise waits for open streams for its whole grace period."""
        self._closing.set()

    @contextlib.asynccontextmanager
    async def of(self, values: Observable[T], repeat_s: float | None = None) -> AsyncIterator[AsyncGenerator[T]]:
        """Open a stream, for the time of the block; it yields as `Observable.until` does, until `close`."""
        self._count(1)
        try:
            async with contextlib.aclosing(values.until(self._closing, repeat_s)) as newest:
                yield newest
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.open += change
        self.changed(self.open)


class RegistrationOverError(Exception):
    """This registration has ended; the message gives the reason."""


@dataclass(slots=True, eq=False)
class Served:
    """A server at a socket."""

    name: str
    """Of what it serves, for messages."""
    server: aio.Server
    socket: Path
    identity: sockets.Identity | None
    call: Callable[[aio.Channel, float], Awaitable[object]]
    """Calls it as a kubelet would; see `calls.answers`."""
    streams: Streams | None
    """None: it has none, and the kubelet forgets us when its socket goes."""
    deserted_since: float | None = None


class RegistrationRounds:
    """Serves sockets in a directory of the kubelet's, with one registration after another."""

    def __init__(self, directory: Path, on_event: OnEvent, timings: RoundTimings) -> None:
        """Serve in `directory`; `on_event` is called with every event and its details, for the log."""
        self._directory = directory
        self._on_event = on_event
        self.timings = timings
        """May be replaced at any time."""
        self._served: list[Served] = []
        self._answering = True
        """Whether our sockets answered when we last called them; True before that."""
        self._obstacle: tuple[RegistrationEvent, dict[str, object]] | None = None
        """What the present round waits for before it can begin."""

    # --- What a loop does in its rounds -------------------------------------------------------------------------------

    def _find_obstacle(self) -> tuple[RegistrationEvent, dict[str, object]] | None:
        """Return what has to pass before a round can begin, and its details; None: nothing. Asked until it is None.

        Raises DirectoryGoneError, see `sockets.is_there`.
        """
        directory = self._directory
        return None if sockets.is_there(directory) else (RegistrationEvent.NO_DIRECTORY, {"directory": str(directory)})

    async def _begin(self) -> None:
        """Prepare, and serve with `_serve`. Raises DirectoryError: the directory is missing or unusable."""
        raise NotImplementedError

    async def _register(self) -> None:
        """Get registered, while the sockets are watched."""

    def _check_for_changes(self) -> None:
        """Look for what else may have changed. Raises RegistrationOverError."""

    def _ended(self) -> None:
        """Forget the round: its servers are about to stop."""

    # --- The rounds ---------------------------------------------------------------------------------------------------

    async def answer_ourselves(self) -> bool:
        """Call all our sockets as a client; return whether each answers.

        While nothing is served, as during a wait for the kubelet's directory or for what must be known before a
        registration, no new process could serve either: then return what our last own call found.
        """
        served = self._served
        answering = all([await answers(one.socket, one.call) for one in served])
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
        await self._wait_for_obstacle()
        changed = asyncio.Event()
        over = asyncio.get_running_loop().create_future()
        try:
            with watching(self._directory, changed):
                await self._begin()
                async with asyncio.TaskGroup() as tasks:
                    parts = [
                        tasks.create_task(_until(over, lambda: self._watch(changed)), name="watch the sockets"),
                        tasks.create_task(_until(over, self._keep_checking), name="call our own sockets"),
                        tasks.create_task(_until(over, self._register), name="register"),
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

    async def _wait_for_obstacle(self) -> None:
        while (obstacle := self._find_obstacle()) is not None:
            if obstacle != self._obstacle:
                self._on_event(*obstacle)
            self._obstacle, self._answering = obstacle, True  # what did not answer is gone with the directory
            await asyncio.sleep(self.timings.poll)
        self._obstacle = None

    async def _serve(
        self,
        name: str,
        socket: Path,
        add_to: Callable[[aio.Server], None],
        call: Callable[[aio.Channel, float], Awaitable[object]],
        streams: Streams | None = None,
    ) -> None:
        """Serve at a new socket what `add_to` adds to its server; for the rest see `Served`."""
        server = aio.server(options=_SERVER_OPTIONS)
        add_to(server)
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
        self._served.append(Served(name, server, socket, sockets.identity(socket), call, streams))

    async def _watch(self, changed: asyncio.Event) -> NoReturn:
        """Raise RegistrationOverError once the registration has ended."""
        while True:
            await wait_within(self.timings.poll, changed.wait())
            changed.clear()
            for served in self._served:
                # It may have gone before we looked for the first time.
                if served.identity is None or sockets.identity(served.socket) != served.identity:
                    raise RegistrationOverError(f"the socket of {served.name} was removed")
                self._look_at_stream(served, time.monotonic())
            self._check_for_changes()

    def _look_at_stream(self, served: Served, now: float) -> None:
        if served.streams is None or not served.streams.deserted:
            served.deserted_since = None
        elif served.deserted_since is None:
            served.deserted_since = now
        elif now - served.deserted_since >= self.timings.stream_grace:
            raise RegistrationOverError(f"the kubelet stopped listening to {served.name}")

    async def _check(self) -> None:
        for served in self._served:
            self._answering = await answers(served.socket, served.call)
            if not self._answering:
                raise RegistrationOverError(f"the socket of {served.name} does not answer")

    async def _keep_checking(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.timings.self_check)
            await self._check()

    async def _tear_down(self) -> None:
        ended, self._served = self._served, []
        self._ended()
        for served in ended:
            if served.streams is not None:
                served.streams.close()
        try:
            # Before Python 3.12 the wait_for within stop can swallow a cancellation; gather raises it.
            await asyncio.gather(*(served.server.stop(None) for served in ended if served.streams is None))
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

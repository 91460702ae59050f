"""The live stream of one reader: the whole cluster, then its changes, as server-sent events; and what readers view."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import msgspec

from gpu_device_plugin.aio.waiting import any_of, wait_within
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.web.callers import Caller, CallerScope
from gpu_device_plugin.programs.web.page_state import PARTS, PageState
from gpu_device_plugin.report.rules.overview_document import VERSION

MOST_NODES = 1000
"""The most nodes of one reader, and of all together."""


class Views:
    """What the reader of each open stream looks at, as far as the page says it."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Of each stream its user, and what is looked at."""
        self._order: tuple[str, ...] | None = ()

    def open(self, user: str) -> str:
        """Return a name for a new stream of a user. No two replicas give the same."""
        stream = secrets.token_hex(8)
        self._open[stream] = user, ()
        return stream

    def close(self, stream: str) -> None:
        """Forget a stream."""
        if self._open.pop(stream)[1]:
            self._order = None

    def show(self, stream: str, user: str, nodes: Collection[str]) -> bool:
        """Learn which nodes a reader looks at, those first that matter most to it; the rest of many is left out.

        Return whether there is such a stream of this user.
        """
        if stream not in self._open or self._open[stream][0] != user:
            return False
        self._open[stream] = user, tuple(nodes)[:MOST_NODES]
        self._order = None
        return True

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that anybody looks at, each once, the first of every reader before the second of any."""
        if self._order is None:
            in_turn = chain.from_iterable(zip_longest(*(nodes for _, nodes in self._open.values()), fillvalue=""))
            self._order = tuple(filter(None, dict.fromkeys(in_turn)))[:MOST_NODES]
        return self._order


_CHUNK = 128 << 10
"""Bytes that are written at once. A reader has to take each chunk within a time, and never more is kept for it."""

_MOST_UNSURE = 5
"""After so many intervals in which the API server did not say what a reader may see, its stream ends."""


class _EndedError(Exception):
    """A reader has other rights than its stream began with; its page opens another one."""


@dataclass(eq=False, repr=False)
class _Rights:
    _scope: CallerScope
    """What the reader may see."""
    _again: Callable[[], Awaitable[Caller | None]]
    _streams: Streams

    def __post_init__(self) -> None:
        self._confirmed_at = self._looked_at = time.monotonic()

    async def hold(self) -> None:
        """End the stream, if it is time to look, where a right has changed, the token is invalid, or nobody says.

        A reader may take its time for each chunk of an event, and for all of them longer than rights last.
        """
        if time.monotonic() < self._looked_at + self._streams.rights_s:
            return
        self._looked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._streams.confirm_s):
                caller = await self._again()
                if caller is None:
                    raise _EndedError
                same = await self._scope.still_holds(caller, self._streams.confirm_s / 2)
        except (ApiError, TimeoutError):
            # The page says that the API server is not heard. But it may answer all except whose token this is.
            if time.monotonic() - self._confirmed_at >= _MOST_UNSURE * self._streams.rights_s:
                raise _EndedError from None
            return
        if not same:
            raise _EndedError
        self._confirmed_at = time.monotonic()


@dataclass(eq=False, repr=False)
class Streams:
    """Writes streams. A slow reader gets fewer and larger changes; nothing is queued for it."""

    _page_state: PageState
    chunk: int = _CHUNK
    """Bytes written at once, or a node more; a reader has to take each chunk within a time."""
    pulse_s: float = 2.0
    between_changes_s: float = 0.5
    first_s: float = 5.0
    """How long the first event waits for the cluster to be read."""
    learn_s: float = 0.5
    """How long the first event waits to be told whose pods the reader may see. Later answers are looked at as often."""
    rights_s: float = 45.0
    """How often the reader's rights are looked at again."""
    confirm_s: float = 8.0
    """How long that may take. A right that was taken away lasts for both times and the one for which answers are
    remembered, which together are less than a minute and a half."""

    def __post_init__(self) -> None:
        self.views = Views()
        self._writing = asyncio.Semaphore(1)
        self.readers = 0
        """The number of open streams."""
        self._told: dict[str, int] = {}

    @property
    def told(self) -> int:
        """The last change of the board that every reader has taken; -1 while one has taken nothing."""
        marks = self._told.values()
        return min(marks, default=-1) if len(marks) == self.readers else -1

    async def events(
        self, caller: Caller, again: Callable[[], Awaitable[Caller | None]]
    ) -> AsyncGenerator[bytes, None]:
        """Return the events for a caller, until `again` finds its token not valid any more.

        Raises:
            ApiError: the API server did not say whether it may see nodes and all pods.
        """
        scope = CallerScope(caller)
        await scope.learn()
        return self._open(caller, scope, again)

    async def _open(
        self, caller: Caller, scope: CallerScope, again: Callable[[], Awaitable[Caller | None]]
    ) -> AsyncGenerator[bytes, None]:
        page_state = self._page_state
        self.readers += 1
        stream = self.views.open(caller.user)
        rights = _Rights(scope, again, self)
        try:
            await wait_within(self.first_s, self._until_complete())
            await wait_within(self.learn_s, self._learn(scope))
            mark, seen, known = page_state.mark.value, scope.seen, self._known(scope)
            async for chunk in self._one_by_one(self._whole(scope, stream)):
                yield chunk
                await rights.hold()
            self._told[stream] = mark
            pulse_at = time.monotonic() + self.pulse_s
            while True:
                # Answers outlast the waiting for them, which ends often, so that their pods are shown soon.
                pause_s, learning = (self.pulse_s, []) if self._known(scope) else (self.learn_s, [self._learn(scope)])
                await any_of(min(pause_s, pulse_at - time.monotonic()), page_state.mark.after(mark), *learning)
                await rights.hold()
                learned, knows = scope.seen - seen, self._known(scope)
                if page_state.mark.value > mark or learned or knows != known:
                    rewritten = PARTS if learned or knows != known else ()
                    since, mark, seen, known = mark, page_state.mark.value, scope.seen, knows
                    changes = self._changes(scope, since, learned, rewritten, stream)
                    async for chunk in self._one_by_one(changes):
                        yield chunk
                        await rights.hold()
                    self._told[stream] = mark
                    await asyncio.sleep(self.between_changes_s)
                if time.monotonic() >= pulse_at:
                    pulse_at = time.monotonic() + self.pulse_s
                    yield b'event: pulse\ndata: {"read":%b}\n\n' % self._read()
        except _EndedError:
            return
        finally:
            self.views.close(stream)
            self._told.pop(stream, None)
            self.readers -= 1

    def _known(self, scope: CallerScope) -> bool:
        """Return whether the API server has said whose pods a reader may see."""
        return scope.knows(self._page_state.namespaces)

    async def _learn(self, scope: CallerScope) -> None:
        """Ask about namespaces that are not known; what nothing is known of stays hidden."""
        try:
            await scope.learn(self._page_state.namespaces)
        except ApiError:
            await asyncio.sleep(self.pulse_s)

    async def _one_by_one(self, chunks: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of an event. Of all streams one writes at a time, and between two chunks others have a turn.

        Thousands of nodes may be written anew for each reader who may not see all pods, and hundreds may come at once.
        """
        while True:
            async with self._writing:
                await asyncio.sleep(0)
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def _changes(
        self, scope: CallerScope, since: int, learned: Collection[str], rewritten: Collection[str], stream: str
    ) -> Iterator[bytes]:
        """Return the event after the change `since`: the whole cluster for a reader who lags too far behind.

        `learned` are the namespaces whose pods are seen from now on; `rewritten` is written even if it has not changed.
        """
        names, parts = self._page_state.changed_since(since)
        if names is None or not scope.nodes:
            return self._whole(scope, stream)
        every = sorted({*names, *self._page_state.with_pods_of(learned)})
        there = [name for name in every if self._page_state.node(name) is not None]
        gone = msgspec.json.encode([name for name in every if self._page_state.node(name) is None])
        wanted = [part for part in PARTS if part in parts or part in rewritten]
        return self._chunks(b"event: change\ndata: {", scope, there, wanted, b',"gone":' + gone + b"}\n\n")

    async def _until_complete(self) -> None:
        while not self._page_state.complete:
            await self._page_state.mark.after(self._page_state.mark.value)

    def _read(self) -> bytes:
        return msgspec.json.encode({**self._page_state.watched.reading, "now": rfc3339(time.time())})

    def _whole(self, scope: CallerScope, stream: str) -> Iterator[bytes]:
        head = b'event: cluster\ndata: {"version":%d,' % VERSION
        names = self._page_state.names if scope.nodes else ()
        tail = b',"read":%b,"stream":"%b"}\n\n' % (self._read(), stream.encode())
        yield from self._chunks(head, scope, names, PARTS, tail)

    def _chunks(
        self, head: bytes, scope: CallerScope, names: Iterable[str], parts: Iterable[str], tail: bytes
    ) -> Iterator[bytes]:
        """Yield one event. Nodes that go away meanwhile are left out; those that change are as they are by then."""
        chunk, separator = [head, b'"nodes":['], b""
        size = 0
        for name in names:
            shown = self._page_state.node(name)
            if shown is None:
                continue
            document = self._page_state.document(shown, scope)
            chunk += (separator, document)
            separator = b","
            size += len(document)
            if size > self.chunk:
                yield b"".join(chunk)
                chunk, size = [], 0
        chunk.append(b"]")
        chunk += [b',"%b":' % part.encode() + msgspec.json.encode(self._page_state.part(part, scope)) for part in parts]
        yield b"".join([*chunk, tail])

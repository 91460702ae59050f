"""Keep a store equal to all objects of one kind, by lists and a watch, whatever happens to the API server."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.cluster.api import UnreadableObjectError, read_version, version_number
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import ApiError, Call, GoneError, UnavailableError
from gpu_device_plugin.cluster.store import Versioned

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from gpu_device_plugin.cluster.api import Kind, WatchEvent
    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.cluster.store import Store

_log = logging.getLogger(__name__)

_AT_ONCE_S = 1.0
"""A watch that ends sooner, and with nothing in it, was not one (client-go's rule)."""
_SHORT_WATCH_S = 3
"""The API server sends a bookmark 2 s before the end of a watch, and none in one of 2 s (measured with 1.36)."""

T = TypeVar("T", bound=Versioned)


@dataclass(frozen=True, slots=True)
class ReflectorTiming:
    """When a reflector tries again, in seconds."""

    first_retry_s: float = 0.2
    longest_retry_s: float = 10.0
    check_s: float = 600.0
    """After about so long the store is made equal to a new list, in case an event never came."""
    patience_s: float = 0.3
    """How long the watch may take to come as far as a list, or as somebody asks, before a list is believed instead."""
    long_list_s: float = 1.0
    """A list that takes longer is not asked for lightly."""
    slice_s: float = 0.002
    """After so long at a stretch the event loop gets a turn."""


DEFAULT_TIMING = ReflectorTiming()


class Reflector(Generic[T]):
    """All objects of one kind in the cluster, or those that a field selector names, followed for a store.

    The watch tells what happens; one that breaks is continued where it was, however long ago. Lists tell where it
    begins: at first, after the server has forgotten since where we want to go on (410), and every now and then beside
    the running watch. A list costs the followers nothing: what the watch told meanwhile is laid over it, and what it
    tells later is only replayed up to the version of that list.

    A list of all objects is the newest state and comes in pages. One of "whatever the server has at hand" (version 0)
    would be cheaper for it, but comes in one piece whatever limit is asked for: a gigabyte for 100,000 pods. A selected
    list is small, and the newest state of it would cost the server a reading of all objects from etcd: there the first
    is of what is at hand, and later ones are of no less than we know.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        read: Callable[[msgspec.Raw], T | None],
        store: Store[T],
        *,
        fields: str = "",
        what: str = "",
        timing: ReflectorTiming = DEFAULT_TIMING,
    ) -> None:
        """Follow the objects of `kind`.

        Args:
            client: its `Timing.watch_s` and `silence_s` decide how soon a dead connection is noticed.
            kind: what to follow.
            read: reduces an object to what is kept of it; called once for each event and each entry of a list. None:
                not ours, and never will be nor ever was. UnreadableObjectError is counted, and the object skipped.
            store: the only place where the objects are kept.
            fields: field selector; empty: all objects.
            what: how messages call them; empty: as the kind is called.
            timing: when to try again.
        """
        self._client = client
        self._kind = kind
        self._read = read
        self._store = store
        self._fields = fields
        self._what = what or kind.plural
        self._timing = timing
        self._since = ""
        """Where the watch goes on; empty: a list must say where it begins."""
        self._floor = 0
        """What happened up to this version is in the store, however often the watch tells of it."""
        self._behind = False
        """The watch has not come as far as the last list."""
        self._at_hand = bool(fields)
        """A list need not be newer than what we know."""
        self._known: Latest[int] = Latest(0)
        self._watching: asyncio.Timeout | None = None
        """Can end the watch that is open."""
        self._recorded: list[tuple[int, bool, T]] | None = None
        """Version, whether deleted, and state of all that the watch told while a list is under way."""
        self._asked = 0
        """The newest version that somebody waits for."""
        self._list_wanted = asyncio.Event()
        self._list_took_s = 0.0
        self._short = False
        """The next watch is to be a short one."""
        self._bookmarked = True
        """Short watches are worth trying: the last one brought what it was for. Every check makes us hope again."""
        self._hurried = asyncio.Event()
        self._began = asyncio.Event()
        self._problems: dict[str, ApiError] = {}
        self._heard_at = -math.inf
        self.live = False
        """The watch is open as far as we know."""
        self.lists = 0
        """Lists that the store was made equal to."""
        self.unreadable = 0
        """Objects that are not what the API promises."""

    def __repr__(self) -> str:
        state = "live" if self.live else f"not live ({self.problem})"
        return f"<Reflector of {self._what} #{self.version}: {state}>"

    @property
    def synced(self) -> bool:
        """All objects were read at least once. Stays true while the API is away: what was known still counts."""
        return self._began.is_set()

    @property
    def version(self) -> int:
        """The store shows all that happened up to this version, and maybe more; 0 while a list must tell which."""
        return self._known.value

    @property
    def problem(self) -> ApiError | None:
        """Why there is no watch, or no list where one is due; None if nothing is wrong or nothing was tried."""
        return next(iter(self._problems.values()), None)

    @property
    def silent_s(self) -> float:
        """Seconds since the API server last said anything of this kind; infinite before the first time."""
        return time.monotonic() - self._heard_at

    def hurry(self) -> None:
        """Try again now, where we wait to do so: somebody else has seen what we have not."""
        self._hurried.set()
        if not self._since:
            self._list_wanted.set()

    async def wait_synced(self) -> None:
        """Return once all objects were read."""
        await self._began.wait()

    async def caught_up(self, timeout_s: float = 10.0) -> None:
        """Return when the store shows all that had happened when this was called, whoever did it.

        A watch is told of its own kind only, and a bookmark comes about once a minute: on a quiet kind it is not heard
        to have come as far as the cluster. So after a moment a list is asked for; or, where lists take long, first a
        watch so short that its bookmark comes at once.

        Raises:
            ApiError: the API server does not say which version is the newest.
            TimeoutError: the store is not as far within `timeout_s`; the message says why.
        """
        try:
            async with asyncio.timeout(timeout_s):
                before = self.version
                newest = await self._client.newest(self._kind)
                if newest < before:
                    self._forget()
                    self._asked = 0
                if not self.live:
                    self._hurried.set()
                elif await self._reaches(newest, min(self._timing.patience_s, self._list_took_s)):
                    return
                if await self._hears_of(newest):
                    return
                self._asked = max(self._asked, newest)
                self._list_wanted.set()
                await self._comes_to(newest)
        except TimeoutError:
            why = self.problem or "the API server is slow"
            raise TimeoutError(f"not all {self._what} are known as of now, after {timeout_s} s: {why}") from None

    async def _hears_of(self, version: int) -> bool:
        """Return whether, where a list takes long, a watch so short that its bookmark comes at once has come as far."""
        if self._list_took_s <= self._timing.long_list_s or self._watching is None or not self._bookmarked:
            return False
        self._bookmarked = False  # until it proves true, also if nobody waits so long
        self._short = True
        self._end_watch()
        self._bookmarked = await self._reaches(version, _SHORT_WATCH_S - 1)
        return self._bookmarked

    async def run(self) -> NoReturn:
        """Keep the store true. Ends only by cancellation."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_listing(), name=f"lists of {self._kind.plural}")
                await self._keep_watching()
        finally:
            self.live = False

    # Lists

    async def _keep_listing(self) -> NoReturn:
        """List when it is time to, and when the watch or a caller asks; nothing else lists."""
        backoff = Backoff(self._timing.first_retry_s, self._timing.longest_retry_s)
        due = time.monotonic()
        while True:
            await within(due - time.monotonic(), self._list_wanted.wait())
            self._list_wanted.clear()
            if time.monotonic() >= due:
                self._bookmarked = True
            elif self._since and self.version >= self._asked:
                continue  # the watch came as far meanwhile
            try:
                await self._list_anew()
            except ApiError as error:
                self._failed("listed", error)
                if _forgotten(error):
                    self._at_hand = False
                pause_s = backoff.next_s(error.retry_after_s)
            else:
                self._worked("listed")
                backoff.reset()
                pause_s = self._timing.check_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
            due = time.monotonic() + pause_s

    async def _list_anew(self) -> None:
        recorded: list[tuple[int, bool, T]] = []
        self._recorded = recorded
        before = self.version
        try:
            found, version = await self._list()
            if version < before:
                self._forget()
            if self.live and self.version >= self._asked:  # nobody is waiting
                # A deletion that the watch tells of has a last state; one that only a list shows has none.
                await self._reaches(version, self._timing.patience_s)
        finally:
            self._recorded = None
        if self._since:
            for changed_at, deleted, state in recorded:
                if changed_at > version:
                    found.pop(state.uid, None)
                    if not deleted:
                        found[state.uid] = state
            self._behind = version > version_number(self._since)
            self._floor = version = max(version, self.version)
            self._store.compare(tuple(found.values()))
            if not self._behind:
                self._store.level()
        else:
            self._since, self._floor = str(version), version
            self._store.replace(tuple(found.values()))
        self._at_hand = bool(self._fields)
        self.lists += 1
        self._began.set()
        self._known.set(version)

    async def _list(self) -> tuple[dict[str, T], int]:
        began = time.monotonic()
        found: dict[str, T] = {}
        version = 0
        turn = _Turn(self._timing.slice_s)
        since = str(self.version) if self._at_hand else ""
        async for page in self._client.pages(self._kind, fields=self._fields, since=since):
            self._heard_at = time.monotonic()
            version = version_number(page.metadata.resource_version)
            for raw in page.items or ():
                try:
                    state = self._read(raw)
                except UnreadableObjectError as error:
                    self._complain(error)
                else:
                    if state is not None:
                        found[state.uid] = state
                await turn.given()
        self._list_took_s = time.monotonic() - began
        if not version:
            raise UnavailableError(Call("list", self._kind.plural, self._kind.group), "the list names no version")
        return found, version

    # The watch

    async def _keep_watching(self) -> NoReturn:
        backoff = Backoff(self._timing.first_retry_s, self._timing.longest_retry_s)
        while True:
            while not self._since:
                await self._known.after(self._known.version)
            try:
                await self._watch(backoff)
            except ApiError as error:
                self.live = False
                self._failed("followed", error)
                if _forgotten(error):
                    self._forget()
                self._hurried.clear()
                await within(backoff.next_s(error.retry_after_s), self._hurried.wait())

    def _forget(self) -> None:
        """Go on from a list: the server does not know our version, no more or not yet.

        Not yet is how it is after etcd was restored from a backup. A watch from a version of the future is accepted
        and stays silent, until the cluster has lived through as many versions again.
        """
        self._since = ""
        self._floor = 0
        self._behind = self._at_hand = False
        self.live = False
        self._end_watch()
        self._known.set(0)
        if self._recorded is not None:
            self._recorded.clear()
        self._list_wanted.set()

    def _end_watch(self) -> None:
        if self._watching is not None:
            self._watching.reschedule(0)
            self._watching = None

    async def _watch(self, backoff: Backoff) -> None:
        began, heard = time.monotonic(), False
        turn = _Turn(self._timing.slice_s)
        seconds, self._short = _SHORT_WATCH_S if self._short else None, False
        try:
            async with (
                asyncio.timeout(None) as self._watching,
                self._client.watch(self._kind, since=self._since, fields=self._fields, seconds=seconds) as events,
            ):
                self._worked("followed")
                self.live, self._heard_at = True, time.monotonic()
                async for event in events:
                    if not self._since:
                        return
                    heard = True
                    backoff.reset()
                    self._apply(event)
                    await turn.given()
        except TimeoutError:
            return  # ended by us
        finally:
            self._watching = None
        if not heard and time.monotonic() - began < _AT_ONCE_S:
            raise UnavailableError(Call("watch", self._kind.plural, self._kind.group), "the server ended it at once")

    def _apply(self, event: WatchEvent) -> None:
        self._heard_at = time.monotonic()
        try:
            state = self._read(event.object) if event.type in {"ADDED", "MODIFIED", "DELETED"} else None
            version = version_number(state.resource_version) if state is not None else read_version(event.object)
        except UnreadableObjectError as error:
            self._complain(error)
            return
        if not version:
            return  # no event that Kubernetes knows
        deleted = event.type == "DELETED"
        if state is not None and version > self._floor:
            if self._recorded is not None:
                self._recorded.append((version, deleted, state))
            (self._store.remove if deleted else self._store.put)(state)
        elif state is not None:
            self._store.replay(state, deleted=deleted)
        self._since = str(version)
        self._known.set(max(version, self._floor))
        if self._behind and version >= self._floor:
            self._behind = False
            self._store.level()

    # Both

    def _complain(self, error: UnreadableObjectError) -> None:
        if not self.unreadable:
            _log.warning("the API server sent one of the %s unreadable, it is skipped: %s", self._what, error)
        self.unreadable += 1

    async def _reaches(self, version: int, within_s: float) -> bool:
        return await within(within_s, self._comes_to(version))

    async def _comes_to(self, version: int) -> None:
        while self.version < version:
            await self._known.after(self._known.version)

    def _failed(self, what: str, error: ApiError) -> None:
        if type(self._problems.get(what)) is not type(error):
            log = _log.info if isinstance(error, GoneError) else _log.warning
            log("the %s are not %s: %s; trying again", self._what, what, error)
        self._problems[what] = error

    def _worked(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            _log.info("the %s are %s again", self._what, what)


def _forgotten(error: ApiError) -> bool:
    """Whether the server does not know our version, no more or not yet: see `Reflector._forget`."""
    return isinstance(error, GoneError) or "ResourceVersionTooLarge" in error.causes


class _Turn:
    """Lets others run now and then while there is no end of work."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._until = time.monotonic() + slice_s

    async def given(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + self._slice_s

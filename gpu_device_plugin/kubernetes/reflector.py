"""Keep a store equal to all objects of one kind, by lists and a watch, across failures of the API server."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import ahead, wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.kubernetes.client.answers import WatchEvent
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, GoneError, UnavailableError
from gpu_device_plugin.kubernetes.objects.decoding import (
    ObjectKind,
    UnreadableObjectError,
    read_version,
    version_number,
)
from gpu_device_plugin.kubernetes.store import Store, Versioned

if TYPE_CHECKING:
    import msgspec


_log = logging.getLogger(__name__)

_AT_ONCE_S = 1.0
"""A watch that ends sooner and without an event counts as failed (client-go's rule)."""
_SHORT_WATCH_S = 3
"""The API server sends a bookmark 2 s before the end of a watch, and none in one of 2 s (measured with 1.36)."""

T = TypeVar("T", bound=Versioned)


@dataclass(frozen=True, slots=True)
class ReflectorTiming:
    """Intervals and timeouts of a reflector, in seconds."""

    first_retry_s: float = 0.2
    longest_retry_s: float = 10.0
    check_s: float = 600.0
    """Resync: about this often the store is made equal to a new list, in case an event was lost."""
    patience_s: float = 0.3
    """How long the watch may take to reach the version of a list, or of a caller, before a list is used instead."""
    long_list_s: float = 1.0
    """A list that takes longer is avoided where a short watch can replace it."""
    slice_s: float = 0.002
    """After this time of uninterrupted work the event loop gets a turn."""


@dataclass(eq=False)
class Reflector(Generic[T]):
    """Follows all objects of one kind in the cluster, or those that a field selector matches, for a store.

    The watch reports events; a broken watch continues from its last version, however old. Lists give the version at
    which it begins: at first, after the server has dropped our version (410), and now and then beside the running
    watch. Such a list does not disturb the store's readers: events that the watch reported meanwhile are applied on top
    of it, and later events up to the version of the list are only replayed.

    A list of all objects is of the newest state and comes in pages. A list of any cached state (version 0) would be
    cheaper for the server, but it ignores the limit and comes in one piece: a gigabyte for 100,000 pods. A selected
    list is small, but its newest state would make the server read all objects from etcd: there the first list is of any
    cached state, and later ones are not older than the version that we know.
    """

    _client: Client
    """Its `Timing.watch_s` and `silence_s` determine how soon a dead connection is noticed."""
    _kind: ObjectKind
    _read: Callable[[msgspec.Raw], T | None]
    """Decodes the kept part of an object; called once for each event and each entry of a list. None: the object is
    irrelevant, always. UnreadableObjectError is counted, and the object skipped."""
    _store: Store[T]
    """The only place where the objects are kept."""
    _: KW_ONLY
    fields: str = ""
    """Field selector; empty: all objects."""
    namespace: str = ""
    """Only the objects in it; empty: those of all namespaces."""
    what: str = ""
    """The name of the objects in messages; empty: the kind's plural."""
    timing: ReflectorTiming = ReflectorTiming()

    def __post_init__(self) -> None:
        self.what = self.what or self._kind.plural
        self._since = ""
        """The version at which the watch continues; empty: a list must give it."""
        self._floor = 0
        """The store includes all events up to this version, even if the watch reports them again."""
        self._behind = False
        """The watch has not reached the version of the last list."""
        self._at_hand = bool(self.fields)
        """The next list may be of any cached state that is not older than our version."""
        self._known: Observable[int] = Observable(0)
        self._watching: asyncio.Timeout | None = None
        """Can end the open watch."""
        self._recorded: list[tuple[int, bool, T]] | None = None
        """Version, whether deleted, and state of each event of the watch during a list in progress."""
        self._asked = 0
        """The newest version that a caller waits for."""
        self._list_wanted = asyncio.Event()
        self._list_took_s = 0.0
        self._short = False
        """The next watch shall be a short one."""
        self._bookmarked = True
        """Short watches are worth trying: the last one brought its bookmark. Every resync sets this again."""
        self._hurried = asyncio.Event()
        self._began = asyncio.Event()
        self._problems: dict[str, ApiError] = {}
        self._heard_at = -math.inf
        self.live = False
        """The watch is open, as far as we know."""
        self.lists = 0
        """The number of lists applied to the store."""
        self.unreadable = 0
        """The number of objects that did not match their schema."""

    def __repr__(self) -> str:
        state = "live" if self.live else f"not live ({self.problem})"
        return f"<Reflector of {self.what} #{self.version}: {state}>"

    @property
    def synced(self) -> bool:
        """All objects were read at least once. Stays true while the API is unavailable: the cache still counts."""
        return self._began.is_set()

    @property
    def version(self) -> int:
        """The store includes all events up to this version, and maybe more; 0 until a list gives the version."""
        return self._known.value

    @property
    def problem(self) -> ApiError | None:
        """Why the watch or a due list failed; None if nothing failed or nothing was tried."""
        return next(iter(self._problems.values()), None)

    @property
    def silent_s(self) -> float:
        """Seconds since the API server's last answer or event for this kind; infinite before the first."""
        return time.monotonic() - self._heard_at

    def hurry(self) -> None:
        """Retry now instead of after the backoff: another source has shown a state that we lack."""
        self._hurried.set()
        if not self._since:
            self._list_wanted.set()

    async def wait_synced(self) -> None:
        """Return once all objects were read."""
        await self._began.wait()

    async def caught_up(self, timeout_s: float = 10.0) -> None:
        """Return when the store includes all changes made before this call, by any client.

        A watch reports only its own kind, and a bookmark comes about once a minute: without events of this kind, the
        watch does not show that it has reached the cluster's newest version. So after `patience_s` this requests a
        list; or, where lists take long, first a watch so short that its bookmark comes at once.

        Raises:
            ApiError: the API server did not return its newest version.
            TimeoutError: the store did not catch up within `timeout_s`; the message says why.
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
                elif await self._reaches(newest, min(self.timing.patience_s, self._list_took_s)):
                    return
                if await self._reaches_by_short_watch(newest):
                    return
                self._asked = max(self._asked, newest)
                self._list_wanted.set()
                await self._known.wait_until(lambda version: version >= newest)
        except TimeoutError:
            why = self.problem or "the API server is slow"
            raise TimeoutError(f"not all {self.what} are known as of now, after {timeout_s} s: {why}") from None

    async def _reaches_by_short_watch(self, version: int) -> bool:
        """Where lists take long, open a watch whose bookmark comes at once; return whether it reached `version`."""
        if self._list_took_s <= self.timing.long_list_s or self._watching is None or not self._bookmarked:
            return False
        self._bookmarked = False  # until the bookmark comes, also if the caller is cancelled before
        self._short = True
        self._end_watch()
        self._bookmarked = await self._reaches(version, _SHORT_WATCH_S - 1)
        return self._bookmarked

    async def run(self) -> NoReturn:
        """Keep the store current. Ends only by cancellation."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_listing(), name=f"lists of {self._kind.plural}")
                await self._keep_watching()
        finally:
            self.live = False

    # Lists

    async def _keep_listing(self) -> NoReturn:
        """List when a resync is due, and when the watch or a caller asks; no other method lists."""
        backoff = Backoff(self.timing.first_retry_s, self.timing.longest_retry_s)
        due = time.monotonic()
        while True:
            await wait_within(due - time.monotonic(), self._list_wanted.wait())
            self._list_wanted.clear()
            if time.monotonic() >= due:
                self._bookmarked = True
            elif self._since and self.version >= self._asked:
                continue  # the watch has reached that version meanwhile
            try:
                await self._list_anew()
            except ApiError as error:
                self._failed("listed", error)
                if _version_unknown(error):
                    self._at_hand = False
                pause_s = backoff.next_s(error.retry_after_s)
            else:
                self._worked("listed")
                backoff.reset()
                pause_s = self.timing.check_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
            due = time.monotonic() + pause_s

    async def _list_anew(self) -> None:
        recorded: list[tuple[int, bool, T]] = []
        self._recorded = recorded
        before = self.version
        try:
            found, version = await self._list()
            if version < before:
                self._forget()
            if self.live and self.version >= self._asked:  # no caller is waiting
                # A deletion event carries the last state of its object; a list only lacks the object.
                await self._reaches(version, self.timing.patience_s)
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
        self._at_hand = bool(self.fields)
        self.lists += 1
        self._began.set()
        self._known.set(version)

    async def _list(self) -> tuple[dict[str, T], int]:
        began = time.monotonic()
        found: dict[str, T] = {}
        version = 0
        turn = _Turn(self.timing.slice_s)
        since = str(self.version) if self._at_hand else ""
        pages = self._client.pages(self._kind, namespace=self.namespace, fields=self.fields, since=since)
        async with aclosing(ahead(pages)) as coming:
            async for page in coming:
                self._heard_at = time.monotonic()
                version = version_number(page.metadata.resource_version)
                for raw in page.items or ():
                    try:
                        state = self._read(raw)
                    except UnreadableObjectError as error:
                        self._count_unreadable(error)
                    else:
                        if state is not None:
                            found[state.uid] = state
                    await turn.given()
        self._list_took_s = time.monotonic() - began
        if not version:
            raise UnavailableError(Call("list", self._kind.plural, self._kind.group), "the list has no version")
        return found, version

    # The watch

    async def _keep_watching(self) -> NoReturn:
        backoff = Backoff(self.timing.first_retry_s, self.timing.longest_retry_s)
        while True:
            await self._known.wait_until(lambda _version: bool(self._since))
            try:
                await self._watch(backoff)
            except ApiError as error:
                self.live = False
                self._failed("followed", error)
                if _version_unknown(error):
                    self._forget()
                self._hurried.clear()
                await wait_within(backoff.next_s(error.retry_after_s), self._hurried.wait())

    def _forget(self) -> None:
        """Start over from a list: the server does not know our version any more, or not yet.

        "Not yet" happens after a restore of etcd from a backup. The server accepts a watch from a future version, but
        sends nothing until the cluster reaches that version again.
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
        turn = _Turn(self.timing.slice_s)
        seconds, self._short = _SHORT_WATCH_S if self._short else None, False
        try:
            async with (
                asyncio.timeout(None) as self._watching,
                self._client.watch(
                    self._kind, since=self._since, namespace=self.namespace, fields=self.fields, seconds=seconds
                ) as events,
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
            raise UnavailableError(
                Call("watch", self._kind.plural, self._kind.group), "the server ended the watch at once"
            )

    def _apply(self, event: WatchEvent) -> None:
        self._heard_at = time.monotonic()
        try:
            state = self._read(event.object) if event.type in {"ADDED", "MODIFIED", "DELETED"} else None
            version = version_number(state.resource_version) if state is not None else read_version(event.object)
        except UnreadableObjectError as error:
            self._count_unreadable(error)
            return
        if not version:
            return  # not an event of Kubernetes
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

    def _count_unreadable(self, error: UnreadableObjectError) -> None:
        if not self.unreadable:
            _log.warning("the API server sent an unreadable object among the %s, skipped: %s", self.what, error)
        self.unreadable += 1

    async def _reaches(self, version: int, within_s: float) -> bool:
        return await wait_within(within_s, self._known.wait_until(lambda known: known >= version))

    def _failed(self, what: str, error: ApiError) -> None:
        if type(self._problems.get(what)) is not type(error):
            log = _log.info if isinstance(error, GoneError) else _log.warning
            log("the %s are not %s: %s; trying again", self.what, what, error)
        self._problems[what] = error

    def _worked(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            _log.info("the %s are %s again", self.what, what)


def _version_unknown(error: ApiError) -> bool:
    """Return whether the server does not know our version, any more or yet: see `Reflector._forget`."""
    return isinstance(error, GoneError) or "ResourceVersionTooLarge" in error.causes


class _Turn:
    """Gives other tasks a turn now and then during long work."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._until = time.monotonic() + slice_s

    async def given(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + self._slice_s

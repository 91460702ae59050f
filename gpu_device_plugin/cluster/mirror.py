"""Know the pods of a node, and in which order the kubelet admits them, whatever happens to the API server."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import PODS, UnreadableObjectError, read_metadata
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import ApiError, Call, GoneError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import msgspec

    from gpu_device_plugin.cluster.api import PodReader, PodRecord, WatchEvent
    from gpu_device_plugin.cluster.client import Client

T = TypeVar("T")
_log = logging.getLogger(__name__)

_AT_ONCE_S = 1.0
"""A watch that ends sooner, and with nothing in it, was not one (client-go's rule)."""


@dataclass(frozen=True, slots=True)
class MirrorTiming:
    """When a mirror tries again, in seconds."""

    first_retry_s: float = 0.2
    longest_retry_s: float = 30.0
    check_s: float = 600.0
    """After about so long all pods are compared with a list, in case an event never came."""


DEFAULT_TIMING = MirrorTiming()


@dataclass(slots=True)
class _Check:
    """What is left of a comparison with a list until the watch has come as far as that list."""

    version: int = 0
    """Of the list; 0: there is nothing to learn."""
    unexplained: set[str] = field(default_factory=set)
    """Pods in which the list differed, and of which the watch has said nothing so far."""
    unordered: set[str] = field(default_factory=set)
    """Pods new in the list, ordered by age. They are not shown until the watch has told their order, or has passed."""


class PodMirror:
    """The pods bound to one node, kept current by a list and a watch.

    `pods` is ordered by admission: a pod takes its place when it is first seen bound to its node. A watch tells this in
    the order of the bindings; pods first seen in one list are ordered by age, then by name. That is why a broken watch
    is continued where it was, however long ago, and a new list is made only if the server has forgotten since.
    """

    def __init__(
        self, client: Client, reader: PodReader, *, node: str = "", timing: MirrorTiming = DEFAULT_TIMING
    ) -> None:
        """Mirror the pods bound to `node`; without a node, all pods, bound or not."""
        self._client = client
        self._reader = reader
        self._fields = f"spec.nodeName={node}" if node else ""
        self._timing = timing
        self._pods: dict[str, PodRecord] = {}
        self._since = ""
        """The version up to which all is known; empty: list first."""
        self._list_since = "0"
        """How old a list may be: ``0`` as old as it likes, empty not at all."""
        self._check = _Check()
        self._check_at = 0.0
        self._hurried = asyncio.Event()
        self._changes: Latest[Mapping[str, PodRecord]] = Latest(MappingProxyType({}))
        self.synced = False
        """All pods were read at least once. Stays true while the API is away: what was known still counts."""
        self.live = False
        """The watch is open as far as we know."""
        self.problem: ApiError | None = None
        """Why the watch is not open; None before the first attempt and while it is."""
        self.lists = 0
        """Lists to begin with, the first and those after the server forgot; without the checks in between."""
        self.missed = 0
        """Pods that only a check put right, though the watch should have."""
        self.ignored_limits = 0
        """Limits of ours that are no whole numbers."""
        self.unreadable = 0
        """Objects that are not what the API promises."""

    def __repr__(self) -> str:
        state = "live" if self.live else f"not live ({self.problem})"
        return f"<PodMirror {self._fields or 'of all pods'}: {len(self._pods)} pods, {state}>"

    @property
    def pods(self) -> Mapping[str, PodRecord]:
        """A snapshot of all pods by uid, in the order of their admission."""
        return self._changes.value

    @property
    def changes(self) -> Latest[Mapping[str, PodRecord]]:
        """Every snapshot that differs from the one before in more than resource versions; and the first list."""
        return self._changes

    async def wait_for(self, predicate: Callable[[Mapping[str, PodRecord]], T | None], timeout_s: float) -> T | None:
        """Return the first true result of `predicate` over the pods, now or later; None after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                async for pods in self._changes.values():
                    if found := predicate(pods):
                        return found
        except TimeoutError:
            pass
        return None

    async def run(self) -> NoReturn:
        """Keep the mirror true. Ends only by cancellation; owns the state that the other members show."""
        backoff = Backoff(self._timing.first_retry_s, self._timing.longest_retry_s)
        try:
            while True:
                try:
                    if not self._since:
                        await self._begin()
                    elif time.monotonic() >= self._check_at:
                        await self._compare()
                    await self._follow(backoff)
                except ApiError as error:
                    self._failed(error)
                    await self._pause(backoff.next_s(error.retry_after_s))
        finally:
            self.live = False

    def hurry(self) -> None:
        """Try again now, if we wait to do so: somebody else has seen what we have not."""
        self._hurried.set()

    async def _pause(self, seconds: float) -> None:
        self._hurried.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        except TimeoutError:
            pass

    def _failed(self, error: ApiError) -> None:
        if self.problem is None or type(self.problem) is not type(error):
            log = _log.info if isinstance(error, GoneError) else _log.warning
            log("the pods of this node are not followed: %s; trying again", error)
        self.live, self.problem = False, error
        # A server that does not know our version yet never will if etcd was restored from a backup.
        if isinstance(error, GoneError) or "ResourceVersionTooLarge" in error.causes:
            self._since = self._list_since = ""

    async def _begin(self) -> None:
        """Make the mirror equal to a new list and go on from there."""
        found, version = await self._list(self._list_since)
        changed, _ = self._adopt(found)
        hidden, self._check = self._check.unordered, _Check()
        self._since = version
        self.lists += 1
        if changed or hidden or not self.synced:
            self.synced = True
            self._publish()

    async def _compare(self) -> None:
        """Make the mirror equal to a new list, but go on from where we were.

        What happened in between comes once more, through the watch. It is not applied again: it says in which order
        the pods that the list brought were bound, and what else of the list the watch would have told us.
        """
        found, version = await self._list(self._since)
        changed, unordered = self._adopt(found)
        before = self._check
        self._check = _Check(_number(version), before.unexplained | changed, before.unordered | unordered)
        if changed:
            self._publish()
        self._check_done()

    async def _list(self, since: str) -> tuple[dict[str, PodRecord], str]:
        # Planned first: a list that fails must not keep us from watching.
        self._check_at = time.monotonic() + self._timing.check_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
        found: dict[str, PodRecord] = {}
        version = ""
        async for page in self._client.pages(PODS, fields=self._fields, since=since):
            for raw in page.items or ():
                pod = self._read(raw)
                if pod is not None:
                    found[pod.uid] = pod
            version = page.metadata.resource_version
        return found, version

    def _adopt(self, found: Mapping[str, PodRecord]) -> tuple[set[str], set[str]]:
        """Take over a list; return which pods it changed, and which of these are ordered by age for now."""
        known = self._pods
        kept = {uid: found[uid] for uid, pod in known.items() if uid in found and found[uid].node_name == pod.node_name}
        others = (pod for uid, pod in found.items() if uid not in kept)
        by_age = {pod.uid: pod for pod in sorted(others, key=lambda pod: (pod.created, pod.name, pod.namespace))}
        self._pods = kept | by_age
        changed = {uid for uid, pod in kept.items() if known[uid] != pod}
        return changed | by_age.keys() | (known.keys() - found.keys()), set(by_age)

    async def _follow(self, backoff: Backoff) -> None:
        began, heard = time.monotonic(), False
        async with self._client.watch(PODS, since=self._since, fields=self._fields) as events:
            if self.problem is not None:
                _log.info("the pods of this node are followed again")
            self.live, self.problem = True, None
            async for event in events:
                heard = True
                backoff.reset()
                self._apply(event)
        if not heard and time.monotonic() - began < _AT_ONCE_S:
            raise UnavailableError(Call("watch", PODS.plural), "the server ended the watch at once")

    def _apply(self, event: WatchEvent) -> None:
        try:
            version = read_metadata(event.object).resource_version
        except UnreadableObjectError as error:
            self._complain(error)
            return
        if event.type in {"ADDED", "MODIFIED", "DELETED"} and (pod := self._read(event.object)) is not None:
            if 0 < _number(version) <= self._check.version:
                self._learn(pod, bound=event.type != "DELETED" and pod.node_name != "")
            elif event.type == "DELETED":
                self._remove(pod.uid)
            else:
                self._put(pod)
        self._since = version or self._since
        self._check_done()

    def _put(self, pod: PodRecord) -> None:
        old = self._pods.get(pod.uid)
        if old is not None and old.node_name != pod.node_name:
            del self._pods[pod.uid]  # admitted now: its place is the last
        self._pods[pod.uid] = pod
        if old != pod:
            self._publish()

    def _remove(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._publish()

    def _learn(self, pod: PodRecord, *, bound: bool) -> None:
        """Learn from an event whose outcome a list has told already."""
        check = self._check
        check.unexplained.discard(pod.uid)
        if bound and pod.uid in check.unordered and pod.uid in self._pods:
            check.unordered.remove(pod.uid)
            # The next in the order of binding: behind those whose place is known, before those whose is not.
            known = {uid: one for uid, one in self._pods.items() if uid not in check.unordered and uid != pod.uid}
            self._pods = known | {pod.uid: self._pods[pod.uid]} | self._pods
            self._publish()

    def _check_done(self) -> None:
        if self._check.version and _number(self._since) >= self._check.version:
            if self._check.unexplained:
                self.missed += len(self._check.unexplained)
                _log.warning("a list of the pods put %d right of which no watch told", len(self._check.unexplained))
            unordered, self._check = self._check.unordered, _Check()
            if unordered:
                self._publish()

    def _read(self, raw: msgspec.Raw) -> PodRecord | None:
        try:
            pod, ignored = self._reader.read(raw)
        except UnreadableObjectError as error:
            self._complain(error)
            return None
        if ignored and pod.uid not in self._pods:
            self.ignored_limits += len(ignored)
            _log.warning("pod %s/%s: %s", pod.namespace, pod.name, "; ".join(ignored))
        return pod

    def _complain(self, error: UnreadableObjectError) -> None:
        if not self.unreadable:
            _log.warning("the API server sent an object that cannot be read, it is ignored: %s", error)
        self.unreadable += 1

    def _publish(self) -> None:
        shown = {uid: pod for uid, pod in self._pods.items() if uid not in self._check.unordered}
        self._changes.set(MappingProxyType(shown))


def _number(version: str) -> int:
    """Versions grow, and Kubernetes promises since 1.35 what was always so: they are numbers."""
    return int(version) if version.isascii() and version.isdigit() else 0

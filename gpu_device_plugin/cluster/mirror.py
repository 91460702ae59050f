"""Know the pods of a node, and in which order the kubelet admits them, whatever happens to the API server."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import PODS, UnreadableObjectError, read_metadata, same_but_version
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import ApiError, Call, GoneError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    resync_s: float = 600.0
    """After about so long all pods are listed again, in case an event never came."""


DEFAULT_TIMING = MirrorTiming()


class PodMirror:
    """The pods bound to one node, kept current by a list and a watch.

    `pods` is ordered by admission: a pod takes its place when it is first seen bound to its node. A watch tells this in
    the order of the bindings; pods first seen in one list are ordered by age, then by name.
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
        self._since = "0"
        self._list_at = 0.0
        self._changes: Latest[Mapping[str, PodRecord]] = Latest(MappingProxyType({}))
        self.synced = False
        """All pods were read at least once. Stays true while the API is away: what was known still counts."""
        self.live = False
        """The watch is open as far as we know."""
        self.problem: ApiError | None = None
        """Why the watch is not open; None before the first attempt and while it is."""
        self.lists = 0
        self.missed = 0
        """Differences that only a list told us, though the watch should have."""
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
                    if time.monotonic() >= self._list_at:
                        await self._list()
                    await self._follow(backoff)
                except ApiError as error:
                    self._failed(error)
                    await asyncio.sleep(backoff.next_s(error.retry_after_s))
        finally:
            self.live = False

    def _failed(self, error: ApiError) -> None:
        if self.problem is None or type(self.problem) is not type(error):
            log = _log.info if isinstance(error, GoneError) else _log.warning
            log("the pods of this node are not followed: %s; trying again", error)
        self.live, self.problem = False, error
        # 504 is what a server says that does not know our version yet, after a restore of etcd for example.
        if isinstance(error, GoneError) or error.status == 504:
            self._since, self._list_at = "", 0.0

    async def _list(self) -> None:
        found: dict[str, PodRecord] = {}
        since = self._since
        async for page in self._client.pages(PODS, fields=self._fields, since=since):
            for raw in page.items or ():
                pod = self._read(raw)
                if pod is not None:
                    found[pod.uid] = pod
            since = page.metadata.resource_version
        resync = self.lists > 0 and self._since not in {"", "0"}
        kept = {
            uid: found.pop(uid)
            for uid, pod in self._pods.items()
            if uid in found and found[uid].node_name == pod.node_name
        }
        pods = kept | {pod.uid: pod for pod in _by_age(found.values())}
        news = self._differences(pods)
        if resync and news:
            self.missed += news
            _log.warning("a list of the pods told %d changes that the watch had not", news)
        self._pods, self._since = pods, since
        self.lists += 1
        self._list_at = time.monotonic() + self._timing.resync_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
        if news or not self.synced:
            self.synced = True
            self._publish()

    def _differences(self, pods: Mapping[str, PodRecord]) -> int:
        changed = sum(uid not in self._pods or not same_but_version(self._pods[uid], pod) for uid, pod in pods.items())
        return changed + len(self._pods.keys() - pods.keys())

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
        if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            try:
                self._since = read_metadata(event.object).resource_version or self._since
            except UnreadableObjectError as error:
                self._complain(error)
            return
        pod = self._read(event.object)
        if pod is None:
            return
        self._since = pod.resource_version or self._since
        old = self._pods.get(pod.uid)
        if event.type == "DELETED":
            if self._pods.pop(pod.uid, None) is not None:
                self._publish()
            return
        if old is not None and old.node_name != pod.node_name:
            del self._pods[pod.uid]  # admitted now: its place is the last
        self._pods[pod.uid] = pod
        if old is None or not same_but_version(old, pod):
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
        self._changes.set(MappingProxyType(self._pods.copy()))


def _by_age(pods: Iterable[PodRecord]) -> list[PodRecord]:
    return sorted(pods, key=lambda pod: (pod.created, pod.name, pod.namespace))

"""Tell people what happened, as Kubernetes Events, without ever waiting for it or flooding anyone."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin.cluster.api import EVENTS, micro_time
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import TRANSIENT, ApiError, ConflictError, NotFoundError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.cluster.client import Client

_log = logging.getLogger(__name__)

CONTROLLER = "gpu-device-plugin"
"""Who tells, unless it is said otherwise; the admission policy on agents' Events names it."""

# Bytes; what the API accepts.
_LONGEST_NOTE = 1024
_LONGEST_WORD = 128


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


def about_node(name: str) -> About:
    """Return the reference to a node. Its name stands for its uid, which is what every `kubectl describe` looks for."""
    return About("Node", name, uid=name)


@dataclass(frozen=True, slots=True)
class _What:
    """Two happenings that are equal in this are told as one Event."""

    about: About
    reason: str
    action: str
    note: str
    warning: bool


@dataclass(slots=True)
class _Series:
    """How often something happened, and how much of that was told. Only the writer changes it."""

    name: str
    first: datetime
    last: datetime
    until: float
    """When, by the writer's clock, a repetition becomes an Event of its own."""
    count: int = 0
    told: int = 0
    exists: bool = False
    """On the API server."""


class EventWriter:
    """Posts Events in the background; equal ones become one Event with a count.

    At most `limit` different Events wait; the oldest is dropped for a new one. Beyond `varieties` different notes of
    one reason about one object, further ones count as the last of them. There is one request in `pace_s` at most, so
    that a storm of refusals on many nodes is none on the API server.
    """

    def __init__(
        self,
        client: Client,
        *,
        instance: str,
        controller: str = CONTROLLER,
        limit: int = 64,
        varieties: int = 10,
        series_s: float = 300.0,
        pace_s: float = 1.0,
        first_retry_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to write as `controller` on `instance` (the node). A series ends `series_s` after its last."""
        self._client = client
        self._instance = instance[:_LONGEST_WORD]
        self._controller = controller
        self._limit = limit
        self._varieties = varieties
        self._series_s = series_s
        self._pace_s = pace_s
        self._first_retry_s = first_retry_s
        self._clock = clock
        self._series: dict[_What, _Series] = {}
        self._queue: dict[_What, None] = {}  # those with something untold, the oldest first
        self._queued = asyncio.Event()
        self.dropped = 0
        """Happenings that nobody was told of."""

    def __repr__(self) -> str:
        return f"<EventWriter of {self._instance}: {len(self._queue)} waiting, {self.dropped} dropped>"

    def post(self, about: About, *, reason: str, note: str, action: str, warning: bool = False) -> None:
        """Have people told, soon; returns at once and never fails.

        Args:
            about: the object it happened to.
            reason: why, in one word for machines, ``UpperCamelCase``.
            note: what happened and what to do, for people; cut to 1024 bytes.
            action: what we did, in one word, ``UpperCamelCase``.
            warning: whether somebody should look at it.
        """
        now, moment = self._clock(), datetime.now(UTC)
        self._forget(now)
        what = self._folded(_What(about, reason[:_LONGEST_WORD], action[:_LONGEST_WORD], _cut(note), warning))
        series = self._series.get(what)
        if series is None:
            # The name is chosen before the first attempt, so that one whose answer was lost is not told twice.
            name = f"{about.name[:200].rstrip('-.')}.{secrets.token_hex(8)}"
            series = self._series[what] = _Series(name, moment, moment, now)
        series.count += 1
        series.last, series.until = moment, now + self._series_s
        self._queue.setdefault(what)
        if len(self._queue) > self._limit:
            self._drop(next(iter(self._queue)))
        self._queued.set()

    async def run(self) -> NoReturn:
        """Write what is posted. Ends only by cancellation; what waits then is lost."""
        backoff = Backoff(self._first_retry_s)
        problem: type[ApiError] | None = None
        while True:
            await self._queued.wait()
            what = next(iter(self._queue))
            series = self._series[what]
            count = series.count
            try:
                await self._tell(what, series)
            except ApiError as error:
                if type(error) is not problem:
                    _log.warning("an Event about %s %s is not written: %s", what.about.kind, what.about.name, error)
                problem = type(error)
                if isinstance(error, (*TRANSIENT, UnauthorizedError)):
                    await asyncio.sleep(backoff.next_s(error.retry_after_s))
                    continue
                self.dropped += count - series.told
            else:
                problem = None
                backoff.reset()
            series.told = count
            if what in self._queue:
                del self._queue[what]
                if series.count > count:  # it happened again meanwhile
                    self._queue[what] = None
            if not self._queue:
                self._queued.clear()
            await asyncio.sleep(self._pace_s)

    async def _tell(self, what: _What, series: _Series) -> None:
        if not series.exists:
            try:
                await self._create(what, series)
                return  # noqa: TRY300 - what follows is for the one that exists
            except ConflictError:  # it is ours: the answer to an earlier attempt was lost
                series.exists = True
        if not (repeated := _repeated(series)):
            return
        try:
            await self._client.patch(EVENTS, series.name, repeated, namespace=_namespace(what.about))
        except NotFoundError:  # the API server keeps Events for an hour, or less
            await self._create(what, series)

    async def _create(self, what: _What, series: _Series) -> None:
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": _namespace(what.about)},
            "eventTime": micro_time(series.first),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": what.action,
            "reason": what.reason,
            "note": what.note,
            "type": "Warning" if what.warning else "Normal",
            "regarding": {
                "apiVersion": "v1",
                "kind": what.about.kind,
                "name": what.about.name,
                "namespace": what.about.namespace,
                "uid": what.about.uid,
            },
            **_repeated(series),
        }
        await self._client.create(EVENTS, body, namespace=_namespace(what.about))
        series.exists = True

    def _folded(self, what: _What) -> _What:
        """Return what a happening is counted as."""
        if what in self._series:
            return what
        kin = [other for other in self._series if (other.about, other.reason) == (what.about, what.reason)]
        return kin[-1] if len(kin) >= self._varieties else what

    def _forget(self, now: float) -> None:
        over = [what for what, series in self._series.items() if series.until <= now and what not in self._queue]
        for what in over:
            del self._series[what]

    def _drop(self, what: _What) -> None:
        series = self._series[what]
        self.dropped += series.count - series.told
        series.told = series.count
        del self._queue[what]


def _namespace(about: About) -> str:
    return about.namespace or "default"  # where Events about objects of the cluster belong


def _repeated(series: _Series) -> dict[str, Any]:
    """Return the part of an Event that counts; the API refuses to count to one."""
    if series.count < 2:
        return {}
    return {"series": {"count": series.count, "lastObservedTime": micro_time(series.last)}}


def _cut(note: str) -> str:
    return note.encode()[:_LONGEST_NOTE].decode(errors="ignore")

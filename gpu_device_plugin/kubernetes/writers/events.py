"""Post Kubernetes Events in the background, without blocking the caller and without flooding the API server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import (
    TRANSIENT,
    ApiError,
    ConflictError,
    NotFoundError,
    UnauthorizedError,
)
from gpu_device_plugin.kubernetes.objects.decoding import EVENTS
from gpu_device_plugin.model.times import micro_time

_log = logging.getLogger(__name__)

CONTROLLER = "gpu-device-plugin"
"""The reporting controller; the admission policy on agents' Events names it."""

# Bytes; limits of the API.
_LONGEST_NOTE = 1024
_LONGEST_WORD = 128


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


def about_node(name: str) -> EventSubject:
    """Return the reference to a node. Its name replaces its uid, because `kubectl describe` searches for it."""
    return EventSubject("Node", name, uid=name)


@dataclass(frozen=True, slots=True)
class _EventKey:
    """Occurrences with equal keys become one Event."""

    about: EventSubject
    reason: str
    action: str
    note: str
    warning: bool


@dataclass(slots=True)
class _Series:
    """The occurrences of one Event, and how many of them were reported. Only the writer changes it."""

    name: str
    first: datetime
    last: datetime
    until: float
    """After this time, by the writer's clock, a repetition becomes a new Event."""
    count: int = 0
    reported: int = 0
    exists: bool = False
    """Whether the API server has the Event."""


@dataclass(eq=False)
class EventWriter:
    """Posts Events in the background; equal ones become one Event with a count.

    At most `limit` different Events wait; a new one then displaces the oldest. After `varieties` different notes of one
    reason about one object, further notes count as the last of them. At most one request is sent in `pace_s`, so that
    many refusals on many nodes do not flood the API server.
    """

    _client: Client
    _: KW_ONLY
    instance: str
    """The node, or another instance that reports."""
    limit: int = 64
    varieties: int = 10
    series_s: float = 300.0
    """A series ends so long after its last occurrence."""
    pace_s: float = 1.0
    first_retry_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    dropped: int = field(default=0, init=False)
    """Occurrences that were never reported."""

    def __post_init__(self) -> None:
        self._series: dict[_EventKey, _Series] = {}
        self._queue: dict[_EventKey, None] = {}  # series with unreported occurrences, the oldest first
        self._queued = asyncio.Event()

    def __repr__(self) -> str:
        return f"<EventWriter of {self.instance}: {len(self._queue)} waiting, {self.dropped} dropped>"

    def post(self, about: EventSubject, *, reason: str, note: str, action: str, warning: bool = False) -> None:
        """Queue an Event; returns at once and never fails.

        `reason` and our `action` are one word each in ``UpperCamelCase``; `note` has the cause and the remedy for
        people, and is cut to 1024 bytes. With `warning` a person should look at it.
        """
        now, moment = self.clock(), datetime.now(UTC)
        self._forget(now)
        note = note.encode()[:_LONGEST_NOTE].decode(errors="ignore")
        key = self._folded(_EventKey(about, reason[:_LONGEST_WORD], action[:_LONGEST_WORD], note, warning))
        series = self._series.get(key)
        if series is None:
            # The name is chosen before the first attempt, so that a retry after a lost answer makes no second Event.
            name = f"{about.name[:200].rstrip('-.')}.{secrets.token_hex(8)}"
            series = self._series[key] = _Series(name, moment, moment, now)
        series.count += 1
        series.last, series.until = moment, now + self.series_s
        self._queue.setdefault(key)
        if len(self._queue) > self.limit:
            self._drop(next(iter(self._queue)))
        self._queued.set()

    async def run(self) -> NoReturn:
        """Write the queued Events. Ends only by cancellation, which drops the queue."""
        backoff = Backoff(self.first_retry_s)
        problem: type[ApiError] | None = None
        while True:
            await self._queued.wait()
            key = next(iter(self._queue))
            series = self._series[key]
            count = series.count
            try:
                await self._write(key, series)
            except ApiError as error:
                if type(error) is not problem:
                    _log.warning("an Event about %s %s is not written: %s", key.about.kind, key.about.name, error)
                problem = type(error)
                if isinstance(error, (*TRANSIENT, UnauthorizedError)):
                    await asyncio.sleep(backoff.next_s(error.retry_after_s))
                    continue
                self.dropped += count - series.reported
            else:
                problem = None
                backoff.reset()
            series.reported = count
            if key in self._queue:
                del self._queue[key]
                if series.count > count:  # it happened again meanwhile
                    self._queue[key] = None
            if not self._queue:
                self._queued.clear()
            await asyncio.sleep(self.pace_s)

    async def _write(self, key: _EventKey, series: _Series) -> None:
        if not series.exists:
            try:
                await self._create(key, series)
                return  # noqa: TRY300 - the code below is for an existing Event
            except ConflictError:  # it is our own: the answer to an earlier attempt was lost
                series.exists = True
        if not (repeated := _repeated(series)):
            return
        try:
            await self._client.patch(EVENTS, series.name, repeated, namespace=_namespace(key.about))
        except NotFoundError:  # the API server keeps Events for an hour, or less
            await self._create(key, series)

    async def _create(self, key: _EventKey, series: _Series) -> None:
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": _namespace(key.about)},
            "eventTime": micro_time(series.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self.instance[:_LONGEST_WORD],
            "action": key.action,
            "reason": key.reason,
            "note": key.note,
            "type": "Warning" if key.warning else "Normal",
            "regarding": {
                "apiVersion": "v1",
                "kind": key.about.kind,
                "name": key.about.name,
                "namespace": key.about.namespace,
                "uid": key.about.uid,
            },
            **_repeated(series),
        }
        await self._client.create(EVENTS, body, namespace=_namespace(key.about))
        series.exists = True

    def _folded(self, key: _EventKey) -> _EventKey:
        """Return the key under which an occurrence counts."""
        if key in self._series:
            return key
        kin = [other for other in self._series if (other.about, other.reason) == (key.about, key.reason)]
        return kin[-1] if len(kin) >= self.varieties else key

    def _forget(self, now: float) -> None:
        over = [key for key, series in self._series.items() if series.until <= now and key not in self._queue]
        for key in over:
            del self._series[key]

    def _drop(self, key: _EventKey) -> None:
        series = self._series[key]
        self.dropped += series.count - series.reported
        series.reported = series.count
        del self._queue[key]


def _namespace(about: EventSubject) -> str:
    return about.namespace or "default"  # for Events about cluster-scoped objects


def _repeated(series: _Series) -> dict[str, Any]:
    """Return the Event's series; empty for one occurrence, because the API rejects a count of one."""
    if series.count < 2:
        return {}
    return {"series": {"count": series.count, "lastObservedTime": micro_time(series.last)}}

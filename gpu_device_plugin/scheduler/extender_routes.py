"""The extender's HTTP endpoints: the scheduler's calls, probes, metrics, and `/quiet` for kube-scheduler's shutdown.

What decides whether they may be answered is here too: whether the cluster is known, and which extender is active.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import JSON, Page, Request, Route, page_at
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT
from gpu_device_plugin.kubernetes.lease import holder_of
from gpu_device_plugin.kubernetes.writers.binder import PodRef
from gpu_device_plugin.scheduler import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from gpu_device_plugin.kubernetes.lease import Lease
    from gpu_device_plugin.kubernetes.reflector import Reflector
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.scheduler.binding import Binding
    from gpu_device_plugin.scheduler.controller_context import ControllerContext
    from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
    from gpu_device_plugin.scheduler.verbs import Verbs

    Watches = Mapping[str, Reflector[NodeRecord] | Reflector[Pod | OtherPod]]


_log = logging.getLogger(__name__)

PREFIX = "/gpushare-scheduler"
"""The same path as that of gpushare's extender."""

_LONGEST_FIELD = 600
"""Characters of one field in a log line."""
_TERM_S = 1.0
"""How long the holder of kube-scheduler's Lease is remembered. Another needs more than 10 s to take it."""
_READ_S = 2.0
"""Timeout of reading it."""


@dataclass(eq=False, repr=False)
class ExtenderRoutes:
    """Routes each request to the part that answers it."""

    _context: ControllerContext
    _verbs: Verbs
    _binding: Binding
    _readiness: Readiness

    def __post_init__(self) -> None:
        self.quiet = asyncio.Event()
        """Set once the extender is shutting down and sends no more bindings."""

    def for_scheduler(self) -> list[Route]:
        """Return the routes of the scheduler's address."""
        return [
            Route("POST", f"{PREFIX}/filter", self._verb("filter", self._verbs.filter)),
            Route("POST", f"{PREFIX}/prioritize", self._verb("prioritize", self._verbs.prioritize)),
            Route("POST", f"{PREFIX}/preempt", self._verb("preempt", self._verbs.preempt)),
            Route("POST", f"{PREFIX}/bind", self._bind),
            Route("GET", f"{PREFIX}/inspect", self._inspect),
            Route("GET", f"{PREFIX}/inspect/", self._inspect),
            page_at("/version", _version),
            *self._probes(),
        ]

    def for_monitoring(self) -> list[Route]:
        """Return the routes of the address for monitoring and the kubelet."""
        routes = [*self._probes(), page_at("/quiet", self._quiet)]
        if isinstance(self._context.metrics, m.PrometheusMetrics):
            routes.append(page_at("/metrics", self._context.metrics.page))
        return routes

    def _verb(self, name: str, answer: Callable[[bytes], bytes]) -> Callable[[Request], Awaitable[Page]]:
        async def answered(request: Request) -> Page:
            began = time.perf_counter()
            body = answer(request.body)
            self._context.metrics.took(m.VERBS, time.perf_counter() - began, name, "answered")
            return self._json(body)

        return answered

    def _json(self, body: bytes) -> Page:
        """Return a JSON page; closes the connection while not ready, as a Service only redirects new connections."""
        return Page(body, content_type=JSON, last=bool(self._readiness.unready()))

    async def _bind(self, request: Request) -> Page:
        """Answer bind with HTTP 200 even on failure: of any other status the scheduler shows only the number."""
        began = time.perf_counter()
        try:
            args = wire.read_binding(request.body)
            why = next(iter(self._readiness.unready()), "")
            why = why or await self._binding.bind(PodRef(args.namespace, args.name, args.uid), args.node)
            if why:
                said = {"pod": f"{args.namespace}/{args.name}", "node": args.node, "why": why}
                brief = {key: text[:_LONGEST_FIELD] for key, text in said.items()}  # the caller chose the names
                _log.info("a pod was not bound", extra=brief | {"once_per_s": 60})
        except wire.UnreadableRequestError as error:
            why = str(error)
        outcome = "refused" if why else "bound"
        self._context.metrics.count(m.BINDS, outcome)
        self._context.metrics.took(m.VERBS, time.perf_counter() - began, "bind", outcome)
        return self._json(wire.binding_result(why))

    async def _inspect(self, request: Request) -> Page:
        if unknown := self._readiness.unknown():
            return Page(wire.inspect_result([], unknown[0]), 503, JSON, last=True)
        return self._verbs.inspect(request.rest.strip("/"))

    def _probes(self) -> list[Route]:
        pages = {"/healthz": m.probe(m.alive), "/readyz": m.probe(self._ready), "/livez": m.probe(m.alive)}
        return [page_at(path, page) for path, page in pages.items()]

    async def _ready(self) -> tuple[str, ...]:
        return self._readiness.unready()

    async def _quiet(self) -> Page:
        """Answer once this extender is shutting down and sends no more bindings, or after a timeout.

        The kube-scheduler in the same pod waits for this answer before it releases its lease.
        """
        within_s = self._context.settings().bind_timeout_s + self._context.timings.quiet_s
        quiet = await wait_within(within_s, self.quiet.wait())
        return Page("quiet\n" if quiet else "this extender has not been asked to stop\n")


async def _version() -> Page:
    return Page(f"{__version__}\n")


@dataclass(eq=False, repr=False)
class Readiness:
    """The reasons why this extender is not ready, or not the active one. All are temporary but its shutdown."""

    _context: ControllerContext
    _watches: Watches
    _lease: Lease | None
    """None: this extender has no replicas."""
    shutting_down: bool = field(default=False, init=False)
    """The extender is shutting down, and accepts no new work."""

    def __post_init__(self) -> None:
        settings = self._context.settings()
        self._scheduler_lease = settings.namespace(SERVICE_ACCOUNT), settings.scheduler_lease
        """Namespace and name of that of the kube-scheduler beside this extender; without a name no other extender is
        there, or they elect the active one themselves."""
        self._identity = settings.holder()
        """The host name of this pod, with which kube-scheduler's own identity begins."""
        self._read: tuple[float, Hashable | None] | None = None
        self._followed_at: dict[str, float] = {}
        """By kind, when its watch was last without a problem, monotonic seconds."""

    @property
    def leading(self) -> bool:
        """Whether the lease allows this extender to act."""
        return self._lease is None or self._lease.leading

    @property
    def term(self) -> int:
        """A number that changes whenever the lease is acquired or lost."""
        return 0 if self._lease is None else self._lease.leader.version

    def record_watches(self) -> None:
        """Record which watches are current; to be called periodically."""
        now = self._context.clock()
        for what, watch in self._watches.items():
            if watch.live or watch.problem is None or what not in self._followed_at:
                self._followed_at[what] = now

    def unready(self) -> tuple[str, ...]:
        """Return why this extender is not ready to answer the scheduler; empty if it is."""
        shutdown = ("this extender is shutting down, another one takes over",) if self.shutting_down else ()
        return (*shutdown, *self.unknown(), *self._not_leading())

    def unknown(self) -> tuple[str, ...]:
        """Return for each kind why its objects are unknown or out of date; empty if all are current."""
        oldest = self._context.clock() - self._context.timings.unfollowed_s
        found = []
        for what, watch in self._watches.items():
            why = f": {watch.problem}" if watch.problem is not None else ""
            if not watch.synced:
                found.append(f"the cluster's {what} have not all been read yet{why}")
            elif why and not watch.live and self._followed_at.get(what, math.inf) < oldest:
                found.append(f"the cluster's {what} cannot be followed{why}")
        return tuple(found)

    def _not_leading(self) -> tuple[str, ...]:
        if self._lease is None or self._lease.leading:
            return ()
        if self._lease.problem is not None:
            return (f"whether this extender may lead is unknown: {self._lease.problem}",)
        return (f"another extender leads: {self._lease.holder or 'none yet'}",)

    async def active_term(self, within_s: float = _TERM_S) -> Hashable | None:
        """Return what stays equal for as long as no other extender can have been active; None: this one is not.

        Of several, that is the one whose kube-scheduler leads.

        The Lease was read at most `within_s` ago. Raises ApiError.
        """
        if self.unready():
            return None
        if not self._scheduler_lease[1]:
            return ("elected", self.term)
        now = self._context.clock()
        if self._read is None or now - self._read[0] > within_s:
            holder, transitions = await holder_of(self._context.client, *self._scheduler_lease, timeout_s=_READ_S)
            ours = holder.rpartition("_")[0] == self._identity
            self._read = now, (holder, transitions) if ours else None
        return self._read[1]

"""The extender's HTTP endpoints: the scheduler's calls, probes, metrics, and `/quiet` for kube-scheduler's shutdown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import JSON, Page, Request, Route, page_at
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubernetes.writers.binder import PodRef
from gpu_device_plugin.scheduler import wire
from gpu_device_plugin.scheduler.binding import Binding
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.leadership import Readiness
from gpu_device_plugin.scheduler.verbs import Verbs

_log = logging.getLogger(__name__)

PREFIX = "/gpushare-scheduler"
"""The same path as that of gpushare's extender."""

_LONGEST_FIELD = 600
"""Characters of one field in a log line."""


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
                self._verbs.not_bound(args.uid, args.node)
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

"""The HTTP endpoints of a program on a node: liveness, readiness, metrics, and what else it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio import low_memory_imports
from gpu_device_plugin.aio.http import STRANGERS, ListenError, Route, page_at, serving_routes
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import UsageError


@asynccontextmanager
async def serving_probes(
    address: Address | None,
    alive: m.Check,
    ready: m.Check,
    notes: Callable[[], Iterable[str]] = tuple,
    *,
    metrics: m.Metrics | None = None,
    routes: Iterable[Route] = (),
) -> AsyncIterator[None]:
    """Serve /healthz, /readyz with `notes`, /metrics if there are any, and these routes, while the block runs.

    Without an address nothing is served.

    Raises:
        UsageError: the address cannot be listened on.
    """
    routes = [page_at("/healthz", m.probe(alive)), page_at("/readyz", m.probe(ready, notes)), *routes]
    if isinstance(metrics, m.PrometheusMetrics):
        routes.append(page_at("/metrics", metrics.page))
    async with AsyncExitStack() as stack:
        if address is not None:
            low_memory_imports.import_aiohttp()
            try:
                await stack.enter_async_context(serving_routes(*address, routes, limits=STRANGERS))
            except ListenError as error:
                raise UsageError(f"http: {error}") from error
        yield

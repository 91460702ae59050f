"""The agent's HTTP endpoints: liveness, readiness, metrics, and the use of its GPUs as JSON."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import ListenError, serving
from gpu_device_plugin.core.contract.mpsfiles import MpsStatus
from gpu_device_plugin.core.contract.nodereport import USE_PATH
from gpu_device_plugin.core.model.shares import SHARES
from gpu_device_plugin.core.node.serving import Way
from gpu_device_plugin.core.telling.gauges import NodeMetrics
from gpu_device_plugin.hardware.beliefs import State
from gpu_device_plugin.programs import frugal
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from gpu_device_plugin.aio.http import Page
    from gpu_device_plugin.programs.node.agent import NodeAgent
    from gpu_device_plugin.settings.forms import Address


@asynccontextmanager
async def serving_probes(
    address: Address | None,
    alive: m.Check,
    ready: m.Check,
    notes: Callable[[], Iterable[str]] = tuple,
    *,
    metrics: m.Metrics | None = None,
    use: Callable[[], Awaitable[Page]] | None = None,
) -> AsyncIterator[None]:
    """Serve /healthz, /readyz with `notes`, and /metrics and /use if there are any, while the block runs.

    Without an address nothing is served.

    Raises:
        UsageError: the address cannot be listened on.
    """
    pages: dict[str, Callable[[], Awaitable[Page]]] = {"/healthz": m.probe(alive), "/readyz": m.probe(ready, notes)}
    if isinstance(metrics, m.PrometheusMetrics):
        pages["/metrics"] = metrics.page
    if use is not None:
        pages[USE_PATH] = use
    async with AsyncExitStack() as stack:
        if address is not None:
            frugal.import_aiohttp()
            try:
                await stack.enter_async_context(serving(address.host, address.port, pages))
            except ListenError as error:
                raise UsageError(f"http: {error}") from error
        yield


async def alive(agent: NodeAgent) -> tuple[str, ...]:
    """Return the faults that only a restart can resolve, as sentences."""
    serving = agent.equipment.there.is_set() and not agent.coexistence.others.value
    if agent.dra is not None and agent.ways.serving.value.way is Way.DRA:
        return () if await agent.dra.loop.answers_ourselves() else ("the DRA driver's socket does not answer",)
    return ("the agent's sockets do not answer",) if serving and not await agent.registration.answer_ourselves() else ()


async def ready(agent: NodeAgent) -> tuple[str, ...]:
    """Return the conditions that this node lacks to serve pods, as sentences."""
    if not agent.equipment.there.is_set():
        return (agent.equipment.why_none,)
    view = agent.hardware.view.value
    unseen = () if view.state is State.WATCHING else (view.sentence,)
    certain = agent.state.node.ledger.certain
    unread = () if certain else ("the kubelet's checkpoint cannot be read; see the log",)
    serving = agent.ways.serving.value
    claims = agent.dra if serving.way is Way.DRA else None
    unmet = agent.registration.unmet() if claims is None else claims.unmet()
    waits = (serving.waits,) if serving.closing else ()
    return (*unseen, *agent.coexistence.unmet(), *unread, *waits, *unmet)


def metrics_state(agent: NodeAgent) -> NodeMetrics:
    """Return the state of the node for the metrics."""
    return NodeMetrics(
        node=agent.state.node,
        use=agent.use_reports.now(),
        limits=agent.limiting.node,
        driver=agent.hardware.view.value.inventory.driver_version or "",
        fenced={offer.shared.gpu.uuid: len(offer.fenced) for offer in agent.advertiser.offers.get(SHARES, ())},
        limit_states=agent.verification.counts,
        containers_over=len(agent.over_use.excesses.value),
        streams=agent.registration.outages(),
        mps={
            uuid: uuid in agent.mps.gpus and agent.mps.gpus[uuid].status is MpsStatus.READY
            for uuid in agent.mps.wanted.gpus
        },
    )

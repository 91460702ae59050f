"""The programs' metrics, their exposition to Prometheus, and the pages of probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import Page
from gpu_device_plugin.model.gauges import Gauge, Gauges, Value

if TYPE_CHECKING:
    from prometheus_client import Metric


# --- Counters and histograms. Labels have few values: names of resources, RPCs, causes; never pods or sentences. -----

_RPC_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)
# A verb takes a millisecond or two, or a call to the API server; after 5 s the scheduler's own timeout ends it.
_VERB_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# A program that follows its file needs some seconds, one that has to end has half a minute to a minute.
_RETURN_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of events."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Duration(Count):
    """A histogram of durations, in seconds."""

    buckets_s: tuple[float, ...] = _RPC_BUCKETS_S


ALLOCATIONS = Count("gpushare_allocations_total", "Containers that were allocated devices.", ("resource",))
REFUSALS = Count("gpushare_refusals_total", "Containers that were refused, by reason.", ("resource", "reason"))
REGISTRATIONS = Count(
    "gpushare_kubelet_registrations_total", "Attempts to register with the kubelet.", ("resource", "outcome")
)
CHILD_RESTARTS = Count("gpushare_nvml_child_restarts_total", "Replacements of the process that calls NVML.", ("cause",))
HEALTH_CHANGES = Count("gpushare_gpu_health_changes_total", "Changes of a GPU's health.", ("to", "cause"))
XIDS = Count("gpushare_xids_total", "XID errors that the driver reported.", ("gpu", "code"))
MALFORMED_ANNOTATIONS = Count("gpushare_malformed_annotations_total", "Annotations on pods that could not be read.")
API_ERRORS = Count("gpushare_api_errors_total", "Failed calls to the Kubernetes API.", ("verb", "error"))
LEDGER_DRIFT = Count(
    "gpushare_ledger_drift_total",
    "Device IDs that differed between the agent's ledger and the kubelet's records.",
    ("direction",),
)
OVER_USE_EVICTIONS = Count(
    "gpushare_over_use_evictions_total",
    "Evictions of pods that used more GPU memory than they were granted, by outcome.",
    ("outcome",),
)
GPU_FAILURE_EVICTIONS = Count(
    "gpushare_gpu_failure_evictions_total", "Evictions of pods from failed GPUs, by outcome.", ("outcome",)
)
RETURNS = Count(
    "gpushare_memory_returns_total",
    "Containers that were asked to return borrowed GPU memory, by outcome.",
    ("outcome",),
)
BORROWER_EVICTIONS = Count(
    "gpushare_borrower_evictions_total",
    "Evictions of pods that did not return borrowed GPU memory in time, by outcome.",
    ("outcome",),
)
RPCS = Duration("gpushare_rpc_duration_seconds", "Time to answer the kubelet.", ("method",))

RETURNING = Duration(
    "gpushare_memory_return_seconds",
    "Time that containers took to return borrowed GPU memory once asked.",
    buckets_s=_RETURN_BUCKETS_S,
)
OF_AGENTS: Sequence[Count] = (
    *(ALLOCATIONS, REFUSALS, REGISTRATIONS, CHILD_RESTARTS, HEALTH_CHANGES, XIDS, MALFORMED_ANNOTATIONS, API_ERRORS),
    *(LEDGER_DRIFT, OVER_USE_EVICTIONS, GPU_FAILURE_EVICTIONS, RETURNS, BORROWER_EVICTIONS, RPCS, RETURNING),
)

MOVES = Count(
    "gpushare_extender_moves_total",
    "Moves of pods to other GPUs: evicted, or refused.",
    ("outcome",),
)
VERBS = Duration(
    "gpushare_extender_verb_duration_seconds",
    "Time to answer the scheduler.",
    ("verb", "outcome"),
    _VERB_BUCKETS_S,
)
VERDICTS = Count(
    "gpushare_extender_filter_verdicts_total", "Nodes that passed the filter verb, and why none did.", ("verdict",)
)
SAMPLE_MISSES = Count(
    "gpushare_extender_sample_misses_total",
    "Filter calls in which only a node outside kube-scheduler's sample had room, by what became of the pod.",
    ("outcome",),
)
BINDS = Count("gpushare_extender_binds_total", "Bind calls of the scheduler, by outcome.", ("outcome",))
DRIFT = Count(
    "gpushare_extender_drift_total",
    "Pods whose GPUs differed from the extender's ledger, by kind.",
    ("kind",),
)

RESIZES = Count(
    "gpushare_extender_resizes_total",
    "Answers to requests of running pods for guaranteed memory, by outcome.",
    ("outcome",),
)

IDLE_ACTIONS = Count(
    "gpushare_extender_idle_actions_total",
    "Actions on idle pods and their workloads, by requested action and outcome.",
    ("wish", "outcome"),
)

OF_EXTENDERS: Sequence[Count] = (
    *(VERDICTS, SAMPLE_MISSES, BINDS, DRIFT, RESIZES, MOVES, IDLE_ACTIONS),
    *(MALFORMED_ANNOTATIONS, API_ERRORS, VERBS),
)


# --- Counting, and the page ------------------------------------------------------------------------------------------


class Metrics:
    """The counters and histograms to which the rest of the program adds. These count nothing, without /metrics."""

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""


class PrometheusMetrics(Metrics):
    """Keeps counters and histograms, and serves them with the program's state as a page.

    Only here is prometheus_client imported: programs that serve no HTTP do without it.
    """

    def __init__(self, gauges: Callable[[], Gauges], series: Iterable[Count] = OF_AGENTS) -> None:
        """Begin at zero; `gauges` returns those of the program with their values, read as they are written."""
        import prometheus_client as library  # noqa: PLC0415

        library.disable_created_metrics()  # type: ignore[no-untyped-call]  # one more line for every series, which nobody reads
        self._registry = registry = library.CollectorRegistry()
        self._series: dict[str, Any] = {
            each.name: library.Histogram(each.name, each.help, each.labels, buckets=each.buckets_s, registry=registry)
            if isinstance(each, Duration)
            else library.Counter(each.name, each.help, each.labels, registry=registry)
            for each in series
        }
        library.ProcessCollector(registry=registry)
        self._gauges = gauges
        self._writing = asyncio.Lock()

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""
        self._of(what, labels).inc(times)

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""
        self._of(what, labels).observe(seconds)

    def _of(self, what: Count, labels: Sequence[str]) -> Any:
        series = self._series[what.name]
        return series.labels(*labels) if labels else series

    async def page(self) -> Page:
        """Return all metrics in Prometheus' text format.

        Thousands of lines take longer than a scheduler or a kubelet should wait for its answer, so others run after
        every few of them; and pages are made one after the other, however many clients ask for one.
        """
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest  # noqa: PLC0415

        async with self._writing:
            text = [generate_latest(self._registry).decode()]
            await asyncio.sleep(0)
            for gauge, values in chain([(BUILD, [((__version__,), 1)])], self._gauges()):
                for piece in family(gauge, values):
                    text.append(piece)
                    if len(piece) >= _LONG:
                        await asyncio.sleep(0)
            return Page("".join(text), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def family(gauge: Gauge, values: Iterable[Value]) -> Iterator[str]:
    """Yield a gauge with all its values as pieces of text, of at most `LINES_AT_ONCE` values each.

    `values` are read piece by piece.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415

    left, head = iter(values), 0
    while (piece := list(islice(left, LINES_AT_ONCE))) or not head:
        metric = (CounterMetricFamily if gauge.grows else GaugeMetricFamily)(
            gauge.name, gauge.help, labels=gauge.labels
        )
        for labels, value in piece:
            metric.add_metric([_sendable(text) for text in labels], value)
        text = generate_latest(_OneMetric(metric)).decode()
        yield text[head:]
        # HELP and TYPE stand before the first piece only.
        head = text.index("\n", text.index("\n") + 1) + 1


@dataclass(frozen=True, slots=True)
class _OneMetric:
    """All that the library asks of a collector."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)


def _sendable(text: str) -> str:
    """Replace lone surrogates, as JSON may hold them: they cannot be sent as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


LINES_AT_ONCE = 64
"""Lines in one piece of text: they take about half a millisecond."""
_LONG = 4096
"""Characters of text after which others run."""


BUILD = Gauge("gpushare_build_info", "The running version; always 1.", ("version",))


# --- Probes ----------------------------------------------------------------------------------------------------------

Check = Callable[[], Awaitable[Sequence[str]]]
"""Returns a sentence for every unmet condition; none: the check passes."""


async def alive() -> Sequence[str]:
    """Pass whenever the event loop turns, which is all that the liveness of a program needs."""
    return ()


def probe(check: Check, notes: Callable[[], Iterable[str]] = tuple) -> Callable[[], Awaitable[Page]]:
    """Make the page of a probe: 200 with ``ok`` and `notes`, or 503 with the unmet conditions, one per line."""

    async def page() -> Page:
        missing = await check()
        lines, status = (missing, 503) if missing else (("ok", *notes()), 200)
        return Page("\n".join(lines) + "\n", status=status)

    return page

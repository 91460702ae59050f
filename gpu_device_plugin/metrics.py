"""What the node agent counts and measures, and how that is shown to Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric


# --- What is counted. Labels take few values each: names of resources, RPCs, causes; never pods, never sentences. ----


@dataclass(frozen=True, slots=True)
class Count:
    """Something that happens now and then."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """Something that takes time."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


ALLOCATIONS = Count("gpushare_allocations_total", "Containers that were given devices.", ("resource",))
REFUSALS = Count("gpushare_refusals_total", "Containers that were refused, by reason.", ("resource", "reason"))
REGISTRATIONS = Count(
    "gpushare_kubelet_registrations_total", "Attempts to register with the kubelet.", ("resource", "outcome")
)
CHILD_RESTARTS = Count(
    "gpushare_nvml_child_restarts_total", "Replacements of the process that speaks to NVML.", ("cause",)
)
HEALTH_CHANGES = Count("gpushare_gpu_health_changes_total", "GPUs that became unhealthy or healthy.", ("to", "cause"))
XIDS = Count("gpushare_xids_total", "XID errors that the driver reported.", ("gpu", "code"))
MALFORMED_ANNOTATIONS = Count("gpushare_malformed_annotations_total", "Annotations on pods that could not be read.")
API_ERRORS = Count("gpushare_api_errors_total", "Failed calls to the Kubernetes API.", ("verb", "error"))
LEDGER_DRIFT = Count(
    "gpushare_ledger_drift_total", "Device IDs on which our books and the kubelet's differed.", ("direction",)
)
RPCS = Duration("gpushare_rpc_duration_seconds", "Time to answer the kubelet.", ("method",))

COUNTS = (
    ALLOCATIONS,
    REFUSALS,
    REGISTRATIONS,
    CHILD_RESTARTS,
    HEALTH_CHANGES,
    XIDS,
    MALFORMED_ANNOTATIONS,
    API_ERRORS,
    LEDGER_DRIFT,
)
DURATIONS = (RPCS,)

_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)


# --- What is shown as it stands. Asked for at every scrape, so it cannot be out of date. -----------------------------


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU, in shares."""

    uuid: str
    healthy: bool
    shares: int
    allocated: int
    unhealthy: int
    """Shares reported as unhealthy because the GPU is."""
    fenced: int
    """Shares reported as unhealthy because the GPU is in whole use."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """The kubelet's ListAndWatch stream for one resource."""

    resource: str
    up: bool
    without_s: float
    """Seconds, since the agent started, in which there was none."""


@dataclass(frozen=True, slots=True)
class State:
    """The node at one moment."""

    gpus: tuple[GpuState, ...] = ()
    streams: tuple[StreamState, ...] = ()


# --- The port and its two sides --------------------------------------------------------------------------------------


class Metrics(Protocol):
    """Where the rest of the program tells what happened."""

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a count; `labels` in the order of ``what.labels``."""

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a distribution; `labels` in the order of ``what.labels``."""


class NoMetrics:
    """Counts nothing: where nobody can ask, prometheus-client is not even imported (5 MB)."""

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Do nothing."""

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Do nothing."""


class PrometheusMetrics:
    """Keeps the counts in a registry of its own and shows them, with the state of the node, as a page."""

    def __init__(self, state: Callable[[], State]) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415 - 5 MB that an agent without /metrics does not pay

        self._registry = prometheus.CollectorRegistry()
        self._counters = {
            what: prometheus.Counter(what.name, what.help, what.labels, registry=self._registry) for what in COUNTS
        }
        self._histograms = {
            what: prometheus.Histogram(what.name, what.help, what.labels, registry=self._registry, buckets=_BUCKETS_S)
            for what in DURATIONS
        }
        # Memory, CPU time and open files of this process: the first thing to look at when an agent misbehaves.
        prometheus.ProcessCollector(registry=self._registry)
        self._registry.register(_StateCollector(state))

    def __repr__(self) -> str:
        return f"<PrometheusMetrics: {len(self._counters)} counts, {len(self._histograms)} durations>"

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a count; `labels` in the order of ``what.labels``."""
        counter = self._counters[what]
        (counter.labels(*labels) if labels else counter).inc(times)

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a distribution; `labels` in the order of ``what.labels``."""
        histogram = self._histograms[what]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    async def page(self) -> Page:
        """Return everything in Prometheus' text format."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415 - see __init__

        return Page(generate_latest(self._registry).decode(), content_type=CONTENT_TYPE_LATEST)


class _StateCollector:
    """Turns a `State` into metrics at the moment of a scrape."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not ask for a state that is not there yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield one family after the other."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - see PrometheusMetrics

        state = self._state()
        info = GaugeMetricFamily("gpushare_build_info", "The running version; always 1.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        gpus = GaugeMetricFamily("gpushare_gpus", "GPUs of this node by health.", labels=("health",))
        gpus.add_metric(("healthy",), sum(gpu.healthy for gpu in state.gpus))
        gpus.add_metric(("unhealthy",), sum(not gpu.healthy for gpu in state.gpus))
        yield gpus
        for name, text, value in _PER_GPU:
            family = GaugeMetricFamily(name, text, labels=("gpu",))
            for gpu in state.gpus:
                family.add_metric((gpu.uuid,), value(gpu))
            yield family
        up = GaugeMetricFamily("gpushare_stream_up", "1 while the kubelet listens to us.", labels=("resource",))
        without = CounterMetricFamily(
            "gpushare_without_stream_seconds", "Time in which the kubelet did not listen to us.", labels=("resource",)
        )
        for stream in state.streams:
            up.add_metric((stream.resource,), stream.up)
            without.add_metric((stream.resource,), stream.without_s)
        yield up
        yield without


_PER_GPU: tuple[tuple[str, str, Callable[[GpuState], float]], ...] = (
    ("gpushare_gpu_healthy", "1 while the GPU is healthy.", lambda gpu: gpu.healthy),
    ("gpushare_gpu_shares", "Shares that the GPU is cut into.", lambda gpu: gpu.shares),
    ("gpushare_gpu_shares_allocated", "Shares in use.", lambda gpu: gpu.allocated),
    ("gpushare_gpu_shares_unhealthy", "Shares not offered because the GPU is unhealthy.", lambda gpu: gpu.unhealthy),
    ("gpushare_gpu_shares_fenced", "Shares not offered because the GPU is in whole use.", lambda gpu: gpu.fenced),
)


# --- Probes ----------------------------------------------------------------------------------------------------------

Check = Callable[[], Awaitable[Sequence[str]]]
"""Returns a sentence for every condition that is not met; none is good."""


def probe(check: Check) -> Callable[[], Awaitable[Page]]:
    """Make the page of a probe: 200 with ``ok``, or 503 with what is missing, a line each."""

    async def page() -> Page:
        missing = await check()
        return Page("\n".join(missing) + "\n", status=503) if missing else Page("ok\n")

    return page

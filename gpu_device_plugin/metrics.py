"""The programs' metrics, their exposition to Prometheus, and the pages of probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import Page
from gpu_device_plugin.core.report.exposition import Gauge, family

if TYPE_CHECKING:
    from gpu_device_plugin.core.report.exposition import Gauges


# --- Counters and histograms. Labels have few values: names of resources, RPCs, causes; never pods or sentences. -----

_RPC_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)
# A verb takes a millisecond or two, or a call to the API server; after 5 s the scheduler's own timeout ends it.
_VERB_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of events."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """A histogram of durations, in seconds."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets_s: tuple[float, ...] = _RPC_BUCKETS_S


ALLOCATIONS = Count("gpushare_allocations_total", "Containers that were given devices.", ("resource",))
REFUSALS = Count("gpushare_refusals_total", "Containers that were refused, by reason.", ("resource", "reason"))
REGISTRATIONS = Count(
    "gpushare_kubelet_registrations_total", "Attempts to register with the kubelet.", ("resource", "outcome")
)
CHILD_RESTARTS = Count(
    "gpushare_nvml_child_restarts_total", "Replacements of the process that speaks to NVML.", ("cause",)
)
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
    OVER_USE_EVICTIONS,
    GPU_FAILURE_EVICTIONS,
)
DURATIONS = (RPCS,)

VERBS = Duration(
    "gpushare_extender_verb_duration_seconds",
    "Time to answer the scheduler.",
    ("verb", "outcome"),
    _VERB_BUCKETS_S,
)
VERDICTS = Count(
    "gpushare_extender_filter_verdicts_total", "Nodes that the filter verb judged, by verdict.", ("verdict",)
)
SAMPLE_MISSES = Count(
    "gpushare_extender_sample_misses_total",
    "Filter calls in which no node had room but one that kube-scheduler had not sampled, by what became of the pod.",
    ("outcome",),
)
BINDS = Count("gpushare_extender_binds_total", "Bind calls of the scheduler, by outcome.", ("outcome",))
DRIFT = Count(
    "gpushare_extender_drift_total",
    "Pods whose GPUs differed from the extender's ledger, by kind.",
    ("kind",),
)

EXTENDER_COUNTS = (VERDICTS, SAMPLE_MISSES, BINDS, DRIFT, MALFORMED_ANNOTATIONS, API_ERRORS)
EXTENDER_DURATIONS = (VERBS,)


# --- Counting, and the page ------------------------------------------------------------------------------------------


class Metrics:
    """The counters and histograms to which the rest of the program adds.

    These count nothing, for a program without /metrics; prometheus-client (5 MB) is not even imported.
    """

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""


class PrometheusMetrics(Metrics):
    """Keeps counters and histograms in a registry of its own, and serves them with the program's state as a page."""

    def __init__(
        self,
        gauges: Callable[[], Gauges],
        counts: Iterable[Count] = COUNTS,
        durations: Iterable[Duration] = DURATIONS,
    ) -> None:
        """Begin at zero; `gauges` returns those of the program with their values, read as they are written."""
        import prometheus_client as prometheus  # noqa: PLC0415 - 5 MB that an agent without /metrics does not pay

        # Else each counter had a series more, of the time at which it began.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        self._counters = {
            what: prometheus.Counter(what.name, what.help, what.labels, registry=self._registry) for what in counts
        }
        self._histograms = {
            what: prometheus.Histogram(
                what.name, what.help, what.labels, registry=self._registry, buckets=what.buckets_s
            )
            for what in durations
        }
        # Memory, CPU time and open files of this process: the first metrics to check when an agent misbehaves.
        prometheus.ProcessCollector(registry=self._registry)
        self._gauges = gauges
        self._writing = asyncio.Lock()

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""
        counter = self._counters[what]
        (counter.labels(*labels) if labels else counter).inc(times)

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""
        histogram = self._histograms[what]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    async def page(self) -> Page:
        """Return all metrics in Prometheus' text format.

        Thousands of lines take longer than a scheduler or a kubelet should wait for its answer, so others run after
        every few of them; and pages are made one after the other, however many clients ask for one.
        """
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415 - see __init__

        async with self._writing:
            text = [generate_latest(self._registry).decode()]
            await asyncio.sleep(0)
            for gauge, values in chain([(BUILD, [((__version__,), 1)])], self._gauges()):
                for piece in family(gauge, values):
                    text.append(piece)
                    if len(piece) >= _LONG:
                        await asyncio.sleep(0)
            return Page("".join(text), content_type=CONTENT_TYPE_LATEST)


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

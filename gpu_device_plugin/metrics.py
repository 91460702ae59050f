"""The programs' metrics, their exposition to Prometheus, and the pages of probes."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import Page
from gpu_device_plugin.core.report.exposition import CONTENT_TYPE, Gauge, family, histogram, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_device_plugin.core.report.exposition import Gauges, Observed


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
RETURNS = Count(
    "gpushare_memory_returns_total",
    "Containers that were asked to return borrowed GPU memory, and what came of it.",
    ("outcome",),
)
BORROWER_EVICTIONS = Count(
    "gpushare_borrower_evictions_total",
    "Evictions of pods that did not return borrowed GPU memory in time, by outcome.",
    ("outcome",),
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
    RETURNS,
    BORROWER_EVICTIONS,
)
RETURNING = Duration(
    "gpushare_memory_return_seconds",
    "Time that containers took to return the borrowed GPU memory that they were asked for.",
    buckets_s=_RETURN_BUCKETS_S,
)
DURATIONS = (RPCS, RETURNING)

MOVES = Count(
    "gpushare_extender_moves_total",
    "Pods that were to be moved to other GPUs: evicted, or refused.",
    ("outcome",),
)
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

RESIZES = Count(
    "gpushare_extender_resizes_total",
    "Answers to wishes of running pods for guaranteed memory, by outcome.",
    ("outcome",),
)

IDLE_ACTIONS = Count(
    "gpushare_extender_idle_actions_total",
    "What was done about idle pods and their workloads, by wish and outcome.",
    ("wish", "outcome"),
)

EXTENDER_COUNTS = (
    *(VERDICTS, SAMPLE_MISSES, BINDS, DRIFT, RESIZES, MOVES, IDLE_ACTIONS),
    *(MALFORMED_ANNOTATIONS, API_ERRORS),
)
EXTENDER_DURATIONS = (VERBS,)


# --- Counting, and the page ------------------------------------------------------------------------------------------


class Metrics:
    """The counters and histograms to which the rest of the program adds. These count nothing, without /metrics."""

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""


class PrometheusMetrics(Metrics):
    """Keeps counters and histograms, and serves them with the program's state as a page."""

    def __init__(
        self,
        gauges: Callable[[], Gauges],
        counts: Iterable[Count] = COUNTS,
        durations: Iterable[Duration] = DURATIONS,
    ) -> None:
        """Begin at zero; `gauges` returns those of the program with their values, read as they are written."""
        self._counts: dict[Count, dict[tuple[str, ...], int]] = {
            what: {} if what.labels else {(): 0} for what in counts
        }
        self._durations: dict[Duration, dict[tuple[str, ...], _Observations]] = {what: {} for what in durations}
        self._gauges = gauges
        self._began_s = _began_s()
        self._writing = asyncio.Lock()

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        """Add to a counter; `labels` in the order of ``what.labels``."""
        counted = self._counts[what]
        counted[labels] = counted.get(labels, 0) + times

    def took(self, what: Duration, seconds: float, *labels: str) -> None:
        """Add to a histogram; `labels` in the order of ``what.labels``."""
        observed = self._durations[what].get(labels)
        if observed is None:
            observed = self._durations[what][labels] = _Observations([0] * (len(what.buckets_s) + 1))
        observed.buckets[bisect_left(what.buckets_s, seconds)] += 1
        observed.sum_s += seconds

    async def page(self) -> Page:
        """Return all metrics in Prometheus' text format.

        Thousands of lines take longer than a scheduler or a kubelet should wait for its answer, so others run after
        every few of them; and pages are made one after the other, however many clients ask for one.
        """
        async with self._writing:
            text = ["".join(self._recorded())]
            await asyncio.sleep(0)
            for gauge, values in chain([(BUILD, [((__version__,), 1)])], self._gauges()):
                for piece in family(gauge, values):
                    text.append(piece)
                    if len(piece) >= _LONG:
                        await asyncio.sleep(0)
            return Page("".join(text), content_type=CONTENT_TYPE)

    def _recorded(self) -> Iterator[str]:
        for count, counted in self._counts.items():
            yield from family(
                Gauge(count.name.removesuffix("_total"), count.help, count.labels, grows=True), counted.items()
            )
        for what, series in self._durations.items():
            bounds = (*map(number, what.buckets_s), "+Inf")
            observed: Iterator[Observed] = (
                (labels, list(zip(bounds, accumulate(each.buckets), strict=True)), each.sum_s)
                for labels, each in series.items()
            )
            yield from histogram(what.name, what.help, what.labels, observed)
        for gauge, value in _process(self._began_s):
            yield from family(gauge, [((), value)])


@dataclass(slots=True)
class _Observations:
    """How many durations fell into each bucket, and their sum."""

    buckets: list[int]
    sum_s: float = 0.0


def _stat() -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on; the name before may hold anything."""
    return Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _began_s() -> float:
    """Return when this process began, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(_stat()[19]) / os.sysconf("SC_CLK_TCK")


def _process(began_s: float) -> Iterator[tuple[Gauge, float]]:
    """Yield memory, CPU time and open files of this process: the first metrics to check when an agent misbehaves."""
    fields, pages, ticks = _stat(), os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    yield Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."), int(fields[20])
    yield Gauge("process_resident_memory_bytes", "Resident memory size in bytes."), int(fields[21]) * pages
    yield Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."), began_s
    used_s = (int(fields[11]) + int(fields[12])) / ticks
    yield Gauge("process_cpu_seconds", "Total user and system CPU time spent in seconds.", grows=True), used_s
    yield Gauge("process_open_fds", "Number of open file descriptors."), sum(1 for _ in Path("/proc/self/fd").iterdir())
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Gauge("process_max_fds", "Maximum number of open file descriptors."), most


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

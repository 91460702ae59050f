"""What the metrics of a node's GPUs and containers are called."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.telling.exposition import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.node.use_series import ContainerSeries, GpuSeries
    from gpu_device_plugin.core.telling.exposition import Gauges, Value

    Reader = Callable[[Any], float | None]

# A label without a value is none to Prometheus: whole GPUs have no parent, profile and gi.
_INFO = Gauge(
    "gpushare_gpu_info",
    "A GPU, or a MIG instance of the GPU parent; always 1.",
    ("gpu", "index", "model", "driver", "rung", "share_bytes", "parent", "profile", "gi"),
)
_GPU = ("gpu",)
_OF_GPUS: tuple[tuple[Gauge, Reader], ...] = (
    (Gauge("gpushare_gpu_memory_bytes", "Memory of the GPU.", _GPU), attrgetter("memory_bytes")),
    (
        Gauge(
            "gpushare_gpu_memory_allocated_bytes", "Memory that containers were given; of a whole GPU all of it.", _GPU
        ),
        attrgetter("allocated_bytes"),
    ),
    (Gauge("gpushare_gpu_memory_used_bytes", "Memory in use by anybody.", _GPU), attrgetter("used_bytes")),
    (
        Gauge("gpushare_gpu_memory_unattributed_bytes", "Memory in use that belongs to no pod.", _GPU),
        attrgetter("unattributed_bytes"),
    ),
)
# The names of kube-state-metrics, for joins.
_CONTAINER = ("namespace", "pod", "container", "gpu")
_OF_CONTAINERS: tuple[tuple[Gauge, Reader], ...] = (
    (
        Gauge(
            "gpushare_container_gpu_memory_allocated_bytes",
            "GPU memory that the container was given; 0 if it uses a GPU that it was not given.",
            _CONTAINER,
        ),
        attrgetter("allocated_bytes"),
    ),
    (
        Gauge("gpushare_container_gpu_memory_used_bytes", "GPU memory that the container uses.", _CONTAINER),
        attrgetter("used_bytes"),
    ),
    (
        Gauge(
            "gpushare_container_gpu_memory_limit_bytes",
            "The limit of the container's GPU memory, as the driver has it where it was read back.",
            (*_CONTAINER, "rung", "state"),
        ),
        attrgetter("limit_bytes"),
    ),
    (
        Gauge(
            "gpushare_container_gpu_utilization_ratio",
            "Part of the time in which the container keeps multiprocessors of the GPU busy, 0 to 1.",
            _CONTAINER,
        ),
        attrgetter("utilization"),
    ),
)


def gpu_gauges(gpus: Sequence[GpuSeries]) -> Gauges:
    """Yield the gauges of GPUs; a figure that is not known has no value."""
    yield _INFO, [(labels, 1) for labels in map(attrgetter(*_INFO.labels), gpus)]
    for gauge, figure in _OF_GPUS:
        yield gauge, [((gpu.gpu,), known) for gpu in gpus if (known := figure(gpu)) is not None]


def container_gauges(containers: Sequence[ContainerSeries]) -> Gauges:
    """Yield the gauges of containers; a figure that is not known has no value. Values are made one by one."""
    for gauge, figure in _OF_CONTAINERS:
        yield gauge, _known(attrgetter(*gauge.labels), figure, containers)


def _known(
    labels: Callable[[Any], tuple[str, ...]], figure: Reader, containers: Iterable[ContainerSeries]
) -> Iterator[Value]:
    for each in containers:
        known = figure(each)
        if known is not None:
            yield labels(each), known

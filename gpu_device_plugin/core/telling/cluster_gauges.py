"""What the metrics of a cluster's nodes and waiting pods are called."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.waiting import Reason
from gpu_device_plugin.core.telling.exposition import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate, Summary
    from gpu_device_plugin.core.telling.exposition import Gauges, Value

_WAITING = Gauge(
    "gpushare_extender_pods_waiting",
    "Pods that wait for a GPU, by what the scheduler was last told; a follower is asked nothing.",
    ("reason",),
)
_MEMORY = Gauge("gpushare_extender_node_memory_bytes", "GPU memory of the node, of healthy GPUs.", ("node",))
_ALLOCATED = Gauge(
    "gpushare_extender_node_memory_allocated_bytes",
    "Allocated GPU memory of the node, with all memory of whole GPUs.",
    ("node",),
)


def waiting_gauges(waiting: Mapping[Reason, int]) -> Gauges:
    """Yield the number of waiting pods; every reason has a value."""
    yield _WAITING, [((reason.value,), waiting.get(reason, 0)) for reason in Reason]


def node_gauges(nodes: Sequence[Candidate]) -> Gauges:
    """Yield the memory of each node that has GPUs and whose share size is known. Values are made one by one."""
    yield _MEMORY, _of_each(nodes, attrgetter("total"))
    yield _ALLOCATED, _of_each(nodes, attrgetter("used"))


def sums(nodes: Iterable[Candidate]) -> tuple[int, int, int]:
    """Return the number of nodes with GPUs, their memory and the allocated part of it, in bytes."""
    with_gpus = total_mib = used_mib = 0
    for node in nodes:
        if node.rooms:
            share_mib, summary = node.gpus.share_mib or 0, node.summary
            with_gpus += 1
            total_mib += summary.total * share_mib
            used_mib += summary.used * share_mib
    return with_gpus, total_mib << 20, used_mib << 20


def _of_each(nodes: Iterable[Candidate], shares: Callable[[Summary], int]) -> Iterator[Value]:
    for node in nodes:
        if node.rooms and node.gpus.share_mib is not None:
            yield (node.name,), shares(node.summary) * node.gpus.share_mib << 20

"""The gauges of the scheduler extender."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from gpu_device_plugin.model.gauges import Gauge, Gauges, columns
from gpu_device_plugin.scheduler.rules.candidate import Candidate

_NODES = (
    Gauge("gpushare_extender_nodes", "Nodes with GPUs."),
    Gauge("gpushare_extender_memory_bytes", "GPU memory of all nodes."),
    Gauge("gpushare_extender_memory_taken_bytes", "Allocated GPU memory, with all memory of whole GPUs."),
)
_WATCH = (
    Gauge("gpushare_extender_watch_live", "1 while the API server sends changes.", ("kind",)),
    Gauge("gpushare_extender_watch_silent_seconds", "Time since the API server last sent data.", ("kind",)),
    Gauge("gpushare_extender_lists", "Lists of all objects of a kind.", ("kind",), grows=True),
    Gauge("gpushare_extender_unreadable", "Objects that could not be parsed.", ("kind",), grows=True),
)
_WAITING = Gauge(
    "gpushare_extender_pods_waiting",
    "Pods pending for a GPU, by the last answer to the scheduler; followers are not asked.",
    ("reason",),
)
_MEMORY = Gauge("gpushare_extender_node_memory_bytes", "GPU memory of the node, of healthy GPUs.", ("node",))
_ALLOCATED = Gauge(
    "gpushare_extender_node_memory_allocated_bytes",
    "Allocated GPU memory of the node, with all memory of whole GPUs.",
    ("node",),
)
_STRANDED = Gauge(
    "gpushare_extender_node_memory_stranded_bytes",
    "Stranded GPU memory of the node: free, but of no use to your usual pods; absent until the policy fit has learned.",
    ("node",),
)


class WaitingReason(StrEnum):
    """Why a pod waits, by what its scheduler was last told."""

    NOT_ASKED = "not_asked"
    """No scheduler has asked about it yet."""
    NO_ROOM = "no_room"
    """No node has room now."""
    NEVER_FITS = "never_fits"
    """No eviction helps on any node."""
    FITS = "fits"
    """There was a node for it; something else holds it up."""


def _shown(name: str, meaning: str) -> Any:
    """Return a field whose value has a gauge of its own."""
    return field(default=0, metadata={"gauge": Gauge(name, meaning)})


@dataclass(frozen=True, slots=True)
class ExtenderMetrics:
    """The cluster at one moment, as the extender sees it."""

    leader: bool = _shown("gpushare_extender_leader", "1 while this extender may bind pods.")
    pods: int = _shown("gpushare_extender_pods", "Pods that hold GPUs or GPU memory.")
    pending: int = _shown("gpushare_extender_pods_pending", "Pods that wait for a GPU.")
    oldest_s: float = _shown(
        "gpushare_extender_pods_waiting_oldest_seconds", "Age of the oldest pod that waits for a GPU."
    )
    claims: int = _shown("gpushare_extender_claims", "Pods that are being bound.")
    in_doubt: int = _shown("gpushare_extender_claims_in_doubt", "Pods whose binding has an unknown outcome.")
    learned: bool = _shown(
        "gpushare_extender_learned",
        "1 while the policy fit uses the prices that it learned; otherwise it acts as binpack.",
    )
    distrusted: int = _shown(
        "gpushare_extender_namespaces_distrusted", "Namespaces whose pods count little in what the policy fit learns."
    )
    wanted: int = _shown("gpushare_extender_nodes_wanted", "New nodes that pending pods need, GPU by GPU.")
    kept: int = _shown("gpushare_extender_nodes_kept", "Nodes that autoscalers may not remove.")
    held: int = _shown("gpushare_extender_rooms_held", "Pods for whose replacements room is held.")
    watches: Mapping[str, tuple[bool, float, int, int]] = field(default_factory=dict)
    """By kind, for example ``pods``: the values of the gauges of a watch."""
    waiting: Mapping[WaitingReason, int] = field(default_factory=dict)
    """The number of pods that wait, by reason."""
    nodes: Sequence[Candidate] = ()
    """All nodes, but for those whose GPUs kube-scheduler allocates: which are in use is not known there."""
    stranded: Iterable[tuple[Candidate, float]] = ()
    """Nodes with the free shares that are of no use to the pods that usually come."""

    def gauges(self) -> Gauges:
        """Return its gauges with their values; those of nodes are made one by one."""
        yield from ((gauge, [((), getattr(self, one.name))]) for one in fields(self) for gauge in one.metadata.values())
        yield from columns(_WATCH, [((kind,), watch) for kind, watch in self.watches.items()])
        yield _WAITING, [((reason.value,), self.waiting.get(reason, 0)) for reason in WaitingReason]
        with_gpus = [node for node in self.nodes if node.rooms]
        sized = [(node, mib << 20) for node in with_gpus if (mib := node.gpus.share_mib) is not None]
        yield _MEMORY, (((node.name,), node.summary.total * size) for node, size in sized)
        yield _ALLOCATED, (((node.name,), node.summary.used * size) for node, size in sized)
        yield (
            _STRANDED,
            (
                ((node.name,), int(shares * (node.gpus.share_mib << 20)))
                for node, shares in self.stranded
                if node.gpus.share_mib is not None and not node.gpus.claims
            ),
        )
        total, used = (sum(getattr(node.summary, key) * size for node, size in sized) for key in ("total", "used"))
        yield from columns(_NODES, [((), (len(with_gpus), total, used))])

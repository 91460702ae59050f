"""What sharing leaves on a node, to be removed when the node shares its GPUs no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.annotations import NODE_GPUS, NODE_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SWITCH_LABEL = "gpushare"
"""The label that a person puts on a node to have its GPUs shared, and that the DaemonSet selects by."""
SWITCHED_ON = "true"

_LABELS = frozenset(
    f"{NODE_LABELS}{name}" for name in ("product", "count", "memory-mib", "driver", "share-mib", "policy")
)
_MODELS = f"{NODE_LABELS}product."


def switched_on(labels: Mapping[str, str]) -> bool:
    """Return whether a node is meant to share its GPUs."""
    return labels.get(SWITCH_LABEL) == SWITCHED_ON


def our_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return those labels of a node that the agent wrote; others with our prefix are somebody's settings."""
    return tuple(sorted(label for label in labels if label in _LABELS or label.startswith(_MODELS)))


def our_annotations(annotations: Iterable[str]) -> tuple[str, ...]:
    """Return those annotations of a node that the agent wrote."""
    return tuple(sorted({NODE_GPUS}.intersection(annotations)))


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of sharing on one node."""

    node: str
    labelled: bool
    """It still has the label by which people switch sharing on."""
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of our resources; the kubelet keeps these keys for ever, with 0 once it has forgotten the agent."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.capacity)

    def __str__(self) -> str:
        """Return what there is, in words."""
        kinds = (("labels", self.labels), ("annotations", self.annotations), ("capacity", tuple(self.capacity)))
        return "; ".join(f"{kind} {', '.join(keys)}" for kind, keys in kinds if keys)

    @property
    def metadata_patch(self) -> Mapping[str, object]:
        """The merge patch that removes labels and annotations, the switch too; empty: there are none."""
        labels = [*self.labels, *([SWITCH_LABEL] if self.labelled else [])]
        keys = {"labels": dict.fromkeys(labels), "annotations": dict.fromkeys(self.annotations)}
        found = {kind: nulls for kind, nulls in keys.items() if nulls}
        return {"metadata": found} if found else {}

    @property
    def status_patch(self) -> Mapping[str, object]:
        """The merge patch of the status that removes our resources; empty: there are none."""
        nulls = dict.fromkeys(self.capacity)
        return {"status": {"capacity": nulls, "allocatable": nulls}} if nulls else {}


def leftovers(
    node: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, int],
    resources: Iterable[str],
) -> Leftovers:
    """Return what is left on a node.

    Args:
        node: its name.
        labels: all of them.
        annotations: all of them.
        capacity: of every resource.
        resources: the names of ours.
    """
    return Leftovers(
        node,
        switched_on(labels),
        our_labels(labels),
        our_annotations(annotations),
        {name: capacity[name] for name in resources if name in capacity},
    )

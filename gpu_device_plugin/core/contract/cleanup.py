"""Which of the things on a node sharing has left there, and what removes them when the node shares its GPUs no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import AGENT_LABELS, MODEL_LABELS, NODE_GPUS, SWITCH_LABEL, SWITCHED_ON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def switched_on(labels: Mapping[str, str]) -> bool:
    """Return whether a node is meant to share its GPUs."""
    return labels.get(SWITCH_LABEL) == SWITCHED_ON


def our_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return those labels of a node that the agent wrote; others with our prefix are somebody's settings."""
    return tuple(sorted(label for label in labels if label in AGENT_LABELS or label.startswith(MODEL_LABELS)))


def our_annotations(annotations: Iterable[str]) -> tuple[str, ...]:
    """Return those annotations of a node that the agent wrote."""
    return tuple(key for key in annotations if key == NODE_GPUS)


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
        kinds = {"labels": self.labels, "annotations": self.annotations, "capacity": self.capacity}
        return "; ".join(f"{kind} {', '.join(keys)}" for kind, keys in kinds.items() if keys)

    @property
    def metadata_patch(self) -> Mapping[str, object]:
        """The merge patch that removes labels and annotations, the switch too; empty: there are none."""
        labels = (*self.labels, *([SWITCH_LABEL] if self.labelled else []))
        return _removing("metadata", {"labels": labels, "annotations": self.annotations})

    @property
    def status_patch(self) -> Mapping[str, object]:
        """The merge patch of the status that removes our resources; empty: there are none."""
        return _removing("status", {"capacity": self.capacity, "allocatable": self.capacity})


def _removing(part: str, keys: Mapping[str, Iterable[str]]) -> Mapping[str, object]:
    found = {kind: nulls for kind, names in keys.items() if (nulls := dict.fromkeys(names))}
    return {part: found} if found else {}


def leftovers(
    node: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, int],
    resources: Iterable[str],
) -> Leftovers:
    """Return what is left on a node with all of these labels, annotations and capacity; `resources` are ours."""
    ours = {name: capacity[name] for name in resources if name in capacity}
    return Leftovers(node, switched_on(labels), our_labels(labels), our_annotations(annotations), ours)

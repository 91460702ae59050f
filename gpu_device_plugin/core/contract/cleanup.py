"""Find the labels, annotations, capacity and conditions that sharing left on a node, and make patches without them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import (
    AGENT_ANNOTATIONS,
    AGENT_LABELS,
    GPU_CONDITION,
    MODEL_LABELS,
    NODE_LABELS,
    SWITCH_LABEL,
    SWITCHED_ON,
)
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.model.mig import is_mig_resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DOMAIN = NODE_LABELS.removesuffix("/")


def switched_on(labels: Mapping[str, str]) -> bool:
    """Return whether a node's label enables the sharing of its GPUs."""
    return labels.get(SWITCH_LABEL) == SWITCHED_ON


def our_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a node that the agent writes; other labels with our prefix are users' settings."""
    return tuple(
        sorted(
            label
            for label in labels
            if label in AGENT_LABELS or label.startswith(MODEL_LABELS) or is_mig_resource(label, _DOMAIN)
        )
    )


def our_annotations(annotations: Iterable[str]) -> tuple[str, ...]:
    """Return the annotations of a node that the agent writes."""
    return tuple(key for key in annotations if key in AGENT_ANNOTATIONS)


def mig_resources(annotations: Mapping[str, str], capacity: Iterable[str], resources: Iterable[str]) -> frozenset[str]:
    """Return the resources of MIG profiles among a node's that our agent offers, or offered there.

    They are those of the domain of `resources`, which are ours, and those that the agent lists on the node: settings can
    give them another domain, which other plugins use as well.
    """
    domains = {name.partition("/")[0] for name in resources}
    listed = {
        gpu.instance.resource for gpu in gpus_of_node(annotations, {}, 0, 0).instances if gpu.instance is not None
    }
    own = {name for name in capacity if is_mig_resource(name) and name.partition("/")[0] in domains}
    return frozenset(own | listed)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The labels, annotations, capacity and conditions that sharing left on one node."""

    node: str
    labelled: bool
    """The node still has the label that enables sharing."""
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of our resources. The kubelet never removes these keys; it sets them to 0 once it has dropped the plugin."""
    conditions: tuple[str, ...] = ()
    """Their types."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.capacity or self.conditions)

    def __str__(self) -> str:
        """Return the leftovers in words."""
        kinds = {
            "labels": self.labels,
            "annotations": self.annotations,
            "capacity": self.capacity,
            "conditions": self.conditions,
        }
        return "; ".join(f"{kind} {', '.join(keys)}" for kind, keys in kinds.items() if keys)

    @property
    def metadata_patch(self) -> Mapping[str, object]:
        """The merge patch that removes the labels, `SWITCH_LABEL` too, and the annotations; empty if there are none."""
        labels = (*self.labels, *([SWITCH_LABEL] if self.labelled else []))
        return _removing("metadata", {"labels": labels, "annotations": self.annotations})

    @property
    def status_patch(self) -> Mapping[str, object]:
        """The patch of the status that removes our resources and conditions; empty if there are none.

        With conditions it is a strategic merge patch, without them a merge patch.
        """
        patch = _removing("status", {"capacity": self.capacity, "allocatable": self.capacity})
        if not self.conditions:
            return patch
        gone = [{"type": each, "$patch": "delete"} for each in self.conditions]
        return {"status": {**patch.get("status", {}), "conditions": gone}}


def _removing(part: str, keys: Mapping[str, Iterable[str]]) -> Mapping[str, Mapping[str, object]]:
    found = {kind: nulls for kind, names in keys.items() if (nulls := dict.fromkeys(names))}
    return {part: found} if found else {}


def leftovers(
    node: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, int],
    resources: Iterable[str],
    *,
    conditions: Iterable[str] = (),
) -> Leftovers:
    """Return the leftovers among what a node has; `resources` are the names of ours, `conditions` the types of all."""
    ours = {name: capacity[name] for name in resources if name in capacity}
    kept = tuple(each for each in conditions if each == GPU_CONDITION)
    return Leftovers(node, switched_on(labels), our_labels(labels), our_annotations(annotations), ours, kept)

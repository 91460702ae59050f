"""What sharing left on a node, and how it is removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.features.capacity.contract import let_go
from gpu_device_plugin.model.contract.keys import CORDONS, GPU_CONDITION, HELD_ROOM, SWITCH_LABEL
from gpu_device_plugin.model.contract.nodelabels import our_annotations, our_labels, switched_on
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.model.nodes import NodeRecord


def mig_resources(node: NodeRecord, resources: Iterable[str]) -> frozenset[str]:
    """Return the resources of MIG profiles among a node's that our agent offers, or offered there.

    They are those of the domain of `resources`, which are ours, and those that the agent lists on the node: settings
    can give them another domain, which other plugins use as well.
    """
    domains = {name.partition("/")[0] for name in resources}
    gpus = gpus_of_node(node.annotations, {}, 0, 0)
    listed = {gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None}
    own = {name for name in node.capacity if is_mig_resource(name) and name.partition("/")[0] in domains}
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
        kinds = ("labels", "annotations", "capacity", "conditions")
        return "; ".join(f"{kind} {', '.join(keys)}" for kind in kinds if (keys := getattr(self, kind)))

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


def leftovers(node: NodeRecord, resources: Sequence[str]) -> Leftovers:
    """Return the leftovers of a node; `resources` are the names of ours, but for those of MIG profiles."""
    ours = [*resources, *sorted(mig_resources(node, resources))]
    amounts = {name: node.capacity[name] for name in ours if name in node.capacity}
    others = (*let_go(node.annotations), *sorted({CORDONS, HELD_ROOM} & node.annotations.keys()))
    notes = (*our_annotations(node.annotations), *others)
    conditions = (GPU_CONDITION,) if node.gpu_condition else ()
    return Leftovers(node.name, switched_on(node.labels), our_labels(node.labels), notes, amounts, conditions)

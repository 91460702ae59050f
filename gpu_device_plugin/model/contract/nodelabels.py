"""Labels and annotations that the programs write on nodes beside documents, and how all of it is removed again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import (
    AGENT_ANNOTATIONS,
    AGENT_LABELS,
    CORDONS,
    GPU_CONDITION,
    HELD_ROOM,
    KEEPS,
    KEPT_NODE,
    MODEL_LABELS,
    NODE_LABELS,
    NODE_LIMITS,
    SWITCH_LABEL,
    SWITCHED_ON,
)
from gpu_device_plugin.model.contract.nodegpus import gpus_of_node
from gpu_device_plugin.model.contract.nodelimits import NO_LIMITS
from gpu_device_plugin.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.model.shares import WHOLE_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.model.contract.nodelimits import NodeLimits
    from gpu_device_plugin.model.gpus import Inventory
    from gpu_device_plugin.model.shares import Shares

_DOMAIN = NODE_LABELS.removesuffix("/")
_LONGEST = 63
"""Most characters of a label's value, and of its name after the slash."""


def node_labels(shares: Shares, inventory: Inventory, policy: str, limits: NodeLimits = NO_LIMITS) -> Mapping[str, str]:
    """Return the labels of a node, with valid values.

    A node with several models has one label for each, so that none hides another. Numbers, models and memory are those
    of whole GPUs; each profile of the MIG instances that pods can get has a label with their number.
    """
    whole = [shared for shared in shares.gpus if WHOLE_GPUS in shared.offered and not shared.gpu.mig]
    models = sorted({shared.gpu.product for shared in whole})
    labels = {
        f"{NODE_LABELS}count": str(len(whole)),
        f"{NODE_LABELS}share-mib": str(shares.share_mib),
        f"{NODE_LABELS}policy": policy,
    }
    if inventory.driver_version:
        labels[f"{NODE_LABELS}driver"] = label_value(inventory.driver_version)
    if whole:
        labels[f"{NODE_LABELS}product"] = label_value(models[0]) if len(models) == 1 else "mixed"
        labels[f"{NODE_LABELS}memory-mib"] = str(min(shared.gpu.total_mib for shared in whole))
    if limits.gpus:
        labels[NODE_LIMITS] = limits.enforcement.value
    places = [shared.gpu.instance for shared in shares.gpus if shared.offered and shared.gpu.instance is not None]
    for profile, number in Counter(place.profile for place in places).items():
        labels[f"{NODE_LABELS}{resource_name(profile)}"] = str(number)
    names = (f"{MODEL_LABELS}{value}" for model in models if (value := label_value(model)))
    return labels | {name[: len(NODE_LABELS) + _LONGEST].rstrip("-_."): "true" for name in names}


def label_value(text: str) -> str:
    """Return `text` as a valid label value: at most 63 of ``[A-Za-z0-9._-]``, alphanumeric at both ends."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in text)
    return kept[:_LONGEST].strip("-_.")


# --- The marks that keep autoscalers from removing a node ---------------------------------------------------------

_ON = "true"
_LONGEST_MARK = 1024


def own_keeps(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of `KEEPS` that the extender wrote and that nobody has changed since."""
    text = annotations.get(KEPT_NODE, "")
    try:
        written = json.loads(text)["keys"] if len(text) <= _LONGEST_MARK else ()
    except (ValueError, LookupError, TypeError, RecursionError):
        written = ()
    keys = written if isinstance(written, list) else ()
    return tuple(key for key in KEEPS if key in keys and annotations.get(key) == _ON)


def kept(annotations: Mapping[str, str], why: str) -> Mapping[str, str | None]:
    """Return the changes of annotations that keep a node, for a reason; none where it is kept already.

    An annotation that a person wrote stays as it is, whatever its value.
    """
    keys = [key for key in KEEPS if key not in annotations]
    if not keys or (KEPT_NODE in annotations and own_keeps(annotations)):
        return {}
    return {**dict.fromkeys(keys, _ON), KEPT_NODE: json.dumps({"keys": keys, "why": why[: _LONGEST_MARK // 4]})}


def let_go(annotations: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the changes of annotations by which a node is no longer kept by the extender."""
    return dict.fromkeys((*own_keeps(annotations), KEPT_NODE)) if KEPT_NODE in annotations else {}


# --- Its removal ------------------------------------------------------------------------------------------------------


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

    They are those of the domain of `resources`, which are ours, and those that the agent lists on the node: settings
    can give them another domain, which other plugins use as well.
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


def leftovers(
    node: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, int],
    resources: Iterable[str],
    *,
    condition: bool = False,
) -> Leftovers:
    """Return the leftovers of a node; `resources` are the names of ours, and `condition`: it has `GPU_CONDITION`."""
    ours = {name: capacity[name] for name in resources if name in capacity}
    kept = (GPU_CONDITION,) if condition else ()
    others = (*let_go(annotations), *sorted({CORDONS, HELD_ROOM} & annotations.keys()))
    notes = (*our_annotations(annotations), *others)
    return Leftovers(node, switched_on(labels), our_labels(labels), notes, ours, kept)

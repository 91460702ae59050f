"""The labels that the agent writes on its node, and which labels and annotations of a node are the agent's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import (
    AGENT_ANNOTATIONS,
    AGENT_LABELS,
    MODEL_LABELS,
    NODE_LABELS,
    NODE_LIMITS,
    SWITCH_LABEL,
    SWITCHED_ON,
)
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

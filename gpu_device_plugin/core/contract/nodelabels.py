"""The node labels that the agent writes, by which pods select nodes for their GPUs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import MODEL_LABELS, NODE_LABELS, NODE_LIMITS
from gpu_device_plugin.core.contract.nodereport import NO_LIMITS
from gpu_device_plugin.core.model.mig import resource_name
from gpu_device_plugin.core.model.shares import WHOLE_GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.nodereport import NodeLimits
    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.shares import Shares

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

"""What the agent writes on its node beside the list of its GPUs: labels, and an annotation on memory limits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_device_plugin.model.contract.keys import (
    AGENT_ANNOTATIONS,
    AGENT_LABELS,
    MODEL_LABELS,
    NODE_LABELS,
    NODE_LIMITS,
    SWITCH_LABEL,
    SWITCHED_ON,
    MalformedAnnotationError,
    compact,
    text_in,
)
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.model.shares import WHOLE_GPUS, Shares

_DOMAIN = NODE_LABELS.removesuffix("/")
_LONGEST = 63
"""Most characters of a label's value, and of its name after the slash."""


VERSION = 1
"""Version of this annotation and of the one on use. A minor release of the agent may add fields, which older readers
ignore."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The means of limiting on each GPU of a node, by position."""

    gpus: Mapping[int, GpuEnforcement]

    @property
    def enforcement(self) -> Enforcement:
        """The weakest of them: the one that every container of the node gets at least."""
        return min(
            (gpu.enforcement for gpu in self.gpus.values()),
            key=lambda enforcement: enforcement.strength,
            default=Enforcement.ADVISORY,
        )

    @property
    def why(self) -> str:
        """The reason of the weakest, as a sentence without a full stop."""
        return next((gpu.why for gpu in self.gpus.values() if gpu.enforcement is self.enforcement), "there is no GPU")


NO_LIMITS = NodeLimits({})
"""Of a node without GPUs, or of an agent that does not tell."""


def write_node_limits(limits: NodeLimits) -> str:
    """Return the value of the annotation `NODE_LIMITS`, as compact JSON."""
    gpus = [
        {"index": position, "enforcement": gpu.enforcement, "why": gpu.why}
        | ({"refusal": gpu.refusal} if gpu.refusal else {})
        for position, gpu in sorted(limits.gpus.items())
    ]
    return compact({"version": VERSION, "gpus": gpus})


def read_node_limits(text: str) -> NodeLimits:
    """Parse the annotation `NODE_LIMITS` of a node.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the fault.
    """
    with reading(NODE_LIMITS):
        return NodeLimits(
            {
                gpu["index"]: GpuEnforcement(
                    Enforcement(gpu["enforcement"]), text_in(gpu, "why"), text_in(gpu, "refusal")
                )
                for gpu in json.loads(text)["gpus"]
                if type(gpu["index"]) is int
            }
        )


@contextmanager
def reading(annotation: str) -> Iterator[None]:
    """Translate whatever a text of another kind raises."""
    try:
        yield
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise MalformedAnnotationError(
            f"the node's annotation {annotation} is not of version {VERSION}; upgrade the older of agent and reader"
        ) from error


# --- Labels -----------------------------------------------------------------------------------------------------------


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

"""What the agent of a node says of memory limits there, as an annotation of the node."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.model.contract.keys import NODE_LIMITS, MalformedAnnotationError
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


def compact(document: object) -> str:
    """Return a document as JSON without blanks."""
    return json.dumps(document, separators=(",", ":"))


def text_in(fields: Mapping[str, Any], key: str) -> str:
    """Return a printable text among the fields of a document; empty if there is none."""
    value = fields.get(key)
    return value if isinstance(value, str) and value.isprintable() else ""

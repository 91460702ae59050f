"""What keeps containers within their parts on a node: the label to select by, and the annotation with the reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import NODE_LIMITS, MalformedAnnotationError
from gpu_device_plugin.core.model.limits import GpuRung, Rung

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
"""Version of the annotation's format. A minor release of the agent may add fields, which older readers ignore."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The means of limiting on each GPU of a node, by position."""

    gpus: Mapping[int, GpuRung]

    @property
    def rung(self) -> Rung:
        """The weakest of them: the one that every container of the node gets at least."""
        return min((gpu.rung for gpu in self.gpus.values()), key=lambda rung: rung.strength, default=Rung.ADVISORY)

    @property
    def why(self) -> str:
        """The reason of the weakest, as a sentence without a full stop."""
        return next((gpu.why for gpu in self.gpus.values() if gpu.rung is self.rung), "there is no GPU")


NO_LIMITS = NodeLimits({})
"""Of a node without GPUs, or of an agent that does not tell."""


def write_node_limits(limits: NodeLimits) -> str:
    """Return the value of the annotation `NODE_LIMITS`, as compact JSON."""
    gpus = [
        {"index": position, "rung": gpu.rung, "why": gpu.why} | ({"refusal": gpu.refusal} if gpu.refusal else {})
        for position, gpu in sorted(limits.gpus.items())
    ]
    return json.dumps({"version": VERSION, "gpus": gpus}, separators=(",", ":"))


def read_node_limits(text: str) -> NodeLimits:
    """Parse the annotation `NODE_LIMITS` of a node.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the fault.
    """
    try:
        fields: Any = json.loads(text)
        gpus = {
            each["index"]: GpuRung(Rung(each["rung"]), _text(each, "why"), _text(each, "refusal"))
            for each in fields["gpus"]
            if type(each["index"]) is int
        }
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise MalformedAnnotationError(
            f"the node's annotation {NODE_LIMITS} is not of version {VERSION}; upgrade the older of agent and reader"
        ) from error
    return NodeLimits(gpus)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) and value.isprintable() else ""

"""Who uses what on a node, as its agent last read it: an annotation, for people's tools.

The agent writes it once in a while (`core.node.use_notes` says when), so the figures have an age: `NodeUse.at`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import NODE_USE, MalformedAnnotationError
from gpu_device_plugin.core.model.gpus import MOST_GPUS
from gpu_device_plugin.core.model.limits import Held, Rung

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
MOST_CONTAINERS = 512
"""The most containers in the annotation; the ones with the most use are kept."""
MOST_BYTES = 96 << 10
"""The most that they may take. All annotations of an object together may have 256 KiB in Kubernetes."""
_LONGEST_WHY = 400
_LARGEST = 1 << 40
"""MiB; a larger number is a mistake."""


@dataclass(frozen=True, slots=True)
class UsedGpu:
    """The memory in use on one GPU, in MiB."""

    used_mib: int | None = None
    """By anybody; None: unknown."""
    unattributed_mib: int | None = None
    """By processes of no pod; None: unknown."""


@dataclass(frozen=True, slots=True)
class UsedPart:
    """One container on one GPU."""

    namespace: str
    pod: str
    """Its name; its UID where the agent does not know the name."""
    container: str
    """Empty if only the pod is known."""
    gpu: int
    """The GPU's position."""
    granted_mib: int
    """0: the pod was not given this GPU."""
    used_mib: int | None = None
    sm_percent: int | None = None
    rung: Rung | None = None
    """None for a container with whole GPUs, or one that was given none."""
    held: Held | None = None
    found_mib: int | None = None
    """The limit that the driver has."""
    why: str = ""
    """Why the limit is not held, as a sentence."""
    over_since: str = ""
    """RFC 3339: since when it has used more than it was granted, beyond the slack; empty: it does not."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The use of a node's GPUs."""

    at: str
    """RFC 3339: when it was read."""
    gpus: Mapping[int, UsedGpu] = field(default_factory=dict)
    """By position."""
    parts: tuple[UsedPart, ...] = ()
    blind: str = ""
    """Why the use by container is not known, as a sentence; empty if it is."""
    left_out: int = 0
    """Containers beyond `MOST_CONTAINERS`."""


# The keys of JSON by field; fields with their default value are left out.
_PART = {
    "namespace": "namespace",
    "pod": "pod",
    "container": "container",
    "gpu": "gpu",
    "granted_mib": "granted",
    "used_mib": "used",
    "sm_percent": "sm",
    "rung": "rung",
    "held": "limit",
    "found_mib": "found",
    "why": "why",
    "over_since": "over",
}
# A value that is not known here is of a newer agent.
_RUNGS: Mapping[Any, Rung] = {rung.value: rung for rung in Rung}
_HELD: Mapping[Any, Held] = {held.value: held for held in Held}
_WHOLE = ("gpu", "granted_mib", "used_mib", "sm_percent", "found_mib")


def write_node_use(use: NodeUse) -> str:
    """Return the value of the annotation `NODE_USE`, as compact JSON."""
    by_use = sorted(use.parts, key=lambda part: -(part.used_mib or 0))
    kept: list[tuple[UsedPart, Mapping[str, object]]] = []
    left = MOST_BYTES
    for part in by_use[:MOST_CONTAINERS]:
        fields = _given({key: getattr(part, name) for name, key in _PART.items()} | {"why": part.why[:_LONGEST_WHY]})
        left -= len(_compact(fields)) + 1
        if left < 0:
            break
        kept.append((part, fields))
    kept.sort(key=lambda each: (each[0].gpu, each[0].namespace, each[0].pod, each[0].container))
    document = {
        "version": VERSION,
        "at": use.at,
        "gpus": [
            _given({"index": position, "used": gpu.used_mib, "unattributed": gpu.unattributed_mib})
            for position, gpu in sorted(use.gpus.items())
        ],
        "containers": [fields for _, fields in kept],
        "blind": use.blind,
        "leftOut": use.left_out + len(by_use) - len(kept) or None,
    }
    return _compact(_given(document))


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))


def _given(fields: Mapping[str, object]) -> Mapping[str, object]:
    return {key: value for key, value in fields.items() if value not in (None, "", [])}


def read_node_use(text: str) -> NodeUse:
    """Parse the annotation `NODE_USE` of a node. Unknown fields are ignored: the agent may be newer than the reader.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the fault.
    """
    try:
        read: Any = json.loads(text)
        fields = {VERSION: read}[read["version"]]
        return NodeUse(
            at=_text(fields, "at"),
            gpus={
                _whole(each, "index") or 0: UsedGpu(_whole(each, "used"), _whole(each, "unattributed"))
                for each in fields.get("gpus", ())[:MOST_GPUS]
            },
            parts=tuple(_part(each) for each in fields.get("containers", ())[:MOST_CONTAINERS]),
            blind=_text(fields, "blind"),
            left_out=_whole(fields, "leftOut") or 0,
        )
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise MalformedAnnotationError(
            f"the node's annotation {NODE_USE} is not of version {VERSION}; upgrade the older of agent and reader"
        ) from error


def _part(fields: Mapping[str, Any]) -> UsedPart:
    whole: Any = {name: _whole(fields, _PART[name]) for name in _WHOLE}
    texts: Any = {name: _text(fields, key) for name, key in _PART.items() if name not in (*_WHOLE, "rung", "held")}
    return UsedPart(
        **{**texts, **whole, "gpu": whole["gpu"] or 0, "granted_mib": whole["granted_mib"] or 0},
        rung=_RUNGS.get(fields.get("rung")),
        held=_HELD.get(fields.get("limit")),
    )


def _whole(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) and value.isprintable() else ""

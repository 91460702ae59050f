"""Where a pod is to be moved, on the pod; on nodes, the room that is held there, and what keeps autoscalers away."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_device_plugin.model.contract.keys import HELD_ROOM, KEEPS, KEPT_NODE, MOVE_TO, MalformedAnnotationError
from gpu_device_plugin.model.gpus import MOST_POSITIONS, MOST_SHARES

MANIFEST = "deploy/optional/capacity.yaml (chart: scheduler.capacity)"
"""What gives the extender the rights to move pods and to ask for nodes."""
_LONGEST = 1 << 16
_LONGEST_NAME = 253
_PER_ROOM, _PER_GPU = 120, 20
"""At least the characters that one room has in the annotation besides its texts, and of each GPU."""
_LATEST_S = float(1 << 40)
_ON = "true"
_LONGEST_MARK = 1024


@dataclass(frozen=True, slots=True)
class Destination:
    """The GPUs that a pod is to be moved to."""

    node: str
    shares: tuple[tuple[int, int], ...]
    """(position, shares), by position; of a whole GPU all of its shares."""


@dataclass(frozen=True, slots=True)
class HeldRoom:
    """Room on a node for the replacement of a pod, which the pod's controller makes."""

    uid: str
    """Of the pod that is replaced."""
    namespace: str
    owner: str
    """The UID of its controller."""
    shares: tuple[tuple[int, int], ...]
    """(position, shares), by position."""
    until_s: float
    """When the room is given back, seconds since the epoch."""
    since_s: float | None = None
    """When the replacement was made at the earliest, in the same time; None: whoever wrote it did not say."""


def read_destination(text: str) -> Destination:
    """Read the value of `MOVE_TO`. Raises MalformedAnnotationError."""
    try:
        found = json.loads(text)
        return Destination(_name(found["node"]), _shares(found["gpus"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MalformedAnnotationError(
            f'the annotation {MOVE_TO} names no place; write {{"node": "NODE", "gpus": {{"0": 4}}}}: the shares by '
            "position of the GPU"
        ) from None


def write_destination(destination: Destination) -> str:
    """Return the value of `MOVE_TO`."""
    return json.dumps({"node": destination.node, "gpus": dict(destination.shares)})


def read_held(annotations: Mapping[str, str]) -> tuple[HeldRoom, ...]:
    """Return the room that the annotations of a node hold. An entry that cannot be read holds none."""
    text = annotations.get(HELD_ROOM, "")
    try:
        entries = json.loads(text) if 0 < len(text) <= _LONGEST else {}
    except (ValueError, RecursionError):
        return ()
    found = (_room(uid, each) for uid, each in entries.items()) if isinstance(entries, dict) else ()
    return tuple(room for room in found if room is not None)


def _room(uid: str, entry: Any) -> HeldRoom | None:
    try:
        namespace, owner = _name(entry["namespace"]), _name(entry["owner"])
        since_s = _time(entry["since"]) if "since" in entry else None
        return HeldRoom(_name(uid), namespace, owner, _shares(entry["gpus"]), _time(entry["until"]), since_s)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def write_held(held: Iterable[HeldRoom]) -> str | None:
    """Return the value of `HELD_ROOM`; None: nothing is held."""
    entries = {
        each.uid: {
            "namespace": each.namespace,
            "owner": each.owner,
            "gpus": dict(each.shares),
            "until": round(each.until_s, 3),
            **({} if each.since_s is None else {"since": round(each.since_s, 3)}),
        }
        for each in held
    }
    return json.dumps(entries) if entries else None


def holdable(room: HeldRoom, beside: Iterable[HeldRoom]) -> bool:
    """Return whether the next active extender can read room from the annotation that holds it with that `beside` it.

    The owner of a pod chooses the UID of its controller.
    """
    if not all(0 < len(text) <= _LONGEST_NAME for text in (room.uid, room.namespace, room.owner)):
        return False
    rooms = (room, *beside)
    texts = sum(_PER_ROOM + len(json.dumps(each.uid + each.namespace + each.owner)) for each in rooms)
    return texts + _PER_GPU * sum(len(each.shares) for each in rooms) <= _LONGEST


def _name(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_NAME:
        raise ValueError
    return text


def _time(seconds: Any) -> float:
    # JSON as Python reads it has numbers that never come.
    if type(seconds) not in {int, float} or not 0 <= seconds < _LATEST_S:
        raise ValueError
    return float(seconds)


def _shares(gpus: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    shares = sorted((int(position), amount) for position, amount in gpus.items())
    for position, amount in shares:
        if not (0 <= position < MOST_POSITIONS and type(amount) is int and 0 < amount <= MOST_SHARES):
            raise ValueError
    if not shares or len(dict(shares)) < len(shares):  # "1" and "01" are one position
        raise ValueError
    return tuple(shares)


# --- Nodes that are kept from autoscalers -----------------------------------------------------------------------------


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

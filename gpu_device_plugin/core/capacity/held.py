"""Which held room is over: its replacement is bound, or no pod waits for it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.contract.moves import HeldRoom
    from gpu_device_plugin.model.pods import Pod


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod that may be the replacement that room is held for."""

    uid: str
    namespace: str
    owner: str
    """The UID of its controller."""
    created: str
    """RFC 3339."""
    node: str
    positions: frozenset[int]
    """Of its GPUs."""

    def is_in(self, node: str, room: HeldRoom) -> bool:
        """Return whether its GPUs are those of room on a node."""
        return self.node == node and bool(self.positions) and self.positions <= dict(room.shares).keys()


@dataclass(frozen=True, slots=True)
class OverRooms:
    """The held rooms that are needed no longer, or may not be."""

    taken: Mapping[str, str]
    """By the UID of the pod that is replaced, that of the pod which is bound in the room."""
    elsewhere: Mapping[str, str]
    """The same where the pod is bound elsewhere."""
    unclaimed: Sequence[HeldRoom]
    """Those of the others for which no pod waits."""


def over_rooms(
    rooms: Mapping[str, tuple[str, HeldRoom]],
    bound: Iterable[BoundPod],
    waiting: Iterable[Pod],
    leaves: Callable[[str], bool],
) -> OverRooms:
    """Return which rooms are over. Each pod takes the room of one, or claims it if it waits: the newest first.

    Args:
        rooms: by the UID of the pod that is replaced, the node and the room.
        bound: the pods of the controllers that are bound, without those that are known to have taken room.
        waiting: pods that are not bound.
        leaves: whether a pod, by its UID, ends or has gone, so that its controller replaces it by now.
    """
    since: dict[tuple[str, str], float] = {}
    for _, room in rooms.values():
        key = room.namespace, room.owner
        since[key] = min(since.get(key, math.inf), _since_s(room))
    left: dict[tuple[str, str], list[tuple[float, BoundPod]]] = {key: [] for key in since}
    for pod in bound:
        key = pod.namespace, pod.owner
        if key in since and (created_s := epoch_s(pod.created)) is not None and created_s >= since[key]:
            left[key].append((created_s, pod))
    pods = Counter(key for pod in waiting if pod.owner is not None and (key := (pod.namespace, pod.owner.uid)) in since)

    taken: dict[str, str] = {}
    elsewhere: dict[str, str] = {}

    def take(room: HeldRoom, node: str, noted: dict[str, str]) -> bool:
        """Note the first pod in room of a node, or where none is given anywhere, and return whether there is one."""
        some, since_s = left[room.namespace, room.owner], _since_s(room)
        for number, (created_s, pod) in enumerate(some):
            if (not node or pod.is_in(node, room)) and created_s >= since_s and pod.uid != room.uid:
                noted[room.uid] = pod.uid
                del some[number]
                return True
        return False

    others = [room for node, room in rooms.values() if not take(room, node, taken)]
    unclaimed: set[str] = set()
    for room in sorted(others, key=lambda each: (leaves(each.uid), each.since_s or 0.0, each.uid), reverse=True):
        pods[room.namespace, room.owner] -= 1
        if pods[room.namespace, room.owner] < 0 and not (leaves(room.uid) and take(room, "", elsewhere)):
            unclaimed.add(room.uid)
    return OverRooms(taken, elsewhere, [room for room in others if room.uid in unclaimed])


def _since_s(room: HeldRoom) -> float:
    """Return when a pod must have been made at the earliest to be the replacement; never where that is not known."""
    # The API server says when a pod was made in whole seconds.
    return math.inf if room.since_s is None else math.floor(room.since_s)

"""Which held room is over: its replacement is bound in it, or no pod waits for it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.contract.moves import HeldRoom
    from gpu_device_plugin.core.model.pods import Pod


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on the node of held room."""

    uid: str
    namespace: str
    owner: str
    """The UID of its controller."""
    created: str
    """RFC 3339."""
    positions: frozenset[int]
    """Of its GPUs."""

    def may_have_taken(self, room: HeldRoom) -> bool:
        """Return whether it may be the replacement that room of its node is held for."""
        created_s = epoch_s(self.created)
        return (
            (self.namespace, self.owner) == (room.namespace, room.owner)
            and self.uid != room.uid
            and created_s is not None
            and room.since_s is not None
            # The API server says it in whole seconds.
            and created_s >= math.floor(room.since_s)
            and bool(self.positions)
            and self.positions <= dict(room.shares).keys()
        )


def taken(rooms: Iterable[HeldRoom], pods: Iterable[BoundPod]) -> Sequence[str]:
    """Return the UIDs of the pods on a node whose room there has its replacement; each pod takes the room of one."""
    left = list(pods)
    found: list[str] = []
    for room in rooms:
        replacement = next((pod for pod in left if pod.may_have_taken(room)), None)
        if replacement is not None:
            left.remove(replacement)
            found.append(room.uid)
    return found


def unclaimed(rooms: Sequence[HeldRoom], waiting: Iterable[Pod]) -> Sequence[HeldRoom]:
    """Return the rooms without a pod of their controller that waits; each pod claims one, the newest first."""
    owners = {(room.namespace, room.owner) for room in rooms}
    pods = Counter(
        key for pod in waiting if pod.owner is not None and (key := (pod.namespace, pod.owner.uid)) in owners
    )
    left: set[str] = set()
    for room in sorted(rooms, key=lambda each: (each.since_s or 0.0, each.uid), reverse=True):
        key = room.namespace, room.owner
        pods[key] -= 1
        if pods[key] < 0:
            left.add(room.uid)
    return [room for room in rooms if room.uid in left]

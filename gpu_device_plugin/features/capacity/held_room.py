"""Room that is held for replacements of pods: in the fleet at once, and on the node for the next active extender."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.features.capacity.contract import HeldRoom, holdable, read_held, write_held
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, read_version, version_number
from gpu_device_plugin.model.contract.keys import HELD_ROOM
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.cluster_state import FleetEntry
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import Usage

_PREFIX = "held/"
"""Of the UID under which the fleet counts held room."""
_WRITE_S = 2.0
"""Timeout of writing it on a node."""
_REMEMBERED = 1000
"""Rooms that were taken, of which that is remembered."""
_UNCLAIMED_S = 30.0
"""How long room stays held for a pod that has gone while no pod of its controller waits. Controllers make replacements
within seconds; what names a controller that does not exist gets none."""


@dataclass(eq=False)
class Holds:
    """All held room of the cluster. Pods of other controllers cannot take it."""

    _context: ControllerContext

    def __post_init__(self) -> None:
        self.rooms: dict[str, tuple[str, HeldRoom]] = {}
        """By the UID of the pod that is replaced: the node and the room."""
        self._unwritten: set[str] = set()
        """The nodes whose annotation does not say yet what is held there."""
        self._written: dict[str, int] = {}
        """By node, the version that has what was written last: the watch may still show older ones."""
        self._shown: dict[str, str] = {}
        """By node, what its annotation says, where it says anything."""
        self._taken: dict[str, tuple[str, bool]] = {}
        """By the UID of a pod that is replaced, that of the pod that is bound in its place, and whether in its room."""
        self._unclaimed_at: dict[str, float] = {}
        """By the UID of a pod that is gone, since when no other claims its room, monotonic seconds."""

    def __repr__(self) -> str:
        return f"<Holds: {len(self.rooms)}>"

    # --- For the scheduler's calls ------------------------------------------------------------------------------------

    def for_pod(self, pod: Pod, asked: GpuRequest, nodes: Collection[str]) -> tuple[str, Candidate] | None:
        """Return room that is held for a pod on one of these nodes.

        As its UID in the fleet, and its node without other room. None: there is none that it fits in.
        """
        if pod.owner is None or not self.rooms:
            return None
        own = pod.owner.uid, pod.namespace
        uids = [uid for uid, (_, room) in self.rooms.items() if (room.owner, room.namespace) == own and uid != pod.uid]
        among = frozenset(nodes) if uids else ()
        # The room of a pod that is still to leave is for a replacement that is still to come.
        for uid in sorted(uids, key=self._leaves, reverse=True):
            if self.rooms[uid][0] in among:
                there = self._context.fleet.with_held_room(_PREFIX + uid)
                if there is not None and unfit(asked, there) is None:
                    return _PREFIX + uid, there
        return None

    # --- By the active extender ---------------------------------------------------------------------------------------

    def hold(self, node: str, room: HeldRoom) -> bool:
        """Hold room at once, in place of any other for the same pod; `write` makes it outlive this extender.

        Return whether it is held: the annotation of a node has not space for any number.
        """
        self.let_go(room.uid)
        if not holdable(room, self._on(node)):
            return False
        self._enter(node, room)
        self._unwritten.add(node)
        return True

    def let_go(self, uid: str) -> None:
        """Give back the room for the replacement of a pod."""
        found = self.rooms.pop(uid, None)
        if found is not None:
            self._context.fleet.let_go(_PREFIX + uid)
            self._unwritten.add(found[0])

    def taken(self, held: str, by: str, *, in_room: bool = True) -> None:
        """Note that the pod with the UID `by` is bound in the room that `for_pod` returned as `held`, or elsewhere."""
        uid = held.removeprefix(_PREFIX)
        self._taken.setdefault(uid, (by, in_room))
        if len(self._taken) > _REMEMBERED:
            del self._taken[next(iter(self._taken))]
        self.let_go(uid)

    def was_taken(self, uid: str) -> bool:
        """Return whether room is gone because a replacement is bound in it, not elsewhere, nor for its time or node."""
        return self._taken.get(uid, ("", False))[1]

    def expire(self) -> None:
        """Give back the room whose time has run out."""
        now = self._context.wall()
        for uid in [uid for uid, (_, room) in self.rooms.items() if room.until_s <= now]:
            self.let_go(uid)

    def release(self) -> None:
        """Give back the room whose replacement is bound, and that which no pod has waited for in `_UNCLAIMED_S`."""
        if not self.rooms:
            return
        now, (taken, unclaimed) = self._context.clock(), self._over()
        # Whoever bound the pod there may have ended before the node said so, or got no answer to the binding.
        for uid, (by, in_room) in taken.items():
            self.taken(uid, by, in_room=in_room)
        gone = [room.uid for room in unclaimed if not self._stays(room.uid)]
        self._unclaimed_at = {uid: self._unclaimed_at.get(uid, now) for uid in gone}
        for uid, since in self._unclaimed_at.items():
            if now - since >= _UNCLAIMED_S:
                self.let_go(uid)

    def unclaimed(self) -> Sequence[HeldRoom]:
        """Return the rooms for which no pod waits, and none is bound."""
        return self._over()[1]

    def _over(self) -> tuple[Mapping[str, tuple[str, bool]], Sequence[HeldRoom]]:
        owners = {room.owner for _, room in self.rooms.values()}
        known = {by for by, _ in self._taken.values()}
        bound = [
            entry
            for entry in self._context.fleet.entries.values()
            if entry.owner in owners and not entry.claimed and entry.uid not in known
        ]
        return over_rooms(self.rooms, bound, self._context.fleet.pending.values(), self._leaves)

    def _leaves(self, uid: str) -> bool:
        """Return whether a pod ends, or has gone."""
        return not self._stays(uid) or self._context.fleet.entries[uid].deleting

    def _stays(self, uid: str) -> bool:
        entry = self._context.fleet.entries.get(uid)
        return entry is not None and entry.until is None  # else it has vanished, or has ended

    def forget(self) -> None:
        """Hold what the nodes say and no more: another extender has been active."""
        self._unwritten.clear()
        for node in {*self._shown, *(at for at, _ in self.rooms.values())}:
            self._read(node)

    async def write(self, *nodes: str) -> None:
        """Write on nodes what is held there, by default on all that do not say it yet.

        Raises the first ApiError once all have been tried; what could not be written is tried again by the next call.
        """
        failed: ApiError | None = None
        for node in nodes or tuple(self._unwritten):
            held = self._held_on(node)
            body = {"metadata": {"annotations": {HELD_ROOM: held}}}
            try:
                after = await self._context.client.patch(NODES, node, body, timeout_s=_WRITE_S)
                self._written[node] = after.read(read_version)
                self._show(node, held or "")
            except NotFoundError:
                pass  # the watch shows that the node is gone
            except ApiError as error:
                # Where nothing is to be changed, it does not matter that this is forbidden.
                if not isinstance(error, ForbiddenError | InvalidError) or (held or "") != self._shown.get(node, ""):
                    failed = failed or error
                    continue
            if held == self._held_on(node):
                self._unwritten.discard(node)
        if failed is not None:
            raise failed

    def _on(self, node: str) -> Iterator[HeldRoom]:
        return (room for at, room in self.rooms.values() if at == node)

    def _held_on(self, node: str) -> str | None:
        return write_held(self._on(node))

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> None:
        """Learn what a node's annotation holds, unless this extender is about to write it."""
        if version_number(node.resource_version) < self._written.get(node.name, 0):
            return
        text = node.annotations.get(HELD_ROOM, "")
        if text or node.name in self._shown:
            self._show(node.name, text)
            if node.name not in self._unwritten:
                self._read(node.name)

    def remove_node(self, name: str) -> None:
        """Forget a node."""
        for uid in [uid for uid, (at, _) in self.rooms.items() if at == name]:
            self.let_go(uid)
        self._unwritten.discard(name)
        self._written.pop(name, None)
        self._shown.pop(name, None)

    def _show(self, node: str, text: str) -> None:
        if text:
            self._shown[node] = text
        else:
            self._shown.pop(node, None)

    def _read(self, node: str) -> None:
        """Hold on a node what its annotation says."""
        shown = {room.uid: room for room in read_held({HELD_ROOM: self._shown.get(node, "")})}
        for uid in [uid for uid, (at, _) in self.rooms.items() if at == node and uid not in shown]:
            del self.rooms[uid]
            self._context.fleet.let_go(_PREFIX + uid)
        for uid, room in shown.items():
            if uid in self._taken:
                self._unwritten.add(node)  # the pod counts in its place, and the node does not say so yet
            else:
                self._enter(node, room)

    def _enter(self, node: str, room: HeldRoom) -> None:
        self.rooms[room.uid] = node, room
        left_s = room.until_s - self._context.wall()
        if left_s <= 0:
            return  # the active extender is about to give it back
        self._context.fleet.hold(
            FleetEntry(
                _PREFIX + room.uid,
                room.namespace,
                f"replacement of {room.uid}",
                node,
                Usage(room.shares),
                until=self._context.clock() + left_s,
                held_for=room.owner,
            )
        )


# --- Which room is over -----------------------------------------------------------------------------------------------


def over_rooms(
    rooms: Mapping[str, tuple[str, HeldRoom]],
    bound: Iterable[FleetEntry],
    waiting: Iterable[Pod],
    leaves: Callable[[str], bool],
) -> tuple[Mapping[str, tuple[str, bool]], Sequence[HeldRoom]]:
    """Return which rooms are over, and those of the others for which no pod waits.

    Of a room that is over by the UID of the pod that is replaced, that of the pod which is bound instead, and whether
    in the room. Each pod takes the room of one, or claims it if it waits: the newest first.

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
    left: dict[tuple[str, str], list[tuple[float, FleetEntry]]] = {key: [] for key in since}
    for pod in bound:
        key = pod.namespace, pod.owner
        if key in since and (created_s := epoch_s(pod.created)) is not None and created_s >= since[key]:
            left[key].append((created_s, pod))
    pods = Counter(key for pod in waiting if pod.owner is not None and (key := (pod.namespace, pod.owner.uid)) in since)

    taken: dict[str, tuple[str, bool]] = {}

    def take(room: HeldRoom, node: str) -> bool:
        """Note the first pod in room of a node, or where none is given anywhere, and return whether there is one."""
        some, since_s = left[room.namespace, room.owner], _since_s(room)
        for number, (created_s, pod) in enumerate(some):
            if (not node or _is_in(pod, node, room)) and created_s >= since_s and pod.uid != room.uid:
                taken[room.uid] = pod.uid, bool(node)
                del some[number]
                return True
        return False

    others = [room for node, room in rooms.values() if not take(room, node)]
    unclaimed: set[str] = set()
    for room in sorted(others, key=lambda each: (leaves(each.uid), each.since_s or 0.0, each.uid), reverse=True):
        pods[room.namespace, room.owner] -= 1
        if pods[room.namespace, room.owner] < 0 and not (leaves(room.uid) and take(room, "")):
            unclaimed.add(room.uid)
    return taken, [room for room in others if room.uid in unclaimed]


def _since_s(room: HeldRoom) -> float:
    """Return when a pod must have been made at the earliest to be the replacement; never where that is not known."""
    # The API server says when a pod was made in whole seconds.
    return math.inf if room.since_s is None else math.floor(room.since_s)


def _is_in(pod: FleetEntry, node: str, room: HeldRoom) -> bool:
    """Return whether the GPUs of a pod are those of room on a node."""
    positions = {*dict(pod.usage.shares), *pod.usage.whole}
    return pod.node == node and bool(positions) and positions <= dict(room.shares).keys()

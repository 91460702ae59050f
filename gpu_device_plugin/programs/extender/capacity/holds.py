"""Room that is held for replacements of pods: in the fleet at once, and on the node for the next active extender."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.client.errors import NotFoundError
from gpu_device_plugin.cluster.objects.decoding import NODES, read_version, version_number
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.keys import HELD_ROOM
from gpu_device_plugin.core.contract.moves import HeldRoom, read_held, write_held
from gpu_device_plugin.fleet import FleetEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.objects.decoding import NodeRecord
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.fleet import Fleet

_PREFIX = "held/"
"""Of the UID under which the fleet counts held room."""
_WRITE_S = 2.0
"""Timeout of writing it on a node."""


@dataclass(eq=False)
class Holds:
    """All held room of the cluster. Pods of other controllers cannot take it."""

    _fleet: Fleet
    _client: Client
    _: KW_ONLY
    clock: Callable[[], float]
    """Returns monotonic seconds."""
    wall: Callable[[], float]
    """Returns seconds since the epoch."""

    def __post_init__(self) -> None:
        self._rooms: dict[str, tuple[str, HeldRoom]] = {}
        """By the UID of the pod that is replaced: the node and the room."""
        self._unwritten: set[str] = set()
        """The nodes whose annotation does not say yet what is held there."""
        self._written: dict[str, int] = {}
        """By node, the version that has what was written last: the watch may still show older ones."""

    def __repr__(self) -> str:
        return f"<Holds: {len(self._rooms)}>"

    @property
    def rooms(self) -> Mapping[str, tuple[str, HeldRoom]]:
        """By the UID of the pod that is replaced: the node and the room."""
        return self._rooms

    # --- For the scheduler's calls ------------------------------------------------------------------------------------

    def for_pod(self, pod: Pod, asked: Ask) -> tuple[str, Candidate] | None:
        """Return room that is held for a pod, as the UID of the pod that it replaces and its node without other room.

        None: there is none that it fits in.
        """
        if pod.owner is None or not self._rooms:
            return None
        for uid, (_, room) in self._rooms.items():
            if (room.owner, room.namespace) == (pod.owner.uid, pod.namespace) and uid != pod.uid:
                there = self._fleet.with_held_room(_PREFIX + uid)
                if there is not None and unfit(asked, there) is None:
                    return uid, there
        return None

    def room_of(self, uid: str, node: str) -> Candidate | None:
        """Return a node without other room than what is held there for the replacement of a pod; None: none is."""
        held = self._rooms.get(uid)
        return None if held is None or held[0] != node else self._fleet.with_held_room(_PREFIX + uid)

    # --- By the active extender ---------------------------------------------------------------------------------------

    def hold(self, node: str, room: HeldRoom) -> None:
        """Hold room at once; `write` makes it outlive this extender."""
        self.let_go(room.uid)
        self._enter(node, room)
        self._unwritten.add(node)

    def let_go(self, uid: str) -> None:
        """Give back the room for the replacement of a pod."""
        found = self._rooms.pop(uid, None)
        if found is not None:
            self._fleet.let_go(_PREFIX + uid)
            self._unwritten.add(found[0])

    def expire(self) -> None:
        """Give back the room whose time has run out."""
        now = self.wall()
        for uid in [uid for uid, (_, room) in self._rooms.items() if room.until_s <= now]:
            self.let_go(uid)

    async def write(self) -> None:
        """Write on the nodes what is held there. Raises ApiError: the rest is written by the next call."""
        for node in tuple(self._unwritten):
            held = self._held_on(node)
            body = {"metadata": {"annotations": {HELD_ROOM: held}}}
            try:
                after = await self._client.patch(NODES, node, body, timeout_s=_WRITE_S)
                self._written[node] = read_version(after)
            except NotFoundError:
                pass  # the watch shows that the node is gone
            if held == self._held_on(node):
                self._unwritten.discard(node)

    def _held_on(self, node: str) -> str | None:
        return write_held(room for at, room in self._rooms.values() if at == node)

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> None:
        """Learn what a node's annotation holds, unless this extender is about to write it."""
        if node.name in self._unwritten or version_number(node.resource_version) < self._written.get(node.name, 0):
            return
        shown = {room.uid: room for room in read_held(node.annotations)}
        before = [uid for uid, (at, _) in self._rooms.items() if at == node.name]
        for uid in before:
            if uid not in shown:
                del self._rooms[uid]
                self._fleet.let_go(_PREFIX + uid)
        for room in shown.values():
            if room.until_s > self.wall():
                self._enter(node.name, room)

    def remove_node(self, name: str) -> None:
        """Forget a node."""
        for uid in [uid for uid, (at, _) in self._rooms.items() if at == name]:
            self.let_go(uid)
        self._unwritten.discard(name)
        self._written.pop(name, None)

    def _enter(self, node: str, room: HeldRoom) -> None:
        self._rooms[room.uid] = node, room
        left_s = room.until_s - self.wall()
        self._fleet.hold(
            FleetEntry(
                _PREFIX + room.uid,
                room.namespace,
                f"replacement of {room.uid}",
                node,
                Usage(room.shares),
                until=self.clock() + left_s,
                held_for=room.owner,
            )
        )

"""Keep autoscalers from nodes whose pods have no other place, and hold places for the pods of nodes that go."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.cluster.client.errors import ConflictError, InvalidError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import NODES
from gpu_device_plugin.core.capacity.leaving import Leaving, leaving, refuges
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.contract.nodelabels import kept, let_go
from gpu_device_plugin.core.model.times import epoch_s
from gpu_device_plugin.programs.extender.capacity.followed import replaceable
from gpu_device_plugin.programs.extender.capacity.moving import room_for

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpu_device_plugin.core.capacity.movable import Move, Resident, Residents
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.programs.extender.capacity.followed import FollowedNode
    from gpu_device_plugin.programs.extender.capacity.parts import Parts

    Changes = Mapping[str, str | None]

_log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Nodes that are written at the same time."""
_PODS_AT_ONCE = 16
"""Pods that are looked at in one step."""
_CALL_S = 5.0
_HELD = "room is held on it for pods that are being moved"
_ALONE = "it has a pod that no controller replaces"


@dataclass(eq=False)
class Keeper:
    """Decides which nodes may go, and writes it on them."""

    _parts: Parts
    latest: Leaving = field(default_factory=Leaving, init=False)
    """The latest decision."""

    async def mark(self) -> bool:
        """Decide which nodes may go, and write on the others that they must not; return whether all is written.

        Raises ApiError.
        """
        nodes = self._open()
        followed = {name: self._parts.followed.nodes[name] for name in nodes}
        others = [node for name, node in self._parts.followed.nodes.items() if name not in nodes]
        tied = dict.fromkeys((at for at, _ in self._parts.holds.rooms.values()), _HELD)
        residents = self._parts.residents(nodes)
        on_nodes: dict[str, list[Resident]] = {}
        pods = [(name, pod) for name in nodes for pod in self._parts.followed.on_node(name)]
        for number, (name, pod) in enumerate(pods):
            if not number % _PODS_AT_ONCE:
                await asyncio.sleep(0)
            if replaceable(pod) is not None:
                on_nodes.setdefault(name, []).append(self._resident(residents, pod))
            elif pod.owner is None:
                tied.setdefault(name, _ALONE)
        self.latest = await last_of(leaving(nodes, on_nodes, tied))
        changes = [
            *((followed[name], kept(followed[name].annotations, why)) for name, why in self.latest.stay.items()),
            *((followed[name], let_go(followed[name].annotations)) for name in self.latest.may_go),
            # Nobody needs a node that is cordoned or broken and has no pods to lose.
            *((node, let_go(node.annotations)) for node in others if not self._parts.followed.on_node(node.name)),
        ]
        due = [(node, change) for node, change in changes if change]
        return await self._write_all(due)

    async def release(self) -> bool:
        """Remove what was written on nodes; return whether all is removed. Raises ApiError."""
        self.latest = Leaving()
        nodes = [self._parts.followed.nodes[name] for name in self._parts.followed.marked]
        return await self._write_all([(node, change) for node in nodes if (change := let_go(node.annotations))])

    async def _write_all(self, due: Sequence[tuple[FollowedNode, Changes]]) -> bool:
        written = True
        for first in range(0, len(due), _AT_ONCE):
            done = await asyncio.gather(*(self._write(*each) for each in due[first : first + _AT_ONCE]))
            written = written and all(done)
        return written

    async def _write(self, node: FollowedNode, change: Changes) -> bool:
        # Only on the node as it was decided on: a person may have written the same annotations since.
        body = {"metadata": {"resourceVersion": node.version, "annotations": dict(change)}}
        try:
            await self._parts.client.patch(NODES, node.name, body, timeout_s=_CALL_S)
        except NotFoundError:
            return True
        except (ConflictError, InvalidError):
            return False  # it has changed since: the watch shows it as it is now
        if node.name in self.latest.stay:
            _log.info("a node is kept from autoscalers", extra={"node": node.name, "why": self.latest.stay[node.name]})
        return True

    def _open(self) -> Mapping[str, Candidate]:
        """Return the nodes that pods with GPUs may come to."""
        followed = self._parts.followed.nodes
        return {name: node for name, node in self._parts.sharing().items() if followed[name].open}

    def _resident(self, residents: Residents, pod: Pod) -> Resident:
        return residents.of(pod, self._parts.followed.facts(pod.uid))

    # --- Nodes that go ------------------------------------------------------------------------------------------------

    async def shelter(self, moving: Collection[str] = ()) -> None:
        """Hold places for the pods of nodes that are being drained; `moving` have theirs."""
        self._give_back(moving)
        if not self._parts.followed.draining:
            return
        awaited = self._awaited()
        for name in tuple(self._parts.followed.draining):
            node = self._parts.followed.nodes.get(name)
            if node is None:
                continue
            leavers: list[tuple[Pod, float]] = []
            for pod in self._parts.followed.on_node(name):
                owner = replaceable(pod)
                if owner is None or pod.uid in self._parts.holds.rooms:
                    continue
                if pod.deleting:
                    # Its replacement waits already, or has found a place.
                    if made_s := awaited.get(owner.uid):
                        leavers.append((pod, made_s.pop()))
                elif node.going:
                    leavers.append((pod, self._parts.wall()))
            if leavers:
                await self._hold_for(name, leavers)

    def _awaited(self) -> Mapping[str, list[float]]:
        """Return by controller when the pods were made, the newest last, that wait and have no room held."""
        found: dict[str, list[float]] = {}
        for pod in self._parts.fleet.pending.values():
            if pod.owner is not None:
                found.setdefault(pod.owner.uid, []).append(epoch_s(pod.created) or self._parts.wall())
        for made_s in found.values():
            made_s.sort()
        for uid, (_, room) in self._parts.holds.rooms.items():
            left = self._parts.followed.pods.get(uid)
            if left is None or left.deleting:
                del found.get(room.owner, [])[:1]
        return found

    async def _hold_for(self, name: str, leavers: Sequence[tuple[Pod, float]]) -> None:
        nodes, may_go = self._open(), self.latest.may_go
        pods = {pod.uid: (pod, since_s) for pod, since_s in leavers}
        known = self._parts.residents(nodes)
        residents = [self._resident(known, pod) for pod, _ in leavers]
        places: list[Move] = []
        # Those that stay first: a place on a node that may go itself would have to be left again.
        for some in ({each for each in nodes if each not in may_go}, set(may_go)):
            rest = [each for each in residents if each not in {place.pod for place in places}]
            found = refuges({each: node for each, node in nodes.items() if each in some}, rest)
            places += await last_of(found)
        for place in places:
            pod, since_s = pods[place.pod.pod.uid]
            there = self._parts.fleet.candidates.get(place.node)
            # Meanwhile another pod may have taken the room; then the next look finds other room.
            if pod.owner is None or there is None or unfit(place.pod.ask, there.restricted(place.shares)) is not None:
                continue
            room = room_for(pod, pod.owner, tuple(place.shares.items()), self._parts.wall())
            if self._parts.holds.hold(place.node, replace(room, since_s=since_s)):
                _log.info(
                    "a place is held for a pod of a node that goes",
                    extra={"pod": str(place.pod), "from": name, "to": place.node},
                )

    def _give_back(self, moving: Collection[str]) -> None:
        """Give back the places of pods that stay after all, and those on nodes that no pod may come to any more."""
        nodes = self._parts.followed.nodes
        for uid, (name, _) in tuple(self._parts.holds.rooms.items()):
            pod, to = self._parts.followed.pods.get(uid), nodes.get(name)
            node = None if pod is None or pod.deleting or uid in moving else nodes.get(pod.node_name)
            if (to is not None and (to.unschedulable or to.going)) or (node is not None and not node.going):
                self._parts.holds.let_go(uid)

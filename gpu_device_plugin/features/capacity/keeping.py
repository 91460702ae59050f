"""Keep autoscalers from nodes whose pods have no other place, and hold places for the pods of nodes that go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache, replaceable
from gpu_device_plugin.features.capacity.contract import kept, let_go
from gpu_device_plugin.features.capacity.moving import room_for
from gpu_device_plugin.features.capacity.rules.leaving import Leaving, leaving, refuges
from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedPod
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, read_metadata, version_number
from gpu_device_plugin.model.contract.keys import KEEPS, KEPT_NODE
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.fitting import unfit

Changes = Mapping[str, str | None]

_log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Nodes that are written at the same time."""
_PODS_AT_ONCE = 16
"""Pods that are looked at in one step."""
_CALL_S = 2.0
_LOOKS = 3
"""How often nodes are marked before others are let go, as pods come to some of these meanwhile."""
_LOOP_S, _LOOK_S = 2.0, 0.05
"""How long an autoscaler's loop may take from reading the nodes to the taints of those that it removes, and how often
these are looked at."""
_DOOMED = "DeletionCandidateOfClusterAutoscaler"
"""Key of the taint that the Cluster Autoscaler puts on nodes long before it removes them."""
_HELD = "room is held on it for pods that are being moved"
_ALONE = "it has a pod that no controller replaces"
_COMING = "a pod is being bound to it"


@dataclass(eq=False)
class Keeper:
    """Decides which nodes may go, and writes it on them.

    A node is marked before anything takes the room that its pods would go to, and let go after all others are marked.
    """

    _context: ControllerContext
    _cache: CapacityCache
    latest: Leaving = field(default_factory=Leaving, init=False)
    """The latest decision, without the nodes that had to be marked since: what is in force for all without a mark."""
    _written: dict[str, NodeRecord] = field(default_factory=dict, init=False)
    """By name, nodes as they were written last, until the watch shows them so."""
    _doubted: dict[str, str] = field(default_factory=dict, init=False)
    """By name of a node, the version on which the removal of its mark got no answer, and may still be made."""
    _marked_at: dict[str, float] = field(default_factory=dict, init=False)
    """By name of a node, when it was marked, monotonic seconds."""
    _writing: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)
    """By name of a node, held while it is written."""

    def forget(self) -> None:
        """Drop the latest decision: another extender has been active."""
        self.latest = Leaving()

    async def decide(self) -> Leaving:
        """Return which nodes may go."""
        nodes = self._cache.sharing_open()
        tied = dict.fromkeys((at for at, _ in self._cache.holds.rooms.values()), _HELD)
        # The watch has not shown these pods yet, so that they are on no node here.
        tied |= {entry.node: _COMING for entry in self._context.fleet.entries.values() if not entry.seen}
        residents = self._cache.residents(nodes)
        on_nodes: dict[str, list[PlannedPod]] = {}
        for name in nodes:
            for number, pod in enumerate(self._cache.on_node(name)):
                if not number % _PODS_AT_ONCE:
                    await asyncio.sleep(0)
                if replaceable(pod) is not None:
                    on_nodes.setdefault(name, []).append(residents.of(pod, self._cache.facts(pod.uid)))
                elif pod.owner is None:
                    tied.setdefault(name, _ALONE)
        return await last_of(leaving(nodes, on_nodes, tied))

    async def mark(self, found: Leaving, began: int) -> bool:
        """Mark the nodes that stay, and then let the others go; return whether all is written. Raises ApiError.

        `began` is the state of the fleet for which that was decided, or an earlier one.
        """
        fleet, cache = self._context.fleet, self._cache
        for known in (self._written, self._doubted, self._marked_at):
            for name in known.keys() - cache.nodes.keys():
                del known[name]
        for _ in range(_LOOKS):
            changed = fleet.now.changed_since(began)[1]
            found = found.after_changes(fleet.candidates, found.may_go if changed is None else changed)
            due = self._due(found.stay)
            if not due:
                break
            if not await self._write_all(due):
                return False
        else:
            return False
        # No await since it was compared with the fleet: whatever comes from now on heeds this decision.
        self.latest = found
        # Nobody needs a node that is cordoned or broken and has no pods to lose.
        needed = found.stay.keys() | {pod.node_name for pod in cache.pods.values()}
        others = [name for name in cache.nodes if name not in needed]
        return await self._write_all(self._due(dict.fromkeys((*found.may_go, *others), "")))

    async def release(self) -> bool:
        """Remove what was written on nodes; return whether all is removed. Raises ApiError."""
        marked = (name for name, node in self._cache.nodes.items() if KEPT_NODE in node.annotations)
        self.latest = Leaving(dict.fromkeys(marked, ()))
        return await self._write_all(self._due(dict.fromkeys(self.latest.may_go, "")))

    async def secure(self, name: str, why: str) -> Collection[str]:
        """Mark a node to which something has come in the fleet, and those whose pods have no place because of that.

        Return their names. Raises one of the ApiErrors once all have been tried.
        """
        node = self._context.fleet.candidates.get(name)
        if node is None or not node.rooms or node.gpus.claims:
            return ()
        names = (name, *self.latest.displaced(node))
        done = await asyncio.gather(*(self._write(each, why) for each in names), return_exceptions=True)
        written = [each for each, result in zip(names, done, strict=True) if result is True]
        self.latest = self.latest.without(written, why)
        for error in done:
            if isinstance(error, BaseException):
                raise error
        return names

    async def going(self, names: Collection[str]) -> str:
        """Return the first of these nodes that an autoscaler removes though they are marked, once it has read that.

        It has read its nodes at the beginning of a loop; those that it may remove in this one it has tainted before.
        """
        nodes = self._cache.nodes
        while there := [nodes[name] for name in names if name in nodes]:
            if gone := next((node.name for node in there if node.going), ""):
                return gone
            recently = self._context.clock() - _LOOP_S
            marked = [each for each in there if self._marked_at.get(each.name, recently) > recently]
            if not any(taint.key == _DOOMED for each in marked for taint in each.taints):
                break
            await asyncio.sleep(_LOOK_S)
        return ""

    def _due(self, reasons: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """Return those of these nodes that have to be written, given by name why they stay; empty: they may go."""
        nodes = ((self._as_is(name), why) for name, why in reasons.items())
        return [(node.name, why) for node, why in nodes if node is not None and self._change(node, why)]

    def _change(self, node: NodeRecord, why: str) -> Changes:
        notes, latest = node.annotations, self.latest
        if why:
            # In doubt it is written again, so that a removal of that state of the node cannot be made any more.
            gone = let_go(notes) if self._doubted.get(node.name) == node.resource_version else ()
            return kept({key: text for key, text in notes.items() if key not in gone}, why)
        may_go = node.name in latest.may_go or not (node.name in latest.stay or self._context.fleet.on_node(node.name))
        return let_go(notes) if may_go else {}

    def _as_is(self, name: str) -> NodeRecord | None:
        """Return a node as it was written or seen last, whichever is newer; None: it is gone."""
        seen, written = self._cache.nodes.get(name), self._written.get(name)
        if (
            seen is None
            or written is None
            or version_number(seen.resource_version) >= version_number(written.resource_version)
        ):
            self._written.pop(name, None)
            return seen
        return written

    async def _write_all(self, due: Sequence[tuple[str, str]]) -> bool:
        written = True
        for first in range(0, len(due), _AT_ONCE):
            done = await asyncio.gather(*(self._write(*each) for each in due[first : first + _AT_ONCE]))
            written = written and all(done)
        return written

    async def _write(self, name: str, why: str) -> bool:
        """Mark a node for a reason, or let it go without one; return whether it is so. Raises ApiError."""
        # The lock spans awaits on purpose: what comes while a mark is being removed waits for that, and marks it again.
        async with self._writing.setdefault(name, asyncio.Lock()):
            node = self._as_is(name)
            for last in (not why, True):
                if node is None or not (change := self._change(node, why)):
                    return True
                # Only on the node as it was decided on: a person may have written the same annotations since.
                body = {"metadata": {"resourceVersion": node.resource_version, "annotations": dict(change)}}
                self._doubted[name] = node.resource_version
                try:
                    after = await self._context.client.patch(NODES, name, body, timeout_s=_CALL_S)
                except NotFoundError:
                    return True
                except (ConflictError, InvalidError):
                    self._doubted.pop(name, None)
                    if last:
                        return False  # the watch will show it as it is now
                    node = self._noted(node, await self._context.client.get(NODES, name, timeout_s=_CALL_S))
                else:
                    self._doubted.pop(name, None)
                    self._noted(node, after)
                    break
        self._marked_at.pop(name, None)
        if why:
            self._marked_at[name] = self._context.clock()
            _log.info("a node is protected from autoscalers", extra={"node": name, "why": why})
        return True

    def _noted(self, node: NodeRecord, answer: ApiAnswer) -> NodeRecord:
        meta = answer.read(read_metadata)
        notes = {key: text for key, text in (meta.annotations or {}).items() if key in {KEPT_NODE, *KEEPS}}
        self._written[node.name] = now = replace(node, annotations=notes, resource_version=meta.resource_version)
        return now

    # --- Nodes that go ------------------------------------------------------------------------------------------------

    async def reserve_for_drain(self, moving: Collection[str] = ()) -> None:
        """Hold places for the pods of nodes that are being drained; `moving` have theirs."""
        self._give_back(moving)
        draining = [node for node in self._cache.unsettled.values() if node.draining]
        awaited = self._awaited() if draining else {}
        for node in draining:
            leavers: list[tuple[Pod, float]] = []
            for pod in self._cache.on_node(node.name):
                owner = replaceable(pod)
                if owner is None or pod.uid in self._cache.holds.rooms:
                    continue
                if pod.deleting:
                    # Its replacement waits already, or has found a place.
                    if made_s := awaited.get(owner.uid):
                        leavers.append((pod, made_s.pop()))
                elif node.going:
                    leavers.append((pod, self._context.wall()))
            if leavers:
                await self._hold_for(node.name, leavers)

    def _awaited(self) -> Mapping[str, list[float]]:
        """Return by controller when the pods were made, the newest last, that wait and have no room held."""
        found: dict[str, list[float]] = {}
        for pod in self._context.fleet.pending.values():
            if pod.owner is not None:
                found.setdefault(pod.owner.uid, []).append(epoch_s(pod.created) or self._context.wall())
        for made_s in found.values():
            made_s.sort()
        for uid, (_, room) in self._cache.holds.rooms.items():
            left = self._cache.pods.get(uid)
            if left is None or left.deleting:
                del found.get(room.owner, [])[:1]
        return found

    async def _hold_for(self, name: str, leavers: Sequence[tuple[Pod, float]]) -> None:
        nodes, may_go = self._cache.sharing_open(), self.latest.may_go
        pods = {pod.uid: (pod, since_s) for pod, since_s in leavers}
        known = self._cache.residents(nodes)
        residents = [known.of(pod, self._cache.facts(pod.uid)) for pod, _ in leavers]
        places: list[Move] = []
        # Those that stay first: a place on a node that may go itself would have to be left again.
        for some in ({each for each in nodes if each not in may_go}, set(may_go)):
            rest = [each for each in residents if each not in {place.pod for place in places}]
            found = refuges({each: node for each, node in nodes.items() if each in some}, rest)
            places += await last_of(found)
        for place in places:
            pod, since_s = pods[place.pod.pod.uid]
            there = self._context.fleet.candidates.get(place.node)
            # Meanwhile another pod may have taken the room; then the next look finds other room.
            if pod.owner is None or there is None or unfit(place.pod.ask, there.restricted(place.shares)) is not None:
                continue
            room = room_for(pod, pod.owner, tuple(place.shares.items()), self._context.wall())
            if self._cache.holds.hold(place.node, replace(room, since_s=since_s)):
                _log.info(
                    "room is held for a pod of a node that is being removed",
                    extra={"pod": str(place.pod), "from": name, "to": place.node},
                )
                with suppress(ApiError):  # the next decision marks them
                    await self.secure(place.node, f"room on node {place.node} is held for pods that are being moved")

    def _give_back(self, moving: Collection[str]) -> None:
        """Give back the places of pods that stay after all, and those on nodes that no pod may come to any more."""
        nodes = self._cache.nodes
        for uid, (name, _) in tuple(self._cache.holds.rooms.items()):
            pod, to = self._cache.pods.get(uid), nodes.get(name)
            node = None if pod is None or pod.deleting or uid in moving else nodes.get(pod.node_name)
            if (to is not None and to.draining) or (node is not None and not node.going):
                self._cache.holds.let_go(uid)

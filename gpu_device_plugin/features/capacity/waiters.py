"""The pods that wait, and for which no node has room."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.capacity.rules.movable import other_resources
from gpu_device_plugin.features.capacity.rules.node_kinds import Needs
from gpu_device_plugin.features.capacity.settings import CapacitySettings
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.pod_demand import Impossible, ask

_NEW_S = 60.0
"""How long after a node was made kube-scheduler may not have tried a pod on it: it retries one within 10 s."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod for which its scheduler has found no node."""

    pod: Pod
    needs: Needs

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.pod.namespace}/{self.pod.name}"


@dataclass(eq=False)
class Waiters:
    """The waiting pods, whichever part of a scheduler refused them."""

    _context: ControllerContext
    _followed: CapacityCache

    def new_since(self) -> float:
        """Return after when a node was made that is new, seconds since the epoch."""
        return self._context.wall() - min(_NEW_S, self._context.settings().of(CapacitySettings).node_start_s)

    def unschedulable(self) -> Sequence[Waiter]:
        """Return the pods that have been unschedulable for `settled_s`; none whose demand no node can ever meet."""
        followed, before = self._followed, self._context.wall() - self._context.timings.settled_s
        ours = frozenset(resource.name for resource in self._context.resources)
        found = []
        for uid, pod in self._context.fleet.pending.items():
            if followed.unschedulable.get(uid, before + 1) > before or uid in self._context.fleet.entries:
                continue  # it was refused not long ago, or has its place and is being bound
            asked = ask(pod, self._context.resources)
            if not isinstance(asked, Impossible) and asked.parts:
                terms = followed.facts(uid).terms
                found.append(Waiter(pod, Needs(asked, terms, pod.amounts, other_resources(pod, ours))))
        return found

    async def without_room(self, waiting: Sequence[Waiter]) -> Sequence[Waiter]:
        """Leave out the pods for which there is room, free or held: kube-scheduler is about to try them again.

        New nodes (`new_since`) are left out: they take some of equal pods. They count where affinity to pods decides.
        """
        followed = self._followed
        residents = followed.residents([name for name, node in followed.nodes.items() if node.open and node.offers])
        fleet = self._context.fleet
        # Pods that have vanished make room in less time than a node takes.
        soon = {
            name: node.occupied(
                [each.usage for each in fleet.on_node(name) if each.held_for or not (each.temporary or each.settling)]
            )
            for name, node in fleet.soon.items()
        }
        new = {node.name for node in followed.young(self.new_since())}
        known: dict[tuple[Needs, bool], bool] = {}
        rooms = Counter(room.owner for _, room in self._followed.holds.rooms.values())
        found = []
        for each in waiting:
            owner = "" if each.pod.owner is None else each.pod.owner.uid
            if rooms[owner] > 0 and self._followed.holds.for_pod(each.pod, each.needs.ask, followed.nodes) is not None:
                rooms[owner] -= 1
                continue
            # Affinity to pods is for kube-scheduler to judge: if it found no room, only nodes it has not tried count.
            only_new = followed.facts(each.pod.uid).neighbours and self._context.refused(each.pod.uid)
            key = each.needs, only_new
            if key not in known:
                allowed = residents.allowed(each.needs.terms)
                known[key] = self._has_room(each.needs, allowed & new if only_new else allowed - new) or any(
                    name in allowed and each.needs.met_by(node) for name, node in soon.items()
                )
                await asyncio.sleep(0)
            if not known[key]:
                found.append(each)
        # Some may have been bound meanwhile.
        return [each for each in found if each.pod.uid in fleet.pending and each.pod.uid not in fleet.entries]

    def _has_room(self, needs: Needs, allowed: frozenset[str]) -> bool:
        """Return whether one of the nodes that a pod may go to has room for it."""
        nodes, followed = self._context.fleet.candidates, self._followed.nodes
        names = [name for name in allowed if name in nodes and needs.others <= followed[name].others]
        verdicts = self._context.evaluator.verdicts(needs.ask, names)
        return any(
            why is None and ((left := nodes[name].left) is None or left.cover(needs.amounts))
            for name, why in zip(names, verdicts, strict=True)
        )

"""What all care for the capacity works with; and the pods that wait, for which no node has room."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Residents, other_resources
from gpu_device_plugin.core.capacity.node_kinds import Needs
from gpu_device_plugin.core.cluster.pod_demand import Impossible, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.binder import Binder
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.fleet import Fleet
    from gpu_device_plugin.fleet_judge import Judge
    from gpu_device_plugin.metrics import Metrics
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.extender.followed import Followed
    from gpu_device_plugin.programs.extender.holds import Holds


_NEW_S = 60.0
"""How long after a node was made kube-scheduler may not have tried a pod on it: it retries one within 10 s."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an extender that all care for the capacity needs."""

    fleet: Fleet
    followed: Followed
    holds: Holds
    client: Client
    resources: Sequence[Resource]
    metrics: Metrics
    binder: Binder
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""
    wall: Callable[[], float] = time.time
    """Returns seconds since the epoch."""

    def sharing(self) -> dict[str, Candidate]:
        """Return the nodes whose GPUs pods share by limits, as they are now: those that pods may be moved between."""
        return {
            name: node
            for name, node in self.fleet.candidates.items()
            if node.rooms and not node.gpus.claims and name in self.followed.nodes
        }

    def residents(self, nodes: Iterable[str]) -> Residents:
        """Return what makes residents of pods, of which those that may be moved may go to these nodes."""
        # The eviction itself asks PodDisruptionBudgets.
        return Residents([self.followed.nodes[name] for name in nodes], self.resources, {})


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

    _parts: Parts
    _judge: Judge
    _refused: Callable[[str], bool]
    """Returns whether none of the nodes that kube-scheduler has named for a pod had room, by its UID."""
    _node_start_s: Callable[[], float]
    """Returns how long a new node takes until pods can be placed on it, seconds."""

    def new_since(self) -> float:
        """Return after when a node was made that is new, seconds since the epoch."""
        return self._parts.wall() - min(_NEW_S, self._node_start_s())

    def unschedulable(self, for_s: float) -> Sequence[Waiter]:
        """Return the pods that have been unschedulable for so many seconds; none whose demand no node can ever meet."""
        followed, before = self._parts.followed, self._parts.wall() - for_s
        ours = frozenset(resource.name for resource in self._parts.resources)
        found = []
        for uid, pod in self._parts.fleet.pending.items():
            if followed.unschedulable.get(uid, before + 1) > before or uid in self._parts.fleet.entries:
                continue  # it was refused not long ago, or has its place and is being bound
            asked = ask(pod, self._parts.resources)
            if not isinstance(asked, Impossible) and asked.parts:
                terms = followed.facts(uid).terms
                found.append(Waiter(pod, Needs(asked, terms, pod.amounts, other_resources(pod, ours))))
        return found

    async def without_room(self, waiting: Sequence[Waiter]) -> Sequence[Waiter]:
        """Leave out the pods for which there is room, free or held: kube-scheduler is about to try them again.

        New nodes (`new_since`) are left out: they take some of equal pods. They count where affinity to pods decides.
        """
        followed = self._parts.followed
        residents = self._parts.residents([name for name, node in followed.nodes.items() if node.open and node.offers])
        fleet = self._parts.fleet
        # Pods that have vanished make room in less time than a node takes.
        soon = {
            name: node.occupied(
                [each.usage for each in fleet.on_node(name) if each.held_for or not (each.temporary or each.settling)]
            )
            for name, node in fleet.soon.items()
        }
        new = {node.name for node in followed.young(self.new_since())}
        known: dict[tuple[Needs, bool], bool] = {}
        rooms = Counter(room.owner for _, room in self._parts.holds.rooms.values())
        found = []
        for each in waiting:
            owner = "" if each.pod.owner is None else each.pod.owner.uid
            if rooms[owner] > 0 and self._parts.holds.for_pod(each.pod, each.needs.ask, followed.nodes) is not None:
                rooms[owner] -= 1
                continue
            # Affinity to pods is for kube-scheduler to judge: if it found no room, only nodes it has not tried count.
            only_new = followed.facts(each.pod.uid).neighbours and self._refused(each.pod.uid)
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
        nodes, followed = self._parts.fleet.candidates, self._parts.followed.nodes
        names = [name for name in allowed if name in nodes and needs.others <= followed[name].others]
        verdicts = self._judge.verdicts(needs.ask, names)
        return any(
            why is None and ((left := nodes[name].left) is None or left.cover(needs.amounts))
            for name, why in zip(names, verdicts, strict=True)
        )

"""What the capacity controller keeps of pods and nodes, beside the fleet; and the pods for which no node has room."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.capacity.arrangement import evictability
from gpu_device_plugin.features.capacity.held_room import Holds
from gpu_device_plugin.features.capacity.rules.movable import Evictability, Residents, other_resources
from gpu_device_plugin.features.capacity.rules.node_kinds import Needs
from gpu_device_plugin.kubernetes.objects.decoding import OF_ONE_NODE
from gpu_device_plugin.model.contract.keys import (
    HELD_ROOM,
    HOSTNAME,
    KEEPS,
    KEPT_NODE,
    MOVE_TO,
    SWITCH_LABEL,
    TOO_LONG,
    WISHES,
)
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.model.sharing import Shared
from gpu_device_plugin.scheduler.cluster_follower import is_stand_in
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.pod_demand import Impossible, ask

if TYPE_CHECKING:
    import msgspec


_KEPT = frozenset({KEPT_NODE, *KEEPS})
_READ_ON_PODS = WISHES | {MOVE_TO}
_NO_FACTS = Evictability()
_NEW_S = 60.0
"""How long after a node was made kube-scheduler may not have tried a pod on it: it retries one within 10 s."""


@dataclass(frozen=True, slots=True)
class PodWithFacts(Pod):
    """A pod, with what of its JSON decides to which nodes it may go."""

    facts: Evictability = field(default=_NO_FACTS, compare=False)
    unschedulable_s: float | None = field(default=None, compare=False)
    """Since when its scheduler finds no node for it, in seconds since the epoch by the API server's clock."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod for which its scheduler, whichever part of it, has found no node."""

    pod: Pod
    needs: Needs


@dataclass(eq=False)
class CapacityCache(SchedulerFeature):
    """The pods that may have to move, or wait for room; the nodes; and the room that is held."""

    _context: ControllerContext

    def __post_init__(self) -> None:
        settings = self._context.settings().of(CapacitySettings)
        self.every_pod = settings.keep_nodes or settings.rebalance > 0
        """Keep all bound pods, and what decides whether they may be moved; not those alone that are to be moved."""
        self._waiting_pods = settings.grow != "off" or settings.rebalance > 0
        """Keep what decides which nodes would help the pods that wait."""
        self.holds = Holds(self._context)
        self.pods: dict[str, Pod] = {}
        """By UID, bound and not ended."""
        self.nodes: dict[str, NodeRecord] = {}
        """By name."""
        self.unsettled: dict[str, NodeRecord] = {}
        """By name, the few that start or are about to go, which are looked at all the time."""
        self.changes = 0
        """How often what is kept of a node has changed."""
        self.unschedulable: dict[str, float] = {}
        """By UID of each pod for which its scheduler has found no node: since when, in seconds since the epoch."""
        self.stand_ins: dict[str, Pod] = {}
        """By UID, the pods that stand for wanted room."""
        self._shared: Shared[str, Evictability] = Shared()

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:  # noqa: D102
        known = self.unschedulable.pop(pod.uid, math.inf)
        if is_stand_in(pod):
            self.stand_ins[pod.uid] = pod
        elif pod.node_name and not pod.ended and (self.every_pod or MOVE_TO in pod.annotations):
            self.stand_ins.pop(pod.uid, None)
            self.pods[pod.uid] = _brief(pod)
        else:
            self.remove_pod(pod.uid)
        if isinstance(pod, PodWithFacts) and pod.unschedulable_s is not None:
            # The clock of the API server may be ahead of ours.
            self.unschedulable[pod.uid] = min(pod.unschedulable_s, known, self._context.wall())

    def remove_pod(self, uid: str) -> None:  # noqa: D102
        for known in (self.unschedulable, self.stand_ins, self.pods):
            known.pop(uid, None)

    def kept_pods(self, pods: Mapping[str, Pod]) -> None:  # noqa: D102
        for uid in [uid for uid in (*self.pods, *self.stand_ins, *self.unschedulable) if uid not in pods]:
            self.remove_pod(uid)
        for pod in pods.values():
            self.put_pod(pod)

    def read_pod(self, pod: Pod, raw: msgspec.Raw) -> Pod:
        """Return a pod with what of its JSON decides to which nodes it may go, where that matters."""
        if pod.node_name:
            follows = self.every_pod or MOVE_TO in pod.annotations
        else:
            follows = self._waiting_pods and bool(pod.containers) and not pod.deleting
        if not follows or pod.ended:
            return pod
        facts, since = evictability(raw)
        if since is None and not pod.node_name:
            return pod
        facts = self._shared.one(repr(facts), lambda: facts)
        values: dict[str, Any] = {each.name: getattr(pod, each.name) for each in fields(pod)}
        return PodWithFacts(**values, facts=facts, unschedulable_s=None if pod.node_name else since)

    def facts(self, uid: str) -> Evictability:
        """Return what decides whether a pod may be moved."""
        pod = self.pods.get(uid) or self._context.fleet.pending.get(uid)
        return pod.facts if isinstance(pod, PodWithFacts) else _NO_FACTS

    def on_node(self, name: str) -> Sequence[Pod]:
        """Return the pods on a node."""
        return [self.pods[each.uid] for each in self._context.fleet.on_node(name) if each.uid in self.pods]

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def keys_of_nodes(self) -> frozenset[str] | None:  # noqa: D102
        # Pods that wait, or are to go elsewhere, may go where the labels of nodes allow it.
        all_labels = self.every_pod or self._waiting_pods
        return None if all_labels else _KEPT | {HELD_ROOM, SWITCH_LABEL, HOSTNAME}

    def put_node(self, node: NodeRecord) -> None:  # noqa: D102
        now = replace(node, annotations={key: text for key, text in node.annotations.items() if key in _KEPT})
        self.changes += self.nodes.get(node.name) != now
        self.nodes[node.name] = now
        self.unsettled.pop(node.name, None)
        if now.starting or now.draining:
            self.unsettled[node.name] = now
        self.holds.put_node(node)

    def remove_node(self, name: str) -> None:  # noqa: D102
        self.changes += self.nodes.pop(name, None) is not None
        self.unsettled.pop(name, None)
        self.holds.remove_node(name)

    def sharing(self) -> dict[str, Candidate]:
        """Return the nodes whose GPUs pods share by limits, as they are now: those that pods may be moved between."""
        return {
            name: node
            for name, node in self._context.fleet.candidates.items()
            if node.rooms and not node.gpus.claims and name in self.nodes
        }

    def sharing_open(self) -> Mapping[str, Candidate]:
        """Return those of them that pods may come to."""
        return {name: node for name, node in self.sharing().items() if self.nodes[name].open}

    def residents(self, nodes: Iterable[str]) -> Residents:
        """Return what makes residents of pods, of which those that may be moved may go to these nodes."""
        # The eviction itself asks PodDisruptionBudgets.
        return Residents([self.nodes[name] for name in nodes], self._context.resources, {})

    def young(self, since_s: float) -> Iterator[NodeRecord]:
        """Yield the nodes that share GPUs, were made after `since_s` (seconds since the epoch), and are to stay."""
        return (
            node for node in self.nodes.values() if node.created_s > since_s and node.shares_gpus and not node.draining
        )

    # --- Pods that wait -----------------------------------------------------------------------------------------------

    def new_since(self) -> float:
        """Return after when a node was made that is new, seconds since the epoch."""
        return self._context.wall() - min(_NEW_S, self._context.settings().of(CapacitySettings).node_start_s)

    def waiters(self) -> Sequence[Waiter]:
        """Return the pods that have been unschedulable for `settled_s`; none whose demand no node can ever meet."""
        before = self._context.wall() - self._context.timings.settled_s
        ours = frozenset(resource.name for resource in self._context.resources)
        found = []
        for uid, pod in self._context.fleet.pending.items():
            if self.unschedulable.get(uid, before + 1) > before or uid in self._context.fleet.entries:
                continue  # it was refused not long ago, or has its place and is being bound
            asked = ask(pod, self._context.resources)
            if not isinstance(asked, Impossible) and asked.parts:
                terms = self.facts(uid).terms
                found.append(Waiter(pod, Needs(asked, terms, pod.amounts, other_resources(pod, ours))))
        return found

    async def without_room(self, waiting: Sequence[Waiter]) -> Sequence[Waiter]:
        """Leave out the pods for which there is room, free or held: kube-scheduler is about to try them again.

        New nodes (`new_since`) are left out: they take some of equal pods. They count where affinity to pods decides.
        """
        residents = self.residents([name for name, node in self.nodes.items() if node.open and node.offers])
        fleet = self._context.fleet
        # Pods that have vanished make room in less time than a node takes.
        soon = {
            name: node.occupied(
                [each.usage for each in fleet.on_node(name) if each.held_for or not (each.temporary or each.settling)]
            )
            for name, node in fleet.soon.items()
        }
        new = {node.name for node in self.young(self.new_since())}
        known: dict[tuple[Needs, bool], bool] = {}
        rooms = Counter(room.owner for _, room in self.holds.rooms.values())
        found = []
        for each in waiting:
            owner = "" if each.pod.owner is None else each.pod.owner.uid
            if rooms[owner] > 0 and self.holds.for_pod(each.pod, each.needs.ask, self.nodes) is not None:
                rooms[owner] -= 1
                continue
            # Affinity to pods is for kube-scheduler to judge: if it found no room, only nodes it has not tried count.
            only_new = self.facts(each.pod.uid).neighbours and self._context.refused(each.pod.uid)
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
        nodes = self._context.fleet.candidates
        names = [name for name in allowed if name in nodes and needs.others <= self.nodes[name].others]
        evaluator = self._context.evaluator
        search = evaluator.search(needs.ask, names)
        fitting = evaluator.rows.at(search.fitting())
        return any(node.left is None or node.left.cover(needs.amounts) for node in fitting) or search.unfinished


def _brief(pod: Pod) -> Pod:
    """Return a pod with no more annotations than are read here. One with very long wishes is not moved."""
    if _READ_ON_PODS.issuperset(pod.annotations) and not pod.overwritten:
        return pod
    kept = {key: text for key, text in pod.annotations.items() if key in _READ_ON_PODS}
    wishes = {key: text for key, text in kept.items() if key in WISHES}
    brief = replace(pod, annotations=wishes)
    return replace(pod, annotations=kept | dict.fromkeys(wishes, TOO_LONG) if brief.overwritten else kept)


def replaceable(pod: Pod) -> Owner | None:
    """Return the controller that replaces a pod on another node; None: none does."""
    return None if pod.owner is None or pod.owner.kind in OF_ONE_NODE else pod.owner

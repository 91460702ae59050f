"""The pods and nodes of the cluster as the extender follows them: the fleet, and what capacity depends on beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.capacity.arrangement import evictability
from gpu_device_plugin.features.capacity.held_room import Holds
from gpu_device_plugin.features.capacity.rules.movable import Evictability, Residents
from gpu_device_plugin.features.elastic.scheduler import Resizes
from gpu_device_plugin.kubernetes.objects.decoding import OF_ONE_NODE
from gpu_device_plugin.kubernetes.store import Store, replacing
from gpu_device_plugin.model.contract.keys import (
    HELD_ROOM,
    HOSTNAME,
    IDLE_SINCE,
    KEEPS,
    KEPT_NODE,
    MOVE_TO,
    NODE_USE,
    STAND_IN,
    SWITCH_LABEL,
    TOO_LONG,
    WHEN_IDLE,
    WISHES,
)
from gpu_device_plugin.model.contract.node_use import brief_use, used_mib
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.sharing import Shared
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.model.gpus import Links
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.model.pods import Owner
    from gpu_device_plugin.scheduler.controller_context import ControllerContext
    from gpu_device_plugin.scheduler.rules.candidate import Candidate

_KEPT = frozenset({KEPT_NODE, *KEEPS})
READ_ON_NODES = _KEPT | {HELD_ROOM, SWITCH_LABEL, HOSTNAME}
"""The annotations and labels of a node that are read here."""
_READ_ON_PODS = WISHES | {MOVE_TO, IDLE_SINCE, WHEN_IDLE}
_NO_FACTS = Evictability()
_ACTED_ON = frozenset({MOVE_TO, IDLE_SINCE})
"""The annotations of pods that ask for something to be done."""
_MOST_COUNTED = 10_000
"""Of a list only the latest pods are counted as coming: older ones would teach no more, and take seconds."""
_MOST_LINKS = 200
"""The most GPU topologies that are cached; the cache is cleared when it is full."""


@dataclass(frozen=True, slots=True)
class PodWithFacts(Pod):
    """A pod, with what of its JSON decides to which nodes it may go."""

    facts: Evictability = field(default=_NO_FACTS, compare=False)
    unschedulable_s: float | None = field(default=None, compare=False)
    """Since when its scheduler finds no node for it, in seconds since the epoch by the API server's clock."""


@dataclass(eq=False)
class CapacityCache:
    """Applies watched pods and nodes to the fleet, its resizes and held room, and keeps what else is asked of them.

    Pods are observed once each, when they are seen bound. A pod that waits costs its owner nothing, and may never find
    room: it teaches nothing.
    """

    _context: ControllerContext

    def __post_init__(self) -> None:
        settings = self._context.settings()
        self.every_pod = settings.follows_every_pod
        """Keep all bound pods, and what decides whether they may be moved; not those alone that are to be moved."""
        self._waiting_pods = settings.follows_waiting_pods
        """Keep what decides which nodes would help the pods that wait."""
        self.observe: Callable[[Pod | OtherPod], None] = lambda _pod: None
        """Called with each pod once, when it is seen bound."""
        self.holds = Holds(self._context)
        self.resizes = Resizes(self._context)
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
        self.used_mib: dict[str, Mapping[int, int]] = {}
        """By node, the memory in use on each GPU by position, where its agent tells it."""
        self.use_read_at: dict[str, float] = {}
        """By node, when its agent last read the use of its GPUs, in seconds since the epoch."""
        self._shared: Shared[str, Evictability] = Shared()
        self._names: Mapping[Kind, str] = {resource.kind: resource.name for resource in self._context.resources}
        self._links: dict[str, Links] = {}
        self.pod_store: Store[Pod | OtherPod] = Store(self.replace_pods, self.put_pod, self.remove_pod)
        self.node_store: Store[NodeRecord] = Store(
            replacing(self.nodes.values, self.put_node, self.remove_node), self.put_node, self.remove_node
        )

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod | OtherPod) -> None:
        """Add or update a pod."""
        if self._comes(pod):
            self.observe(pod)
        if isinstance(pod, OtherPod):
            self._context.fleet.put_other(pod)
            return
        self._context.fleet.put_pod(pod, self._context.clock())
        self.resizes.put(pod)
        self._keep(pod)

    def remove_pod(self, pod: Pod | OtherPod) -> None:
        """Remove a pod, given its last state."""
        if isinstance(pod, OtherPod):
            self._context.fleet.remove_other(pod)
            return
        self._context.fleet.remove_pod(pod, self._context.clock())
        self.resizes.remove(pod.uid)
        self._forget(pod.uid)

    def replace_pods(self, pods: Sequence[Pod | OtherPod]) -> None:
        """Replace all pods."""
        # The mix of pods forgets by the time between them, so they come in their order.
        for each in sorted(filter(self._comes, pods), key=lambda pod: pod.created)[-_MOST_COUNTED:]:
            self.observe(each)
        there = {pod.uid: pod for pod in pods if isinstance(pod, Pod)}
        self._context.fleet.replace_pods(tuple(there.values()), self._context.clock())
        self.resizes.replace(there)
        for uid in [uid for uid in (*self.pods, *self.stand_ins, *self.unschedulable) if uid not in there]:
            self._forget(uid)
        for pod in there.values():
            self._keep(pod)
        self._context.fleet.replace_others(each for each in pods if isinstance(each, OtherPod))

    def _comes(self, pod: Pod | OtherPod) -> bool:
        """Return whether a pod is seen bound for the first time, and says something of what comes."""
        if pod.ended:
            return False
        if isinstance(pod, OtherPod):
            # A pod that had no choice of its node says nothing of what comes to other nodes.
            return not pod.bound_to_node and self._context.fleet.gains_other(pod)
        entry = self._context.fleet.entries.get(pod.uid)
        return bool(pod.node_name) and not pod.deleting and (entry is None or not entry.seen)

    def _keep(self, pod: Pod) -> None:
        known = self.unschedulable.pop(pod.uid, math.inf)
        if is_stand_in(pod):
            self.stand_ins[pod.uid] = pod
        elif pod.node_name and not pod.ended and (self.every_pod or _ACTED_ON & pod.annotations.keys()):
            self.stand_ins.pop(pod.uid, None)
            self.pods[pod.uid] = _brief(pod)
        else:
            self._forget(pod.uid)
        if isinstance(pod, PodWithFacts) and pod.unschedulable_s is not None:
            # The clock of the API server may be ahead of ours.
            self.unschedulable[pod.uid] = min(pod.unschedulable_s, known, self._context.wall())

    def with_facts(self, pod: Pod, raw: msgspec.Raw) -> Pod:
        """Return a pod, as it is read, with what of its JSON decides to which nodes it may go, where that matters."""
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

    def _forget(self, uid: str) -> None:
        for known in (self.unschedulable, self.stand_ins, self.pods):
            known.pop(uid, None)

    def on_node(self, name: str) -> Sequence[Pod]:
        """Return the pods on a node."""
        return [self.pods[each.uid] for each in self._context.fleet.on_node(name) if each.uid in self.pods]

    def to_move(self) -> Sequence[Pod]:
        """Return the pods that somebody wants to move."""
        return [pod for pod in self.pods.values() if MOVE_TO in pod.annotations and not pod.deleting]

    def idle(self) -> Sequence[Pod]:
        """Return the pods of which their agents say that they are idle."""
        return [pod for pod in self.pods.values() if IDLE_SINCE in pod.annotations]

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> None:
        """Add or update a node."""
        now = replace(node, annotations={key: text for key, text in node.annotations.items() if key in _KEPT})
        self.changes += self.nodes.get(node.name) != now
        self.nodes[node.name] = now
        self.unsettled.pop(node.name, None)
        if now.starting or now.draining:
            self.unsettled[node.name] = now
        self._note_use(node.name, node.annotations.get(NODE_USE))
        memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        if len(self._links) > _MOST_LINKS:
            self._links.clear()
        gpus = gpus_of_node(node.annotations, node.labels, memory, count, self._links)
        self._context.fleet.put_node(node.name, gpus, node.cpu_and_memory)
        self.holds.put_node(node)

    def remove_node(self, node: NodeRecord) -> None:
        """Forget a node."""
        self.changes += self.nodes.pop(node.name, None) is not None
        self.unsettled.pop(node.name, None)
        self._note_use(node.name, None)
        self._context.fleet.remove_node(node.name)
        self.holds.remove_node(node.name)

    def _note_use(self, name: str, text: str | None) -> None:
        self.used_mib.pop(name, None)
        self.use_read_at.pop(name, None)
        if text is not None:
            self.used_mib[name], read_at = used_mib(text)
            self.use_read_at.update({} if read_at is None else {name: read_at})

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

    def hostnames(self) -> frozenset[str]:
        """Return the host names of all nodes that share GPUs."""
        return frozenset(node.hostname for node in self.nodes.values() if node.shares_gpus)

    def young(self, since_s: float) -> Iterator[NodeRecord]:
        """Yield the nodes that share GPUs, were made after `since_s` (seconds since the epoch), and are to stay."""
        return (
            node for node in self.nodes.values() if node.created_s > since_s and node.shares_gpus and not node.draining
        )


def _brief(pod: Pod) -> Pod:
    """Return a pod with no more annotations than are read here. One with very long wishes is not moved."""
    if _READ_ON_PODS.issuperset(pod.annotations) and not pod.overwritten:
        return pod
    kept = {key: text for key, text in pod.annotations.items() if key in _READ_ON_PODS}
    wishes = {key: text for key, text in kept.items() if key in WISHES}
    brief = replace(pod, annotations=wishes)
    return replace(pod, annotations=kept | dict.fromkeys(wishes, TOO_LONG) if brief.overwritten else kept)


def is_stand_in(pod: Pod) -> bool:
    """Return whether a pod only stands for wanted room: one that asks for GPUs, or is bound, counts like any other."""
    return STAND_IN in pod.labels and not (pod.containers or pod.node_name)


def replaceable(pod: Pod) -> Owner | None:
    """Return the controller that replaces a pod on another node; None: none does."""
    return None if pod.owner is None or pod.owner.kind in OF_ONE_NODE else pod.owner


# --- The use of a node's GPUs -----------------------------------------------------------------------------------------


def with_brief_use(node: NodeRecord) -> NodeRecord:
    """Return a node of whose long annotation `NODE_USE` no more is left than `used_mib` reads."""
    text = node.annotations.get(NODE_USE)
    return node if text is None else replace(node, annotations={**node.annotations, NODE_USE: brief_use(text)})

"""The pods and nodes of the cluster as far as capacity depends on more of them than the fleet keeps."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NodeRecord
from gpu_device_plugin.core.capacity.movable import Evictability, Residents
from gpu_device_plugin.model.contract.keys import (
    HELD_ROOM,
    HOSTNAME,
    IDLE_SINCE,
    KEEPS,
    KEPT_NODE,
    MOVE_TO,
    STAND_IN,
    STARTUP_TAINT,
    SWITCH_LABEL,
    TOO_LONG,
    WHEN_IDLE,
    WISHES,
)
from gpu_device_plugin.model.contract.nodelabels import switched_on
from gpu_device_plugin.model.sharing import Shared
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.view.movable_pods import evictability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.binder import Binder
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.fleet import Fleet
    from gpu_device_plugin.metrics import Metrics
    from gpu_device_plugin.model.pods import Owner, Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.extender.capacity.holds import Holds

_KEPT = frozenset({KEPT_NODE, *KEEPS})
READ_ON_NODES = _KEPT | {HELD_ROOM, SWITCH_LABEL, HOSTNAME}
"""The annotations and labels of a node that are read here."""
_READ_ON_PODS = WISHES | {MOVE_TO, IDLE_SINCE, WHEN_IDLE}
_NO_FACTS = Evictability()
_ACTED_ON = frozenset({MOVE_TO, IDLE_SINCE})
"""The annotations of pods that ask for something to be done."""
_GOING = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
"""Keys of the taints of a node whose pods an autoscaler evicts before it removes the node."""
_OF_ONE_NODE = frozenset({"DaemonSet", "Node"})
"""The kinds of controllers whose pods can run on their node alone."""


@dataclass(frozen=True, slots=True)
class FollowedNode(NodeRecord):
    """A node, of its annotations with those alone that keep autoscalers from it."""

    @classmethod
    def of(cls, node: NodeRecord) -> FollowedNode:
        """Return a node with what is kept of it."""
        kept = replace(node, annotations={key: text for key, text in node.annotations.items() if key in _KEPT})
        return cls(*(getattr(kept, each.name) for each in fields(kept)))

    @property
    def shares_gpus(self) -> bool:
        """Whether its label enables sharing, whether or not its agent runs yet."""
        return switched_on(self.labels)

    @property
    def offers(self) -> bool:
        """Whether its kubelet has some of our resources to give."""
        return any(self.allocatable.values())

    @property
    def created_s(self) -> float:
        """When it was made, seconds since the epoch."""
        return epoch_s(self.created) or 0.0

    @property
    def hostname(self) -> str:
        """Its host name by its label."""
        return self.labels.get(HOSTNAME, self.name)

    @property
    def going(self) -> bool:
        """Whether an autoscaler is about to remove it."""
        return any(taint.key in _GOING for taint in self.taints)

    @property
    def open(self) -> bool:
        """Whether pods may come to it."""
        return self.ready and not self.unschedulable and not self.going


@dataclass(eq=False)
class Followed:
    """Follows pods and nodes."""

    holds: Holds
    every_pod: bool
    """Keep all bound pods, with what decides whether they may be moved; not those alone that somebody wants to move."""
    waiting_pods: bool = True
    """Keep what decides which nodes would help the pods that wait."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """By UID, bound and not ended."""
    nodes: dict[str, FollowedNode] = field(default_factory=dict)
    """By name."""
    changes: int = 0
    """How often what is kept of a node has changed."""
    unschedulable: dict[str, float] = field(default_factory=dict)
    """By UID of each pod for which its scheduler has found no node: since when, in seconds since the epoch."""
    stand_ins: dict[str, Pod] = field(default_factory=dict)
    """By UID, the pods that stand for wanted room."""

    def __post_init__(self) -> None:
        self.starting: set[str] = set()
        """The nodes with `STARTUP_TAINT`."""
        self.marked: set[str] = set()
        """The nodes that the extender has kept from autoscalers, or did once."""
        self.draining: set[str] = set()
        """The nodes that an autoscaler is about to remove, and those that are cordoned."""
        self._on_node: dict[str, dict[str, Pod]] = {}
        self._facts: dict[str, Evictability] = {}
        self._shared: Shared[str, Evictability] = Shared()

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> None:
        """Add or update a pod with GPUs."""
        if is_stand_in(pod):
            self.stand_ins[pod.uid] = pod
        elif not pod.node_name and not pod.ended:
            self._unbound(pod.uid)
        elif pod.ended or not (self.every_pod or _ACTED_ON & pod.annotations.keys()):
            self.remove(pod.uid)
        else:
            self.stand_ins.pop(pod.uid, None)
            self.pods[pod.uid] = kept = _brief(pod)
            self._on_node.setdefault(pod.node_name, {})[pod.uid] = kept

    def note(self, pod: Pod, raw: msgspec.Raw) -> None:
        """Note what of a pod's JSON decides to which nodes it may go, before the pod itself is added."""
        known = self.unschedulable.pop(pod.uid, math.inf)
        self._facts.pop(pod.uid, None)
        if pod.node_name:
            follows = self.every_pod or MOVE_TO in pod.annotations
        else:
            follows = self.waiting_pods and bool(pod.containers) and not pod.deleting
        if not follows or pod.ended:
            return
        facts, since = evictability(raw)
        if not pod.node_name:
            if since is None:
                return
            # The clock of the API server may be ahead of ours.
            self.unschedulable[pod.uid] = min(since, known, self.holds.wall())
        self._facts[pod.uid] = self._shared.one(repr(facts), lambda: facts)

    def facts(self, uid: str) -> Evictability:
        """Return what decides whether a pod may be moved."""
        return self._facts.get(uid, _NO_FACTS)

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._facts.pop(uid, None)
        self.unschedulable.pop(uid, None)
        self._unbound(uid)

    def _unbound(self, uid: str) -> None:
        self.stand_ins.pop(uid, None)
        pod = self.pods.pop(uid, None)
        if pod is not None:
            there = self._on_node[pod.node_name]
            del there[uid]
            if not there:
                del self._on_node[pod.node_name]

    def replace(self, pods: Mapping[str, Pod]) -> None:
        """Replace all pods with GPUs, given by UID."""
        for uid in [uid for uid in (*self.pods, *self.stand_ins, *self.unschedulable) if uid not in pods]:
            self.remove(uid)
        for pod in pods.values():
            self.put(pod)

    def on_node(self, name: str) -> Iterable[Pod]:
        """Return the pods on a node."""
        return self._on_node.get(name, {}).values()

    def to_move(self) -> Sequence[Pod]:
        """Return the pods that somebody wants to move."""
        return [pod for pod in self.pods.values() if MOVE_TO in pod.annotations and not pod.deleting]

    def idle(self) -> Sequence[Pod]:
        """Return the pods of which their agents say that they are idle."""
        return [pod for pod in self.pods.values() if IDLE_SINCE in pod.annotations]

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> None:
        """Add or update a node."""
        now = FollowedNode.of(node)
        self.changes += self.nodes.get(node.name) != now
        self.nodes[node.name] = now
        self._sort(
            node.name,
            starting=any(taint.key == STARTUP_TAINT for taint in now.taints),
            marked=KEPT_NODE in now.annotations,
            draining=now.unschedulable or now.going,
        )
        self.holds.put_node(node)

    def remove_node(self, name: str) -> None:
        """Forget a node."""
        self.changes += self.nodes.pop(name, None) is not None
        self._sort(name)
        self.holds.remove_node(name)

    def _sort(self, name: str, *, starting: bool = False, marked: bool = False, draining: bool = False) -> None:
        """Note which of the few nodes that are looked at all the time one is."""
        for found, nodes in ((starting, self.starting), (marked, self.marked), (draining, self.draining)):
            (nodes.add if found else nodes.discard)(name)

    def replace_nodes(self, nodes: Sequence[NodeRecord]) -> None:
        """Replace all nodes."""
        there = {node.name for node in nodes}
        for name in [name for name in self.nodes if name not in there]:
            self.remove_node(name)
        for node in nodes:
            self.put_node(node)

    def hostnames(self) -> frozenset[str]:
        """Return the host names of all nodes that share GPUs."""
        return frozenset(node.hostname for node in self.nodes.values() if node.shares_gpus)

    def young(self, since_s: float) -> Iterator[FollowedNode]:
        """Yield the nodes that share GPUs, were made after `since_s` (seconds since the epoch), and are to stay."""
        return (
            node
            for node in self.nodes.values()
            if node.created_s > since_s and node.shares_gpus and not node.unschedulable and not node.going
        )


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
    use_read_at: Mapping[str, float]
    """By node, when its agent last read the use of its GPUs, in seconds since the epoch."""
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
    return None if pod.owner is None or pod.owner.kind in _OF_ONE_NODE else pod.owner

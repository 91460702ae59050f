"""The pods and nodes of the cluster as far as capacity depends on more of them than the fleet keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Evictability
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.cluster.objects.decoding import NodeRecord
    from gpu_device_plugin.model.pods import Owner, Pod, Taint
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
class FollowedNode:
    """What is kept of a node."""

    name: str
    annotations: Mapping[str, str]
    """Those that keep autoscalers from it."""
    labels: Mapping[str, str]
    """All of them where pods may have to go to other nodes."""
    taints: tuple[Taint, ...]
    unschedulable: bool
    """Cordoned."""
    ready: bool
    shares_gpus: bool
    """Its label enables sharing, whether or not its agent runs yet."""
    offers: bool
    """Its kubelet has some of our resources to give."""
    others: frozenset[str]
    """The extended resources beside ours that it has to give."""
    created_s: float
    """Seconds since the epoch."""
    hostname: str
    """By its label."""
    version: str = field(compare=False)

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
        now = FollowedNode(
            node.name,
            {key: text for key, text in node.annotations.items() if key in _KEPT},
            node.labels,
            node.taints,
            node.unschedulable,
            node.ready,
            switched_on(node.labels),
            any(node.allocatable.values()),
            node.others,
            epoch_s(node.created) or 0.0,
            node.labels.get(HOSTNAME, node.name),
            node.resource_version,
        )
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

"""The state of the scheduler extender: for every node of the cluster, its GPUs and the pods that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from gpu_device_plugin.model.contract.keys import MEMORY_PROMISED
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Resource
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod, OtherPods
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage, Usages

_UNTOUCHABLE = 1 << 31
"""A priority above that of every pod."""


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """One pod in the ledger of a node."""

    uid: str
    namespace: str
    name: str
    node: str
    usage: Usage
    priority: int = 0
    requests: Mapping[str, int] | None = field(default_factory=dict, compare=False)
    """Its requests for other resources; see `Pod.requests`."""
    amounts: Amounts = field(default=NO_AMOUNTS, compare=False)
    deleting: bool = False
    owner: str = field(default="", compare=False)
    """The UID of its controller; empty: it has none."""
    created: str = field(default="", compare=False)
    """RFC 3339."""
    claimed: bool = False
    """This extender has promised it GPUs and is binding it."""
    seen: bool = True
    """The watch has shown the pod bound; otherwise only the API server's answer to the binding may have."""
    until: float | None = None
    """When it stops counting, monotonic seconds: the pod vanished while its containers may have been running, or it has
    just ended."""
    in_doubt: bool = False
    """Claimed, and it is unknown whether the pod is bound; that it is not shows once no request can take effect."""
    held_for: str = ""
    """It is no pod, but room for a pod of the controller with this UID; until `until` at the latest."""

    @classmethod
    def of(cls, pod: Pod, usage: Usage, *, claimed: bool = False, in_doubt: bool = False) -> FleetEntry:
        """Return the entry of a pod that is bound, or claimed."""
        return cls(
            pod.uid,
            pod.namespace,
            pod.name,
            pod.node_name,
            usage,
            priority=pod.priority,
            requests=pod.requests,
            amounts=pod.amounts,
            deleting=pod.deleting,
            owner="" if pod.owner is None else pod.owner.uid,
            created=pod.created,
            claimed=claimed,
            seen=not claimed,
            in_doubt=in_doubt,
        )

    @property
    def settling(self) -> bool:
        """Whether the pod has ended, and only the other resource of its GPUs is not available yet."""
        return bool(self.usage.settling_shares or self.usage.settling_whole)

    @property
    def occupant(self) -> GpuConsumer:
        """The same as those see it who judge one node."""
        return GpuConsumer(self.uid, self.usage, self.priority, self.deleting, self.requests, self.namespace, self.name)

    @property
    def temporary(self) -> bool:
        """Whether it may stop counting without any event in the cluster."""
        return self.until is not None or self.in_doubt


@dataclass(slots=True)
class _Node:
    """A node's GPUs and its ledger; the GPUs are None while no node of this name exists."""

    gpus: NodeGpus | None = None
    allocatable: Amounts | None = None
    entries: dict[str, FleetEntry] = field(default_factory=dict)


@dataclass(eq=False)
class Fleet:
    """All nodes, and all pods that use their GPUs. Methods take effect before they return; none awaits.

    Pods are identified by uid. A pod counts from its claim, or from when it is first seen bound, until it has ended.
    A pod that vanishes before it is seen to end counts for `vanished_grace_s` longer: after a force delete its
    processes keep running for a while. Pods of a node that does not exist (yet, or any more) are kept in case it does.
    On a node that serves claims pods take CPU and memory, and no GPU that we know of.
    """

    _resources: Sequence[Resource]
    _: KW_ONLY
    vanished_grace_s: float
    settle_s: float = 0.0
    """How long a GPU stays closed to the other resource after a pod on it has ended."""
    on_drift: Callable[[FleetEntry, FleetEntry], None] = lambda _before, _after: None
    """Called with the entry before and after, when a pod turns out to hold other GPUs than recorded."""
    on_unplaced: Callable[[Pod], None] = lambda _pod: None
    """Called with a bound pod once the GPU of some of its usage is unknown, or no longer known."""
    on_change: Callable[[], None] = lambda: None
    """Called when `candidates` is out of date, so that it can be refreshed before the next request."""

    def __post_init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self.entries: dict[str, FleetEntry] = {}
        """Every pod that counts, by uid."""
        self.pending: dict[str, Pod] = {}
        """Every unbound pod that asks for GPUs, by uid; the largest without containers and annotations."""
        self.averse: set[str] = set()
        """The nodes that prefer to have no pods, by a taint (PreferNoSchedule)."""
        self.growth: Counter[str] = Counter()
        """By namespace, the shares that its pods are guaranteed beyond their requests."""
        self._growing: dict[str, str] = {}
        """By UID of a pod, the value of `MEMORY_PROMISED` that counts instead of the watch's: it is being written."""
        self._lowest_priority = 0
        """Of any pod that counts, or has."""
        self._expiring: set[str] = set()
        self._stale: set[str] = set()
        self._others = OtherPods()
        self._usages = Usages(self._resources)
        self.now = View(self._refresh)
        self._soon: dict[str, Candidate] = {}

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """Every node that exists, by name, in its current state. Values are immutable; a change replaces them.

        GPUs that are settling count as available: the binding waits for them (`settling`). A pod refused for them would
        stay unschedulable until the next event in the cluster, for minutes in a quiet one.
        """
        return self.now.candidates

    @property
    def soon(self) -> Mapping[str, Candidate]:
        """The nodes on which time alone makes room, as they will be: without the pods that count temporarily."""
        self._refresh()
        return self._soon

    def _refresh(self) -> None:
        stale, self._stale = self._stale, set()
        for name in stale:
            node = self._nodes.get(name)
            self._soon.pop(name, None)
            if node is None or node.gpus is None:
                self.now.put(name, None)
                continue
            counting = [entry for entry in node.entries.values() if not entry.settling]
            staying = [entry for entry in counting if not entry.temporary]
            self.now.put(name, self._candidate(name, node, node.gpus, counting))
            if len(staying) < len(counting):
                self._soon[name] = self._candidate(name, node, node.gpus, staying)

    def _candidate(self, name: str, node: _Node, gpus: NodeGpus, entries: Sequence[FleetEntry]) -> Candidate:
        requested = [self._others.on(name), *[entry.amounts for entry in entries]]
        # Where kube-scheduler allocates the GPUs, limits say nothing of them.
        usages = () if gpus.claims else [entry.usage for entry in entries]
        return candidate(name, gpus, usages, node.allocatable, requested)

    def settling(self, name: str, held: str = "") -> tuple[Candidate, float] | None:
        """Return a node without its settling GPUs, and when these become available; None if none is settling.

        With the UID of held room, the node is as `with_held_room` returns it.
        """
        there, node = self.candidates.get(name), self._nodes.get(name)
        if there is None or node is None or not any(entry.settling for entry in node.entries.values()):
            return None
        opens = max(entry.until or 0.0 for entry in node.entries.values() if entry.settling)
        rest = there.occupied(entry.usage for entry in node.entries.values() if entry.uid != held)
        room = self.entries.get(held)
        return (rest if room is None else rest.restricted(dict(room.usage.shares))), opens

    def on_node(self, name: str) -> Sequence[FleetEntry]:
        """Return the pods that count on one node, by namespace and name."""
        node = self._nodes.get(name)
        return sorted(node.entries.values(), key=lambda e: (e.namespace, e.name, e.uid)) if node is not None else ()

    def occupants(self, name: str) -> Sequence[GpuConsumer]:
        """Return the pods that count on one node, for who chooses pods to evict; room that is held cannot be."""
        return [
            replace(
                entry.occupant,
                priority=_UNTOUCHABLE if entry.held_for else entry.priority,
                terminating=entry.deleting or (entry.until is not None and not entry.held_for),
            )
            for entry in self.on_node(name)
        ]

    def nodes_below(self, priority: int) -> set[str]:
        """Return the nodes on which a pod of a lower priority counts."""
        # To look at each pod takes 5 ms for 90,000.
        entries = self.entries.values() if self._lowest_priority < priority else ()
        return {entry.node for entry in entries if entry.priority < priority}

    @property
    def others(self) -> Iterable[Amounts]:
        """What the pods without GPUs request of each node with GPUs."""
        return [self._others.on(name) for name, node in self._nodes.items() if node.gpus is not None and node.gpus.gpus]

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def put_node(self, name: str, gpus: NodeGpus, allocatable: Amounts | None = None, *, averse: bool = False) -> None:
        """Add or update a node, with the CPU and memory that pods may request of it, where that is known."""
        (self.averse.add if averse else self.averse.discard)(name)
        node = self._nodes.setdefault(name, _Node())
        if (node.gpus, node.allocatable) != (gpus, allocatable):
            node.gpus, node.allocatable = gpus, allocatable
            self._changed(name)

    def remove_node(self, name: str) -> None:
        """Remove a node; its pods are kept."""
        self.averse.discard(name)
        node = self._nodes.get(name)
        if node is not None:
            node.gpus = None
            self._changed(name)
            self._forget_if_empty(name)

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod, now: float = 0.0) -> None:
        """Add or update a pod at `now` (monotonic seconds)."""
        before = self.entries.get(pod.uid)
        self.pending.pop(pod.uid, None)
        if not pod.node_name:
            # The claim or the known binding is newer than this state, which shows the pod unbound.
            if pod.containers and not pod.deleting and (before is None or before.claimed):
                self.pending[pod.uid] = _stub(pod) if pod.bulky else pod
            return
        usage = NOTHING if pod.ended else self._usages.of(self._as_promised(pod))
        if usage == NOTHING:
            self._end(pod.uid, now)
            return
        entry = FleetEntry.of(pod, usage)
        if before is not None and before.usage.requested != usage.requested and not before.usage.unplaced:
            self.on_drift(before, entry)
        if usage.unplaced and (before is None or not before.usage.unplaced):
            self.on_unplaced(pod)
        self._enter(entry)

    def remove_pod(self, pod: Pod, now: float) -> None:
        """Remove a deleted pod, given its last state, at `now` (monotonic seconds)."""
        self.pending.pop(pod.uid, None)
        entry = self.entries.get(pod.uid)
        if entry is None or (entry.claimed and not pod.node_name):
            return  # the API server will refuse the binding, which gives the claim back
        # A Pending pod, which its kubelet has not reported on yet, may be about to start.
        if pod.ended or (pod.deleting and not pod.running and pod.phase != "Pending"):
            self._end(pod.uid, now)
        else:
            self._vanish(replace(entry, claimed=False, in_doubt=False), now)

    def replace_pods(self, pods: Sequence[Pod], now: float) -> None:
        """Replace all pods by `pods` at `now` (monotonic seconds). All others count as vanished."""
        there = {pod.uid for pod in pods}
        self.pending = {uid: pod for uid, pod in self.pending.items() if uid in there}
        for entry in [entry for uid, entry in self.entries.items() if uid not in there and not entry.held_for]:
            self._vanish(entry, now)
        for pod in pods:
            known = self.entries.get(pod.uid)
            if known is not None and known.seen and not pod.node_name:
                self._drop(pod.uid)  # etcd was restored to a state before the binding
            self.put_pod(pod, now)

    def put_other(self, pod: OtherPod) -> None:
        """Add or update a pod without GPUs."""
        if self._others.put(pod):
            self._changed_amounts(pod.node_name)

    def remove_other(self, pod: OtherPod) -> None:
        """Remove a deleted pod without GPUs, given its last state."""
        if self._others.remove(pod):
            self._changed_amounts(pod.node_name)

    def replace_others(self, pods: Iterable[OtherPod]) -> None:
        """Replace all pods without GPUs by `pods`."""
        for node in self._others.replace(pods):
            self._changed_amounts(node)

    def gains_other(self, pod: OtherPod) -> bool:
        """Return whether a pod without GPUs is new on a node with GPUs."""
        node = self._nodes.get(pod.node_name)
        return node is not None and node.gpus is not None and bool(node.gpus.gpus) and not self._others.counts(pod)

    def expire(self, now: float) -> None:
        """Drop the pods whose time ran out before `now` (monotonic seconds)."""
        for entry in [self.entries[uid] for uid in self._expiring]:
            # A claim never expires: the binding confirms it or gives it back.
            if entry.until is not None and entry.until <= now and not entry.claimed:
                self._drop(entry.uid)

    # --- Claims -------------------------------------------------------------------------------------------------------

    def claim(self, pod: Pod) -> None:
        """Count a pod that is about to be bound, given with its node and with the promise among its annotations.

        Has no effect on a pod that is known to be bound.
        """
        before = self.entries.get(pod.uid)
        usage = self._usages.of(pod)
        if usage != NOTHING and (before is None or before.claimed):
            in_doubt = before is not None and before.in_doubt
            self._enter(FleetEntry.of(pod, usage, claimed=True, in_doubt=in_doubt))

    def doubt(self, uid: str) -> None:
        """Mark a claimed pod as in doubt: it is unknown whether it is bound."""
        entry = self.entries.get(uid)
        if entry is not None and entry.claimed:
            self._enter(replace(entry, in_doubt=True))

    def confirm(self, uid: str) -> None:
        """Mark a claimed pod as bound, before the watch has shown it."""
        entry = self.entries.get(uid)
        if entry is not None and entry.claimed:
            self.pending.pop(uid, None)
            self._enter(replace(entry, claimed=False, until=None, in_doubt=False))

    def release(self, uid: str) -> None:
        """Give a claim back. Has no effect on a pod that has been seen bound since."""
        entry = self.entries.get(uid)
        if entry is not None and entry.claimed:
            self._drop(uid)

    def hold(self, room: FleetEntry) -> None:
        """Hold room for a pod of the controller `held_for` until `room.until`."""
        self._enter(room)

    def let_go(self, uid: str) -> None:
        """Give held room back."""
        entry = self.entries.get(uid)
        if entry is not None and entry.held_for:
            self._drop(uid)

    def with_held_room(self, uid: str) -> Candidate | None:
        """Return the node of held room as the pod sees it that it is for: nothing but that room is free there.

        None: the room is not held any more, or the node is gone.
        """
        entry = self.entries.get(uid)
        if entry is None or (node := self._nodes[entry.node]).gpus is None:
            return None
        others = [each for each in node.entries.values() if each.uid != uid and not each.settling]
        return self._candidate(entry.node, node, node.gpus, others).restricted(dict(entry.usage.shares))

    def grow(self, pod: Pod, promised: str) -> None:
        """Count a bound pod with this value of `MEMORY_PROMISED`, whatever the watch shows, until `grown`."""
        entry = self.entries.get(pod.uid)
        if entry is not None and not entry.claimed and not entry.settling:
            self._growing[pod.uid] = promised
            self._enter(replace(entry, usage=self._usages.of(self._as_promised(pod))))

    def grown(self, pod: Pod) -> None:
        """Count a pod by its own annotations again."""
        if self._growing.pop(pod.uid, None) is not None and (entry := self.entries.get(pod.uid)) is not None:
            self._enter(replace(entry, usage=self._usages.of(pod)))

    def _as_promised(self, pod: Pod) -> Pod:
        promised = self._growing.get(pod.uid)
        return pod if promised is None else replace(pod, annotations={**pod.annotations, MEMORY_PROMISED: promised})

    # --- Entries ------------------------------------------------------------------------------------------------------

    def _enter(self, entry: FleetEntry) -> None:
        before = self.entries.get(entry.uid)
        if before == entry:
            return
        if before is not None and before.node != entry.node:
            self._drop(entry.uid)
        self._forget(self.entries.get(entry.uid))
        self._lowest_priority = min(self._lowest_priority, entry.priority)
        if entry.usage.grown:
            self.growth[entry.namespace] += entry.usage.growth
        self.entries[entry.uid] = entry
        self._nodes.setdefault(entry.node, _Node()).entries[entry.uid] = entry
        if entry.until is None:
            self._expiring.discard(entry.uid)
        else:
            self._expiring.add(entry.uid)
        counts = entry.node, entry.usage, entry.temporary
        if before is None or (before.node, before.usage, before.temporary) != counts:
            self._changed(entry.node)

    def _changed(self, node: str) -> None:
        if not self._stale:
            self.on_change()
        self._stale.add(node)

    def _changed_amounts(self, name: str) -> None:
        """Note a change of CPU and memory, which matters only on nodes with GPUs."""
        node = self._nodes.get(name)
        if node is not None and node.gpus is not None and node.gpus.gpus:
            self._changed(name)

    def _vanish(self, entry: FleetEntry, now: float) -> None:
        self._enter(replace(entry, until=now + self.vanished_grace_s if entry.until is None else entry.until))

    def _end(self, uid: str, now: float) -> None:
        """Drop a pod that has ended, except for its settling usage."""
        entry = self.entries.get(uid)
        if entry is None or entry.settling:
            return  # its end was seen before
        self._growing.pop(uid, None)
        left = entry.usage.settling
        if self.settle_s and left != NOTHING:
            self._enter(replace(entry, usage=left, claimed=False, in_doubt=False, until=now + self.settle_s))
        else:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        self._forget(entry)
        if entry is not None:
            self._growing.pop(uid, None)
            self._expiring.discard(uid)
            del self._nodes[entry.node].entries[uid]
            self._changed(entry.node)
            self._forget_if_empty(entry.node)

    def _forget(self, entry: FleetEntry | None) -> None:
        if entry is not None and entry.usage.grown:
            self.growth[entry.namespace] -= entry.usage.growth
            if not self.growth[entry.namespace]:
                del self.growth[entry.namespace]

    def _forget_if_empty(self, name: str) -> None:
        node = self._nodes[name]
        if node.gpus is None and not node.entries:
            del self._nodes[name]


def _stub(pod: Pod) -> Pod:
    return replace(pod, annotations={}, labels={}, containers=(), requests=None)

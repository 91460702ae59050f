"""The cluster for display: its nodes with their pods, and the pods that wait, kept current change by change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, ObjectKind, PodReader
from gpu_device_plugin.kubernetes.objects.pod_details import brief, scheduling_status
from gpu_device_plugin.kubernetes.store import Store, replacing
from gpu_device_plugin.model.contract.keys import READ_BY_AGENT, READ_BY_INSPECT
from gpu_device_plugin.model.contract.node_use import NO_REPORT, STALE_S, NodeReport, node_report
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import MOST_WRITTEN, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.held_instances import InstancePod, instance_pod
from gpu_device_plugin.report.rules.node_view import NO_STATES, NodeView, StatePoints
from gpu_device_plugin.scheduler.cluster_state import Fleet, FleetEntry
from gpu_device_plugin.scheduler.rules.candidate import Candidate, gpus_of_node
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

if TYPE_CHECKING:
    import msgspec


_NAMES_CLAIMS = b'"resourceClaims"'
"""In the JSON of a pod that names ResourceClaims."""
_OVERWRITTEN = (
    f"its annotations for GPUs have more than {MOST_WRITTEN} characters together; "
    "`kubectl inspect gpushare why` reads them"
)
_OF_MIG = b"/mig-"
"""In the JSON of a pod that asks for MIG instances."""


@dataclass(frozen=True, slots=True)
class FollowedNode(NodeRecord):
    """A node as the API shows it. A heartbeat changes nothing of it."""

    read_s: float = field(default=0.0, compare=False)
    """When it was read, seconds since the epoch."""
    report: NodeReport = field(default=NO_REPORT, compare=False)
    problems: tuple[str, ...] = field(default=(), compare=False)
    """A sentence for each annotation of its agent that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """A pod that asks for GPUs or names ResourceClaims, as the API shows it."""

    pod: Pod
    status: SchedulingStatus | None = None
    """What schedulers say of it; only for a pod without a node."""
    problems: tuple[str, ...] = ()
    """A sentence for each of its limits that is ignored."""

    @property
    def uid(self) -> str:
        """Identifies the pod for ever."""
        return self.pod.uid

    @property
    def resource_version(self) -> str:
        """Its version."""
        return self.pod.resource_version


@dataclass(frozen=True, slots=True)
class FollowedKind:
    """Objects of a feature that are followed where a node needs them."""

    kind: ObjectKind
    called: str
    """An object of this kind, with its article."""
    absent: str
    """What is said where the API server has no such kind."""
    unseen: Callable[[str], str]
    """What is missing without them, given why, as a sentence without its full stop."""
    read: Callable[[msgspec.Raw], Any]
    """Raises UnreadableObjectError."""
    needed: Callable[[NodeGpus], bool]
    """By a node with these GPUs."""
    nodes: Callable[[Any], Iterable[str]]
    """The names of the nodes that one concerns."""
    waits: Callable[[Any], bool]
    """Whether pods that name it wait for our GPUs."""
    shown: Callable[[NodeView, Iterable[Any]], NodeView]
    """A node with those that concern it."""


class FollowedCluster:
    """The nodes that share GPUs and the pods that ask for them.

    `nodes`, `pods` and `more` are the stores of reflectors, which read objects with `read_node`, `read_pod` and the
    `kind`. The latter matters only where a node needs it.
    """

    def __init__(
        self,
        resources: Sequence[Resource],
        features: StatePoints = NO_STATES,
        *,
        kind: FollowedKind | None = None,
        wall_s: Callable[[], float] = time.time,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin without nodes and pods; `wall_s` returns seconds since the epoch."""
        self.resources = tuple(resources)
        self.kind = kind
        self._features = features
        self._wall_s = wall_s
        self._on_change = on_change
        names = [resource.name for resource in self.resources]
        # A pod whose JSON names none of our resources asks for none, and need not be decoded.
        self._ours = (*(f'"{name}"'.encode() for name in names), _OF_MIG)
        self._pod_reader = PodReader(names, READ_BY_AGENT.__contains__, mig=True)
        self._node_reader = NodeReader(names, READ_BY_INSPECT.__contains__, labels=True)
        self.fleet = Fleet(self.resources, vanished_grace_s=0)
        self._nodes: dict[str, FollowedNode] = {}
        self._waiting: dict[str, FollowedPod] = {}
        self.phases: dict[str, str] = {}
        """The phase of each pod by its uid."""
        self._needing: set[str] = set()
        self._more: dict[str, Any] = {}
        self._more_on: dict[str, dict[str, Any]] = {}
        """By node those that concern it, by their uids."""
        self._instances_on: dict[str, dict[str, InstancePod]] = {}
        """By node the pods that hold whole MIG instances, by their uids."""
        self._touched: set[str] = set()
        self._mark = 0
        self.waiting_version = 0
        """Grows with every change of a waiting pod, and of an object of the further kind."""
        self._sorted: tuple[int, Sequence[FollowedPod]] = (0, ())
        """The waiting pods as of a version: every reader of a page asks for them."""
        replace_nodes = replacing(self._nodes.values, self.put_node, self.remove_node)
        replace_more = replacing(self._more.values, self.put_more, self.remove_more)
        self.nodes: Store[FollowedNode] = Store(replace_nodes, self.put_node, self.remove_node)
        self.pods: Store[FollowedPod] = Store(self.replace_pods, self.put_pod, self.remove_pod)
        self.more: Store[Any] = Store(replace_more, self.put_more, self.remove_more)

    # --- Objects of the API ------------------------------------------------------------------------------------------

    def read_node(self, raw: msgspec.Raw) -> FollowedNode:
        """Read a node from its JSON.

        Raises:
            UnreadableObjectError: it is none.
        """
        record, now_s = self._node_reader.read(raw), self._wall_s()
        report, problems = node_report(record.annotations, now_s)
        return FollowedNode.of(record, read_s=now_s, report=report, problems=problems)

    def read_pod(self, raw: msgspec.Raw) -> FollowedPod | None:
        """Read a pod from its JSON; None for one that asks for no GPU and names no claim by which it could.

        A pod whose every amount is unreadable asks for none, but has `problems` to tell.

        Raises:
            UnreadableObjectError: it is none.
        """
        whole = bytes(raw)
        claims = _NAMES_CLAIMS in whole
        if not claims and not any(name in whole for name in self._ours):
            return None
        pod, problems = self._pod_reader.read(raw)
        if not (claims or pod.containers or problems):
            return None
        if pod.node_name:
            return FollowedPod(pod, None, problems)
        status = brief(scheduling_status(raw, problems))
        if pod.overwritten:
            pod, status = replace(pod, annotations={}), replace(status, ignored=(*status.ignored, _OVERWRITTEN))
        return FollowedPod(pod, status, problems)

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes that share GPUs, or claim to, sorted."""
        return sorted(name for name, candidate in self.fleet.candidates.items() if _shares(candidate))

    @property
    def views(self) -> Sequence[NodeView]:
        """All of them as they are now, by name."""
        return [view for name in self.names if (view := self.view(name)) is not None]

    def view(self, name: str) -> NodeView | None:
        """Return a node as it is now; None: it does not exist, or shares nothing."""
        node, candidate = self._nodes.get(name), self.fleet.candidates.get(name)
        if node is None or candidate is None or not _shares(candidate):
            return None
        holders = self._instances_on.get(name, {}).values()
        report, waited_s = node.report, max(0.0, self._wall_s() - node.read_s)
        view = NodeView(
            candidate=candidate,
            pods=tuple(
                GpuConsumer(entry.uid, entry.usage, entry.priority, entry.deleting, {}, entry.namespace, entry.name)
                for entry in self.fleet.on_node(name)
            ),
            record=node,
            report=report if (age_s := report.use_age_s) is None else replace(report, use_age_s=age_s + waited_s),
            instance_pods=tuple(sorted(holders, key=lambda pod: (pod.namespace, pod.name, pod.uid))),
            features=self._features,
        )
        return view if self.kind is None else self.kind.shown(view, self._more_on.get(name, {}).values())

    @property
    def instance_pods(self) -> Sequence[tuple[str, InstancePod]]:
        """The pods that hold whole MIG instances, each with the name of its node."""
        return [(node, pod) for node, pods in self._instances_on.items() for pod in pods.values()]

    @property
    def needs_more(self) -> bool:
        """Whether a node needs the further kind, so that it has to be followed."""
        return bool(self._needing)

    def more_of(self, namespace: str = "") -> Sequence[Any]:
        """Return the objects of the further kind of a namespace, or of all."""
        return [each for each in self._more.values() if namespace in {"", each.namespace}]

    @property
    def waiting(self) -> Sequence[FollowedPod]:
        """The pods without a node that ask for GPUs by limits or claims, the oldest first."""
        version, found = self._sorted
        if version != self.waiting_version:
            more = () if self.kind is None else filter(self.kind.waits, self._more.values())
            claims = {(each.namespace, each.name) for each in more}
            asking = (
                each
                for each in self._waiting.values()
                if each.pod.containers
                or (each.status and any((each.pod.namespace, one.claim) in claims for one in each.status.claims))
            )
            found = sorted(asking, key=lambda each: (each.pod.created, each.pod.uid))
            self._sorted = self.waiting_version, found
        return found

    @property
    def waiting_pods(self) -> Sequence[Pod]:
        """Those of them that ask by limits."""
        return [each.pod for each in self.waiting if each.pod.containers]

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each annotation of a node that cannot be parsed."""
        for name, node in sorted(self._nodes.items()):
            yield from (f"node {name}: {why}" for why in node.problems)

    def changed(self) -> Sequence[str] | None:
        """Return the names of the nodes that changed since the last call; None: any of them may have."""
        self._mark, names = self.fleet.now.changed_since(self._mark)
        touched, self._touched = self._touched, set()
        return None if names is None else sorted({*names, *touched})

    def went_stale(self, since_s: float) -> Sequence[str]:
        """Return the nodes whose figures became too old for the present after `since_s`, seconds since the epoch."""
        return [
            name
            for name, node in self._nodes.items()
            if (age_s := node.report.use_age_s) is not None
            and since_s < node.read_s - age_s + STALE_S <= self._wall_s()
        ]

    # --- Changes ------------------------------------------------------------------------------------------------------

    def put_node(self, node: FollowedNode) -> None:
        """Add or update a node."""
        offered = {each.kind: node.capacity.get(each.name, 0) for each in self.resources}
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        gpus = gpus_of_node(node.annotations, node.labels, offered[Kind.MEMORY], offered[Kind.COUNT])
        self.fleet.put_node(node.name, gpus)
        needed = self.kind is not None and self.kind.needed(gpus)
        (self._needing.add if needed else self._needing.discard)(node.name)
        if before != node:
            self._touched.add(node.name)
            self._on_change()

    def remove_node(self, node: FollowedNode) -> None:
        """Remove a node."""
        if self._nodes.pop(node.name, None) is not None:
            self.fleet.remove_node(node.name)
            self._needing.discard(node.name)
            self._touched.add(node.name)
            self._on_change()

    def put_pod(self, each: FollowedPod) -> None:
        """Add or update a pod."""
        self.phases[each.pod.uid] = each.pod.phase
        counted = self.fleet.entries.get(each.pod.uid)
        self.fleet.put_pod(each.pod)
        self._count(counted, self.fleet.entries.get(each.pod.uid))
        self._hold(each.pod.uid, each.pod.node_name, instance_pod(each.pod))
        asks = bool(each.pod.containers or not each.problems)
        waits = asks and not (each.pod.node_name or each.pod.ended or each.pod.deleting)
        before = self._waiting.pop(each.pod.uid, None)
        if waits:
            self._waiting[each.pod.uid] = each
        if before != (each if waits else None):
            self.waiting_version += 1
        self._on_change()

    def remove_pod(self, each: FollowedPod) -> None:
        """Remove a deleted pod. Whatever its containers do, the tools show that the API has it no more."""
        self.phases.pop(each.uid, None)
        self._hold(each.uid, each.pod.node_name, None)
        self.fleet.remove_pod(each.pod, 0.0)
        self.fleet.expire(0.0)
        if self._waiting.pop(each.uid, None) is not None:
            self.waiting_version += 1
        self._on_change()

    def replace_pods(self, pods: Sequence[FollowedPod]) -> None:
        """Replace all pods."""
        there = {each.pod.uid for each in pods}
        for node in tuple(self._instances_on):
            for uid in self._instances_on[node].keys() - there:
                self._hold(uid, node, None)
        counted = dict(self.fleet.entries)
        self.fleet.replace_pods([each.pod for each in pods], 0.0)
        self.fleet.expire(0.0)
        for uid in counted.keys() | self.fleet.entries.keys():
            self._count(counted.get(uid), self.fleet.entries.get(uid))
        self._waiting = {uid: each for uid, each in self._waiting.items() if uid in there}
        self.phases.clear()
        self.waiting_version += 1
        self._on_change()
        for each in pods:
            self.put_pod(each)

    def _count(self, before: FleetEntry | None, now: FleetEntry | None) -> None:
        """Note the nodes where a pod counts otherwise than before; the fleet tells only what concerns placement."""
        if before != now:
            self._touched |= {entry.node for entry in (before, now) if entry is not None}

    def _hold(self, uid: str, node: str, holder: InstancePod | None) -> None:
        """Note what a pod on a node has of its whole MIG instances; None: nothing."""
        before = self._instances_on.get(node, {}).pop(uid, None)
        if holder is not None:
            self._instances_on.setdefault(node, {})[uid] = holder
        elif before is not None and not self._instances_on[node]:
            del self._instances_on[node]
        if before != holder:
            self._touched.add(node)

    def put_more(self, each: Any) -> None:
        """Add or update an object of the further kind."""
        before = self._more.get(each.uid)
        self._more[each.uid] = each
        if before == each:
            return
        self.waiting_version += 1
        self._take_off(before)
        for node in self._nodes_of(each):
            self._more_on.setdefault(node, {})[each.uid] = each
            self._touched.add(node)
        self._on_change()

    def remove_more(self, each: Any) -> None:
        """Remove a deleted object of the further kind."""
        self.waiting_version += 1
        self._take_off(self._more.pop(each.uid, None))
        self._on_change()

    def _take_off(self, each: Any) -> None:
        for node in self._nodes_of(each):
            on_node = self._more_on[node]
            del on_node[each.uid]
            if not on_node:
                del self._more_on[node]
            self._touched.add(node)

    def _nodes_of(self, each: Any) -> Iterable[str]:
        return () if each is None or self.kind is None else self.kind.nodes(each)


def cluster(
    raw_nodes: Iterable[msgspec.Raw],
    raw_pods: Iterable[msgspec.Raw],
    resources: Sequence[Resource],
    features: StatePoints = NO_STATES,
    kind: FollowedKind | None = None,
) -> tuple[FollowedCluster, list[str]]:
    """Return nodes with the pods that hold GPUs by limits, and a sentence for each object that could not be read."""
    state = FollowedCluster(resources, features, kind=kind)
    warnings: list[str] = []
    for node in readable(raw_nodes, state.read_node, "a node", warnings):
        state.put_node(node)
    for each in readable(raw_pods, state.read_pod, "a pod", warnings):
        if each is not None:
            warnings += [f"pod {each.pod.namespace}/{each.pod.name}: {why}, and it is ignored" for why in each.problems]
            state.put_pod(each)
    warnings += state.problems()
    warnings += [f"node {view.name}: {fault}" for view in state.views if (fault := view.candidate.gpus.fault)]
    return state, warnings


def _shares(candidate: Candidate) -> bool:
    """Return whether a node shares its GPUs, gives MIG instances to pods, or claims to."""
    return bool(candidate.rooms or candidate.gpus.instances or candidate.gpus.fault)

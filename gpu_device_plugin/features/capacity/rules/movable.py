"""Which pods may be moved to other GPUs, and why the others may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind, Resource
from gpu_device_plugin.report.rules.held_instances import asked_instances
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms, obstacles
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
"""The resources that every node has."""


class UnmovableReason(StrEnum):
    """Why a pod is not moved, as a clause about the pod."""

    ENDING = "it is being deleted"
    NO_CONTROLLER = "no controller would replace it"
    DAEMON_SET = "a DaemonSet made it for its node"
    STATIC = "its kubelet made it from a file"
    FORBIDDEN = "its annotation safe-to-evict is false"
    STORAGE = "it has local storage (emptyDir or hostPath)"
    VOLUME = "its volumes may be tied to its node or zone"
    NEIGHBOURS = "it depends on the places of other pods (affinity or topology spread)"
    RESOURCES = "it requests resources that are not counted here"
    BUDGET = "its PodDisruptionBudget allows no disruption"
    BUDGETS = "several PodDisruptionBudgets select it, and such pods cannot be evicted"
    CLAIMS = "it has its GPUs through a ResourceClaim (DRA)"
    UNPLACED = "its GPU is not known"
    HELD = "it is room that is held for a pod"
    PLANNED = "room is made for it"
    MOVED = "it is moved already"


@dataclass(frozen=True, slots=True)
class Evictability:
    """What of a pod besides its GPUs decides whether it may be evicted."""

    safe_to_evict: bool | None = None
    """The Cluster Autoscaler's annotation; None: it has none."""
    local_storage: bool = False
    """It has a hostPath, or an emptyDir on a disk, that the Cluster Autoscaler's annotation does not release."""
    claims_volumes: bool = False
    """It has PersistentVolumeClaims."""
    neighbours: bool = False
    """Required affinity or anti-affinity to pods, or topology spread constraints that keep it from nodes."""
    budgets: tuple[str, ...] = ()
    """The PodDisruptionBudgets that select it, as ``namespace/name``."""
    terms: Terms = NO_TERMS


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPod:
    """A pod that counts on a node. Compared by identity."""

    pod: GpuConsumer
    ask: GpuRequest = field(default_factory=GpuRequest)
    """What its replacement asks for."""
    amounts: Amounts = NO_AMOUNTS
    nodes: frozenset[str] | None = None
    """The nodes that its own terms allow; None: all."""
    budget: str = ""
    """The PodDisruptionBudget that counts its eviction."""
    stays: UnmovableReason | None = None
    """None: it may be moved."""

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return str(self.pod)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node, with everything that counts on its GPUs."""

    node: Candidate
    """With the room that its residents leave, and the CPU and memory that no pod requests."""
    residents: tuple[PlannedPod, ...] = ()
    open: bool = True
    """Pods may be moved to it."""

    def changed(self, gone: PlannedPod | None = None, come: PlannedPod | None = None) -> PlannedNode:
        """Return the node without a resident, or with another one."""
        residents = tuple([each for each in self.residents if each is not gone]) + (() if come is None else (come,))
        node = self.node.occupied([each.pod.usage for each in residents])
        left = node.left
        if left is not None and gone is not None:
            left = Amounts(left.cpu_milli + gone.amounts.cpu_milli, left.memory_mib + gone.amounts.memory_mib)
        if left is not None and come is not None:
            left = left.without([come.amounts])
        return replace(self, node=replace(node, left=left), residents=residents)


@dataclass(frozen=True, slots=True)
class Fits:
    """The goal that a pod has room on one of the nodes that its own terms allow."""

    ask: GpuRequest
    amounts: Amounts = NO_AMOUNTS
    nodes: frozenset[str] | None = None
    """None: all."""
    priority: int | None = None
    """Pods of a higher one are not moved for it; None: any may be."""

    def allows(self, site: PlannedNode) -> bool:
        """Return whether the pod may go to a node, whatever GPUs are free there."""
        left = site.node.left
        return (
            site.open
            and (self.nodes is None or site.node.name in self.nodes)
            and (left is None or left.cover(self.amounts))
        )


@dataclass(frozen=True, slots=True)
class Move:
    """The eviction of a pod once room is held for its replacement."""

    pod: PlannedPod
    """As it is before the move."""
    origin: str
    node: str
    placements: tuple[Placement, ...]
    """Of its replacement, one for each part of its demand."""

    @property
    def shares(self) -> Mapping[int, int]:
        """The shares that the replacement gets, by GPU position."""
        return shares_of(self.placements)

    @property
    def replacement(self) -> PlannedPod:
        """The pod as it is after the move; no plan moves it again."""
        return replace(
            self.pod, pod=replace(self.pod.pod, usage=usage_at(self.placements)), stays=UnmovableReason.MOVED
        )


def shares_of(placements: Iterable[Placement]) -> dict[int, int]:
    """Return the shares that placements take, by GPU position; all shares of a whole GPU."""
    sums: Counter[int] = Counter()
    for placement in placements:
        sums.update(dict(placement.shares))
    return dict(sorted(sums.items()))


def usage_at(placements: Sequence[Placement]) -> Usage:
    """Return the usage of a pod with these placements, without anything beyond its requests."""
    of_memory = [each for each in placements if each.demand.kind is Kind.MEMORY]
    whole = [at for each in placements if each.demand.kind is Kind.COUNT for at in each.positions]
    return Usage(tuple(shares_of(of_memory).items()), tuple(sorted(whole)))


def after(sites: Iterable[PlannedNode], moves: Sequence[Move]) -> tuple[PlannedNode, ...]:
    """Return the nodes as they are once all moves are done, one after the other."""
    by_name = {site.node.name: site for site in sites}
    for move in moves:
        by_name[move.origin] = by_name[move.origin].changed(gone=move.pod)
        by_name[move.node] = by_name[move.node].changed(come=move.replacement)
    return tuple(by_name.values())


class Residents:
    """Makes residents of the pods of a cluster; pods with equal terms share the names of the nodes that these allow."""

    def __init__(self, nodes: Iterable[NodeRecord], resources: Iterable[Resource], budgets: Mapping[str, int]) -> None:
        """`nodes` are those that pods may come to, `budgets` the evictions that PodDisruptionBudgets allow."""
        self._resources = tuple(resources)
        self._ours = frozenset(resource.name for resource in self._resources)
        self._budgets = budgets
        self._nodes = tuple(nodes)
        self._known: dict[Terms, frozenset[str]] = {}

    def allowed(self, terms: Terms) -> frozenset[str]:
        """Return the names of the nodes that terms allow."""
        if terms not in self._known:
            met = (node.name for node in self._nodes if next(obstacles(node, terms), None) is None)
            self._known[terms] = frozenset(met)
        return self._known[terms]

    def of(self, pod: Pod, facts: Evictability, occupant: GpuConsumer | None = None) -> PlannedPod:
        """Return a pod that counts on its node as `occupant`; None: it waits."""
        counts = GpuConsumer(pod.uid, NOTHING, pod.priority, pod.deleting, pod.requests, pod.namespace, pod.name)
        asked = ask(pod, self._resources)
        if isinstance(asked, Impossible):
            return PlannedPod(occupant or counts, stays=UnmovableReason.RESOURCES)
        return PlannedPod(
            occupant or counts,
            asked,
            pod.amounts,
            self.allowed(facts.terms),
            next(iter(facts.budgets), ""),
            None if occupant is None else why_it_stays(pod, occupant.usage, facts, self._budgets, self._ours),
        )


def other_resources(pod: Pod, ours: frozenset[str]) -> frozenset[str]:
    """Return the resources that a pod requests besides those of every node and ours, as far as that is known."""
    return frozenset([name for name in pod.requests or {} if name not in _STANDARD and name not in ours])


def why_it_stays(
    pod: Pod, usage: Usage, facts: Evictability, budgets: Mapping[str, int], ours: frozenset[str]
) -> UnmovableReason | None:
    """Return why a pod is not moved; None: it may be.

    `budgets` are the disruptions that each PodDisruptionBudget still allows, `ours` the names of our resources. Local
    storage counts as it does for the Cluster Autoscaler.
    """
    others = other_resources(pod, ours)
    reasons = (
        (pod.deleting or pod.ended, UnmovableReason.ENDING),
        (pod.owner is None, UnmovableReason.NO_CONTROLLER),
        (pod.owner is not None and pod.owner.kind == "Node", UnmovableReason.STATIC),
        (pod.owner is not None and pod.owner.kind == "DaemonSet", UnmovableReason.DAEMON_SET),
        (facts.safe_to_evict is False, UnmovableReason.FORBIDDEN),
        (facts.local_storage and not facts.safe_to_evict, UnmovableReason.STORAGE),
        (facts.claims_volumes and not facts.safe_to_evict, UnmovableReason.VOLUME),
        (facts.neighbours or pod.requests is None, UnmovableReason.NEIGHBOURS),
        (others or asked_instances(pod), UnmovableReason.RESOURCES),
        (usage.unplaced or usage == NOTHING, UnmovableReason.UNPLACED),
        (len(facts.budgets) > 1, UnmovableReason.BUDGETS),
        (any(budgets.get(name, 0) < 1 for name in facts.budgets), UnmovableReason.BUDGET),
    )
    return next((why for applies, why in reasons if applies), None)

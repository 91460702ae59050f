"""The pods of a cluster with all that decides whether they may be moved, read from objects of the API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.features.capacity.contract import read_held
from gpu_device_plugin.features.capacity.rules.movable import (
    Evictability,
    PlannedNode,
    PlannedPod,
    Residents,
    UnmovableReason,
)
from gpu_device_plugin.kubernetes.objects.api_objects import ApiObject, Named, readable
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind, ObjectMeta, PodReader, decoded
from gpu_device_plugin.kubernetes.objects.pod_details import PodObject
from gpu_device_plugin.model.contract.keys import READ_BY_AGENT
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Amounts, Resource
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.node_constraints import MOST_TERMS, NOWHERE, Requirement
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.node_view import NodeView

BUDGETS = ObjectKind("poddisruptionbudgets", group="policy")
_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_EVICT_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Annotation of a pod: the names of the local volumes that do not keep it from being evicted, separated by commas."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class _Selector(ApiObject):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        wanted = (self.match_labels or {}).items()
        return wanted <= labels.items() and all(each.holds(labels) for each in self.match_expressions)


class _BudgetSpec(ApiObject):
    selector: _Selector | None = None


class _BudgetStatus(ApiObject):
    disruptions_allowed: int = 0


class _Budget(Named):
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)

    @property
    def name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def selects(self, meta: ObjectMeta) -> bool:
        selector = self.spec.selector
        return (
            selector is not None and meta.namespace == self.metadata.namespace and selector.matches(meta.labels or {})
        )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The nodes with their pods, and the pods that wait."""

    sites: tuple[PlannedNode, ...]
    waiting: tuple[PlannedPod, ...]
    """By limits, the oldest first; without those that a scheduling gate holds back."""
    budgets: Mapping[str, int]
    """By ``namespace/name`` the evictions that each PodDisruptionBudget allows."""


class ArrangementReader:
    """Reads pods, all at once or page by page, and keeps of each only what decides about moves.

    Unreadable objects are left out.
    """

    def __init__(self, raw_budgets: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> None:
        self._resources = tuple(resources)
        self._budgets = list(readable(raw_budgets, partial(decoded, form=_Budget)))
        names = [each.name for each in resources]
        self._pod_reader = PodReader(names, READ_BY_AGENT.__contains__, sums=True, every=True, owners=True)
        self._amounts: dict[str, list[Amounts]] = defaultdict(list)
        self._known: dict[str, tuple[Pod, Evictability]] = {}
        self._waiting: list[Pod] = []

    def read_pods(self, raw_pods: Iterable[msgspec.Raw]) -> None:
        """Read pods."""

        def read(raw: msgspec.Raw) -> tuple[Pod, PodObject | None]:
            pod, _ = self._pod_reader.read(raw)
            return pod, decoded(raw, PodObject) if pod.containers and not pod.ended else None

        for pod, more in readable(raw_pods, read):
            if pod.node_name and not pod.ended:
                self._amounts[pod.node_name].append(pod.amounts)
            if more is not None:
                self._known[pod.uid] = pod, _evictability(more, self._budgets)
                held_back = pod.deleting or more.spec.scheduling_gates
                if not pod.node_name and not held_back:
                    self._waiting.append(pod)

    def arrangement(self, views: Sequence[NodeView], *, now_s: float) -> Arrangement:
        """Return the nodes that share GPUs, `views`, with what decides about moves.

        `now_s` is in seconds since the epoch: until when room is held.
        """
        allowed = {budget.name: budget.status.disruptions_allowed for budget in self._budgets}
        open_ = [view for view in views if view.takes_pods and not view.candidate.gpus.problem]
        residents = Residents([view.record for view in open_], self._resources, allowed)
        names = {view.name for view in open_}
        sites = []
        for view in views:
            there = [
                residents.of(*self._known[pod.uid], pod)
                if pod.uid in self._known and not pod.claims
                else PlannedPod(pod, stays=UnmovableReason.CLAIMS)
                for pod in view.pods
            ]
            for room in read_held(view.record.annotations):
                if room.until_s > now_s:
                    held = GpuConsumer(
                        f"held/{room.uid}", Usage(room.shares), namespace=room.namespace, name="held room"
                    )
                    there.append(PlannedPod(held, stays=UnmovableReason.HELD))
            usages, amounts = [pod.pod.usage for pod in there], self._amounts[view.name]
            node = candidate(view.name, view.candidate.gpus, usages, view.record.cpu_and_memory, amounts)
            sites.append(PlannedNode(node, tuple(there), view.name in names))
        oldest = sorted(self._waiting, key=lambda pod: (pod.created, pod.uid))
        waiting = [residents.of(*self._known[pod.uid]) for pod in oldest]
        return Arrangement(tuple(sites), tuple(pod for pod in waiting if pod.ask.parts), allowed)


def evictability(raw: msgspec.Raw) -> tuple[Evictability, float | None]:
    """Return what of a pod decides whether it may be evicted, but for PodDisruptionBudgets; and since when it waits.

    That is the time since which no scheduler has found a node for it, in seconds since the epoch, 0 if that is not
    said; None: nobody has looked, a scheduling gate holds it back, or it waits for others to end on a node of its own.

    Raises:
        UnreadableObjectError: it is none.
    """
    pod = decoded(raw, PodObject)
    refused = (
        epoch_s(one.last_transition_time or "") or 0.0
        for one in pod.status.conditions or ()
        if one.type == "PodScheduled" and one.status == "False" and one.reason != "SchedulingGated"
    )
    return _evictability(pod, ()), None if pod.status.nominated_node_name else next(refused, None)


def _evictability(pod: PodObject, budgets: Iterable[_Budget]) -> Evictability:
    annotations, spec, terms = pod.metadata.annotations or {}, pod.spec, pod.spec.terms
    released = {name.strip() for name in annotations.get(_EVICT_VOLUMES, "").split(",")}
    volumes = spec.volumes or ()
    affinity = spec.affinity
    near = () if affinity is None else (*(affinity.pod_affinity or ()), *(affinity.pod_anti_affinity or ()))
    return Evictability(
        safe_to_evict={"true": True, "false": False}.get(annotations.get(_EVICT, "")),
        local_storage=any(volume.local and volume.name not in released for volume in volumes),
        claims_volumes=any(volume.persistent_volume_claim or volume.ephemeral for volume in volumes),
        neighbours=_REQUIRED in near
        or any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()),
        budgets=tuple(budget.name for budget in budgets if budget.selects(pod.metadata)),
        # Longer ones would have to be kept of every pod: such a pod is not moved.
        terms=terms if terms.size <= MOST_TERMS else NOWHERE,
    )

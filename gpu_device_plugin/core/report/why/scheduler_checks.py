"""The most common reasons other than GPUs for which kube-scheduler rejects a node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.taints import Taint
from gpu_device_plugin.core.report.finding import Finding, note
from gpu_device_plugin.core.report.why.pod_use import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.model.resources import Resource

CORDON = "node.kubernetes.io/unschedulable"
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod. An empty key or effect matches all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Return whether this toleration matches the taint."""
        return (
            self.effect in {"", taint.effect}
            and self.key in {"", taint.key}
            and (self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value))
        )


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition of a pod's node affinity on one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = f" ({', '.join(self.values)})" if self.values else ""
        return f"{self.key} {self.operator}{values}"

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it, as k8s.io/component-helpers decides; an unknown operator is always met."""
        holds = _OPERATORS.get(self.operator)
        return holds is None or holds(labels.get(self.key), self.values)


def _difference(label: str | None, values: Sequence[str]) -> int:
    """Return a node's label minus the one value that it is compared with; 0 if either is not a number."""
    match [label or "", *values]:
        case [found, bound] if _NUMBER.fullmatch(found) and _NUMBER.fullmatch(bound):
            return int(found) - int(bound)
    return 0


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda label, values: label in values,
    "NotIn": lambda label, values: label not in values,
    "Exists": lambda label, _: label is not None,
    "DoesNotExist": lambda label, _: label is None,
    "Gt": lambda label, values: _difference(label, values) > 0,
    "Lt": lambda label, values: _difference(label, values) < 0,
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One term of a pod's node affinity."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    """Conditions on fields of the node; Kubernetes supports ``metadata.name``."""

    def failing(self, node: NodeView) -> Requirement | None:
        """Return the first condition that a node does not meet; None if it meets all."""
        for requirements, facts in ((self.labels, node.labels), (self.fields, {"metadata.name": node.name})):
            for requirement in requirements:
                if not requirement.holds(facts):
                    return requirement
        return None


@dataclass(frozen=True, slots=True)
class Terms:
    """The nodes that a pod may go to, by its own spec."""

    tolerations: tuple[Toleration, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    """Its nodeSelector."""
    affinity: tuple[Alternative, ...] | None = None
    """The terms of its node affinity, of which one is enough; None: it has no node affinity."""

    @property
    def entries(self) -> int:
        """The number of tolerations, selected labels, and conditions and values of the node affinity."""
        conditions = [each for term in self.affinity or () for each in (*term.labels, *term.fields)]
        return (
            len(self.tolerations) + len(self.selector) + len(conditions) + sum(len(each.values) for each in conditions)
        )


NO_TERMS = Terms()


def exclusions(node: NodeView, pod: Terms) -> Iterator[Finding]:
    """Yield why kube-scheduler does not consider a node for a pod at all, as clauses about the node."""

    def tolerated(taint: Taint) -> bool:
        return any(toleration.covers(taint) for toleration in pod.tolerations)

    named_otherwise = {*([CORDON] if node.unschedulable else []), *([] if node.ready else _NOT_READY)}
    if node.unschedulable and not tolerated(Taint(CORDON)):
        yield note("cordoned", "it is cordoned")
    if not node.ready:
        yield note("not-ready", "it is not ready")
    for taint in node.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and taint.key not in named_otherwise and not tolerated(taint):
            yield note("taint", "the pod does not tolerate its taint {taint}", taint=str(taint))
    for key, value in sorted(pod.selector.items()):
        if node.labels.get(key) != value:
            yield note("label", "the pod requires the node label {label}", label=f"{key}={value}")
    if pod.affinity is not None:
        yield from _by_affinity(node, pod.affinity)


def _by_affinity(node: NodeView, wanted: Iterable[Alternative]) -> Iterator[Finding]:
    # An empty term matches no node.
    failing = [term.failing(node) for term in wanted if term.labels or term.fields]
    if len(failing) == 1 and failing[0] is not None:
        yield note("affinity", "the pod's node affinity requires {condition}", condition=str(failing[0]))
    elif all(failing):
        text = "it matches none of the {terms} terms of the pod's node affinity"
        yield note("affinity-terms", text, terms=len(failing))


def besides(node: NodeView, ask: Ask, resources: Iterable[Resource]) -> tuple[Finding, ...]:
    """Return further reasons against a node that kube-scheduler considers, as clauses about the node.

    Compares only the GPU resources that its kubelet knows; neither CPU nor memory.
    """
    shares = any(part.demand.kind is Kind.MEMORY for part in ask.parts)
    return (
        *(why for resource in resources for why in _too_little(node, ask, resource)),
        *(refusals(node.report) if shares else ()),
    )


def _too_little(node: NodeView, ask: Ask, resource: Resource) -> Iterator[Finding]:
    """Yield why the kubelet's amounts are too small for the pod, unless the GPUs show it."""
    asked = sum(part.demand.amount for part in ask.parts if part.demand.kind is resource.kind)
    if not asked or node.candidate.gpus.problem:
        return
    if resource.name not in node.capacity:
        text = "its kubelet knows no {resource}: no agent has registered there since it started"
        yield note("not-registered", text, resource=resource.name)
        return
    offered = node.allocatable.get(resource.name, 0)
    memory = resource.kind is Kind.MEMORY
    # The agent withholds a GPU that is in use as the other resource, as intended.
    rooms = [
        room
        for room in node.candidate.rooms
        if room.healthy and not (room.whole if memory else room.shared or room.card is not None)
    ]
    if not offered:
        if rooms:
            text = "its agent offers no {resource} at the moment; see the agent's log"
            yield note("not-offered", text, resource=resource.name)
        return
    taken = sum(
        usage.unplaced_shares + sum(shares for _, shares in usage.shares)
        if memory
        else usage.unplaced_gpus + len(usage.whole)
        for usage in (pod.usage for pod in node.pods)
    )
    free = sum(room.free for room in rooms) if memory else sum(not room.whole for room in rooms)
    if offered - taken < asked <= free:  # with less free the GPUs show the reason
        text = "{taken} of {offered} allocatable {resource} are in use"
        yield note("in-use", text, taken=taken, offered=offered, resource=resource.name)

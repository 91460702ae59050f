"""The nodes that a pod may go to by its own spec, as kube-scheduler's plugins decide it, and what came of that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import PodClaim, Taint

DEFAULT_SCHEDULER = "default-scheduler"
CORDON = "node.kubernetes.io/unschedulable"
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_KEEPING = frozenset({"NoSchedule", "NoExecute"})
"""The effects of taints that keep new pods away."""
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

    def failing(self, node: NodeRecord) -> Requirement | None:
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

    def __hash__(self) -> int:
        return hash((self.tolerations, frozenset(self.selector.items()), self.affinity))

    @property
    def labels(self) -> frozenset[str]:
        """The labels of a node that decide."""
        return frozenset([*self.selector, *(one.key for term in self.affinity or () for one in term.labels)])

    @property
    def nowhere(self) -> bool:
        """Whether no node meets them: terms of an affinity without conditions match none."""
        return self.affinity is not None and not any(each.labels or each.fields for each in self.affinity)

    @property
    def entries(self) -> int:
        """The number of tolerations, selected labels, and conditions and values of the node affinity."""
        conditions = [each for term in self.affinity or () for each in (*term.labels, *term.fields)]
        return (
            len(self.tolerations) + len(self.selector) + len(conditions) + sum(len(each.values) for each in conditions)
        )

    @property
    def size(self) -> int:
        """The characters of all texts in them, and one for each text. The API bounds no value of a node affinity."""
        conditions = [each for term in self.affinity or () for each in (*term.labels, *term.fields)]
        texts = chain(
            *((each.key, each.operator, each.value, each.effect) for each in self.tolerations),
            *self.selector.items(),
            *((each.key, each.operator, *each.values) for each in conditions),
        )
        return sum(1 + len(text) for text in texts)


MOST_TERMS = 4096
"""The most that is kept of each of many pods, see `Terms.size`."""
NO_TERMS = Terms()
NOWHERE = Terms(affinity=())
"""Terms that no node meets."""


@dataclass(frozen=True, slots=True)
class SchedulingStatus:
    """A pod's status from schedulers and kubelets, and the parts of its spec that concern scheduling."""

    scheduler: str = DEFAULT_SCHEDULER
    reason: str = ""
    """The reason in the pod's status: why it ended, or was rejected."""
    message: str = ""
    condition_reason: str = ""
    """The reason of its condition PodScheduled, if that is not true."""
    condition: str = ""
    gates: tuple[str, ...] = ()
    """Its scheduling gates: a scheduler considers it once all are removed."""
    terms: Terms = NO_TERMS
    ignored: tuple[str, ...] = ()
    """Its invalid limits, one sentence each."""
    limits: tuple[str, ...] = ()
    """The names of all resources that its containers ask for."""
    annotations: tuple[str, ...] = ()
    """The names of its annotations that are none of ours."""
    events: tuple[str, ...] = ()
    """The latest warnings about it, one sentence each."""
    claims: tuple[PodClaim, ...] = ()
    """The ResourceClaims that it names, in the order of its spec."""
    controller: str = ""
    """The kind and name of the object that made it; empty: none did."""
    groups: frozenset[int] | None = None
    """The groups of its containers that ask for devices and do not run as root; None: its spec has none of these."""


def obstacles(node: NodeRecord, pod: Terms) -> Iterator[tuple[str, Mapping[str, str | int]]]:
    """Yield why kube-scheduler does not consider a node for a pod at all: a code, and what it is about."""

    def tolerated(taint: Taint) -> bool:
        return any(toleration.covers(taint) for toleration in pod.tolerations)

    named_otherwise = {*([CORDON] if node.unschedulable else []), *([] if node.ready else _NOT_READY)}
    if node.unschedulable and not tolerated(Taint(CORDON)):
        yield "cordoned", {}
    if not node.ready:
        # Kube-scheduler knows it by these taints alone, which a controller puts on the node a moment later.
        sick = [taint for taint in node.taints if taint.key in _NOT_READY and taint.effect in _KEEPING]
        if not all(map(tolerated, sick or [Taint(_NOT_READY[0])])):
            yield "not-ready", {}
    for taint in node.taints:
        if taint.effect in _KEEPING and taint.key not in named_otherwise and not tolerated(taint):
            yield "taint", {"taint": str(taint)}
    for key, value in sorted(pod.selector.items()):
        if node.labels.get(key) != value:
            yield "label", {"label": f"{key}={value}"}
    if pod.affinity is not None:
        yield from _by_affinity(node, pod.affinity)


def _by_affinity(node: NodeRecord, wanted: Iterable[Alternative]) -> Iterator[tuple[str, Mapping[str, str | int]]]:
    # An empty term matches no node.
    failing = [term.failing(node) for term in wanted if term.labels or term.fields]
    if len(failing) == 1 and failing[0] is not None:
        yield "affinity", {"condition": str(failing[0])}
    elif all(failing):
        yield "affinity-terms", {"terms": len(failing)}

"""The objects by which a cluster's autoscaler learns that nodes are wanted.

An autoscaler adds nodes for pods that fit on none. So a pod stands for each node that is wanted, and may go to no node
that is there, nor to one with another of its kind: as a template of a CapacityBuffer (``autoscaling.x-k8s.io``), which
the Cluster Autoscaler reads, or, where that is not served, as a pod that no scheduler ever places. It requests nothing:
the Cluster Autoscaler takes a node as it is for what a new one will be like, and all GPUs of that may be in use; and it
packs the waiting pods onto the same coming node, whose CPU and memory they need.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

from gpu_device_plugin.features.capacity.rules.node_kinds import NodeKind
from gpu_device_plugin.model.contract.keys import HOSTNAME, STAND_IN, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Alternative, Requirement, Terms, Toleration

Json = dict[str, Any]
T = TypeVar("T")

SCHEDULER = "gpu-device-plugin-stand-in"
"""The scheduler of these pods, which does not exist."""
PRIORITY_CLASS = "gpu-device-plugin-stand-in"
PRIORITY = -10
"""Its value: the Cluster Autoscaler adds no nodes for pods of a lower one, unless it is told to."""
IMAGE = "registry.k8s.io/pause:3.10"
WANTED_FOR = "gpu-device-plugin/wanted-for"
"""Annotation: the pods that a node is asked for."""
_MOST_NAMED = 10
_FEW, _MOST_VALUES = 3, 16_000
"""Alternatives that all are asked for, whichever kinds meet them; values in all of them: the API takes some 1.5 MB."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ONE_EACH = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {STAND_IN: "true"}}}
"""No node is to give the room for two of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A new node that is wanted."""

    terms: Terms = NO_TERMS
    """Those of the waiting pods: which nodes they may go to."""
    unlike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By label the values of nodes on which they have no room."""
    present: Sequence[str] = ()
    """The host names of the nodes that share GPUs already."""
    pods: tuple[str, ...] = ()
    """Waiting pods that it is for, with their namespaces."""

    @property
    def may_be(self) -> Terms:
        """Which nodes it may be, but for those that are present."""
        return _narrowed(self.terms, self.unlike)


def common_terms(terms: Iterable[Terms], kinds: Sequence[NodeKind]) -> Terms:
    """Return terms of nodes to which pods with each of `terms` may go. The kinds, at least one, meet all of them."""
    first, *rest = terms
    if not rest and len(first.affinity or ()) <= _FEW:
        return first
    selector, tolerations = dict(first.selector), set(first.tolerations)
    for each in rest:
        selector |= each.selector
        tolerations.intersection_update(each.tolerations)
    # Each pod may tolerate a taint in words of its own.
    tolerations |= {Toleration(each.key, "Equal", each.value, each.effect) for kind in kinds for each in kind.taints}
    affine = set()
    for kind in kinds:
        labels, fields = set[Requirement](), set[Requirement]()
        for each in (first, *rest):
            met = (one for one in each.affinity or () if (one.labels or one.fields) and one.failing(kind) is None)
            for one in islice(met, 1):
                labels.update(one.labels)
                fields.update(one.fields)
        affine.add(Alternative(_in_order(labels), _in_order(fields)))
    return Terms(_in_order(tolerations), selector, None if affine == {Alternative()} else _in_order(affine))


def _in_order(parts: Iterable[T]) -> tuple[T, ...]:
    """Return parts in an order that depends on nothing else: names are made of them."""
    return tuple(sorted(parts, key=str))


def _narrowed(terms: Terms, unlike: Mapping[str, Sequence[str]]) -> Terms:
    """Return terms without the nodes that have one of some values of a label."""
    others = tuple([Requirement(key, "NotIn", tuple(values)) for key, values in unlike.items() if values])
    if not others:
        return terms
    # A term without conditions matches no node, a pod without terms every one.
    met = [each for each in terms.affinity or () if each.labels or each.fields]
    found = [Alternative((*each.labels, *others), each.fields) for each in met]
    most = max(1, _MOST_VALUES // sum(len(each.values) for each in others))
    affinity = tuple(found[:most]) if terms.affinity is not None else (Alternative(others),)
    return Terms(terms.tolerations, terms.selector, affinity)


def named(wanted: Iterable[Wanted]) -> Mapping[str, Json]:
    """Return what is wanted as the name of an object and the pod template that it has.

    A name does not depend on the nodes that are present, and those of equal ones are numbered, so that it stays while
    nodes come: who asks anew under it asks for no second node. The annotation `STAND_IN` tells what is asked now.
    """
    found: dict[str, Json] = {}
    numbers: Counter[str] = Counter()
    for each in wanted:
        digest = _digest(_terms(each.may_be))
        found[f"gpu-room-{digest}-{numbers[digest]}"] = _template(each)
        numbers[digest] += 1
    return found


def _digest(told: object) -> str:
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]


def _terms(terms: Terms) -> Json:
    """Return terms as the fields of a pod's spec."""
    selector = {**terms.selector, SWITCH_LABEL: SWITCHED_ON}
    tolerations = [_given(key=t.key, operator=t.operator, value=t.value, effect=t.effect) for t in terms.tolerations]
    found: Json = {"nodeSelector": selector, "tolerations": tolerations, "affinity": {"nodeAffinity": {}}}
    if terms.affinity is not None:
        alternatives = [
            _given(matchExpressions=_conditions(each.labels), matchFields=_conditions(each.fields))
            for each in terms.affinity
        ]
        found["affinity"]["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": alternatives}}
    return found


def _conditions(requirements: Iterable[Requirement]) -> list[Json]:
    return [_given(key=one.key, operator=one.operator, values=list(one.values)) for one in requirements]


def _given(**fields: Any) -> Json:
    return {key: value for key, value in fields.items() if value}


def _template(wanted: Wanted) -> Json:
    terms = _terms(_narrowed(wanted.terms, {**wanted.unlike, HOSTNAME: wanted.present}))
    spec = {
        **terms,
        "affinity": {**terms["affinity"], "podAntiAffinity": {_REQUIRED: [_ONE_EACH]}},
        "schedulerName": SCHEDULER,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "room",
                "image": IMAGE,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    shown = ", ".join(wanted.pods[:_MOST_NAMED])
    more = len(wanted.pods) - _MOST_NAMED
    about = f"{shown} and {more} more" if more > 0 else shown
    return {
        "metadata": {"labels": {STAND_IN: "true"}, "annotations": {WANTED_FOR: about, STAND_IN: _digest(spec)}},
        "spec": spec,
    }


def pod_of(name: str, namespace: str, template: Json, owners: Sequence[Json]) -> Json:
    """Return a pod that stands for wanted room."""
    meta = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def buffer_of(name: str, namespace: str, template: Json, owners: Sequence[Json], version: str) -> tuple[Json, Json]:
    """Return a PodTemplate and the CapacityBuffer that wants room for one such pod."""
    meta = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": list(owners)}
    return (
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template},
        {
            "apiVersion": f"autoscaling.x-k8s.io/{version}",
            "kind": "CapacityBuffer",
            "metadata": meta,
            "spec": {"podTemplateRef": {"name": name}, "replicas": 1},
        },
    )


UNSCHEDULABLE: Mapping[str, Any] = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "A placeholder for room that the cluster's autoscaler should provide; it is never scheduled.",
}
"""The condition of a pod for which an autoscaler adds a node; of other pods a scheduler writes it."""


# --- For whom new nodes came in vain ----------------------------------------------------------------------------------
#
# Affinity to pods, topology spread or a volume can keep a pod from the node that comes for it, and its owner can write
# these. So whoever asked waits twice as long each time; and as each pod may name another controller, so does its
# namespace. Of what there is too little of, one thing of each namespace is taken in turn, so that none has all.

_LONGEST_S = 86_400.0
_MOST_IN_NAMESPACE = 4
"""A namespace in which so many have asked in vain waits as well, longer after each further one."""
_MOST_DOUBLINGS = 3
"""Of the time of a namespace, which has other pods too."""
_MOST_ASKERS = 10_000
"""Askers that are remembered."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A controller whose pods wait, or a pod without one."""

    namespace: str
    uid: str = ""
    """Empty: the namespace as a whole."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    asked_at: float
    """Since when nodes are asked for."""
    vain: int = 0
    until: float = 0.0
    """None is asked for before."""
    known_until: float = 0.0


class Attempts:
    """What became of the nodes that were asked for; all times are seconds since the epoch."""

    def __init__(self) -> None:
        """Remember nothing."""
        self._attempts: dict[Asker, _Attempt] = {}

    def may_ask(self, asker: Asker, now: float) -> bool:
        """Return whether nodes may be asked for."""
        known = self._attempts.get(asker), self._attempts.get(Asker(asker.namespace))
        return all(attempt is None or attempt.until <= now for attempt in known)

    def asked(self, askers: Iterable[Asker], now: float, node_start_s: float) -> None:
        """Note that nodes are asked for now; a new node takes `node_start_s` until pods can be placed on it."""
        self._attempts = {asker: each for asker, each in self._attempts.items() if each.known_until > now}
        for asker in askers:
            before = self._attempts.get(asker)
            if before is not None or len(self._attempts) < _MOST_ASKERS:
                vain, since = (0, now) if before is None else (before.vain, before.asked_at)
                known_until = now + node_start_s * 2 ** (vain + 1)
                self._attempts[asker] = _Attempt(since, vain, 0.0, known_until)

    def in_vain(self, asker: Asker, created: float, now: float, node_start_s: float) -> float | None:
        """Note that a node has room for pods that wait as before; return until when no further one is asked for.

        It was made at `created`. None: it was not asked for by this one, or that waits anyway.
        """
        attempt = self._attempts.get(asker)
        if attempt is None or created < attempt.asked_at - 1 or not self.may_ask(asker, now):
            return None
        self._attempts[asker] = found = _after(attempt, now, node_start_s, attempt.vain)
        whole = Asker(asker.namespace)
        of_all = self._attempts.get(whole, _Attempt(now))
        doublings = min(of_all.vain // _MOST_IN_NAMESPACE, _MOST_DOUBLINGS)
        waits = _after(of_all, now, node_start_s, doublings)
        if waits.vain < _MOST_IN_NAMESPACE:
            waits = _Attempt(waits.asked_at, waits.vain, 0.0, waits.known_until)
        self._attempts[whole] = waits
        return max(found.until, waits.until)


def _after(attempt: _Attempt, now: float, node_start_s: float, doublings: int) -> _Attempt:
    """Return an attempt once a node was in vain: no other is asked for in twice the time that one takes, or more."""
    pause_s = min(_LONGEST_S, node_start_s * 2.0 ** min(doublings + 1, 32))
    # Whoever asks again soon after is still known.
    return _Attempt(attempt.asked_at, attempt.vain + 1, now + pause_s, now + 3 * pause_s)

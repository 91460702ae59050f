"""The cluster for display, built from the API's objects by the same ledger that the extender keeps."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.api import NodeReader, PodReader, UnreadableObjectError
from gpu_device_plugin.core.cluster.claimed import claims_by_node, waits_for_ours, with_claims
from gpu_device_plugin.core.cluster.instances import instance_pod
from gpu_device_plugin.core.cluster.nodeview import NodeView
from gpu_device_plugin.core.cluster.usage import NOTHING, Occupant, usage_of
from gpu_device_plugin.core.contract.keys import (
    FRAMEWORKS,
    INSTANCES,
    NODE_LABELS,
    READ_BY_AGENT,
    READ_BY_INSPECT,
    READ_ON_PODS,
    WISHES,
)
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.contract.nodereport import node_report
from gpu_device_plugin.core.model.claims import PodClaim
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.telling.nodechecks import Alternative, Requirement, Surroundings, Terms, Toleration
from gpu_device_plugin.core.telling.podcauses import DEFAULT_SCHEDULER, SchedulingStatus
from gpu_device_plugin.fleet import Fleet
from gpu_device_plugin.settings.knobs import nearest
from gpu_device_plugin.view.claims import readable_claims, unseen
from gpu_device_plugin.view.objects import Condition, Named, Node, Resources, Shape, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpu_device_plugin.cluster.api import NodeRecord, ObjectMeta
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.instances import InstancePod
    from gpu_device_plugin.core.cluster.usage import Usage
    from gpu_device_plugin.core.contract.nodereport import NodeReport
    from gpu_device_plugin.core.model.claims import Claim
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource

_CHOICES = tuple(sorted({*WISHES, FRAMEWORKS}))
NAMES_CLAIMS = b'"resourceClaims"'
"""In the JSON of a pod that names ResourceClaims."""
_EVENTS = 3
"""The number of a pod's Events that are shown."""
_LONGEST_EVENT = 500
"""Characters; the API allows 1,024."""
_MOST_MISSPELT = 5
"""The number of unknown annotations that are named one by one."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that were read, and the objects that could not be read."""

    nodes: tuple[NodeView, ...]
    """The nodes that share GPUs, or claim to, sorted by name."""
    names: frozenset[str]
    """The names of all nodes."""
    warnings: tuple[str, ...] = ()
    """One sentence for each object that could not be read."""
    waiting: int = 0
    """Pods without a node that ask for GPUs, among those that were read."""
    claims: tuple[Claim, ...] = ()
    """All ResourceClaims that were read."""
    naming: tuple[frozenset[tuple[str, str]], ...] = ()
    """Of each pod without a node that asks for GPUs by no limit: the namespaces and names of its ResourceClaims."""

    @property
    def serves_claims(self) -> bool:
        """Whether a node gives its GPUs to ResourceClaims, so that these have to be read."""
        return any(node.candidate.gpus.claims for node in self.nodes)

    def with_claims(self, raw_claims: Iterable[msgspec.Raw]) -> Cluster:
        """Return the same nodes with those that have GPUs through ResourceClaims, given as JSON."""
        claims, warnings = readable_claims(raw_claims)
        by_node = claims_by_node(claims)
        nodes = tuple(with_claims(node, by_node.get(node.name, ())) for node in self.nodes)
        unmet = {(claim.namespace, claim.name) for claim in claims if waits_for_ours(claim)}
        return replace(
            self,
            nodes=nodes,
            warnings=(*self.warnings, *warnings),
            waiting=self.waiting + sum(not unmet.isdisjoint(each) for each in self.naming),
            claims=tuple(claims),
        )

    def without_claims(self, why: str) -> Cluster:
        """Return the same, with the sentence that claims are missing, and why."""
        return replace(self, warnings=(*self.warnings, unseen(why))) if self.serves_claims else self


def cluster(
    raw_nodes: Iterable[msgspec.Raw], raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]
) -> Cluster:
    """Return nodes with the pods that hold GPUs on them by their limits; see `Cluster.with_claims` for the others.

    Args:
        raw_nodes: nodes as JSON.
        raw_pods: pods as JSON; those that are on no node do not matter.
        resources: the managed resources.
    """
    warnings: list[str] = []
    fleet = Fleet(resources, vanished_grace_s=0)
    names = {resource.kind: resource.name for resource in resources}
    node_reader = NodeReader(names.values(), READ_BY_INSPECT.__contains__)
    records: dict[str, NodeRecord] = {}
    for raw in raw_nodes:
        try:
            record = node_reader.read(raw)
        except UnreadableObjectError as error:
            warnings.append(f"a node is left out: {error}")
            continue
        records[record.name] = record
        memory, count = record.capacity.get(names[Kind.MEMORY], 0), record.capacity.get(names[Kind.COUNT], 0)
        fleet.put_node(record.name, gpus_of_node(record.annotations, record.labels, memory, count))
    pod_reader = PodReader(names.values(), {*READ_ON_PODS, INSTANCES}.__contains__, mig=True)
    of_instances: dict[str, list[InstancePod]] = {}
    naming: list[frozenset[tuple[str, str]]] = []
    for raw in raw_pods:
        try:
            pod, ignored = pod_reader.read(raw)
            if not (pod.containers or pod.node_name or pod.ended or pod.deleting) and NAMES_CLAIMS in bytes(raw):
                named = decoded(raw, _Pod)
                naming.append(frozenset((pod.namespace, each.claim) for each in _claims(named.spec, named.status)))
        except UnreadableObjectError as error:
            warnings.append(f"a pod is left out: {error}")
            continue
        warnings += [f"pod {pod.namespace}/{pod.name}: {why}, and it is ignored" for why in ignored]
        fleet.put_pod(pod)
        if (holder := instance_pod(pod)) is not None:
            of_instances.setdefault(pod.node_name, []).append(holder)
    now_s = time.time()
    views = []
    for name, record in sorted(records.items()):
        report, problems = node_report(record.annotations, now_s)
        views.append(_view(fleet, record, report, of_instances.get(name, ())))
        warnings += [f"node {name}: {why}" for why in problems]
    warnings += [f"node {view.name}: {view.candidate.gpus.fault}" for view in views if view.candidate.gpus.fault]
    sharing = tuple(view for view in views if shares(view.candidate))
    return Cluster(sharing, frozenset(records), tuple(warnings), fleet.waiting, naming=tuple(naming))


def shares(candidate: Candidate) -> bool:
    """Return whether a node shares its GPUs, gives MIG instances to pods, or claims to."""
    return bool(candidate.rooms or candidate.gpus.instances or candidate.gpus.problem)


def by_name(holders: Iterable[InstancePod]) -> tuple[InstancePod, ...]:
    """Return pods that hold MIG instances by namespace and name."""
    return tuple(sorted(holders, key=lambda each: (each.namespace, each.name, each.uid)))


def occupants(fleet: Fleet, node: str) -> tuple[Occupant, ...]:
    """Return the pods that count on a node, by namespace and name."""
    return tuple(
        Occupant(entry.uid, entry.usage, entry.priority, entry.deleting, {}, entry.namespace, entry.name)
        for entry in fleet.on_node(node)
    )


def _view(fleet: Fleet, record: NodeRecord, report: NodeReport, holders: Iterable[InstancePod]) -> NodeView:
    return NodeView(
        candidate=fleet.candidates[record.name],
        pods=occupants(fleet, record.name),
        address=record.address,
        ready=record.ready,
        unschedulable=record.unschedulable,
        capacity=record.capacity,
        allocatable=record.allocatable,
        report=report,
        instance_pods=by_name(holders),
    )


def gpu_pods(raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> list[tuple[Pod, Usage]]:
    """Return the pods that hold GPUs, each with its usage as its annotations tell it, by namespace and name.

    The usage of pods that hold only MIG instances is `NOTHING`. Pods that cannot be read are left out.
    """
    reader = PodReader([resource.name for resource in resources], READ_BY_AGENT.__contains__, mig=True)
    found = []
    for raw in raw_pods:
        try:
            pod, _ = reader.read(raw)
        except UnreadableObjectError:
            continue
        usage = usage_of(pod, resources) if pod.node_name and not pod.ended else NOTHING
        if usage != NOTHING or instance_pod(pod) is not None:
            found.append((pod, usage))
    return sorted(found, key=lambda each: (each[0].namespace, each[0].name))


def waiting_pods(raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> list[Pod]:
    """Return the pods without a node that ask for GPUs. Pods that cannot be read are left out."""
    reader = PodReader([resource.name for resource in resources], READ_BY_AGENT.__contains__, mig=True)
    found = []
    for raw in raw_pods:
        try:
            pod, _ = reader.read(raw)
        except UnreadableObjectError:
            continue
        if pod.containers and not (pod.node_name or pod.ended or pod.deleting):
            found.append(pod)
    return found


# --- For one pod ------------------------------------------------------------------------------------------------------


class _Gate(Shape):
    name: str = ""


class _Container(Shape):
    resources: Resources = msgspec.field(default_factory=Resources)


class _Alternative(Shape):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class _NodeSelector(Shape):
    node_selector_terms: list[_Alternative] | None = None


class _NodeAffinity(Shape):
    required: _NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(Shape):
    node_affinity: _NodeAffinity | None = None


class _PodClaim(Shape):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(Shape):
    resource_claims: list[_PodClaim] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[_Gate] | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None


class _Made(Shape):
    resource_claim_name: str | None = None


class _PodStatus(Shape):
    resource_claim_statuses: list[_PodClaim] | None = None
    extended_resource_claim_status: _Made | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None


class _Pod(Named):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


def pod_and_status(raw: msgspec.Raw, resources: Iterable[Resource]) -> tuple[Pod, SchedulingStatus]:
    """Return one pod, with the fields that may explain its scheduling. Its environment variables are not read.

    Raises:
        UnreadableObjectError: `raw` is no pod.
    """
    pod, ignored = PodReader((each.name for each in resources), READ_BY_AGENT.__contains__, mig=True).read(raw)
    more = decoded(raw, _Pod)
    spec, status = more.spec, more.status
    conditions = status.conditions or ()
    refused = next((one for one in conditions if one.type == "PodScheduled" and one.status != "True"), Condition())
    return pod, SchedulingStatus(
        scheduler=spec.scheduler_name or DEFAULT_SCHEDULER,
        reason=status.reason or "",
        message=status.message or "",
        condition_reason=refused.reason or "",
        condition=refused.message or "",
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
        terms=Terms(spec.tolerations, spec.node_selector or {}, _alternatives(spec.affinity)),
        ignored=(*ignored, *_misspelt(more.metadata)),
        limits=tuple(
            name
            for each in (*(spec.init_containers or ()), *(spec.containers or ()))
            for name in {**(each.resources.limits or {}), **(each.resources.requests or {})}
        ),
        claims=tuple(_claims(spec, status)),
    )


def _claims(spec: _PodSpec, status: _PodStatus) -> Iterator[PodClaim]:
    """Yield the claims of a pod; those made from templates have their names in its status."""
    made = {each.name: each.resource_claim_name or "" for each in status.resource_claim_statuses or ()}
    for each in spec.resource_claims or ():
        template = each.resource_claim_template_name or ""
        yield PodClaim(each.name, each.resource_claim_name or made.get(each.name, ""), template)
    if status.extended_resource_claim_status is not None:
        yield PodClaim("", status.extended_resource_claim_status.resource_claim_name or "")


class _Event(Shape):
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


def events(raw_events: Iterable[msgspec.Raw], status: SchedulingStatus) -> tuple[str, ...]:
    """Return the latest warnings among a pod's Events, the newest last, without repetitions of the pod's status.

    Args:
        raw_events: Events of API group ``""`` as JSON.
        status: the pod's own status.
    """
    found: dict[tuple[str, str], str] = {}
    for raw in raw_events:
        try:
            event = decoded(raw, _Event)
        except UnreadableObjectError:
            continue  # Events are optional
        message = " ".join((event.message or "").split())
        if event.type == "Warning" and message and message not in {status.message, status.condition}:
            said = (event.reason or "", message)
            found[said] = max(found.get(said, ""), event.last_timestamp or event.event_time or "")
    latest = sorted(found, key=lambda said: (found[said], said))[-_EVENTS:]
    return tuple(f"Event{f' {reason}' if reason else ''}: {_shortened(message)}" for reason, message in latest)


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_EVENT else f"{message[: _LONGEST_EVENT - 3]}..."


def _alternatives(affinity: _Affinity | None) -> tuple[Alternative, ...] | None:
    required = affinity.node_affinity.required if affinity is not None and affinity.node_affinity is not None else None
    if required is None:
        return None
    return tuple(Alternative(each.match_expressions, each.match_fields) for each in required.node_selector_terms or ())


def _misspelt(meta: ObjectMeta) -> Iterator[str]:
    """Yield a sentence for each annotation or label that looks like ours and has no meaning."""
    unknown = [key for key in meta.annotations or () if key.startswith(NODE_LABELS) and key not in READ_BY_AGENT]
    for key in sorted(unknown)[:_MOST_MISSPELT]:
        known = f"there are {', '.join(_CHOICES)}"
        yield f"the annotation {key} means nothing ({nearest(key, _CHOICES, known, prefix=NODE_LABELS)})"
    if len(unknown) > _MOST_MISSPELT:
        yield f"{len(unknown) - _MOST_MISSPELT} more annotations like these mean nothing"
    for key in sorted({*WISHES, FRAMEWORKS} & (meta.labels or {}).keys()):
        yield f"{key} is a label of this pod; write it as an annotation"


def surroundings(raw_nodes: Iterable[msgspec.Raw]) -> dict[str, Surroundings]:
    """Return taints and labels of nodes, by node name; nodes that cannot be read are left out."""
    found = {}
    for raw in raw_nodes:
        try:
            node = decoded(raw, Node)
        except UnreadableObjectError:
            continue  # `cluster` warns of it, as it needs more fields of a node
        found[node.metadata.name] = Surroundings(node.spec.taints, node.labels)
    return found

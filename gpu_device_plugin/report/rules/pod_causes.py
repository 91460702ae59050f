"""Explain a pod's state before any node is considered: where it runs, or why no scheduler tries to place it.

A pod gets its GPUs by its limits, or through ResourceClaims.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpu_device_plugin.features.claims.claimed_gpus import (
    asks_for_instances,
    asks_for_ours,
    free_instances,
    taken,
    waits_for_ours,
)
from gpu_device_plugin.features.claims.contract import DRIVER, MIG_CLASS, SHARED_CLASS, WHOLE_CLASS, parse_device_name
from gpu_device_plugin.features.elastic.report import resizes, unreadable_wishes
from gpu_device_plugin.features.over_use.report import told_over_use
from gpu_device_plugin.features.use.report import lent, of_pod
from gpu_device_plugin.model.contract.keys import ASSIGNED, ASSUME_TIME, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import promises
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.rules.finding import Finding, grouped, note
from gpu_device_plugin.report.rules.held_instances import asked_instances
from gpu_device_plugin.report.rules.printing import counted, first
from gpu_device_plugin.report.rules.resource_requests import (
    annotated_for_others,
    asks_for_others,
    asks_for_several,
    asks_in_mib,
    held_instances,
    out_of_service,
)
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.scheduler.rules.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.features.claims.contract import Claim, Device, DeviceRequest
    from gpu_device_plugin.model.contract.node_use import NodeReport
    from gpu_device_plugin.model.pods import Pod, PodClaim
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.rules.node_view import NodeView

SCHEDULER = "gpushare-scheduler"
"""The name of the scheduler deployed with the extender."""
DEFAULT_SCHEDULER = "default-scheduler"
_REJECTED = "UnexpectedAdmissionError"
"""The reason of a pod that the kubelet rejected because a device plugin refused its devices."""


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
    of_others: tuple[str, ...] = ()
    """Its annotations for other systems that share GPUs."""
    events: tuple[str, ...] = ()
    """The latest warnings about it, one sentence each."""
    claims: tuple[PodClaim, ...] = ()
    """The ResourceClaims that it names, in the order of its spec."""
    controller: str = ""
    """The kind and name of the object that made it; empty: none did."""


def causes(
    pod: Pod, status: SchedulingStatus, resources: Iterable[Resource], nodes: Mapping[str, NodeView] | None
) -> tuple[list[Finding], GpuRequest | None]:
    """Return the causes, and the pod's demand if nodes should be explained as well.

    `nodes` has every node that shares GPUs by name; None: unknown.
    """
    resources = tuple(resources)
    asked = ask(pod, resources)
    ignored = [note("ignored", "Ignored: {why}.", why=why) for why in status.ignored]
    offered = {each.resource for node in (nodes or {}).values() for each in node.instances()}
    annotated = annotated_for_others(status.of_others, status.scheduler, resources)
    instead = [*asks_for_others(status.limits, resources, offered), *annotated, *asks_for_several(pod.containers)]
    if isinstance(asked, GpuRequest) and asked.parts and not (pod.ended or pod.node_name or pod.deleting):
        in_mib = asks_in_mib(asked, resources, None if nodes is None else nodes.values())
        mistakes = [*ignored, *unreadable_wishes(pod), *instead, *in_mib]
        facts = [*mistakes, *_waiting(status, resources, nodes), *_events(status)]
        return facts, asked if nodes or nodes is None else None
    if pod.ended:
        node = (nodes or {}).get(pod.node_name)
        refused = () if node is None or status.reason != _REJECTED else refusals(node.report)
        facts = [_ended(pod, status), *told_over_use(pod)]
        facts += [
            note(each.code, f"Node {{node}}: {each.text}.", node=pod.node_name, **each.parameters) for each in refused
        ]
    elif isinstance(asked, Impossible):
        where = f" (on node {pod.node_name})" if pod.node_name else ""
        text = "{pod}{where} asks for GPUs that no node can provide: {why}."
        facts = [note("impossible", text, pod=_name(pod), where=where, why=asked.sentence)]
    elif not asked.parts and not asked_instances(pod):
        text = "{pod} asks for neither {resources}" + ("." if instead else ", so it is not waiting for GPUs.")
        names = " nor ".join(resource.name for resource in resources)
        neither = [note("asks-for-none", text, pod=_name(pod), resources=names), *instead]
        facts = [*(_nothing(pod, resources) or neither), *scheduler_says(status)]
    else:
        placed = _location(pod, status, resources, nodes) if pod.node_name else waiting_facts(status)
        facts = [_deleted(pod)] if pod.deleting and not pod.node_name else [*placed]
        facts += [] if asked.parts else instead
    return [*facts, *ignored, *_events(status)], None


# --- What is said of any pod ------------------------------------------------------------------------------------------


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _events(status: SchedulingStatus) -> list[Finding]:
    return [note("event", "{event}", event=event) for event in status.events]


def _ended(pod: Pod, status: SchedulingStatus) -> Finding:
    why = ": ".join(filter(None, (status.reason, status.message)))
    text = "{pod} has ended ({phase})" + (": {why}" if why else ".")
    return note("ended", text, pod=_name(pod), phase=pod.phase, why=why)


def _deleted(pod: Pod) -> Finding:
    return note("deleted", "{pod} is being deleted and will not be scheduled.", pod=_name(pod))


def _on_node(pod: Pod) -> Finding:
    code, state = ("leaves-node", "is being deleted from") if pod.deleting else ("on-node", "is on")
    return note(
        code, f"{{pod}} {state} node {{node}} ({{phase}}).", pod=_name(pod), node=pod.node_name, phase=pod.phase
    )


def _status_says(status: SchedulingStatus) -> Iterator[Finding]:
    if status.message:
        text = "Its status says" + (" ({reason}): {message}" if status.reason else ": {message}")
        yield note("status", text, reason=status.reason, message=status.message)


def waiting_facts(status: SchedulingStatus) -> Iterator[Finding]:
    """Yield the reasons for which a scheduler has not placed a pod, as far as its status has them."""
    yield from _gated(status)
    yield from scheduler_says(status) or ([] if status.gates else [scheduler_silent(status)])


def _gated(status: SchedulingStatus) -> Iterator[Finding]:
    if status.gates:
        text = "No scheduler looks at it before its scheduling gates are removed: {gates}."
        yield note("gated", text, gates=", ".join(status.gates))


def scheduler_says(status: SchedulingStatus) -> list[Finding]:
    """Return what the scheduler says of a pod: one finding, or none if it has said nothing."""
    if not status.condition_reason and not status.condition:
        return []
    text = "{scheduler} says" + (" ({reason}): {message}" if status.condition_reason else ": {message}")
    reason, message = status.condition_reason, status.condition or "no message"
    return [note("scheduler-says", text, scheduler=status.scheduler, reason=reason, message=message)]


def scheduler_silent(status: SchedulingStatus) -> Finding:
    """Return that a scheduler has said nothing."""
    text = "{scheduler} has not looked at it yet; if this persists, no scheduler of this name runs."
    return note("scheduler-silent", text, scheduler=status.scheduler)


# --- Pods with limits -------------------------------------------------------------------------------------------------


def _nothing(pod: Pod, resources: tuple[Resource, ...]) -> list[Finding]:
    text = (
        "Container {container} of {pod} asks for 0 of {resource}, which is nothing, so it is not waiting for GPUs. "
        "Write how much it needs, or remove the line."
    )
    return [
        note("asks-for-0", text, container=repr(container.name), pod=_name(pod), resource=resource.name)
        for container in pod.containers
        for resource in resources
        if container.limits.get(resource.name) == 0
    ]


def _waiting(
    status: SchedulingStatus, resources: tuple[Resource, ...], nodes: Mapping[str, NodeView] | None
) -> Iterator[Finding]:
    yield from waiting_facts(status)
    if status.scheduler == DEFAULT_SCHEDULER:
        yield note(
            "default-scheduler",
            f"It will be placed by {DEFAULT_SCHEDULER}; if that scheduler does not call the extender, it knows only "
            f"the sum of a node's free GPU memory. Set schedulerName: {SCHEDULER}.",
        )
    if nodes is not None and not nodes:
        text = (
            "No node shares GPUs: none has GPUs written on it by an agent, nor {resource} in its capacity. Label GPU "
            "nodes gpushare=true and see the agent's log there."
        )
        yield note("no-node", text, resource=resources[0].name)


def _location(
    pod: Pod, status: SchedulingStatus, resources: tuple[Resource, ...], nodes: Mapping[str, NodeView] | None
) -> Iterable[Finding]:
    usage = usage_of(pod, resources)
    yield _on_node(pod)
    node = None if nodes is None else nodes.get(pod.node_name)
    if node is None and nodes is not None:
        yield note("node-shares-none", "That node does not exist, or shares no GPUs.")
    listed = {} if node is None else {gpu.position: gpu for gpu in node.candidate.gpus.all}
    amount_of = partial(counted, one="unit") if node is None else node.amount
    places = [(at, amount_of(shares)) for at, shares in usage.shares] + [(at, "all") for at in usage.whole]
    for position, amount in sorted(places):
        gpu = listed.get(position)
        unlisted = "" if nodes is None else "not listed by its node"
        place = f"MIG {gpu.instance.label} {gpu.instance.profile}" if gpu is not None and gpu.instance else ""
        facts = ", ".join(filter(None, (place or gpu.model, gpu.uuid))) if gpu is not None else unlisted
        ill = out_of_service(gpu) if gpu is not None and gpu.instance is not None else ""
        text = "  GPU {gpu}" + (" ({facts})" if facts else "") + ": {amount}{ill}"
        yield note("has", text, gpu=position, facts=facts, amount=amount, ill=ill)
    if asked_instances(pod):
        yield from held_instances(_name(pod), pod.uid, node)
    yield from resizes(pod, resources, node)
    yield from told_over_use(pod)
    if node is not None:
        yield from of_pod(pod, node, [position for position, _ in usage.shares])
    if usage.unplaced:
        yield _why_unplaced(pod, status, resources)
    since_ns = pod.annotations.get(ASSUME_TIME, "")
    if since_ns.isascii() and since_ns.isdigit() and len(since_ns) < 20:
        yield note("placed", "Placed at {time}.", time=rfc3339(int(since_ns) // 10**9))
    if pod.annotations.get(ASSIGNED) == "false":
        yield note("not-allocated", "Its node has not allocated the GPU yet.")
    yield from _status_says(status)


def _why_unplaced(pod: Pod, status: SchedulingStatus, resources: tuple[Resource, ...]) -> Finding:
    try:
        promises(pod, resources)
    except MalformedAnnotationError as error:
        return note("annotations-malformed", "Its GPU annotations cannot be read: {problem}.", problem=str(error))
    why = (
        f"it was placed by {DEFAULT_SCHEDULER}; if that scheduler does not call the extender, set schedulerName: "
        f"{SCHEDULER}."
        if status.scheduler == DEFAULT_SCHEDULER
        else "{scheduler} did not call the extender, or the pod's nodeName was set by hand."
    )
    return note("not-promised", f"Its annotations name no GPU: {why}", scheduler=status.scheduler)


# --- Pods with ResourceClaims -----------------------------------------------------------------------------------------


def claim_causes(
    pod: Pod, status: SchedulingStatus, claims: Mapping[str, Claim] | None, nodes: Mapping[str, NodeView] | None
) -> tuple[list[Finding], tuple[Claim, ...]]:
    """Return the causes, and the claims that wait for GPUs of ours, if nodes should be explained as well.

    `claims` has the ResourceClaims of the pod's namespace, `nodes` every node that shares GPUs, by name; None: unknown.
    """
    if pod.ended:
        return [_ended(pod, status), *_events(status)], ()
    if pod.deleting and not pod.node_name:
        return [_deleted(pod), *_events(status)], ()
    own = [claims[each.claim] for each in status.claims if claims and each.claim in claims]
    waiting = tuple(filter(waits_for_ours, own))
    states = [finding for each in status.claims for finding in _claim(each, pod.namespace, claims, nodes)]
    if pod.node_name:
        if pod.phase == "Pending" and not pod.running and not pod.deleting:
            # The kubelet prepares claims before it starts containers.
            told = "; its Events say why not:" if status.events else ", and no Event says that anything is in the way."
            states.append(note("preparing", f"Its node prepares its claims before its containers start{told}"))
        if nodes is not None and pod.node_name in nodes:
            states += lent(pod, nodes[pod.node_name].report)
        return [_on_node(pod), *_status_says(status), *states, *_events(status)], ()
    free = _instances(waiting, nodes)
    return [*_gated(status), *states, *free, *scheduler_says(status), *_events(status)], waiting


def _claim(
    each: PodClaim, namespace: str, claims: Mapping[str, Claim] | None, nodes: Mapping[str, NodeView] | None
) -> Iterator[Finding]:
    if not each.claim and each.template:
        text = (
            "No ResourceClaim exists yet for its entry {entry}: kube-controller-manager makes it from the template "
            "{template}; see kubectl -n {namespace} get resourceclaimtemplate {template}."
        )
        yield note("claim-not-made", text, entry=each.entry, template=each.template, namespace=namespace)
    elif not each.claim:
        entry = each.entry or "(extended resource)"
        yield note("entry-without-claim", "Its entry {entry} has no ResourceClaim.", entry=entry)
    elif claims is None:
        yield note("claim-unknown", "ResourceClaim {claim} is not known here.", claim=each.claim)
    elif each.claim not in claims:
        text = "There is no ResourceClaim {claim} in the namespace {namespace}."
        yield note("no-such-claim", text, claim=each.claim, namespace=namespace)
    else:
        yield from _state(claims[each.claim], nodes)


def _state(claim: Claim, nodes: Mapping[str, NodeView] | None) -> Iterator[Finding]:
    name = claim.name
    if not claim.allocated:
        asks = " and ".join(map(_asked, claim.requests)) or "nothing"
        text = "ResourceClaim {claim} is not allocated yet; it asks for {amount}."
        yield note("claim-not-allocated", text, claim=name, amount=asks)
        return
    for device in taken(claim):
        yield note("claim-has", "ResourceClaim {claim} has {device}.", claim=name, device=_had(device, nodes))
    if any(device.admin for device in claim.devices_of(DRIVER)):
        text = "ResourceClaim {claim} has access to GPUs beside those who have them (admin)."
        yield note("claim-has-access", text, claim=name)
    if not claim.devices_of(DRIVER):
        yield note("claim-of-others", f"ResourceClaim {{claim}} is allocated, with no device of {DRIVER}.", claim=name)


def _instances(waiting: Iterable[Claim], nodes: Mapping[str, NodeView] | None) -> Iterator[Finding]:
    """Yield which MIG instances are free, if a claim waits for one: its selectors decide which of them will do."""
    if not nodes or not any(asks_for_instances(request) for claim in waiting for request in claim.requests):
        return
    free = [
        f"{name} has {', '.join(f'{profile} ({count})' for profile, count in sorted(instances.items()))}"
        for name, node in sorted(nodes.items())
        if node.candidate.gpus.claims and (instances := free_instances(node))
    ]
    if free:
        text = (
            "Whole MIG instances that no claim has: {instances}. The selectors of the request decide which of them "
            "will do."
        )
        yield note("instances-free", text, instances=first(free, separator="; "))
    else:
        text = "No node that serves claims has a MIG instance, healthy, that no claim has."
        yield note("no-instance-free", text)


def _had(device: Device, nodes: Mapping[str, NodeView] | None) -> str:
    node = (nodes or {}).get(device.pool)
    uuid = parse_device_name(device.name)
    listed = () if node is None else (*node.candidate.gpus.all, *node.candidate.gpus.gone)
    gpu = next((gpu for gpu in listed if gpu.uuid.lower() == uuid.lower() and uuid), None)
    facts = [] if gpu is None else [gpu.model, gpu.uuid]
    which = f"GPU {device.name if gpu is None else gpu.position}" + (f" ({', '.join(facts)})" if facts else "")
    amount = "all" if device.whole else format_mib(device.memory_mib or 0)
    return f"{amount} of {which} on node {device.pool}"


def _asked(request: DeviceRequest) -> str:
    """Return what a request asks for, as the end of a sentence."""
    if request.admin:
        return "access beside those who have a GPU (admin)"
    if not asks_for_ours(request):
        return (
            f"devices of the class {request.device_class}, which is none of ours ({SHARED_CLASS}, {WHOLE_CLASS}, "
            f"{MIG_CLASS}), so that its nodes are not explained here"
        )
    count, kind = request.count, "MIG instance" if asks_for_instances(request) else "GPU"
    every = f"every {kind} that matches"
    if request.device_class == WHOLE_CLASS or asks_for_instances(request):
        return f"one whole {kind}" if count == 1 else f"{count} whole {kind}s" if count else every
    memory = "the smallest part" if request.memory_mib is None else format_mib(request.memory_mib)
    return f"{memory} of {'one GPU' if count == 1 else f'each of {count} GPUs' if count else every}"


def asked_by_claims(claims: Iterable[Claim]) -> str:
    """Return what claims wait for, as the end of a sentence."""
    return f"{' and '.join(map(asked_amount, claims))}, through ResourceClaims"


def asked_amount(claim: Claim) -> str:
    """Return what a claim asks for of our devices."""
    return " and ".join(_asked(request) for request in claim.requests if asks_for_ours(request))


def by_claim_instead(asked: GpuRequest, nodes: Sequence[NodeView]) -> Iterator[Finding]:
    """Yield how to ask for memory where every node that shares GPUs gives them to claims."""
    memory = [part.demand for part in asked.parts if part.demand.kind is Kind.MEMORY]
    if not memory or not nodes or not all(node.candidate.gpus.claims for node in nodes):
        return
    sizes = {node.candidate.gpus.share_mib for node in nodes}
    mib = (sizes.pop() or MIB_PER_GIB) * (memory[0].amount // memory[0].gpus) if len(sizes) == 1 else None
    amount = "the amount" if mib is None else f"{mib // MIB_PER_GIB}Gi" if mib % MIB_PER_GIB == 0 else f"{mib}Mi"
    text = (
        "Every node that shares GPUs gives them to ResourceClaims (DRA), and none to limits: let the pod name a "
        f"ResourceClaimTemplate of the DeviceClass {SHARED_CLASS} with the capacity memory: {{amount}} (docs/dra.md)."
    )
    yield note("ask-by-claim", text, amount=amount)


def refusals(report: NodeReport) -> tuple[Finding, ...]:
    """Return why shares of some GPUs of a node are refused, as clauses about the node."""
    limits = {} if report.limits is None else report.limits.gpus
    reasons = ((each.refusal, str(position)) for position, each in sorted(limits.items()) if each.refusal)
    text = "its agent refuses shares of GPU {gpus}: {why}"
    return tuple(note("shares-refused", text, gpus=", ".join(gpus), why=why) for why, gpus in grouped(reasons).items())

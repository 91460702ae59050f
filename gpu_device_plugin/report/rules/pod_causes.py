"""Explain a pod's state before any node is considered: where it runs, or why no scheduler tries to place it.

A pod gets its GPUs by its limits; who gets them otherwise is explained by features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.model.contract.keys import (
    ASSIGNED,
    ASSUME_TIME,
    SPLIT_LABEL,
    Clause,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.contract.node_use import NodeReport
from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.contract.promises import promises
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.rules.extension import ReportPoints
from gpu_device_plugin.report.rules.finding import Finding, grouped, note, units
from gpu_device_plugin.report.rules.held_instances import asked_instances
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.node_constraints import DEFAULT_SCHEDULER, SchedulingStatus, Terms, obstacles
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.scheduler.rules.usage import usage_of

SCHEDULER = "gpushare-scheduler"
"""The name of the scheduler deployed with the extender."""
_REJECTED = "UnexpectedAdmissionError"
"""The reason of a pod that the kubelet rejected because a device plugin refused its devices."""


def causes(
    pod: Pod,
    status: SchedulingStatus,
    resources: Iterable[Resource],
    nodes: Mapping[str, NodeView] | None,
    features: ReportPoints,
) -> tuple[list[Finding], GpuRequest | None]:
    """Return the causes, and the pod's demand if nodes should be explained as well.

    `nodes` has every node that shares GPUs by name; None: unknown.
    """
    resources = tuple(resources)
    asked = ask(pod, resources)
    ignored = [note("ignored", "Ignored: {why}.", why=why) for why in status.ignored]
    offered = {each.resource for node in (nodes or {}).values() for each in node.instances()}
    instead = [each for find in features.corrections for each in find(pod, status, resources, offered)]
    if isinstance(asked, GpuRequest) and asked.parts and not (pod.ended or pod.node_name or pod.deleting):
        in_mib = asks_in_mib(asked, resources, None if nodes is None else nodes.values())
        malformed = (each for find in features.malformed for each in find(pod))
        mistakes = [*ignored, *malformed, *instead, *in_mib]
        facts = [*mistakes, *_waiting(status, resources, nodes), *events_told(status)]
        return facts, asked if nodes or nodes is None else None
    if pod.ended:
        node = (nodes or {}).get(pod.node_name)
        refused = () if node is None or status.reason != _REJECTED else refusals(node.report)
        facts = [has_ended(pod, status), *(each for tell in features.placed for each in tell(pod, resources, None, ()))]
        facts += [note("node-refuses", "Node {node}: {why}.", node=pod.node_name, why=each) for each in refused]
    elif isinstance(asked, Impossible):
        where = note("where", " (on node {node})", node=pod.node_name) if pod.node_name else ""
        text = "{pod}{where} asks for GPUs that no node can provide: {why}."
        facts = [note("impossible", text, pod=str(pod), where=where, why=told(asked.why))]
    elif not asked.parts and not asked_instances(pod):
        text = "{pod} asks for neither {resources:+ nor }" + ("." if instead else ", so it is not waiting for GPUs.")
        names = tuple(resource.name for resource in resources)
        neither = [note("asks-for-none", text, pod=str(pod), resources=names), *instead]
        facts = [*(_nothing(pod, resources) or neither), *scheduler_says(status)]
    else:
        placed = _location(pod, status, resources, nodes, features) if pod.node_name else waiting_facts(status)
        facts = [being_deleted(pod)] if pod.deleting and not pod.node_name else [*placed]
        facts += [] if asked.parts else instead
    return [*facts, *ignored, *events_told(status)], None


# --- What is said of any pod ------------------------------------------------------------------------------------------


def told(clause: Clause) -> Finding:
    """Return a clause of the scheduler as a finding."""
    parameters = {name: told(each) if isinstance(each, Clause) else each for name, each in clause.parameters}
    return note(clause.code, clause.text, **parameters)


def events_told(status: SchedulingStatus) -> list[Finding]:
    """Return the latest warnings about a pod."""
    return [note("event", "{event}", event=event) for event in status.events]


def has_ended(pod: Pod, status: SchedulingStatus) -> Finding:
    """Return that a pod has ended, and why."""
    why = ": ".join(filter(None, (status.reason, status.message)))
    text = "{pod} has ended ({phase})" + (": {why}" if why else ".")
    return note("ended", text, pod=str(pod), phase=pod.phase, why=why)


def being_deleted(pod: Pod) -> Finding:
    """Return that a pod is deleted before a scheduler has placed it."""
    return note("deleted", "{pod} is being deleted and will not be scheduled.", pod=str(pod))


def on_node(pod: Pod) -> Finding:
    """Return on which node a pod is."""
    code, state = ("leaves-node", "is being deleted from") if pod.deleting else ("on-node", "is on")
    return note(code, f"{{pod}} {state} node {{node}} ({{phase}}).", pod=str(pod), node=pod.node_name, phase=pod.phase)


def status_says(status: SchedulingStatus) -> Iterator[Finding]:
    """Yield the message in a pod's status."""
    if status.message:
        text = "Its status says" + (" ({reason}): {message}" if status.reason else ": {message}")
        yield note("status", text, reason=status.reason, message=status.message)


def waiting_facts(status: SchedulingStatus) -> Iterator[Finding]:
    """Yield the reasons for which a scheduler has not placed a pod, as far as its status has them."""
    yield from gated(status)
    yield from scheduler_says(status) or ([] if status.gates else [scheduler_silent(status)])


def gated(status: SchedulingStatus) -> Iterator[Finding]:
    """Yield the scheduling gates of a pod."""
    if status.gates:
        text = "No scheduler looks at it before its scheduling gates are removed: {gates}."
        yield note("gated", text, gates=", ".join(status.gates))


def scheduler_says(status: SchedulingStatus) -> list[Finding]:
    """Return what the scheduler says of a pod: one finding, or none if it has said nothing."""
    if not status.condition_reason and not status.condition:
        return []
    text = "{scheduler} says" + (" ({reason}): {message}" if status.condition_reason else ": {message}")
    message = status.condition or note("no-message", "no message")
    reason = status.condition_reason
    return [note("scheduler-says", text, scheduler=status.scheduler, reason=reason, message=message)]


def scheduler_silent(status: SchedulingStatus) -> Finding:
    """Return that a scheduler has said nothing."""
    text = "{scheduler} has not looked at it yet; if this persists, no scheduler of this name runs."
    return note("scheduler-silent", text, scheduler=status.scheduler)


# --- Pods with limits -------------------------------------------------------------------------------------------------


def _nothing(pod: Pod, resources: tuple[Resource, ...]) -> list[Finding]:
    text = (
        "Container {container} of {pod} requests 0 of {resource}, so it is not waiting for GPUs. Request what it "
        "needs, or remove the line."
    )
    return [
        note("asks-for-0", text, container=repr(container.name), pod=str(pod), resource=resource.name)
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
            "No node shares GPUs: no agent has published GPUs, and no node has {resource} in its capacity. Label GPU "
            "nodes gpushare=true, then check the agent's log there."
        )
        yield note("no-node", text, resource=resources[0].name)


def _location(
    pod: Pod,
    status: SchedulingStatus,
    resources: tuple[Resource, ...],
    nodes: Mapping[str, NodeView] | None,
    features: ReportPoints,
) -> Iterable[Finding]:
    usage = usage_of(pod, resources)
    yield on_node(pod)
    node = None if nodes is None else nodes.get(pod.node_name)
    if node is None and nodes is not None:
        yield note("node-shares-none", "That node does not exist, or shares no GPUs.")
    listed = {} if node is None else {gpu.position: gpu for gpu in node.candidate.gpus.all}
    amount_of = units if node is None else node.amount
    places = [(at, amount_of(shares)) for at, shares in usage.shares]
    places += [(at, note("all", "all")) for at in usage.whole]
    for position, amount in sorted(places, key=lambda place: (place[0], str(place[1]))):
        gpu = listed.get(position)
        unlisted = "" if nodes is None else note("not-listed", "not listed by its node")
        place = f"MIG {gpu.instance.label} {gpu.instance.profile}" if gpu is not None and gpu.instance else ""
        facts = ", ".join(filter(None, (place or gpu.model, gpu.uuid))) if gpu is not None else unlisted
        ill = out_of_service(gpu) if gpu is not None and gpu.instance is not None else ""
        text = "  GPU {gpu}" + (" ({facts})" if facts else "") + ": {amount}{ill}"
        yield note("has", text, gpu=position, facts=facts, amount=amount, ill=ill)
    gpus = [listed[position] for position, _ in places if position in listed]
    if status.groups is not None and (lacking := {group for gpu in gpus for group in gpu.groups} - status.groups):
        yield note(
            "device-group",
            "Its containers do not run as root, and only group {groups} of the node may open the device nodes of "
            "its GPUs. Set spec.securityContext.supplementalGroups: [{groups}].",
            groups=", ".join(map(str, sorted(lacking))),
        )
    shared = [position for position, _ in usage.shares]
    yield from (each for tell in features.placed for each in tell(pod, resources, node, shared))
    if usage.unplaced:
        yield _why_unplaced(pod, status, resources)
    since_ns = pod.annotations.get(ASSUME_TIME, "")
    if since_ns.isascii() and since_ns.isdigit() and len(since_ns) < 20:
        yield note("placed", "Placed at {time}.", time=rfc3339(int(since_ns) // 10**9))
    if pod.annotations.get(ASSIGNED) == "false":
        yield note("not-allocated", "Its node has not allocated the GPU yet.")
    yield from status_says(status)


def _why_unplaced(pod: Pod, status: SchedulingStatus, resources: tuple[Resource, ...]) -> Finding:
    try:
        promises(pod, resources)
    except MalformedAnnotationError as error:
        return note("annotations-malformed", "Its GPU annotations cannot be read: {problem}.", problem=str(error))
    if status.scheduler == DEFAULT_SCHEDULER:
        text = (
            "Its annotations name no GPU: it was placed by {scheduler}; if that scheduler does not call the extender, "
            f"set schedulerName: {SCHEDULER}."
        )
        return note("not-promised-by-default", text, scheduler=status.scheduler)
    text = "Its annotations name no GPU: {scheduler} did not call the extender, or the pod's nodeName was set by hand."
    return note("not-promised", text, scheduler=status.scheduler)


def refusals(report: NodeReport) -> tuple[Finding, ...]:
    """Return why shares of some GPUs of a node are refused, as clauses about the node."""
    limits = {} if report.limits is None else report.limits.gpus
    reasons = ((each.refusal, str(position)) for position, each in sorted(limits.items()) if each.refusal)
    text = "its agent refuses shares of GPU {gpus}: {why}"
    return tuple(note("shares-refused", text, gpus=", ".join(gpus), why=why) for why, gpus in grouped(reasons).items())


_LARGEST_GIB = 512
"""More than any GPU has."""


def asks_in_mib(
    asked: GpuRequest, resources: Iterable[Resource], nodes: Collection[NodeView] | None
) -> Iterator[Finding]:
    """Yield a correction if a pod asks for more units than any GPU has, and the number looks like MiB.

    Where the nodes are unknown (None), a unit is assumed to be 1 GiB.
    """
    name = next((resource.name for resource in resources if resource.kind is Kind.MEMORY), "")
    amount = max(
        (part.demand.amount // part.demand.gpus for part in asked.parts if part.demand.kind is Kind.MEMORY), default=0
    )
    sizes = {MIB_PER_GIB} if nodes is None else {node.candidate.gpus.share_mib for node in nodes} - {None}
    if len(sizes) != 1:
        return
    share_mib = sizes.pop() or MIB_PER_GIB
    every = (gpu.shares for node in nodes or () for gpu in node.candidate.gpus.gpus)
    shares = _LARGEST_GIB if nodes is None else max(every, default=0)
    units = -(-amount // share_mib)
    if units <= shares < amount and amount * 2 >= share_mib:  # fewer MiB are not a plausible demand
        code, usual = ("units-of", " unless configured otherwise") if nodes is None else ("asks-in-mib", "")
        text = (
            f"It requests {{amount}} shares of {{unit}} each{usual}: no GPU has that much. If {{amount}} MiB are "
            "meant, write {resource}: {units}."
        )
        yield note(code, text, amount=amount, unit=format_mib(share_mib), resource=name, units=units)


def beyond_every_gpu(
    asked: GpuRequest, resources: Iterable[Resource], nodes: Collection[NodeView]
) -> Iterator[Finding]:
    """Yield the largest GPU, and what a pod can ask for instead, if it asks for more memory of one GPU than any has."""
    names = {resource.kind: resource.name for resource in resources}
    demand = max(
        (each for each in asked.demands if each.kind is Kind.MEMORY),
        key=lambda each: each.amount // each.gpus,
        default=Demand(Kind.MEMORY, 0),
    )
    sizes = {node.name: sorted((gpu.shares for gpu in node.candidate.gpus.gpus), reverse=True) for node in nodes}
    largest = max((node for node in nodes if sizes[node.name]), key=lambda node: sizes[node.name][0], default=None)
    if largest is None or demand.amount // demand.gpus <= (most := sizes[largest.name][0]):
        return
    # No pod gets several MIG instances: CUDA shows a program one.
    cards = [
        sorted((gpu.shares for gpu in node.candidate.gpus.gpus if gpu.instance is None), reverse=True) for node in nodes
    ]
    whole = _gpus_for(demand.amount, cards, even=False) if Kind.COUNT in names else 0
    split = _gpus_for(demand.amount, cards, even=True) if len(asked.parts) == 1 else 0
    instead = [note("ask-less", "{resource}: {most} or less", resource=names[Kind.MEMORY], most=most * demand.gpus)]
    if whole:
        instead.append(note("ask-whole", "{resource}: {n} for whole GPUs", resource=names[Kind.COUNT], n=whole))
    if split:
        text = 'the same with the pod label {label}: "{n}", for a program that uses {n} GPUs'
        instead.append(note("ask-split", text, label=SPLIT_LABEL, n=split))
    yield note(
        "beyond-every-gpu",
        "No GPU is that large: the largest has {amount}, on node {node}. Ask for {instead:+; or }; or add a node with "
        "larger GPUs.",
        amount=largest.amount(most),
        node=largest.name,
        instead=tuple(instead),
    )


def _gpus_for(amount: int, sizes: Iterable[Sequence[int]], *, even: bool) -> int:
    """Return the least number of GPUs of one node that have these shares together, in `even` parts; 0: no node has."""
    found = (
        number
        for node in sizes
        for number in range(2, len(node) + 1)
        if (amount % number == 0 and amount // number <= node[number - 1] if even else amount <= sum(node[:number]))
    )
    return min(found, default=0)


def out_of_service(gpu: ListedGpu) -> Finding:
    """Return the end of a sentence about a GPU or an instance that is out of service; empty if it is not."""
    text = ", which is unhealthy: {why}" if gpu.unhealthy else ""
    return note("out-of-service", text, why=gpu.unhealthy)


# --- Nodes that are kept from a pod -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """The reasons other than GPUs that keep a pod from a node, as clauses about the node."""

    excluded: tuple[Finding, ...] = ()
    """Why kube-scheduler does not consider the node at all."""
    besides: tuple[Finding, ...] = ()
    """The other reasons."""

    @property
    def all(self) -> tuple[Finding, ...]:
        """All of them."""
        return (*self.excluded, *self.besides)


_EXCLUSIONS: Mapping[str, str] = {
    "cordoned": "it is cordoned",
    "not-ready": "it is not ready",
    "taint": "the pod does not tolerate its taint {taint}",
    "label": "the pod requires the node label {label}",
    "affinity": "the pod's node affinity requires {condition}",
    "affinity-terms": "it matches none of the {terms} terms of the pod's node affinity",
}


def exclusions(node: NodeView, pod: Terms) -> Iterator[Finding]:
    """Yield why kube-scheduler does not consider a node for a pod at all, as clauses about the node."""
    for code, parameters in obstacles(node.record, pod):
        yield note(code, _EXCLUSIONS[code], **parameters)


def besides(node: NodeView, ask: GpuRequest, resources: Iterable[Resource]) -> tuple[Finding, ...]:
    """Return further reasons against a node that kube-scheduler considers, as clauses about the node.

    Compares only the GPU resources that its kubelet knows; neither CPU nor memory.
    """
    shares = any(part.demand.kind is Kind.MEMORY for part in ask.parts)
    return (
        *(why for resource in resources for why in _too_little(node, ask, resource)),
        *(refusals(node.report) if shares else ()),
    )


def _too_little(node: NodeView, ask: GpuRequest, resource: Resource) -> Iterator[Finding]:
    """Yield why the kubelet's amounts are too small for the pod, unless the GPUs show it."""
    asked = sum(part.demand.amount for part in ask.parts if part.demand.kind is resource.kind)
    if not asked or node.candidate.gpus.problem:
        return
    if resource.name not in node.record.capacity:
        text = "its kubelet knows no {resource}: no agent has registered there since it started"
        yield note("not-registered", text, resource=resource.name)
        return
    offered = node.record.allocatable.get(resource.name, 0)
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
            yield note("offers-none-now", text, resource=resource.name)
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

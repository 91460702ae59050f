"""Explain a pod's state before any node is considered: where it runs, or why no scheduler tries to place it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.asking import Ask, Impossible, ask
from gpu_device_plugin.core.cluster.instances import asked_instances
from gpu_device_plugin.core.cluster.usage import usage_of
from gpu_device_plugin.core.contract.keys import ASSIGNED, ASSUME_TIME, MalformedAnnotationError
from gpu_device_plugin.core.contract.promises import promises
from gpu_device_plugin.core.model.times import rfc3339
from gpu_device_plugin.core.telling.explaining_mig import held_instances, out_of_service
from gpu_device_plugin.core.telling.mistakes import asks_for_others, asks_for_several, asks_in_mib
from gpu_device_plugin.core.telling.nodechecks import NO_TERMS, Terms
from gpu_device_plugin.core.telling.poduse import of_pod, refusals, told_over_use
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpu_device_plugin.core.cluster.nodeview import NodeView
    from gpu_device_plugin.core.model.claims import PodClaim
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource

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
    events: tuple[str, ...] = ()
    """The latest warnings about it, one sentence each."""
    claims: tuple[PodClaim, ...] = ()
    """The ResourceClaims that it names, in the order of its spec."""


def causes(
    pod: Pod, status: SchedulingStatus, resources: Iterable[Resource], nodes: Mapping[str, NodeView] | None
) -> tuple[list[str], Ask | None]:
    """Return the causes as sentences, and the pod's demand if nodes should be explained as well.

    Args:
        pod: the pod.
        status: its status from schedulers and kubelets.
        resources: the managed resources.
        nodes: every node that shares GPUs, by name; None: unknown.
    """
    resources = tuple(resources)
    name = f"{pod.namespace}/{pod.name}"
    asked = ask(pod, resources)
    ignored = [f"Ignored: {why}." for why in status.ignored]
    offered = {each.resource for node in (nodes or {}).values() for each in node.instances()}
    instead = [*asks_for_others(status.limits, resources, offered), *asks_for_several(pod.containers)]
    of_instances = asked_instances(pod)
    if isinstance(asked, Ask) and asked.parts and not (pod.ended or pod.node_name or pod.deleting):
        facts = [
            *asks_in_mib(asked, resources, None if nodes is None else nodes.values()),
            *_waiting(status, resources, nodes),
        ]
        return [*ignored, *instead, *facts, *status.events], asked if nodes or nodes is None else None
    if pod.ended:
        why = ": ".join(filter(None, (status.reason, status.message)))
        node = (nodes or {}).get(pod.node_name)
        refused = () if node is None or status.reason != _REJECTED else refusals(node.report)
        fact = [
            f"{name} has ended ({pod.phase}){f': {why}' if why else '.'}",
            *told_over_use(pod),
            *(f"Node {pod.node_name}: {sentence}." for sentence in refused),
        ]
    elif isinstance(asked, Impossible):
        where = f" (on node {pod.node_name})" if pod.node_name else ""
        fact = [f"{name}{where} asks for GPUs that no node can provide: {asked.sentence}."]
    elif not asked.parts and of_instances:
        fact = [*_with_instances(pod, status, nodes), *instead]
    elif not asked.parts and (nothing := _nothing(pod, resources)):
        fact = [*nothing, *said(status)]
    elif not asked.parts:
        names = " nor ".join(resource.name for resource in resources)
        so = "" if instead else ", so it is not waiting for GPUs"
        fact = [f"{name} asks for neither {names}{so}.", *instead, *said(status)]
    elif pod.node_name:
        fact = list(_location(pod, status, resources, nodes))
    else:
        fact = [f"{name} is being deleted and will not be scheduled."]
    return [*fact, *ignored, *status.events], None


def _with_instances(pod: Pod, status: SchedulingStatus, nodes: Mapping[str, NodeView] | None) -> Iterator[str]:
    """Yield the node of a pod with MIG instances, or that it is on none."""
    if pod.node_name:
        yield f"{pod.namespace}/{pod.name} {_state(pod)} node {pod.node_name} ({pod.phase})."
        yield from held_instances(f"{pod.namespace}/{pod.name}", pod.uid, (nodes or {}).get(pod.node_name))
        if status.message:
            yield f"Its status says{f' ({status.reason})' if status.reason else ''}: {status.message}"
    elif pod.deleting:
        yield f"{pod.namespace}/{pod.name} is being deleted and will not be scheduled."
    else:
        yield from waiting_facts(status)


def _state(pod: Pod) -> str:
    return "is being deleted from" if pod.deleting else "is on"


def _nothing(pod: Pod, resources: tuple[Resource, ...]) -> list[str]:
    """Return a sentence for each container with a limit of 0."""
    return [
        f"Container {container.name!r} of {pod.namespace}/{pod.name} asks for 0 of {resource.name}, which is nothing, "
        "so it is not waiting for GPUs. Write how much it needs, or remove the line."
        for container in pod.containers
        for resource in resources
        if container.limits.get(resource.name) == 0
    ]


def _waiting(
    status: SchedulingStatus, resources: tuple[Resource, ...], nodes: Mapping[str, NodeView] | None
) -> Iterator[str]:
    """Yield the reasons for which an unbound pod waits on any node."""
    yield from waiting_facts(status)
    if status.scheduler == DEFAULT_SCHEDULER:
        yield (
            f"It will be placed by {DEFAULT_SCHEDULER}; if that scheduler does not call the extender, it knows only "
            f"the sum of a node's free GPU memory. Set schedulerName: {SCHEDULER}."
        )
    if nodes is not None and not nodes:
        yield (
            f"No node shares GPUs: none has GPUs written on it by an agent, nor {resources[0].name} in its capacity. "
            "Label GPU nodes gpushare=true and see the agent's log there."
        )


def waiting_facts(status: SchedulingStatus) -> Iterator[str]:
    """Yield the reasons for which a scheduler has not placed a pod, as far as its status has them."""
    if status.gates:
        yield f"No scheduler looks at it before its scheduling gates are removed: {', '.join(status.gates)}."
    yield from said(status)
    if not status.gates and not status.condition_reason and not status.condition:
        yield f"{status.scheduler} has not looked at it yet; if this persists, no scheduler of this name runs."


def said(status: SchedulingStatus) -> list[str]:
    """Return what the scheduler says of a pod, as no sentence or one."""
    if not status.condition_reason and not status.condition:
        return []
    reason = f" ({status.condition_reason})" if status.condition_reason else ""
    return [f"{status.scheduler} says{reason}: {status.condition or 'no message'}"]


def _location(
    pod: Pod, status: SchedulingStatus, resources: tuple[Resource, ...], nodes: Mapping[str, NodeView] | None
) -> Iterable[str]:
    """Yield the node and the GPUs of a bound pod."""
    name, usage = f"{pod.namespace}/{pod.name}", usage_of(pod, resources)
    yield f"{name} {_state(pod)} node {pod.node_name} ({pod.phase})."
    node = None if nodes is None else nodes.get(pod.node_name)
    if node is None and nodes is not None:
        yield "That node does not exist, or shares no GPUs."
    listed = {} if node is None else {gpu.position: gpu for gpu in node.candidate.gpus.all}
    places = [(at, _amount(node, shares)) for at, shares in usage.shares] + [(at, "all") for at in usage.whole]
    for position, amount in sorted(places):
        gpu = listed.get(position)
        unlisted = "" if nodes is None else "not listed by its node"
        place = f"MIG {gpu.instance.label} {gpu.instance.profile}" if gpu is not None and gpu.instance else ""
        facts = ", ".join(filter(None, (place or gpu.model, gpu.uuid))) if gpu is not None else unlisted
        ill = out_of_service(gpu) if gpu is not None and gpu.instance is not None else ""
        yield f"  GPU {position}{f' ({facts})' if facts else ''}: {amount}{ill}"
    if asked_instances(pod):
        yield from held_instances(name, pod.uid, node)
    yield from told_over_use(pod)
    if node is not None:
        yield from of_pod(pod, node, [position for position, _ in usage.shares])
    if usage.unplaced:
        yield _why_unplaced(pod, status, resources)
    if since := _moment(pod.annotations.get(ASSUME_TIME, "")):
        yield f"Placed at {since}."
    if pod.annotations.get(ASSIGNED) == "false":
        yield "Its node has not allocated the GPU yet."
    if status.message:
        yield f"Its status says{f' ({status.reason})' if status.reason else ''}: {status.message}"


def _why_unplaced(pod: Pod, status: SchedulingStatus, resources: tuple[Resource, ...]) -> str:
    try:
        promises(pod, resources)
    except MalformedAnnotationError as error:
        return f"Its GPU annotations cannot be read: {error}."
    if status.scheduler == DEFAULT_SCHEDULER:
        return (
            f"Its annotations name no GPU: it was placed by {DEFAULT_SCHEDULER}; if that scheduler does not call the "
            f"extender, set schedulerName: {SCHEDULER}."
        )
    return (
        f"Its annotations name no GPU: {status.scheduler} did not call the extender, or the pod's nodeName was set by "
        "hand."
    )


def _amount(node: NodeView | None, shares: int) -> str:
    return counted(shares, "unit") if node is None else node.amount(shares)


def _moment(nanoseconds: str) -> str:
    """Format the timestamp of an annotation in UTC; empty if it is malformed."""
    if not (nanoseconds.isascii() and nanoseconds.isdigit() and len(nanoseconds) < 20):
        return ""
    return rfc3339(int(nanoseconds) // 10**9)

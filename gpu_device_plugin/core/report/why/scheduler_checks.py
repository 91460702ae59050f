"""The most common reasons other than GPUs for which kube-scheduler rejects a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.terms import obstacles
from gpu_device_plugin.core.report.finding import Finding, note
from gpu_device_plugin.core.report.why.pod_use import refusals
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpu_device_plugin.core.capacity.terms import Terms
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.model.resources import Resource

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
    for code, parameters in obstacles(node, pod):
        yield note(code, _EXCLUSIONS[code], **parameters)


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

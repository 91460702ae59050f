"""Explain the state of a pod that gets its GPUs through ResourceClaims, before any node is considered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.claimed import (
    asks_for_instances,
    asks_for_ours,
    free_instances,
    taken,
    waits_for_ours,
)
from gpu_device_plugin.core.contract.dra import DRIVER, MIG_CLASS, SHARED_CLASS, WHOLE_CLASS, parse_device_name
from gpu_device_plugin.core.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.telling.podcauses import said

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.nodeview import NodeView
    from gpu_device_plugin.core.model.claims import Claim, Device, PodClaim, Request
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.telling.podcauses import SchedulingStatus

_MOST_NODES = 5
"""Most nodes with free MIG instances that a sentence names."""


def claim_causes(
    pod: Pod,
    status: SchedulingStatus,
    claims: Mapping[str, Claim] | None,
    nodes: Mapping[str, NodeView] | None,
) -> tuple[list[str], tuple[Claim, ...]]:
    """Return the causes as sentences, and the claims that wait for GPUs of ours, if nodes should be explained as well.

    Args:
        pod: the pod; it names claims.
        status: its status from schedulers and kubelets.
        claims: the ResourceClaims of its namespace, by name; None: they are not known.
        nodes: every node that shares GPUs, by name; None: unknown.
    """
    name = f"{pod.namespace}/{pod.name}"
    known = {} if claims is None else claims
    own = [known[each.claim] for each in status.claims if each.claim in known]
    waiting = tuple(filter(waits_for_ours, own))
    told = [sentence for each in status.claims for sentence in _claim(each, pod.namespace, claims, nodes)]
    if pod.ended:
        why = ": ".join(filter(None, (status.reason, status.message)))
        return [f"{name} has ended ({pod.phase}){f': {why}' if why else '.'}", *status.events], ()
    if pod.deleting and not pod.node_name:
        return [f"{name} is being deleted and will not be scheduled.", *status.events], ()
    if pod.node_name:
        return [*_on_node(name, pod, status), *told, *_unprepared(pod, status), *status.events], ()
    gated = (
        [f"No scheduler looks at it before its scheduling gates are removed: {', '.join(status.gates)}."]
        if status.gates
        else []
    )
    return [*gated, *told, *_instances(waiting, nodes), *said(status), *status.events], waiting


def _on_node(name: str, pod: Pod, status: SchedulingStatus) -> Iterator[str]:
    yield f"{name} {'is being deleted from' if pod.deleting else 'is on'} node {pod.node_name} ({pod.phase})."
    if status.message:
        yield f"Its status says{f' ({status.reason})' if status.reason else ''}: {status.message}"


def _unprepared(pod: Pod, status: SchedulingStatus) -> Iterator[str]:
    """Yield what is known of a pod whose containers have not started: the kubelet prepares claims before them."""
    if pod.phase == "Pending" and not pod.running and not pod.deleting:
        yield "Its node prepares its claims before its containers start" + (
            "; its Events say what is in the way:"
            if status.events
            else ", and no Event says that anything is in the way."
        )


def _claim(
    each: PodClaim, namespace: str, claims: Mapping[str, Claim] | None, nodes: Mapping[str, NodeView] | None
) -> Iterator[str]:
    """Yield the state of one claim of a pod."""
    if not each.claim and each.template:
        yield (
            f"No ResourceClaim exists yet for its entry {each.entry}: kube-controller-manager makes it from the "
            f"template {each.template}; see kubectl -n {namespace} get resourceclaimtemplate {each.template}."
        )
    elif not each.claim:
        yield f"Its entry {each.entry or '(extended resource)'} has no ResourceClaim."
    elif claims is None:
        yield f"ResourceClaim {each.claim} is not known here."
    elif each.claim not in claims:
        yield f"There is no ResourceClaim {each.claim} in the namespace {namespace}."
    else:
        yield from _state(claims[each.claim], nodes)


def _state(claim: Claim, nodes: Mapping[str, NodeView] | None) -> Iterator[str]:
    if not claim.allocated:
        asks = " and ".join(map(_asked, claim.requests)) or "nothing"
        yield f"ResourceClaim {claim.name} is not allocated yet; it asks for {asks}."
        return
    yield from (f"ResourceClaim {claim.name} has {_had(device, nodes)}." for device in taken(claim))
    if any(device.admin for device in claim.devices_of(DRIVER)):
        yield f"ResourceClaim {claim.name} has access to GPUs beside those who have them (admin)."
    if not claim.devices_of(DRIVER):
        yield f"ResourceClaim {claim.name} is allocated, with no device of {DRIVER}."


def _instances(waiting: Iterable[Claim], nodes: Mapping[str, NodeView] | None) -> Iterator[str]:
    """Yield which MIG instances are free, if a claim waits for one: its selectors decide which of them will do."""
    if not nodes or not any(asks_for_instances(request) for claim in waiting for request in claim.requests):
        return
    serving = sorted((name, free_instances(node)) for name, node in nodes.items() if node.candidate.gpus.claims)
    there = [
        f"{name} has {', '.join(f'{profile} ({count})' for profile, count in sorted(free.items()))}"
        for name, free in serving
        if free
    ]
    more = len(there) - _MOST_NODES
    told = [*there[:_MOST_NODES], *([f"{more} more nodes have some"] if more > 0 else [])]
    if told:
        yield (
            f"Whole MIG instances that no claim has: {'; '.join(told)}. The selectors of the request decide which of "
            "them will do."
        )
    else:
        yield "No node that serves claims has a MIG instance, healthy, that no claim has."


def _had(device: Device, nodes: Mapping[str, NodeView] | None) -> str:
    node = (nodes or {}).get(device.pool)
    uuid, whole = parse_device_name(device.name) or ("", False)
    listed = () if node is None else (*node.candidate.gpus.all, *node.candidate.gpus.gone)
    gpu = next((gpu for gpu in listed if gpu.uuid.lower() == uuid.lower() and uuid), None)
    facts = [] if gpu is None else [gpu.model, gpu.uuid]
    which = f"GPU {device.name if gpu is None else gpu.position}" + (f" ({', '.join(facts)})" if facts else "")
    amount = "all" if whole or device.memory_mib is None else format_mib(device.memory_mib)
    return f"{amount} of {which} on node {device.pool}"


def _asked(request: Request) -> str:
    """Return what a request asks for, as the end of a sentence."""
    if request.admin:
        return "access beside those who have a GPU (admin)"
    if not asks_for_ours(request):
        return (
            f"devices of the class {request.device_class}, which is none of ours ({SHARED_CLASS}, {WHOLE_CLASS}, "
            f"{MIG_CLASS}), so that its nodes are not explained here"
        )
    number = "every GPU that matches" if not request.count else f"each of {request.count} GPUs"
    if request.device_class == WHOLE_CLASS:
        return "one whole GPU" if request.count == 1 else number if not request.count else f"{request.count} whole GPUs"
    if asks_for_instances(request):
        return (
            f"{request.count} whole MIG instances"
            if request.count > 1
            else "one whole MIG instance"
            if request.count
            else "every MIG instance that matches"
        )
    memory = "the smallest part" if request.memory_mib is None else format_mib(request.memory_mib)
    return f"{memory} of {'one GPU' if request.count == 1 else number}"


def asked_by_claims(claims: Iterable[Claim]) -> str:
    """Return what claims wait for, as the end of a sentence."""
    return f"{' and '.join(map(asked_amount, claims))}, through ResourceClaims"


def asked_amount(claim: Claim) -> str:
    """Return what a claim asks for of our devices."""
    return " and ".join(_asked(request) for request in claim.requests if asks_for_ours(request))


def by_claim_instead(asked: Ask, nodes: Sequence[NodeView]) -> Iterator[str]:
    """Yield how to ask for memory where every node that shares GPUs gives them to claims.

    Args:
        asked: the demand of a pod by its limits.
        nodes: every node that shares GPUs.
    """
    memory = [part.demand for part in asked.parts if part.demand.kind is Kind.MEMORY]
    if not memory or not nodes or not all(node.candidate.gpus.claims for node in nodes):
        return
    sizes = {node.candidate.gpus.share_mib for node in nodes}
    mib = (sizes.pop() or MIB_PER_GIB) * (memory[0].amount // memory[0].gpus) if len(sizes) == 1 else None
    amount = "the amount" if mib is None else f"{mib // MIB_PER_GIB}Gi" if mib % MIB_PER_GIB == 0 else f"{mib}Mi"
    yield (
        "Every node that shares GPUs gives them to ResourceClaims (DRA), and none to limits: let the pod name a "
        f"ResourceClaimTemplate of the DeviceClass {SHARED_CLASS} with the capacity memory: {amount} (docs/dra.md)."
    )

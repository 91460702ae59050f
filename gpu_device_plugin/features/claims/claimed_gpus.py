"""What ResourceClaims (DRA) hold of a node's GPUs, or ask for, in the terms of pods: each claim counts once.

However many pods use a claim, its devices were taken once. The claims of the same pods are one occupant, so that a pod
with several claims has one name and one sum, as a pod with several containers has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.features.claims.contract import (
    DRIVER,
    MIG_CLASS,
    SHARED_CLASS,
    WHOLE_CLASS,
    Claim,
    Device,
    DeviceRequest,
    parse_device_name,
)
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.held_instances import InstancePod
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage

BY_LIMITS = "its GPUs are allocated through limits of pods, not through ResourceClaims (DRA)"
"""Why no claim can have devices of a node."""
_MOST_NAMED = 3
"""The most pods of one claim that its occupant's name names; a claim may have 256."""


def taken(claim: Claim) -> Iterable[Device]:
    """Return the devices of ours that a claim takes; access beside others (admin) takes none."""
    return (device for device in claim.devices_of(DRIVER) if not device.admin)


def label(claim: Claim) -> str:
    """Return the name by which people see a claim: those of its pods, joined by ``+``, else its own after ``claim:``.

    The name of no pod has one of these two signs.
    """
    pods = sorted(consumer.name for consumer in claim.consumers)
    more = len(pods) - _MOST_NAMED
    named = [*pods[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return "+".join(named) or f"claim:{claim.name}"


def pools(claim: Claim) -> frozenset[str]:
    """Return the nodes of which a claim takes devices."""
    return frozenset(device.pool for device in taken(claim))


def usage_of_claims(node: str, gpus: NodeGpus, claims: Iterable[Claim]) -> Usage:
    """Return what claims take of the GPUs of a node and its shared MIG instances; the others: `claimants`.

    A part of a GPU that the node does not list is unplaced, and so is all where the size of shares is not known: it
    counts as a whole GPU then, which is more than it took and never less.
    """
    positions = {gpu.uuid.lower(): gpu.position for gpu in (*gpus.all, *gpus.gone) if gpu.uuid}
    shares: dict[int, int] = defaultdict(int)
    whole: set[int] = set()
    unplaced_shares = unplaced_gpus = 0
    for device in (device for claim in claims for device in taken(claim) if device.pool == node):
        position = positions.get(parse_device_name(device.name).lower())
        amount = _shares(device, gpus.share_mib)
        if position in gpus.elsewhere:
            continue
        if position is None and amount is None:
            unplaced_gpus += 1
        elif position is None:
            unplaced_shares += amount or 0
        elif amount is None:
            whole.add(position)
        else:
            shares[position] += amount
    return Usage(tuple(sorted(shares.items())), tuple(sorted(whole)), unplaced_shares, unplaced_gpus)


def _shares(device: Device, share_mib: int | None) -> int | None:
    """Return the shares of a part of a GPU; None: all of it."""
    if device.whole or device.memory_mib is None or share_mib is None:
        return None
    return -(-device.memory_mib // share_mib)


def claimants(node: str, gpus: NodeGpus, claims: Iterable[Claim]) -> tuple[list[GpuConsumer], list[InstancePod]]:
    """Return the occupants of a node that have their devices through claims, and those that have whole MIG instances.

    Claims without devices of this node do not matter. Occupants are in the order of their namespaces and names.
    """
    listed = {gpu.uuid: gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None}
    occupants: list[GpuConsumer] = []
    holders: list[InstancePod] = []
    for group in _by_users(claims):
        first, ending = group[0], all(claim.deleting for claim in group)
        # Claims that are not just one pod's stand for themselves.
        uid = first.consumers[0].uid if len(first.consumers) == 1 else first.uid
        space, name = first.namespace, label(first)
        if (usage := usage_of_claims(node, gpus, group)) != NOTHING:
            names = tuple(claim.name for claim in group)
            pods = tuple(sorted(consumer.name for consumer in first.consumers))
            occupants.append(GpuConsumer(uid, usage, 0, ending, {}, space, name, names, pods))
        devices = [parse_device_name(device.name) for claim in group for device in taken(claim) if device.pool == node]
        if held := [uuid for uuid in devices if uuid in listed]:
            asked = Counter(listed[uuid] for uuid in held)
            holders.append(InstancePod(uid, NOTHING, 0, ending, None, space, name, asked=asked, held=frozenset(held)))
    return sorted(occupants, key=lambda pod: (str(pod), pod.uid)), holders


def _by_users(claims: Iterable[Claim]) -> Iterable[Sequence[Claim]]:
    """Return the claims of the same pods together."""
    groups: dict[tuple[str, ...], list[Claim]] = defaultdict(list)
    for claim in sorted(claims, key=lambda claim: (claim.namespace, claim.name, claim.uid)):
        users = tuple(sorted(consumer.uid for consumer in claim.consumers))
        groups[users or ("", claim.uid)].append(claim)
    return groups.values()


def with_claims(view: NodeView, claims: Iterable[Claim]) -> NodeView:
    """Return a node with those beside its pods that have its GPUs through claims.

    A pod that uses a claim of this node counts by no limits of its own: where these name a number of GPUs,
    kube-scheduler has made the claim of them (an extended resource of a DeviceClass).
    """
    listed = tuple(claims)
    gpus = view.candidate.gpus
    there, instances = claimants(view.name, gpus, listed)
    if not there and not instances:
        return view
    users = {consumer.uid for claim in listed if view.name in pools(claim) for consumer in claim.consumers}
    pods = [*(pod for pod in view.pods if pod.uid not in users), *there]
    pods.sort(key=lambda pod: (pod.namespace, pod.name))
    with_instances = [*(pod for pod in view.instance_pods if pod.uid not in users), *instances]
    with_instances.sort(key=lambda pod: (pod.namespace, pod.name))
    return replace(
        view,
        candidate=view.candidate.occupied(pod.usage for pod in pods),
        pods=tuple(pods),
        instance_pods=tuple(with_instances),
    )


# --- Claims that are not allocated ------------------------------------------------------------------------------------


def asks_for_ours(request: DeviceRequest) -> bool:
    """Return whether a request is for devices of ours: by the DeviceClass, or by an amount of memory, which is ours.

    The selectors of other DeviceClasses are not evaluated.
    """
    return request.device_class in {SHARED_CLASS, WHOLE_CLASS, MIG_CLASS} or request.memory_mib is not None


def asks_for_instances(request: DeviceRequest) -> bool:
    """Return whether a request is for whole MIG instances of ours."""
    return request.device_class == MIG_CLASS


def waits_for_ours(claim: Claim) -> bool:
    """Return whether a claim is not allocated yet and asks for devices of ours."""
    return not claim.allocated and any(map(asks_for_ours, claim.requests))


def ask_of_claims(claims: Iterable[Claim], share_mib: int | None) -> GpuRequest:
    """Return what claims ask for of GPUs whose shares have this size; access beside others (admin) asks for nothing.

    A request for all devices counts as one for one device, and one without an amount as one for a share. Whole MIG
    instances are left out: which of them will do is a matter of selectors, and any that does is as good as another.
    """
    requests = (request for claim in claims for request in claim.requests if not request.admin)
    placed = (request for request in requests if asks_for_ours(request) and not asks_for_instances(request))
    return GpuRequest(tuple(Part(_demand(request, share_mib or MIB_PER_GIB)) for request in placed))


def free_instances(view: NodeView) -> Mapping[str, int]:
    """Return how many MIG instances of each profile a claim could have whole on a node now."""
    taken = {position for pod in view.pods for position in (*pod.usage.whole, *dict(pod.usage.shares))}
    held = frozenset[str]().union(*(pod.held for pod in view.instance_pods))
    return Counter(
        gpu.instance.profile
        for gpu in view.candidate.gpus.all
        if gpu.instance is not None and not gpu.closed and not (gpu.position in taken or gpu.uuid in held)
    )


def _demand(request: DeviceRequest, share_mib: int) -> Demand:
    gpus = max(1, request.count)
    if request.device_class == WHOLE_CLASS:
        return Demand(Kind.COUNT, gpus)
    each = max(1, -(-(request.memory_mib or 0) // share_mib))
    return Demand(Kind.MEMORY, each * gpus, gpus)


def for_claims(view: NodeView) -> NodeView:
    """Return a node as a claim meets it: that it serves claims is no reason against it, and the contrary is one.

    To a claim such a node is what a node that serves limits is to limits, so that the same rules hold.
    """
    gpus = view.candidate.gpus
    problem = gpus.fault or ("" if gpus.claims else BY_LIMITS)
    return replace(view, candidate=replace(view.candidate, gpus=replace(gpus, claims=False, problem=problem)))

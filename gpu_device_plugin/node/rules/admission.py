"""Decide whether a container may have the device IDs that the kubelet chose, and may still start with them.

The first answers Allocate. The kubelet calls PreStartContainer, and reads the variables of the container's devices only
after the answer (devicemanager/manager.go, GetDeviceRunContainerOptions, 1.36). It also starts the container of a pod
that was deleted by force meanwhile, without any variable if it has freed the devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS, Promise
from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import POLICIES, Demand, Placement, Unplaceable, place
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SharedGpu, Shares
from gpu_device_plugin.node.rules.container_grants import CONTROL_NODES, Delivery
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Node

if TYPE_CHECKING:
    from gpu_device_plugin.node.rules.matching import Match


class RefusalCode(StrEnum):
    """Why a container was refused, for metrics."""

    UNKNOWN_DEVICE = "unknown_device"
    UNHEALTHY = "unhealthy"
    RECORDS_UNREADABLE = "records_unreadable"
    IN_WHOLE_USE = "in_whole_use"
    SHARES_IN_USE = "shares_in_use"
    NO_ROOM = "no_room_on_one_gpu"
    TOO_LARGE = "larger_than_any_gpu"
    SCATTERED = "scattered_by_the_kubelet"
    NO_DEVICE_NODE = "no_device_node"
    BOTH_RESOURCES = "both_resources"
    TOO_MANY_CONTAINERS = "too_many_containers"
    OTHER_RESOURCE = "held_through_another_resource"
    FORGOTTEN = "forgotten_by_the_kubelet"
    NOT_OFFERED = "not_offered_this_way"
    MPS_NOT_READY = "mps_not_ready"
    MPS_SEVERAL_GPUS = "mps_several_gpus"
    NO_LIMIT = "memory_limit_not_there"
    BORROWED = "memory_borrowed_by_others"
    BAD_PARAMETERS = "bad_parameters"
    OTHER_NODE = "of_another_node"
    TWO_CLAIMS = "two_claims_in_a_container"
    SEVERAL_INSTANCES = "parts_of_several_mig_instances"
    GUARANTEED = "guaranteed_to_others"
    CORDONED = "cordoned"
    POD_DELETED = "pod_deleted"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a container's devices, with a sentence for the owner of its pod."""

    code: RefusalCode
    sentence: str


def admit(
    node: Node,
    kind: Kind,
    device_ids: Sequence[str],
    promise: Promise | None = None,
    *,
    after_init: bool | None = None,
) -> Placement | Refusal:
    """Decide on one container, for which the kubelet chose `device_ids` (at least one).

    Within one resource the kubelet is trusted to allocate every ID once, and to reuse only the IDs of an init container
    of the same pod. It knows neither the use of the other resource nor which IDs lie on the same GPU.

    `promise` is a scheduler's promise to this container, `after_init` whether an init container of its pod was served
    before; None if that is unknown.
    """
    whole = kind is not Kind.MEMORY
    places = {name: node.shares.place_of(name) for name in device_ids}
    unknown = [name for name, found in places.items() if found is None or (found[1] < 0) is not whole]
    if unknown:
        return Refusal(
            RefusalCode.UNKNOWN_DEVICE,
            f"device {unknown[0]} is not on this node, although the kubelet still knows it; "
            "delete the pod so that it is scheduled again",
        )
    wanted = node.shares.spread(device_ids)
    gpus = [node.shares.gpus[position] for position in sorted(wanted)]
    closed = next((refusal for shared in gpus if (refusal := _closed(node, kind, shared)) is not None), None)
    if closed is not None:
        return closed
    if (unproven := _unproven(node, device_ids)) is not None:
        return unproven
    if whole:
        return Placement(Demand(kind, len(gpus)), tuple((shared.position, len(shared.shares)) for shared in gpus))
    demand = Demand(kind, len(device_ids), promise.split(len(device_ids)) if promise is not None else 1)
    shares = tuple(sorted(wanted.items()))
    # GPUs other than the promised ones serve as well if their number and the shares of each are the same.
    as_asked = len(gpus) == demand.gpus and len(set(wanted.values())) == 1
    several_instances = len(gpus) > 1 and any(shared.gpu.instance is not None for shared in gpus)
    if several_instances or (not as_asked and (promise is None or promise.shares != shares)):
        # Where no GPU gives parts, none was preferred, and the kubelet has drawn these at random.
        return _without_parts(node, gpus) or _scattered(node, demand, device_ids, after_init=after_init)
    return _exceeding(node, gpus, device_ids) or Placement(Demand(kind, len(device_ids), len(gpus)), shares)


def refuse_request(match: Match | None) -> Refusal | None:
    """Refuse a container whose pod makes requests that no node can serve; `match` is None if its pod is unknown."""
    if match is None:
        return None
    if match.asks_both:
        # The kubelet allocates each resource separately, so the two would come from different GPUs.
        return Refusal(
            RefusalCode.BOTH_RESOURCES,
            f"container {match.request.container!r} requests GPU memory and whole GPUs at once, which no GPU can "
            "serve; request one of the two",
        )
    if len({request.container for request in match.pod.requests}) > MOST_CONTAINERS:
        # Every call of the kubelet is compared with all waiting containers.
        return Refusal(
            RefusalCode.TOO_MANY_CONTAINERS,
            f"more than {MOST_CONTAINERS} containers of this pod request GPU memory or GPUs; have fewer request them",
        )
    return None


def refuse_without_nodes(delivery: Delivery, present: Collection[str], shares: Shares) -> Refusal | None:
    """Refuse a container while device nodes that CUDA needs are missing; `present` are those of this node."""
    missing = [path for path in CONTROL_NODES if path not in present] if delivery.device_specs else []
    drivers = {shared.gpu.driver for shared in shares.gpus}
    if not missing or (drivers and NVIDIA not in drivers):
        return None
    return Refusal(
        RefusalCode.NO_DEVICE_NODE,
        f"{missing[0]} is not on this node yet; run `nvidia-modprobe -u -c 0` there, or let the driver's persistence "
        "daemon do it at boot",
    )


def _closed(node: Node, kind: Kind, shared: SharedGpu) -> Refusal | None:
    block = node.block(shared.gpu.uuid)
    if block.everyone:
        return Refusal(RefusalCode.UNHEALTHY, f"{shared.name} is unhealthy: {block.everyone}")
    if block.new_pods:
        return Refusal(RefusalCode.CORDONED, f"{shared.name} takes no new pods: it is {block.new_pods}")
    return _given_otherwise(node, kind, shared)


def _given_otherwise(node: Node, kind: Kind, shared: SharedGpu) -> Refusal | None:
    name, use = shared.name, node.use(shared)
    if shared.gpu.uuid in node.ledger.held_by_other_resource:
        resource = node.ledger.held_by_other_resource[shared.gpu.uuid]
        return Refusal(
            RefusalCode.OTHER_RESOURCE, f"{name} is in use through {resource}, which this agent does not offer"
        )
    if not any(offered is kind for offered, _ in shared.offered):
        return Refusal(
            RefusalCode.NOT_OFFERED,
            f"{name} is no longer allocated through this resource, because it or the setting mig changed on this "
            "node; delete the pod so that it is scheduled again",
        )
    if kind is Kind.MEMORY and use.whole:
        return Refusal(RefusalCode.IN_WHOLE_USE, f"{name} is exclusively allocated to another container")
    if kind is not Kind.MEMORY and use.shares:
        used = format_mib(use.taken * node.shares.share_mib)
        return Refusal(RefusalCode.SHARES_IN_USE, f"{name} cannot be taken whole: {used} of its memory are in use")
    return None


def _unproven(node: Node, device_ids: Collection[str]) -> Refusal | None:
    """Refuse devices that are free for the kubelet, which does not know of all the containers that run."""
    if lost := node.ledger.forgotten.intersection(device_ids):
        where = ", ".join(f"GPU {position}" for position in sorted(node.shares.spread(lost)))
        return Refusal(
            RefusalCode.FORGOTTEN,
            f"the kubelet chose devices of {where} that running containers use: its record of them was lost with its "
            "checkpoint; they become free when the pods of those containers end",
        )
    if not node.ledger.certain and not node.ledger.id_states.keys() >= set(device_ids):
        return Refusal(
            RefusalCode.RECORDS_UNREADABLE,
            "the kubelet's checkpoint cannot be read, so nothing proves that these devices are free; "
            "the log of the GPU device plugin on this node says what to do",
        )
    return None


def _exceeding(node: Node, gpus: Sequence[SharedGpu], device_ids: Collection[str]) -> Refusal | None:
    """Refuse shares that containers are guaranteed beyond their requests. It does not matter which IDs stand for them.

    They are fenced; a list that fences more of them may still be on its way to the kubelet.
    """
    if not node.ledger.reservations:
        return None
    new = node.shares.spread([name for name in device_ids if name not in node.ledger.id_states])
    for shared in gpus:
        use, asked, mib = node.use(shared), new.get(shared.position, 0), node.shares.share_mib
        left = max(0, len(shared.shares) - use.taken)
        if use.reserved and asked > left:
            return Refusal(
                RefusalCode.GUARANTEED,
                f"{shared.name} has {format_mib(left * mib)} that is not guaranteed to any container, and "
                f"{format_mib(asked * mib)} is requested: the guarantee of a running container grew while this pod "
                "was being placed; delete the pod to try again",
            )
    return None


def _without_parts(node: Node, gpus: Sequence[SharedGpu]) -> Refusal | None:
    closed = [shared for shared in gpus if node.block(shared.gpu.uuid).parts]
    names = ", ".join(shared.name for shared in closed)
    return Refusal(RefusalCode.NO_LIMIT, f"{names}: {node.block(closed[0].gpu.uuid).parts}") if closed else None


def _scattered(node: Node, demand: Demand, device_ids: Collection[str], *, after_init: bool | None) -> Refusal:
    answer = place(demand, node.rooms(), POLICIES["binpack"])
    if isinstance(answer, Unplaceable):
        largest = max((room.total for room in node.rooms()), default=0)
        why = RefusalCode.TOO_LARGE if largest * demand.gpus < demand.amount else RefusalCode.NO_ROOM
        return Refusal(why, answer.sentence(node.shares.share_mib))
    asked = format_mib(len(device_ids) * node.shares.share_mib)
    reused = [name for name in device_ids if name in node.ledger.id_states]
    # An ID in our ledger may also belong to a pod that has just ended: the kubelet knows of that end before us.
    if reused and after_init is not False:
        where = ", ".join(f"GPU {position}" for position in sorted(node.shares.spread(reused)))
        took = "an init container of this pod took" if after_init else "an init container of this pod seems to have had"
        return Refusal(
            RefusalCode.SCATTERED,
            f"GPU memory: {asked} requested, but {took} {where}, which has less; "
            "have the init container request as much as the largest container"
            + ("" if after_init else ", or delete the pod to try again"),
        )
    chose = (
        "shares of several GPUs although one GPU has room"
        if demand.gpus == 1
        else f"unequal shares of {demand.gpus} GPUs"
    )
    return Refusal(
        RefusalCode.SCATTERED,
        f"GPU memory: {asked} requested, and the kubelet chose {chose}; delete the pod to try again",
    )


FREED = "the pod of this container was deleted, and the kubelet may have freed its devices"
DELETING = "the pod of this container is being deleted"


@dataclass(frozen=True, slots=True)
class Start:
    """One call of PreStartContainer."""

    device_ids: frozenset[str]
    since: float
    """When it came, in monotonic seconds."""
    named: bool
    """Whether the kubelet's checkpoint has named the container."""
    living: frozenset[str] = frozenset()
    """The UID of its pod, if the API showed it then and it is not static: the mirror of such a pod may vanish."""


def why_not_its_own(
    start: Start,
    *,
    ledger: Ledger,
    owners: Sequence[Allocation],
    pods: Mapping[str, Pod] | None,
    listed: Collection[str] | None = None,
) -> str:
    """Return why a container must not start with these devices, as a sentence without a full stop; empty: it may.

    Args:
        start: the call.
        ledger: that of now.
        owners: the containers with exactly these devices in the kubelet's checkpoint: an init container and one after
            it may have the same.
        pods: those of the node in the API, by the UID by which the kubelet knows them; None: not known for now.
        listed: the devices that PodResources lists now; None: it was not asked, or does not answer.
    """
    uids = {owner.pod_uid for owner in owners}
    pod = next((pods[uid] for uid in uids if uid in pods), None) if pods is not None else None
    if pod is not None and pod.deleting and not pod.static_uid:  # the kubelet makes a mirror pod again
        return DELETING
    # Our watch may be ahead of the kubelet's.
    gone = pods is not None and not start.living.issubset(pods)
    if gone or _left(start, ledger):
        return FREED
    if listed is not None and start.device_ids.issubset(listed):
        return ""
    if not owners:
        # A pod may be deleted so soon that the checkpoint has never shown it when we read it.
        return FREED if ledger.certain and (start.named or listed is not None) else ""
    if pod is not None:
        init = {container.name for container in pod.containers if container.devices_reused_by_later}
        # Ordinary init containers are never listed.
        return "" if listed is None or init.issuperset(owner.container for owner in owners) else FREED
    # The mirror pod of a static pod may be missing. The UID of such a pod is a hash, without dashes.
    return FREED if pods is not None and any("-" in uid for uid in uids) else ""


def _left(start: Start, ledger: Ledger) -> bool:
    """Return whether the devices have left the ledger, or were given to another container since the call."""
    holds = [ledger.id_states.get(name) for name in start.device_ids]
    return ledger.certain and any(
        hold is None or hold.freed_at is not None or (hold.granted_at or -math.inf) > start.since for hold in holds
    )

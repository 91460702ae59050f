"""Decide what each container of a node is guaranteed beyond its request, or say why it is not more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.features.elastic.contract import answer_to
from gpu_device_plugin.features.elastic.rules.growth import GpuRoom, GrowthRequest, grow
from gpu_device_plugin.features.use.rules.container_gpus import elastic_gpu
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.ledger import IdState, Reservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.features.elastic.contract import Allowance, Answer, PodGuarantees, Size
    from gpu_device_plugin.model.allocations import Allocation
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.shares import SharedGpu
    from gpu_device_plugin.node.rules.ledger import ContainerKey, Reservations
    from gpu_device_plugin.node.rules.node import Node

_CONFIRMED = IdState()
UNDECIDED = "the scheduler has not decided on it yet"
_TOO_LITTLE = "{gpu} has {free} left that is promised to nobody, and {more} more are asked for"


class Elastic(NamedTuple):
    """A container with shares of one GPU, whose guarantee may change while it runs."""

    pod: Pod
    size: Size
    gpu: SharedGpu
    own: frozenset[str]
    """Its device IDs: its request."""

    @property
    def uuid(self) -> str:
        """Of its GPU."""
        return self.gpu.gpu.uuid

    @property
    def key(self) -> ContainerKey:
        """The container, as the ledger knows it."""
        return self.pod.kubelet_uid, self.size.container

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Who grows first: pods of a higher priority, then older ones."""
        return -self.pod.priority, self.pod.created, self.pod.uid, self.size.container


@dataclass(frozen=True, slots=True)
class Resize:
    """What the containers of a node are to be guaranteed beyond their requests."""

    reservations: Reservations
    refused: Mapping[ContainerKey, str] = field(default_factory=dict)
    """Why a container is not guaranteed more, as a sentence."""
    unknown: frozenset[str] = frozenset()
    """The namespaces whose allowance has to be known before some containers can grow."""


def elastics(
    allocations: Iterable[Allocation], pods: Mapping[str, PodGuarantees], node: Node
) -> Mapping[str, tuple[Elastic, ...]]:
    """Return the containers that may grow or shrink by the UID of their pod, for those `pods` that have devices.

    Pods with devices of which the ledger does not know, or which it may be about to free, are left out.
    """
    found: dict[str, tuple[Elastic, ...]] = {}
    uncertain: set[str] = set()
    for allocation in allocations:
        if (says := pods.get(allocation.pod_uid)) is None:
            continue
        there = found.setdefault(allocation.pod_uid, ())
        if (shared := elastic_gpu(allocation, says.pod, node.shares)) is not None:
            size = says.size(allocation.container, shared.position, len(allocation.device_ids))
            found[allocation.pod_uid] = (*there, Elastic(says.pod, size, shared, allocation.device_ids))
            if any(node.ledger.id_states.get(name) != _CONFIRMED for name in allocation.device_ids):
                uncertain.add(allocation.pod_uid)
    return {uid: containers for uid, containers in found.items() if uid not in uncertain}


def taken_over(saved: Reservations, allocations: Iterable[Allocation]) -> Reservations:
    """Return what a former agent has `saved` for the containers that still hold shares of their GPU."""
    own: dict[tuple[ContainerKey, str], frozenset[str]] = {}
    for allocation in allocations:
        for name in allocation.device_ids:
            uuid, number = parse_id(name)
            if number is not None:
                at = (allocation.pod_uid, allocation.container), uuid
                own[at] = own.get(at, frozenset()) | {name}
    return {
        key: replace(reservation, own=own[key, reservation.uuid])
        for key, reservation in saved.items()
        if (key, reservation.uuid) in own
    }


def owned(reservations: Reservations, allocations: Iterable[Allocation]) -> Reservations:
    """Return guarantees beyond requests without the device IDs that the kubelet's records show for other pods alone.

    A container may have been found to grow by a record that was older than its end.
    """
    shown: dict[str, set[str]] = {}
    for allocation in allocations:
        for name in allocation.device_ids:
            shown.setdefault(name, set()).add(allocation.pod_uid)
    return {
        key: reservation.without([name for name in reservation.own if key[0] not in shown.get(name, {key[0]})])
        for key, reservation in reservations.items()
    }


def fitting(node: Node) -> Reservations:
    """Return the guarantees beyond requests without those for which their GPU has no room.

    It has none if an agent that did not know of them gave their shares to others. On a GPU that is excluded now, nobody
    else gets them.
    """
    reservations = dict(node.ledger.reservations)
    for shared in node.shares.gpus:
        excess = 0 if shared.vacant else node.use(shared).taken - len(shared.shares)
        for key in sorted(reservations, reverse=True):
            if excess > 0 and reservations[key].uuid == shared.gpu.uuid:
                less = min(excess, reservations[key].shares)
                reservations[key] = replace(reservations[key], shares=reservations[key].shares - less)
                excess -= less
    return {key: reservation for key, reservation in reservations.items() if reservation.shares > 0}


def resize(
    node: Node,
    containers: Sequence[Elastic],
    expected: tuple[Mapping[int, int], int],
    allowances: Mapping[str, Allowance | str],
) -> Resize:
    """Decide what each container is guaranteed beyond its request.

    Those that shrink give their shares back first; then as many grow as there is room for, each as far as it wants or
    not at all. What a container has stays if it is not among `containers`: its pod is not known.

    Args:
        node: the node with all that counts now.
        containers: of pods that have not ended.
        expected: the shares that waiting pods will get, see `matching.expected`.
        allowances: by namespace, without what is in use; or why it is not known, as a sentence.
    """
    reservations = dict(fitting(node))
    for each in containers:
        held = reservations.get(each.key)
        if held is not None and each.size.beyond < held.shares and held.uuid == each.uuid:
            reservations[each.key] = replace(held, shares=each.size.beyond)
    rooms = _rooms(node.with_ledger(node.ledger.with_reservations(reservations)), expected)
    used = Counter[str]()  # by namespace
    requests = []
    for each in sorted(containers, key=lambda each: each.order):
        held = reservations.get(each.key)
        shares = 0 if held is None else held.shares
        used[each.pod.namespace] += shares
        if (more := each.size.beyond - shares) > 0:
            room = rooms[each.gpu.position]
            if each.pod.deleting:
                room = room._replace(closed="its pod is being deleted")
            elif not room.closed and held is not None and held.uuid != each.uuid:
                room = room._replace(closed=_uncertain(each.gpu))
            target = each.size.request + each.size.beyond
            requests.append(GrowthRequest(each.key, each.pod.namespace, room, target, more))
    growth = grow(requests, allowances, _TOO_LITTLE, used)
    for each in containers:
        if each.key in growth.granted:
            reservations[each.key] = Reservation(each.uuid, each.size.beyond, each.own)
    kept = {key: reservation for key, reservation in reservations.items() if reservation.shares > 0}
    return Resize(kept, growth.refused, growth.unknown)


def _rooms(node: Node, expected: tuple[Mapping[int, int], int]) -> Mapping[int, GpuRoom]:
    """Return the room of each GPU by position, of which waiting pods get what is expected."""
    promised, anywhere = expected
    rooms = {}
    for shared in node.shares.gpus:
        uuid, use, total = shared.gpu.uuid, node.use(shared), len(shared.shares)
        block, closed = node.block(uuid), ""
        if block.everyone:
            closed = f"{shared.name} is out of service: {block.everyone}"
        elif block.new_pods:
            closed = f"{shared.name} is {block.new_pods}"
        elif not node.ledger.certain or uuid in node.ledger.held_by_other_resource or use.whole:
            closed = _uncertain(shared)
        free = total - use.taken - promised.get(shared.position, 0) - anywhere
        rooms[shared.position] = GpuRoom(shared.name, total, free, node.shares.share_mib, closed)
    return rooms


def _uncertain(shared: SharedGpu) -> str:
    return f"it is not known yet what of {shared.name} is free"


def answer(
    says: PodGuarantees,
    containers: Sequence[Elastic],
    reservations: Reservations,
    refused: Mapping[ContainerKey, str],
) -> Answer | None:
    """Return what the agent has to say of the guarantees of a pod: `MEMORY_HELD`; None: nothing.

    Args:
        says: the pod, with what stands on it.
        containers: those of the pod that may grow.
        reservations: what is held beyond requests now.
        refused: why containers are not guaranteed more.
    """
    pod, names = says.pod, {each.size.container for each in containers}
    held = {
        each.size.container: each.size.request + reservations[each.key].shares
        for each in containers
        if each.key in reservations and reservations[each.key].uuid == each.uuid
    }
    if MEMORY_GUARANTEE not in pod.annotations and not held:
        return None
    decided = says.promised is None or says.promised.answers(pod.annotations)
    waits = not decided and any(each.size.more > 0 for each in containers)
    if waits and held == says.held.guarantees:
        # The extender is about to decide. What was said of the wish before stays meanwhile.
        return says.held if MEMORY_HELD in pod.annotations else None
    why = [
        says.wish.malformed,
        *says.wish.in_vain(names),
        "" if names or says.wish.every is None else "no container has shares of one GPU, which alone can grow",
        says.promised.why if says.promised is not None and decided else "",
        UNDECIDED if waits else "",
        *(refused[each.key] for each in containers if each.key in refused),
    ]
    return answer_to(pod.annotations, held, "; ".join(dict.fromkeys(filter(None, why))))

"""Decide which running containers are guaranteed more of their GPU, and say why the others are not.

The agent of a node and the scheduler extender decide by the same rules, each by what it counts as free. Amounts are
shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.features.elastic.contract import Allowance, PodGuarantees, Size, units
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD
from gpu_device_plugin.model.contract.reservations import Answer, answer_to
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SharedGpu, Shares, parse_id
from gpu_device_plugin.node.rules.ledger import ContainerKey, IdState, Reservation, Reservations

if TYPE_CHECKING:
    from gpu_device_plugin.node.rules.node import Node

_CONFIRMED = IdState()
UNDECIDED = "the scheduler has not decided yet"
_TOO_LITTLE = "{gpu} has {free} left that is not assigned to anyone, and the request needs {more} more"


class GpuRoom(NamedTuple):
    """What a GPU has for containers that are to be guaranteed more."""

    name: str
    """For people."""
    total: int
    free: int
    """What is not assigned to anyone."""
    share_mib: int | None
    """None: not known."""
    closed: str = ""
    """Why nobody is guaranteed more of it, as a sentence; empty: it is open."""

    def amount(self, shares: int) -> str:
        """Return an amount for people."""
        return units(shares) if self.share_mib is None else format_mib(shares * self.share_mib)


class GrowthRequest(NamedTuple):
    """A container that is to be guaranteed more."""

    key: ContainerKey
    """The UID of its pod, and its name."""
    namespace: str
    room: GpuRoom
    """Of its GPU."""
    target: int
    """What it is to be guaranteed."""
    more: int
    """The part of that which does not count for it yet."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The answers to some requests."""

    granted: frozenset[ContainerKey] = frozenset()
    refused: Mapping[ContainerKey, str] = field(default_factory=dict)
    """Why a container is not guaranteed more, as a sentence."""
    unknown: frozenset[str] = frozenset()
    """The namespaces whose allowance has to be known before some containers can grow."""
    by_bound: bool = False
    """A namespace refuses, whatever room its GPU has."""


def grow(
    requests: Iterable[GrowthRequest],
    allowances: Mapping[str, Allowance | str],
    too_little: str,
    used: Mapping[str, int] = MappingProxyType({}),
) -> Growth:
    """Decide on one container after the other: each is guaranteed all that it is to have, or no more than before.

    Args:
        requests: in the order in which they are served.
        allowances: by namespace; or why it is not known, as a sentence.
        too_little: why a container does not grow on a GPU without room, of {gpu}, {free} and {more}.
        used: what the pods of a namespace have beyond their requests and its allowance does not count.
    """
    taken, grown = Counter[GpuRoom](), Counter(used)
    granted: set[ContainerKey] = set()
    refused: dict[ContainerKey, str] = {}
    unknown: set[str] = set()
    by_bound = False
    for each in requests:
        allowance = allowances.get(each.namespace)
        if why := _no_room(each, taken[each.room], too_little):
            refused[each.key] = why
        elif allowance is None:
            unknown.add(each.namespace)
        elif why := _not_allowed(allowance, grown[each.namespace], each.more):
            refused[each.key], by_bound = why, True
        else:
            granted.add(each.key)
            taken[each.room] += each.more
            grown[each.namespace] += each.more
    return Growth(frozenset(granted), refused, frozenset(unknown), by_bound)


def _no_room(request: GrowthRequest, taken: int, too_little: str) -> str:
    room = request.room
    if room.closed:
        return room.closed
    if request.target > room.total:
        return f"{room.name} has {room.amount(room.total)} in all"
    free = max(0, room.free - taken)
    if request.more <= free:
        return ""
    return too_little.format(gpu=room.name, free=room.amount(free), more=room.amount(request.more))


def _not_allowed(allowance: Allowance | str, used: int, more: int) -> str:
    return allowance if isinstance(allowance, str) else replace(allowance, used=allowance.used + used).refusal(more)


# --- On a node --------------------------------------------------------------------------------------------------------


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


def elastic_gpu(allocation: Allocation, pod: Pod, shares: Shares) -> SharedGpu | None:
    """Return the GPU of which a container may get more while it runs; None: its devices allow none.

    It has shares of one GPU through the device plugin, and is no ordinary init container: containers after such a one
    reuse its devices. A MIG instance is never larger than it is.
    """
    uuids = {parse_id(name)[0] for name in allocation.device_ids}
    if allocation.kind is not Kind.MEMORY or allocation.source is AllocationSource.CLAIM or len(uuids) != 1:
        return None
    shared = shares.by_uuid(uuids.pop())
    if shared is None or shared.gpu.instance is not None:
        return None
    stays = any(each.name == allocation.container and not each.devices_reused_by_later for each in pod.containers)
    return shared if stays else None


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
) -> tuple[Reservations, Growth]:
    """Return what each container is guaranteed beyond its request, and what was decided on those that are to grow.

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
    return kept, growth


def _rooms(node: Node, expected: tuple[Mapping[int, int], int]) -> Mapping[int, GpuRoom]:
    """Return the room of each GPU by position, of which waiting pods get what is expected."""
    promised, anywhere = expected
    rooms = {}
    for shared in node.shares.gpus:
        uuid, use, total = shared.gpu.uuid, node.use(shared), len(shared.shares)
        block, closed = node.block(uuid), ""
        if block.everyone:
            closed = f"{shared.name} is unhealthy: {block.everyone}"
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
        "" if names or says.wish.every is None else "no container has shares of a single GPU, and only those can grow",
        says.promised.why if says.promised is not None and decided else "",
        UNDECIDED if waits else "",
        *(refused[each.key] for each in containers if each.key in refused),
    ]
    return answer_to(pod.annotations, held, "; ".join(dict.fromkeys(filter(None, why))))

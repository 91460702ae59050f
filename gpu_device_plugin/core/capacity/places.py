"""The places of a pod on one node, and how many of the pods there have to leave before it has one."""

from __future__ import annotations

from heapq import nsmallest
from math import ceil, inf
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import allowed, by_claims, unfit, unfit_by_kind, without
from gpu_device_plugin.core.cluster.packing import groups, order
from gpu_device_plugin.core.model.placing import POLICIES, Refusal, fits_kind, place
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.capacity.movable import Site, Tenant
    from gpu_device_plugin.core.cluster.packing import Packer
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.model.placing import Demand, Placement, Room
    from gpu_device_plugin.core.model.resources import Amounts

_BINPACK = POLICIES["binpack"]


def covers(site: Site, amounts: Amounts) -> bool:
    """Return whether the CPU and memory of a node suffice."""
    return site.node.left is None or site.node.left.cover(amounts)


def places(ask: Ask, site: Site, label: Callable[[int], object]) -> Iterator[tuple[Placement, ...]]:
    """Yield the ways to place a pod on the GPUs of a node, of each set of GPUs that are alike the best one.

    `label` returns, by position, what GPUs that are alike have in common besides their room.
    """
    node = site.node
    if not ask.parts or by_claims(ask, node) or unfit_by_kind(ask, node) is not None:
        return
    demands = [part.demand for part in ask.parts]
    ordered = order(demands)
    found: dict[int, Placement] = {}

    def rest(done: int, rooms: Sequence[Room]) -> Iterator[tuple[Placement, ...]]:
        if done == len(ordered):
            yield tuple([found[n] for n in range(len(demands))])
            return
        for placement in _ways(demands[ordered[done]], rooms, site, label):
            found[ordered[done]] = placement
            yield from rest(done + 1, without(rooms, placement))

    yield from rest(0, allowed(ask, node))


def _ways(demand: Demand, rooms: Sequence[Room], site: Site, label: Callable[[int], object]) -> Iterator[Placement]:
    """Yield the ways to place one demand, for whole GPUs the best connected ones first."""
    best = place(demand, rooms, _BINPACK, site.node.gpus.links.connection)
    if isinstance(best, Refusal):
        return
    yield best
    memory, each = demand.kind is Kind.MEMORY, demand.amount // demand.gpus
    alike: dict[tuple[object, ...], list[Room]] = {}
    for room in rooms:
        if fits_kind(demand, room) and ((room.gives_shares and room.free >= each) if memory else room.unused):
            likeness = room.total, room.free, room.shared, room.card is None, label(room.position)
            alike.setdefault(likeness, []).append(room)
    for group in groups(list(alike.values()), demand.gpus if memory else demand.amount):
        chosen = sorted((room.position, each if memory else room.total) for room in group)
        if tuple(chosen) != best.shares:
            yield type(best)(demand, tuple(chosen))


def waste(placements: Iterable[Placement], site: Site) -> tuple[int, int]:
    """Return how much room a place spoils: the unused GPUs that it begins for shares, and the free shares beside it."""
    rooms = {room.position: room for room in site.node.rooms}
    begun = beside = 0
    for placement in placements:
        for position, shares in placement.shares:
            begun += placement.demand.kind is Kind.MEMORY and not rooms[position].shared
            beside += rooms[position].free - shares
    return begun, beside


def fewest_leaving(
    ask: Ask, amounts: Amounts, site: Site, may_go: Callable[[Tenant], bool], spread: int, packer: Packer
) -> float:
    """Return a number of pods without which to leave a pod has no room on a node; 0: it has room; `inf`: it never has.

    It is at most one less after a pod has left, and no less after one has come. `spread` is the most GPUs that a pod
    of the cluster has, now or after a move.
    """
    node = site.node
    why = unfit(ask, node, packer)
    enough = covers(site, amounts)
    if why is None and enough:
        return 0
    if why is not None and why.unresolvable:
        return inf
    going = frozenset(filter(may_go, site.tenants))
    needed = [1.0] if enough else [1.0, _for_amounts(amounts, site, going)]
    if why is not None:
        on_gpus = _on_gpus(site, going)
        rooms = [(room, *on_gpus[room.position]) for room in allowed(ask, node) if room.healthy]
        needed += [_for_demand(part.demand, rooms, spread) for part in ask.parts]
    return max(needed)


def _on_gpus(site: Site, going: Collection[Tenant]) -> Mapping[int, tuple[list[int], int]]:
    """Return by position the shares of each pod that may go, 0 for a whole GPU, and how many pods are there."""
    sizes, elsewhere = site.node.gpus.sizes, site.node.gpus.elsewhere
    found: dict[int, list[int]] = {position: [] for position in sizes}
    pods = dict.fromkeys(sizes, 0)
    for tenant in site.tenants:
        usage = tenant.pod.usage.as_listed(sizes, elsewhere)
        for position, shares in (*usage.shares, *((at, 0) for at in usage.whole)):
            pods[position] += 1
            if tenant in going:
                found[position].append(shares)
    return {position: (found[position], pods[position]) for position in sizes}


def _for_demand(demand: Demand, rooms: Iterable[tuple[Room, list[int], int]], spread: int) -> float:
    """Return how many pods have to leave for one demand alone."""
    each = 0 if demand.kind is Kind.COUNT else demand.amount // demand.gpus
    number = demand.amount if demand.kind is Kind.COUNT else demand.gpus
    found = nsmallest(number, (_on_gpu(each, *on_gpu) for on_gpu in rooms if fits_kind(demand, on_gpu[0])))
    if len(found) < number or found[-1] == inf:
        return inf
    return max(found[-1], ceil(sum(found) / spread))


def _on_gpu(each: int, room: Room, going: Sequence[int], pods: int) -> float:
    """Return how many pods have to leave one GPU for so many shares of it, 0: for all of it.

    `going` are the shares of the pods there that may leave, `pods` is how many pods are there.
    """
    if not each:
        return 0 if room.unused else len(going) if len(going) == pods else inf
    if each > room.total:
        return inf
    if room.whole:
        return 1 if 0 in going else inf
    lacking, number = each - room.free, 0
    for shares in sorted(going, reverse=True):
        if lacking <= 0:
            break
        lacking, number = lacking - shares, number + 1
    return inf if lacking > 0 else number


def _for_amounts(amounts: Amounts, site: Site, going: Iterable[Tenant]) -> float:
    """Return how many pods have to leave for CPU and memory alone."""
    left = site.node.left
    if left is None:
        return 0
    pods = [tenant.amounts for tenant in going]
    cpu = _until(amounts.cpu_milli - left.cpu_milli, [each.cpu_milli for each in pods])
    return max(cpu, _until(amounts.memory_mib - left.memory_mib, [each.memory_mib for each in pods]))


def _until(lacking: int, amounts: Iterable[int]) -> float:
    """Return how many amounts, the largest first, give back what is lacking."""
    number = 0
    for amount in sorted(amounts, reverse=True):
        if lacking <= 0:
            break
        lacking, number = lacking - amount, number + 1
    return inf if lacking > 0 else number

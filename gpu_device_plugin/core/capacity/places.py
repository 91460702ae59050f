"""What plans of moves are for; the places of a pod on one node, and how many pods have to leave before it has one."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from math import ceil, inf
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.cluster.fitting import allowed, by_claims, unfit, unfit_by_kind, without
from gpu_device_plugin.core.cluster.packing import groups, order
from gpu_device_plugin.model.placing import POLICIES, Unplaceable, fits_kind, place
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.capacity.movable import Resident, Site
    from gpu_device_plugin.core.cluster.packing import Packer
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.model.placing import Demand, Placement, Room

_BINPACK = POLICIES["binpack"]
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Fits:
    """The goal that a pod has room on one of the nodes that its own terms allow."""

    ask: Ask
    amounts: Amounts = NO_AMOUNTS
    nodes: frozenset[str] | None = None
    """None: all."""
    priority: int | None = None
    """Pods of a higher one are not moved for it; None: any may be."""

    def allows(self, site: Site) -> bool:
        """Return whether the pod may go to a node, whatever room it has."""
        return site.open and (self.nodes is None or site.node.name in self.nodes)


@dataclass(frozen=True, slots=True)
class NodesFree:
    """The goal that this many nodes have no pods on their GPUs."""

    number: int


@dataclass(frozen=True, slots=True)
class PodsGone:
    """The goal that pods of a node have left their GPUs, for others of the node or of others."""

    node: str
    uids: frozenset[str]


Goal: TypeAlias = Fits | NodesFree | PodsGone


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
    if isinstance(best, Unplaceable):
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


def fewest_leaving(want: Fits, site: Site, may_go: Callable[[Resident], bool], spread: int, packer: Packer) -> float:
    """Return a number of pods without which to leave a pod has no room on a node; 0: it has room; `inf`: it never has.

    It is at most one less after a pod has left, and no less after one has come. `spread` is the most GPUs that a pod
    of the cluster has, now or after a move.
    """
    if not want.allows(site):
        return inf
    node = site.node
    why = unfit(want.ask, node, packer)
    enough = covers(site, want.amounts)
    if why is None and enough:
        return 0
    if why is not None and why.unresolvable:
        return inf
    going = frozenset(filter(may_go, site.residents))
    needed = [1.0]
    if node.left is not None:
        needed.append(_for_amounts(want.amounts, node.left, going))
    if why is not None:
        on_gpus = _on_gpus(site, going)
        rooms = [(room, *on_gpus[room.position]) for room in allowed(want.ask, node) if room.healthy]
        needed += [_for_demand(part.demand, rooms, spread) for part in want.ask.parts]
    return max(needed)


def _on_gpus(site: Site, going: Collection[Resident]) -> Mapping[int, tuple[list[tuple[int, int]], int]]:
    """Return by position how many pods are there, and of each that may go its shares and on how many GPUs it is.

    Shares of 0 stand for a whole GPU.
    """
    sizes, elsewhere = site.node.gpus.sizes, site.node.gpus.elsewhere
    found: dict[int, list[tuple[int, int]]] = {position: [] for position in sizes}
    pods = dict.fromkeys(sizes, 0)
    for resident in site.residents:
        usage = resident.pod.usage.as_listed(sizes, elsewhere)
        on_each = (*usage.shares, *((at, 0) for at in usage.whole))
        for position, shares in on_each:
            pods[position] += 1
            if resident in going:
                found[position].append((shares, len(on_each)))
    return {position: (found[position], pods[position]) for position in sizes}


def _for_demand(demand: Demand, rooms: Iterable[tuple[Room, list[tuple[int, int]], int]], spread: int) -> float:
    """Return how many pods have to leave for one demand alone."""
    rooms = [on_gpu for on_gpu in rooms if fits_kind(demand, on_gpu[0])]
    if demand.kind is Kind.COUNT:
        # A pod on several GPUs counts once, in equal parts on each.
        return _together(demand.amount, [_for_all(*on_gpu) for on_gpu in rooms])
    each = demand.amount // demand.gpus
    numbers = [_for_shares(each, room, going) for room, going, _ in rooms]
    return _together(demand.gpus, [(number, number / spread) for number in numbers])


def _together(gpus: int, numbers: Sequence[tuple[float, float]]) -> float:
    """Return how many pods have to leave `gpus` GPUs, given how many leave each, and what part of pods that is."""
    found = nsmallest(gpus, numbers)
    if len(found) < gpus or found[-1][0] == inf:
        return inf
    parts = sum(nsmallest(gpus, [part for _, part in numbers]))
    return max(found[-1][0], ceil(parts - _ROUNDING))


def _for_all(room: Room, going: Sequence[tuple[int, int]], pods: int) -> tuple[float, float]:
    """Return how many of the pods on a GPU have to leave for all of it, and what part of pods that is."""
    if room.unused:
        return 0, 0
    return (inf, inf) if len(going) < pods else (len(going), sum(1 / gpus for _, gpus in going))


def _for_shares(each: int, room: Room, going: Iterable[tuple[int, int]]) -> float:
    """Return how many pods have to leave a GPU for so many shares of it, given those that may."""
    if each > room.total:
        return inf
    amounts = [shares for shares, _ in going]
    if room.whole:
        return 1 if 0 in amounts else inf
    return _until(each - room.free, amounts)


def _for_amounts(amounts: Amounts, left: Amounts, going: Iterable[Resident]) -> float:
    """Return how many pods have to leave for CPU and memory alone."""
    pods = [resident.amounts for resident in going]
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

"""Search GPU by GPU for the fewest pods of a node whose removal makes room for a pod.

Two decisions use this search: which pods to evict (`preempting`), and which would have to end (`ends_needed`).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from itertools import accumulate, combinations, islice, product
from math import comb
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import allowed, unfit
from gpu_device_plugin.core.cluster.packing import groups
from gpu_device_plugin.core.cluster.usage import Occupant
from gpu_device_plugin.model.placing import fits_kind
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.cluster.usage import Usage
    from gpu_device_plugin.model.placing import Demand


# A whole group of 4 GPUs has 70 places on a node of 8; 8 of 16 would be 12,870. Of three containers' 512 only the first
# are looked at.
MOST_PLACES = 100
# 5 of 16 pods on one GPU are 4,368 sets, but of six different sizes at most 252 that differ by more than the name.
_MOST_SETS = 300
_MOST_COMPARED = 1000
"""The most sets of one size that are compared; where there are more, the answer may be larger than necessary. A set
takes 0.1 ms."""


@dataclass(eq=False, repr=False)
class VictimSearch:
    """The sets of pods that make room on one node.

    A place is one choice of GPUs for the pod: the shares that it takes of each, by position; 0 for a whole GPU.
    """

    _ask: Ask
    _node: Candidate
    _pods: Iterable[Occupant]
    """Those that count on the node."""
    _: KW_ONLY
    cost: Callable[[Collection[Occupant]], tuple[object, ...]]
    """By it sets are compared: the number of pods, then sums over the pods, then sorted lists."""
    may_go: Callable[[Occupant], bool] = lambda _pod: True
    spend: Callable[[int], None] = lambda _steps: None
    """Takes note of steps, each of about a microsecond; an error that it raises ends the search."""

    def __post_init__(self) -> None:
        self._demands = [part.demand for part in self._ask.parts]
        rooms = {
            room.position: room
            for room in allowed(self._ask, self._node)
            if room.healthy and any(fits_kind(demand, room) for demand in self._demands)
        }
        self.sizes = {position: room.total for position, room in rooms.items()}
        """Shares of each GPU, or MIG instance, that the pod could get, by position."""
        self._rooms = rooms
        listed, elsewhere = self._node.gpus.sizes, self._node.gpus.elsewhere
        self.usages = {
            pod: pod.usage.as_listed(listed, elsewhere) for pod in sorted(self._pods, key=lambda pod: self.cost((pod,)))
        }
        """What each pod takes, the cheapest first."""
        self._shares: dict[int, dict[Occupant, int]] = {position: {} for position in self.sizes}
        """Shares that pods have of each GPU, or may have; none of pods that have all of it."""
        self._whole: dict[int, list[Occupant]] = {position: [] for position in self.sizes}
        """The pods that have each GPU whole."""
        self._whole_somewhere = [pod for pod, usage in self.usages.items() if usage.unplaced_gpus]
        """The pods that have an unknown GPU whole."""
        for pod, usage in self.usages.items():
            self._locate(pod, usage)
        self._in_the_way = cache(self._find_in_the_way)
        self.exact = all(
            len(usage.shares) + len(usage.whole) <= 1 and not usage.unplaced for usage in self.usages.values()
        )
        """Whether no set costs less than the best of `sets`: no pod is on two GPUs, and all places were compared."""

    def sets(self) -> list[frozenset[Occupant]]:
        """Return for each place the pods that have to go, the cheapest set first.

        More pods may have to go where one has an unknown GPU whole.
        """
        sets = set()
        for place in self._places():
            on_each = [self._in_the_way(*at) for at in place.items()]
            if None not in on_each:
                sets.add(frozenset[Occupant]().union(*filter(None, on_each)))
        return sorted(sets, key=self.cost)

    def touching(self, place: Collection[int]) -> list[Occupant]:
        """Return the pods that are on some GPUs, or may be, the cheapest first."""
        return [
            pod
            for pod, usage in self.usages.items()
            if usage.unplaced or any(at in place for at in (*usage.whole, *(at for at, _ in usage.shares)))
        ]

    # --- Where the pod could go ---------------------------------------------------------------------------------------

    def _places(self) -> Iterator[dict[int, int]]:
        for number, chosen in enumerate(product(*map(self._groups, self._demands))):
            if number >= MOST_PLACES // len(self._demands):
                # One demand gets the cheapest GPUs together first.
                self.exact = self.exact and len(self._demands) == 1
                return
            place: dict[int, int] = {}
            self.spend(2 * len(self._demands))
            for demand, group in zip(self._demands, chosen, strict=True):
                each = _each(demand)
                if any(at in place and not (each and place[at]) for at in group):
                    break  # a GPU that is taken whole is not shared
                place.update({at: place.get(at, 0) + each for at in group})
            else:
                yield place

    def _groups(self, demand: Demand) -> Sequence[tuple[int, ...]]:
        """Return the groups of GPUs that one demand could get, first those on which the fewest pods are in the way."""
        found = {at: self._in_the_way(at, _each(demand)) for at, room in self._rooms.items() if fits_kind(demand, room)}
        costs = {at: (self.cost(pods), at) for at, pods in found.items() if pods is not None}
        size = demand.amount if demand.kind is Kind.COUNT else demand.gpus
        # One more than are looked at, so that it shows that there are more.
        return list(islice(combinations(sorted(costs, key=costs.__getitem__), size), MOST_PLACES + 1))

    # --- Which pods are in the way ------------------------------------------------------------------------------------

    def _locate(self, pod: Occupant, usage: Usage) -> None:
        """Note on which GPUs a pod is, so that each GPU is asked for no pods but its own."""
        self.spend(2)
        for position in self.sizes if usage.unplaced_shares else ():
            self._shares[position][pod] = usage.unplaced_shares
        for position, amount in usage.shares:
            if position in self.sizes:
                self._shares[position][pod] = amount + usage.unplaced_shares
        for position in usage.whole:
            if position in self.sizes:
                self._shares[position].pop(pod, None)
                self._whole[position].append(pod)

    def _find_in_the_way(self, position: int, wanted: int) -> frozenset[Occupant] | None:
        """Return which pods have to go for so many shares of a GPU, 0 for all of it; None if that cannot be."""
        shares, size = self._shares[position], self.sizes[position]
        needed = frozenset(
            self._whole[position] if wanted else (*self._whole[position], *shares, *self._whole_somewhere)
        )
        self.spend(len(shares) + len(needed))
        if wanted > size or not all(map(self.may_go, needed)):
            return None
        if not wanted:
            return needed
        lacking = wanted - size + sum(shares.values())
        fewest = self._fewest({pod: amount for pod, amount in shares.items() if self.may_go(pod)}, lacking)
        return None if fewest is None else fewest | needed

    def _fewest(self, shares: Mapping[Occupant, int], lacking: int) -> frozenset[Occupant] | None:
        """Return the fewest pods with so many shares of a GPU; None if all of them have less."""
        # The largest come first, so that the first set is sure to do.
        largest = sorted(shares, key=shares.__getitem__, reverse=True)
        sums = accumulate((shares[pod] for pod in largest), initial=0)
        number = next((n for n, given in enumerate(sums) if given >= lacking), None)
        if number is None:
            return None
        sets = list(islice(groups(alike(largest), number), _MOST_SETS + 1))
        self.exact = self.exact and len(sets) <= _MOST_SETS
        self.spend(len(sets) * (number + 2) // 2)
        return min((frozenset(some) for some in sets if sum(map(shares.__getitem__, some)) >= lacking), key=self.cost)


def alike(pods: Iterable[Occupant]) -> list[list[Occupant]]:
    """Return pods in groups of those that take the same, in the order in which each comes first."""
    found: dict[Usage, list[Occupant]] = {}
    for pod in pods:
        found.setdefault(pod.usage, []).append(pod)
    return list(found.values())


def spared(
    pods: frozenset[Occupant], order: Iterable[Occupant], makes_room: Callable[[frozenset[Occupant]], bool]
) -> frozenset[Occupant]:
    """Return `pods` without those that can stay after all, tried in this order."""
    for pod in order:
        if makes_room(pods - {pod}):
            pods -= {pod}
    return pods


def _each(demand: Demand) -> int:
    """Return the shares that a demand takes of each GPU, 0 for a whole one."""
    return 0 if demand.kind is Kind.COUNT else demand.amount // demand.gpus


@dataclass(frozen=True, slots=True)
class Ends:
    """Pods that make room if all of them end."""

    pods: tuple[Occupant, ...]
    """By namespace and name."""
    shares: int = 0
    """The sum of their shares; an unknown whole GPU counts as the node's largest."""
    fewest: bool = True
    """No smaller set makes room, nor one of this size with less memory; False: not all sets were compared."""


def ends_needed(ask: Ask, node: NodeView) -> Ends | None:
    """Return the pods of `node` that would have to end for `ask` to fit; None if even all of them are not enough."""
    memory = {pod: pod.usage.size(node.candidate.gpus.sizes) for pod in node.pods}

    def fits(ended: Collection[Occupant]) -> bool:
        return unfit(ask, node.candidate.occupied(pod.usage for pod in node.pods if pod not in ended)) is None

    def cost(pods: Collection[Occupant]) -> tuple[object, ...]:
        """Fewest, then least memory, then those being deleted, then the least important, then by name."""
        return (
            len(pods),
            sum(map(memory.__getitem__, pods)),
            sum(not pod.terminating for pod in pods),
            sorted((pod.priority for pod in pods), reverse=True),
            sorted(map(str, pods)),
        )

    if not fits(node.pods):
        return None
    if fits(()):
        return Ends(())
    search = VictimSearch(ask, node.candidate, node.pods, cost=cost)
    best = next(filter(fits, search.sets()), frozenset(node.pods))
    fewest = search.exact
    if not fewest:
        gpus = sum(part.demand.amount if part.demand.kind is Kind.COUNT else part.demand.gpus for part in ask.parts)
        best, fewest = _compared(search, gpus, best, fits, cost)
    return Ends(tuple(sorted(best, key=str)), sum(map(memory.__getitem__, best)), fewest)


def _compared(
    search: VictimSearch,
    gpus: int,
    known: frozenset[Occupant],
    fits: Callable[[Collection[Occupant]], bool],
    cost: Callable[[Collection[Occupant]], tuple[object, ...]],
) -> tuple[frozenset[Occupant], bool]:
    """Compare all sets of pods that might make room, where a search GPU by GPU is not exact.

    The pod gets at most `gpus` GPUs, and pods on none of them can stay.

    Returns:
        The best set and True; or, where there are too many sets, one no worse than `known` and False.
    """
    emptiest_first = sorted(search.sizes, key=lambda at: len(search.touching([at])))
    gpus = min(gpus, len(emptiest_first))
    for first in range(len(emptiest_first) - gpus + 1):
        here = search.touching(emptiest_first[first : first + gpus])
        elsewhere = [pod for pod in search.usages if pod not in here]
        known = min(known, spared(frozenset(search.usages), [*elsewhere, *here], fits), key=cost)
    if comb(len(emptiest_first), gpus) > MOST_PLACES:
        return known, False
    places = [alike(search.touching(place)) for place in combinations(emptiest_first, gpus)]
    size = 0
    while True:  # all pods of some place are enough
        size += 1
        sets: set[frozenset[Occupant]] = set()
        for pods in (pods for place in places for pods in groups(place, size)):
            sets.add(frozenset(pods))
            if len(sets) > _MOST_COMPARED:
                return known, False
        found = next(filter(fits, sorted(sets, key=cost)), None)
        if found is not None:
            return found, True

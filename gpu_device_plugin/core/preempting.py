"""Whom to evict from a node so that a pod of higher priority fits there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, combinations, groupby, islice, product
from typing import TYPE_CHECKING

from gpu_device_plugin.core.candidate import candidate
from gpu_device_plugin.core.fitting import groups, unfit
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate
    from gpu_device_plugin.core.fitting import Unfit
    from gpu_device_plugin.core.nodegpus import ListedGpu
    from gpu_device_plugin.core.placing import Demand
    from gpu_device_plugin.core.usage import Usage

# A whole group of 4 GPUs has 70 places on a node of 8. Of three containers' 512 only the first are looked at.
_MOST_PLACES = 100
# 5 of 16 pods on one GPU are 4,368 sets, but of six different sizes at most 252 that differ by more than the name.
_MOST_SETS = 300
# A request names up to a tenth of a cluster's nodes. Each step takes some microseconds.
_MOST_STEPS = 30_000
_STEPS_OF_A_TRY = 20


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """A pod that counts on a node. It is equal to itself alone, which makes sets of them quick."""

    uid: str
    usage: Usage
    priority: int = 0
    leaving: bool = False
    """It ends anyway, so that nobody has to evict it; its room will be there, if it is not yet."""


def choose_on_each(
    ask: Ask, nodes: Iterable[tuple[Candidate, Collection[Occupant], frozenset[str]]], priority: int
) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """Yield the nodes on which evicting helps, with whom to evict there: as `choose` says, one after the other.

    It ends early where that takes long. Nodes that are left out are none to evict anybody from; any of the others will
    do for a scheduler. At least one node is looked at.

    Args:
        ask: what the pod asks.
        nodes: for each node what `choose` wants to know of it; not asked for further than needed.
        priority: of the pod.
    """
    steps = 0
    for node, occupants, victims in nodes:
        search = _Choice(ask, node)
        found = search.choose(occupants, victims, priority)
        if found is not None:
            yield node, found
        steps += search.steps
        if steps > _MOST_STEPS:
            return


def choose(
    ask: Ask, node: Candidate, occupants: Collection[Occupant], victims: frozenset[str], priority: int
) -> frozenset[str] | None:
    """Return whom to evict from `node` for a pod: `victims` and, where GPUs want it, others besides.

    Of all ways, the one whose most important victim is the least important, then with the fewest, then with the least
    GPU memory, then by uid. It may be another where there are too many to compare, and where a pod lies on several GPUs
    or on unknown ones; but nobody is evicted who could stay.

    Args:
        ask: what the pod asks.
        node: its GPUs; how they are used is taken from `occupants`.
        occupants: all pods that count on it.
        victims: uids of the pods whose eviction makes all other room; the scheduler's choice, and kept.
        priority: of the pod; only pods of a lower one are evicted for it.

    Returns:
        None where evicting does not help, or where there is nobody to evict.
    """
    return _Choice(ask, node).choose(occupants, victims, priority)


class _Choice:
    """Whom to evict from one node, and how long it took to find out."""

    def __init__(self, ask: Ask, node: Candidate) -> None:
        self._ask = ask
        self._node = node
        self.steps = 0

    def choose(self, occupants: Collection[Occupant], victims: frozenset[str], priority: int) -> frozenset[str] | None:
        """As the function `choose`."""
        staying = [pod for pod in occupants if not pod.leaving and pod.uid not in victims]
        why = self._unfit(staying)
        if why is None:
            return victims or None
        if why.lasting:
            return None
        for most in sorted({pod.priority for pod in staying if pod.priority < priority}):
            if self._unfit([pod for pod in staying if pod.priority > most]) is None:
                search = _Search(self._ask, self._node, staying, most, self._unfit)
                more = search.best()
                self.steps += search.sets
                return victims | {pod.uid for pod in more}
        return None

    def _unfit(self, occupants: Collection[Occupant]) -> Unfit | None:
        self.steps += _STEPS_OF_A_TRY
        before = self._node
        usages = [pod.usage for pod in occupants]
        return unfit(self._ask, candidate(before.name, before.gpus, usages, problem=before.problem))


class _Search:
    """The ways to make room on one node by evicting pods up to some priority; to evict all of them helps."""

    def __init__(
        self,
        ask: Ask,
        node: Candidate,
        pods: Sequence[Occupant],
        most: int,
        unfit: Callable[[Collection[Occupant]], Unfit | None],
    ) -> None:
        self._unfit = unfit
        self.sets = 0
        self._ask = ask
        self._node = node
        self._pods = sorted(pods, key=lambda pod: pod.uid)
        self._most = most
        self._sizes = {gpu.position: gpu.shares for gpu in node.gpus.gpus}
        self._memory = {pod: self._held(pod) for pod in self._pods}
        self._known: dict[tuple[int, int], frozenset[Occupant] | None] = {}

    def best(self) -> frozenset[Occupant]:
        """Return whom to evict."""
        sets = {pods for place in self._places() if (pods := self._emptying(place)) is not None}
        # Where pods have GPUs whole of which nobody knows which, these sets may not do.
        everybody = frozenset(pod for pod in self._pods if pod.priority <= self._most)
        return self._at_most(next(filter(self._helps, sorted(sets, key=self._cost)), everybody))

    def _helps(self, pods: frozenset[Occupant]) -> bool:
        return self._unfit([pod for pod in self._pods if pod not in pods]) is None

    def _at_most(self, pods: frozenset[Occupant]) -> frozenset[Occupant]:
        """Return `pods` without those that can stay after all, as where one lies on several GPUs."""
        fewer = pods
        for pod in sorted(pods, key=lambda pod: (-pod.priority, -self._memory[pod], pod.uid)):
            if self._helps(fewer - {pod}):
                fewer -= {pod}
        # Who stays shows of a GPU that it is not the unknown one of somebody else, who may then stay too.
        return pods if fewer == pods else self._at_most(fewer)

    def _cost(self, pods: Collection[Occupant]) -> tuple[int, int, list[str]]:
        return len(pods), sum(self._memory[pod] for pod in pods), sorted(pod.uid for pod in pods)

    # --- Where the pod could go ---------------------------------------------------------------------------------------

    def _places(self) -> Iterator[dict[int, int]]:
        """Yield what the pod could take: shares by position, 0 for a whole GPU."""
        wishes = self._ask.wishes
        gpus = [
            gpu
            for gpu in self._node.gpus.gpus
            if not gpu.unhealthy and wishes.allow_model(gpu.model) and wishes.allow_uuid(gpu.uuid)
        ]
        gpus.sort(key=lambda gpu: (sum(self._touches(pod, gpu.position) for pod in self._pods), gpu.position))
        demands = [part.demand for part in self._ask.parts]
        every = product(*(self._groups(demand, gpus) for demand in demands))
        for place_of_each in islice(every, _MOST_PLACES // len(demands)):
            place: dict[int, int] = {}
            for demand, group in zip(demands, place_of_each, strict=True):
                each = 0 if demand.kind is Kind.COUNT else demand.amount // demand.gpus
                if any(gpu.position in place and not (each and place[gpu.position]) for gpu in group):
                    break  # what is taken whole is not shared
                place.update({gpu.position: place.get(gpu.position, 0) + each for gpu in group})
            else:
                yield place

    def _groups(self, demand: Demand, gpus: Sequence[ListedGpu]) -> Iterator[tuple[ListedGpu, ...]]:
        size = demand.amount if demand.kind is Kind.COUNT else demand.gpus
        return islice(combinations(gpus, size), _MOST_PLACES)

    # --- Who is in the way --------------------------------------------------------------------------------------------

    def _emptying(self, place: dict[int, int]) -> frozenset[Occupant] | None:
        """Return whom to evict for so many shares of these GPUs; None if somebody in the way is too important."""
        pods: set[Occupant] = set()
        for at in place.items():
            if at not in self._known:
                self._known[at] = self._making_room(*at)
            found = self._known[at]
            if found is None:
                return None
            pods |= found
        return frozenset(pods)

    def _making_room(self, position: int, wanted: int) -> frozenset[Occupant] | None:
        if not wanted:
            return self._if_allowed(pod for pod in self._pods if self._touches(pod, position))
        whole = self._if_allowed(pod for pod in self._pods if position in pod.usage.whole)
        if whole is None or self._sizes[position] < wanted:
            return None
        rest = [pod for pod in self._pods if pod not in whole and self._shares(pod, position)]
        lacking = wanted - self._sizes[position] + sum(self._shares(pod, position) for pod in rest)
        fewest = self._fewest([pod for pod in rest if pod.priority <= self._most], position, lacking)
        return None if fewest is None else whole | fewest

    def _fewest(self, pods: list[Occupant], position: int, lacking: int) -> frozenset[Occupant] | None:
        """Return the fewest of some pods that give back so many shares of a GPU, None if all of them do not."""
        shares = {pod: self._shares(pod, position) for pod in pods}

        def size(pod: Occupant) -> tuple[int, int]:
            return -shares[pod], self._memory[pod]

        largest = sorted(pods, key=lambda pod: (*size(pod), pod.uid))
        sums = accumulate((shares[pod] for pod in largest), initial=0)
        number = next((n for n, given in enumerate(sums) if given >= lacking), None)
        if number is None:
            return None
        # The largest come first, so that what is left out is no set that is sure to do.
        sets = list(islice(groups([list(alike) for _, alike in groupby(largest, size)], number), _MOST_SETS))
        self.sets += len(sets)
        return min((frozenset(some) for some in sets if sum(map(shares.__getitem__, some)) >= lacking), key=self._cost)

    def _if_allowed(self, pods: Iterable[Occupant]) -> frozenset[Occupant] | None:
        wanted = frozenset(pods)
        return wanted if all(pod.priority <= self._most for pod in wanted) else None

    # --- What a pod takes. What lies nobody knows where may lie on any GPU --------------------------------------------

    def _touches(self, pod: Occupant, position: int) -> bool:
        return bool(self._shares(pod, position) or position in pod.usage.whole or self._loose_gpus(pod))

    def _shares(self, pod: Occupant, position: int) -> int:
        usage = pod.usage
        here = sum(shares for at, shares in usage.shares if at == position or at not in self._sizes)
        return here + usage.unplaced_shares

    def _loose_gpus(self, pod: Occupant) -> int:
        return pod.usage.unplaced_gpus + sum(at not in self._sizes for at in pod.usage.whole)

    def _held(self, pod: Occupant) -> int:
        """Return the shares of a pod; an unknown GPU counts like the largest."""
        usage, largest = pod.usage, max(self._sizes.values())
        shares = usage.unplaced_shares + sum(shares for _, shares in usage.shares)
        return shares + sum(self._sizes.get(at, largest) for at in usage.whole) + usage.unplaced_gpus * largest

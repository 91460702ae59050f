"""Which pods of a node would have to end for a pod to fit there: as few as possible, then with as little memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import allowed, groups, unfit
from gpu_device_plugin.core.cluster.victims import MOST_PLACES, Occupant, alike, find_victims, spared
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.nodeview import NodeView, PodUse

_MOST_SETS = 1000
"""So many sets of one size are compared; where there are more, the answer may be larger than it has to be. A set takes
a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Pods whose end, together, makes room."""

    pods: tuple[PodUse, ...]
    """By namespace and name."""
    shares: int = 0
    """What they have together; an unknown whole GPU counts as large as the largest."""
    fewest: bool = True
    """No smaller set does, and none of this size with less memory; False: nobody has compared them all."""


def ends_needed(ask: Ask, node: NodeView) -> Ends | None:
    """Return the pods of `node` that would have to end for `ask` to fit; None if even all of them are not enough."""
    before = node.candidate
    sizes = {gpu.position: gpu.shares for gpu in before.gpus.gpus}
    views = {Occupant(str(pod), pod.usage, pod.priority, pod.deleting): pod for pod in node.pods}
    memory = {pod: pod.usage.size(sizes) for pod in views}

    def fits(ended: Collection[Occupant]) -> bool:
        usages = [pod.usage for pod in views if pod not in ended]
        return unfit(ask, candidate(before.name, before.gpus, usages)) is None

    def cost(pods: Collection[Occupant]) -> tuple[object, ...]:
        """Fewest, then least memory, then those being deleted, then the least important, then by name."""
        return (
            len(pods),
            sum(map(memory.__getitem__, pods)),
            sum(not pod.terminating for pod in pods),
            sorted((pod.priority for pod in pods), reverse=True),
            sorted(pod.uid for pod in pods),
        )

    if not fits(views):
        return None
    if fits(()):
        return Ends(())
    victims = find_victims(ask, before, views, cost=cost)
    best, fewest = next(filter(fits, sorted(victims.sets, key=cost)), frozenset(views)), victims.exact
    if not fewest:
        comparison = _Comparison(ask, before, views, fits, cost)
        best, fewest = comparison.best(min(best, *comparison.left_over(), key=cost))
    pods = sorted(best, key=lambda pod: pod.uid)
    return Ends(tuple(views[pod] for pod in pods), sum(map(memory.__getitem__, pods)), fewest)


class _Comparison:
    """All sets of pods that might make room, where it is not enough to look at one GPU after the other."""

    def __init__(
        self,
        ask: Ask,
        node: Candidate,
        pods: Collection[Occupant],
        fits: Callable[[Collection[Occupant]], bool],
        cost: Callable[[Collection[Occupant]], tuple[object, ...]],
    ) -> None:
        listed = {gpu.position for gpu in node.gpus.gpus}
        self._usages = {pod: pod.usage.as_listed(listed) for pod in sorted(pods, key=lambda pod: cost((pod,)))}
        self._fits = fits
        self._cost = cost
        serving = [room.position for room in allowed(ask, node) if room.healthy]
        demands = [part.demand for part in ask.parts]
        gpus = sum(demand.amount if demand.kind is Kind.COUNT else demand.gpus for demand in demands)
        self._wanted = min(gpus, len(serving))
        """The pod gets at most so many GPUs. Pods that are on none of them can stay."""
        self._emptiest_first = sorted(serving, key=lambda at: len(self._touching([at])))

    def left_over(self) -> Iterator[frozenset[Occupant]]:
        """Yield for some places which pods have to end if all end but those for which the new pod leaves room there."""
        for first in range(len(self._emptiest_first) - self._wanted + 1):
            here = self._touching(self._emptiest_first[first : first + self._wanted])
            elsewhere = [pod for pod in self._usages if pod not in here]
            yield spared(frozenset(self._usages), [*elsewhere, *here], self._fits)

    def best(self, known: frozenset[Occupant]) -> tuple[frozenset[Occupant], bool]:
        """Return the best set, True; or one that is known to make room, False, where there are too many to compare."""
        if comb(len(self._emptiest_first), self._wanted) > MOST_PLACES:
            return known, False
        places = [self._touching(place) for place in combinations(self._emptiest_first, self._wanted)]
        size, sets = 1, self._sets(1, places)
        while size <= len(known) and len(sets) <= _MOST_SETS:
            found = next(filter(self._fits, sorted(sets, key=self._cost)), None)
            if found is not None:
                return found, True
            size += 1
            sets = self._sets(size, places)
        return known, False

    @staticmethod
    def _sets(size: int, places: Sequence[Sequence[Occupant]]) -> set[frozenset[Occupant]]:
        """Return the sets of so many pods that might make room, of sets that take the same only the cheapest."""
        sets: set[frozenset[Occupant]] = set()
        for place in places:
            for pods in groups(alike(place), size):
                sets.add(frozenset(pods))
                if len(sets) > _MOST_SETS:
                    return sets
        return sets

    def _touching(self, place: Collection[int]) -> list[Occupant]:
        """Return the pods that are on some GPUs, or may be, the cheapest first."""
        return [
            pod
            for pod, usage in self._usages.items()
            if usage.unplaced or any(at in place for at in (*usage.whole, *(at for at, _ in usage.shares)))
        ]

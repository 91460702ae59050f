"""Find the fewest pods of a node, then those with the least memory, whose end would make room for a pod."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.packing import groups
from gpu_device_plugin.core.cluster.victims import MOST_PLACES, VictimSearch, alike, spared
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.nodeview import NodeView
    from gpu_device_plugin.core.cluster.usage import Occupant

_MOST_SETS = 1000
"""The most sets of one size that are compared; where there are more, the answer may be larger than necessary. A set
takes 0.1 ms."""


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
    before = node.candidate
    memory = {pod: pod.usage.size(before.gpus.sizes) for pod in node.pods}

    def fits(ended: Collection[Occupant]) -> bool:
        usages = [pod.usage for pod in node.pods if pod not in ended]
        return unfit(ask, candidate(before.name, before.gpus, usages)) is None

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
    search = VictimSearch(ask, before, node.pods, cost=cost)
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
            if len(sets) > _MOST_SETS:
                return known, False
        found = next(filter(fits, sorted(sets, key=cost)), None)
        if found is not None:
            return found, True

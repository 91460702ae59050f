"""How well a node suits a pod among those on which it fits, 0 to 10, by policy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import summary
from gpu_device_plugin.core.cluster.fitting import allowed, unfit
from gpu_device_plugin.core.model.gpus import Closeness
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.model.gpus import Links

MOST = 10
"""The highest score that kube-scheduler expects of an extender."""

_FULLNESS = 6
"""How much of the score of `binpack` says how full the node gets; the rest says what the pod spoils there."""
_CLOSEST = max(Closeness) * 100
_MOST_GROUPS = 70
"""So many groups of GPUs are compared: 4 of 8."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pod asks, as a score sees it."""

    memory: tuple[tuple[int, int], ...]
    """(shares of each GPU, GPUs) of each part that asks for memory."""
    counts: tuple[tuple[int, int], ...]
    """(GPUs, pairs of them, at least 1) of each part that asks for whole GPUs."""
    shares: int
    """For memory, in all."""
    whole: int
    """GPUs, in all."""
    spoilable: int
    """How many the pod could spoil: GPUs for memory, and pairs of whole ones."""

    def full(self, used: int, total: int, healthy: int) -> float:
        """Return how much of a node is in use when the pod is there, 0 to 1, by its shares and its healthy GPUs.

        A whole GPU counts as the average one.
        """
        return min(1.0, (used + self.shares) / total + self.whole / healthy)


def wanted(ask: Ask) -> Wanted:
    """Return what a pod asks."""
    demands = [part.demand for part in ask.parts]
    memory = tuple((demand.amount // demand.gpus, demand.gpus) for demand in demands if demand.kind is Kind.MEMORY)
    counts = tuple((demand.amount, max(1, comb(demand.amount, 2))) for demand in demands if demand.kind is Kind.COUNT)
    return Wanted(
        memory,
        counts,
        shares=sum(each * gpus for each, gpus in memory),
        whole=sum(amount for amount, _ in counts),
        spoilable=sum(gpus for _, gpus in memory) + sum(pairs for _, pairs in counts),
    )


def score(ask: Ask, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return how well a node suits a pod; 0 also where it does not fit.

    Args:
        ask: what the pod asks.
        node: the node with what is taken of it.
        node_policy: `binpack` or `spread`, where the pod does not say.
        gpu_policy: which GPU is preferred, where neither pod nor node says.
    """
    return 0 if unfit(ask, node) is not None else score_of_fit(ask, node, node_policy, gpu_policy)


def score_of_fit(ask: Ask, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return `score` of a node on which the pod fits.

    `spread` likes nodes by what remains free. `binpack` likes full nodes, and among these the ones on which memory
    comes from GPUs that are in shared use already, and whole GPUs are well connected. Each part of a pod is looked at
    as if it were alone, so that nothing need be placed for it.
    """
    numbers, wish = node.summary, wanted(ask)
    if not numbers.total or not wish.spoilable:
        return 0
    full = wish.full(numbers.used, numbers.total, len(numbers.sizes))
    numbers = summary(allowed(ask, node)) if ask.wishes.choosy else numbers
    packs = (ask.wishes.gpu_policy or node.gpus.policy or gpu_policy) == "binpack"
    spared = 0.0
    for each, gpus in wish.memory:
        # binpack takes GPUs in use before others, another policy once there are no unused ones left.
        fitting = sum(free >= each for free in numbers.shared[:gpus])
        spared += fitting if packs else max(0, gpus - len(numbers.unused))
    for amount, pairs in wish.counts:
        spared += pairs * connected(node.gpus.links, numbers.unused, amount)
    return score_for(ask.wishes.node_policy or node_policy, full, spared / wish.spoilable)


def score_for(policy: str, full: float, spared: float) -> int:
    """Return the score of a node that gets this full, where the pod spoils nothing (1), all (0) or some of it."""
    if policy == "spread":
        return round(MOST * (1 - full))
    return round(_FULLNESS * full + (MOST - _FULLNESS) * spared)


def connected(links: Links, unused: Sequence[int], amount: int) -> float:
    """Return how well the best connected of the groups of so many GPUs is, 0 to 1; more NVLinks count no more than one.

    One GPU alone is connected as well as can be. Where there are many groups, one is built from the closest two.
    """
    if amount == 1:
        return 1.0
    if comb(len(unused), amount) > _MOST_GROUPS:
        unused = _grown(links, unused, amount)
    inside = max(_inside(links, group) for group in combinations(unused, amount))
    return inside / (_CLOSEST * comb(amount, 2))


def _inside(links: Links, group: Iterable[int]) -> int:
    return sum(min(_CLOSEST, links.connection(a, b)) for a, b in combinations(group, 2))


def _grown(links: Links, unused: Sequence[int], amount: int) -> Sequence[int]:
    group: tuple[int, ...] = max(combinations(unused, 2), key=lambda pair: _inside(links, pair))
    gained = {gpu: sum(_inside(links, (gpu, member)) for member in group) for gpu in unused if gpu not in group}
    while len(group) < amount:
        best = max(gained, key=gained.__getitem__)
        del gained[best]
        group = (*group, best)
        gained = {gpu: worth + _inside(links, (gpu, best)) for gpu, worth in gained.items()}
    return group

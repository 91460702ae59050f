"""Score the nodes on which a pod fits from 0 to 10, by policy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.cluster.candidate import summary
from gpu_device_plugin.core.cluster.fitting import allowed, by_claims, gpu_policy_of, unfit
from gpu_device_plugin.core.model.gpus import Closeness
from gpu_device_plugin.core.model.placing import closest
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate, Summary
    from gpu_device_plugin.core.model.gpus import Links

MOST = 10
"""The highest score that kube-scheduler expects of an extender."""
MIDDLE = MOST // 2
"""The score of a node on which kube-scheduler allocates the pod's GPUs: we do not know how full it is."""

Fill: TypeAlias = "tuple[int, int, int, int]"
"""Of a node the shares in use, all shares, its GPUs and the shares of these without those of MIG instances, as far as
they are healthy."""

_FULLNESS = 6
"""The part of the `binpack` score that measures how full the node gets; the rest measures what the pod spoils."""
_CLOSEST = max(Closeness) * 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod's demand in the numbers that its score depends on."""

    memory: tuple[tuple[int, int], ...]
    """(shares of each GPU, GPUs) of each part that asks for memory."""
    counts: tuple[tuple[int, int], ...]
    """(GPUs, pairs of them, at least 1) of each part that asks for whole GPUs."""
    shares: int
    """The sum of all shares that it asks for."""
    whole: int
    """The sum of all whole GPUs that it asks for."""
    spoilable: int
    """The units that the pod could spoil: GPUs for memory, and pairs of whole ones."""

    def full(self, fill: Fill) -> float:
        """Return the used fraction of a node once the pod is there, 0 to 1. A whole GPU counts as the average one."""
        used, total, gpus, on_gpus = fill
        whole = self.whole / gpus * (on_gpus / total) if self.whole else 0.0
        return min(1.0, (used + self.shares) / total + whole)


def wanted(ask: Ask) -> Wanted:
    """Return a pod's demand as its score needs it."""
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
        ask: the pod's demand.
        node: the node with its free room.
        node_policy: a name in `POLICIES`, where the pod does not say.
        gpu_policy: which GPU is preferred, where neither pod nor node says.
    """
    return 0 if unfit(ask, node) is not None else score_of_fit(ask, node, node_policy, gpu_policy)


def score_of_fit(ask: Ask, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return `score` of a node on which the pod fits.

    `spread` prefers nodes by the fraction that remains free. `binpack` prefers full nodes, and among these the ones
    whose memory comes from GPUs that are already in shared use, and whose whole GPUs are well connected; so does `fit`
    before anything is learned. Each part of a pod is scored as if it were alone, so that no placement is necessary.
    """
    if by_claims(ask, node):
        return MIDDLE
    numbers, wish = node.summary, wanted(ask)
    if not numbers.total or not wish.spoilable:
        return 0
    full = wish.full(fill_of(numbers))
    numbers = summary(allowed(ask, node)) if ask.wishes.choosy else numbers
    packs = gpu_policy_of(ask, node, gpu_policy) != "spread"
    spared = 0.0
    for each, gpus in wish.memory:
        # binpack takes GPUs in use before others, another policy once there are no unused ones left.
        shared = numbers.shared if gpus == 1 else numbers.gpus.shared
        fitting = sum(free >= each for free in shared[:gpus])
        spared += fitting if packs else max(0, gpus - len(numbers.unused))
    for amount, pairs in wish.counts:
        spared += pairs * connected(node.gpus.links, numbers.unused, amount)
    return score_for(ask.wishes.node_policy or node_policy, full, spared / wish.spoilable)


def fill_of(numbers: Summary) -> Fill:
    """Return what decides how full a node is."""
    return numbers.used, numbers.total, len(numbers.gpus.sizes), numbers.gpus.total


def score_for(policy: str, full: float, spared: float) -> int:
    """Return the score of a node by its used fraction, and by the fraction of spoilable units that the pod spares."""
    if policy == "spread":
        return round(MOST * (1 - full))
    return round(_FULLNESS * full + (MOST - _FULLNESS) * spared)


def connected(links: Links, unused: Sequence[int], amount: int) -> float:
    """Return how well the group of `amount` GPUs that a pod would get is connected, 0 to 1; one GPU alone scores 1.

    Several NVLinks between two GPUs count as one.
    """
    if amount == 1:
        return 1.0
    group = closest(unused, amount, links.connection)
    inside = sum(min(_CLOSEST, links.connection(a, b)) for a, b in combinations(group, 2))
    return inside / (_CLOSEST * comb(amount, 2))

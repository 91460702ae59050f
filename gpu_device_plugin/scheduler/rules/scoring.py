"""Score the nodes on which a pod fits from 0 to 10, by policy."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from itertools import combinations
from math import comb
from typing import TypeAlias

from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.placing import closest
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, Summary, summary
from gpu_device_plugin.scheduler.rules.fitting import allowed, by_claims, gpu_policy_of
from gpu_device_plugin.scheduler.rules.packing import Effort
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

MOST = 10
"""The highest score that kube-scheduler expects of an extender."""
MIDDLE = MOST // 2
"""The score of a node on which kube-scheduler allocates the pod's GPUs: we do not know how full it is."""

_FULLNESS = 6
"""The part of the `binpack` score that measures how full the node gets; the rest measures what the pod spoils."""
_CLOSEST = max(Closeness) * 100
_STEPS_OF_A_GROUP = 5
"""The cost of finding the best connected group of GPUs, in steps of `Effort`."""
_STEPS_OF_A_NODE = 1
"""The cost of looking at each GPU of a node of which a pod may have some."""
_MOST_GROUPS = 10_000
"""The most groups of GPUs whose connection is cached."""

Groups: TypeAlias = "MutableMapping[tuple[Links, tuple[int, ...], int], float]"
"""How well groups of GPUs are connected, by the links and unused GPUs of a node and the number that is taken."""


class Scorer:
    """Scores nodes on which one pod fits, from 0 to 10.

    `spread` prefers nodes by the fraction that remains free. `binpack` prefers full nodes, and among these the ones
    whose memory comes from GPUs that are already in shared use, and whose whole GPUs are well connected; so does `fit`
    before anything is learned. Each part of a pod is scored as if it were alone, so that no placement is necessary.
    """

    def __init__(
        self, ask: GpuRequest, node_policy: str, gpu_policy: str, effort: Effort, groups: Groups | None = None
    ) -> None:
        """Score for one pod, by these policies where neither pod nor node says.

        `effort` limits what needs time: to compare links between GPUs, and to look at each GPU that is allowed.
        `groups` keeps what was compared for other pods too.
        """
        self._ask = ask
        self._policy = ask.selector.node_policy or node_policy
        self._gpu_policy = gpu_policy
        self._effort = effort
        demands = ask.demands
        memory, whole = ([demand for demand in demands if demand.kind is kind] for kind in (Kind.MEMORY, Kind.COUNT))
        self._memory = [(demand.amount // demand.gpus, demand.gpus) for demand in memory]
        """(shares of each GPU, GPUs) of each part that asks for memory."""
        self._counts = [(demand.amount, max(1, comb(demand.amount, 2))) for demand in whole]
        """(GPUs, pairs of them, at least 1) of each part that asks for whole GPUs."""
        self._shares = sum(each * gpus for each, gpus in self._memory)
        self._whole = sum(amount for amount, _ in self._counts)
        self._spoilable = sum(gpus for _, gpus in self._memory) + sum(pairs for _, pairs in self._counts)
        """The units that the pod could spoil: GPUs for memory, and pairs of whole ones."""
        self._groups: Groups = {} if groups is None else groups

    def score(self, node: Candidate) -> int:
        """Return how well a node suits the pod. Raises TooLongError once there is no time to look closer."""
        numbers = node.summary
        if (rooms := allowed(self._ask, node)) is not node.rooms:
            self._effort.check()
            self._effort.spend(_STEPS_OF_A_NODE)
            numbers = summary(rooms)
        return self._score(node, numbers, self._compared)

    def estimate(self, node: Candidate) -> int:
        """Return the score as if all GPUs of the node were allowed, and none connected with another."""
        return self._score(node, node.summary, lambda _links, _unused, _amount: 0.0)

    def _score(
        self, node: Candidate, numbers: Summary, connection: Callable[[Links, tuple[int, ...], int], float]
    ) -> int:
        if by_claims(self._ask, node):
            return MIDDLE
        if not node.summary.total or not self._spoilable:
            return 0
        full = self._full(node.summary)
        if self._policy == "spread":
            return round(MOST * (1 - full))
        spared = 0.0
        packs = gpu_policy_of(self._ask, node, self._gpu_policy) != "spread"
        for each, gpus in self._memory:
            # binpack takes GPUs in use before others, another policy once there are no unused ones left.
            shared = numbers.shared if gpus == 1 else numbers.gpus.shared
            spared += sum([free >= each for free in shared[:gpus]]) if packs else max(0, gpus - len(numbers.unused))
        for amount, pairs in self._counts:
            spared += pairs * connection(node.gpus.links, numbers.unused, amount)
        return round(_FULLNESS * full + (MOST - _FULLNESS) * (spared / self._spoilable))

    def _full(self, numbers: Summary) -> float:
        """Return the used fraction of a node once the pod is there, 0 to 1. A whole GPU counts as the average one."""
        gpus = numbers.gpus
        whole = self._whole / len(gpus.sizes) * (gpus.total / numbers.total) if self._whole else 0.0
        return min(1.0, (numbers.used + self._shares) / numbers.total + whole)

    def _compared(self, links: Links, unused: tuple[int, ...], amount: int) -> float:
        if amount > 1 and (links, unused, amount) not in self._groups:
            self._effort.check()
            self._effort.spend(_STEPS_OF_A_GROUP)
        return connected(links, unused, amount, self._groups)


def connected(links: Links, unused: tuple[int, ...], amount: int, groups: Groups) -> float:
    """Return how well the group of `amount` GPUs that a pod would get is connected, 0 to 1; one GPU alone scores 1.

    Several NVLinks between two GPUs count as one. `groups` are those compared already, to which this one is added.
    """
    if amount == 1:
        return 1.0
    found = groups.get((links, unused, amount))
    if found is None:
        if len(groups) >= _MOST_GROUPS:
            groups.clear()
        group = closest(unused, amount, links.connection)
        inside = sum(min(_CLOSEST, links.connection(a, b)) for a, b in combinations(group, 2))
        found = groups[links, unused, amount] = inside / (_CLOSEST * comb(amount, 2))
    return found

"""Choose few pods of a node whose removal makes room for a pod, GPU by GPU.

Three decisions use it: which pods to evict (`preempting`), to move (`capacity.plans`), and which would have to end. It
is greedy, as kube-scheduler is: where pods lie on several GPUs, another set may be a little smaller.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import allowed, unfit
from gpu_device_plugin.core.cluster.packing import order
from gpu_device_plugin.model.placing import fits_kind
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.model.placing import Demand

    Pods = frozenset[Occupant]


@dataclass(eq=False, repr=False)
class VictimSearch:
    """The sets of pods that make room on one node."""

    _ask: Ask
    _node: Candidate
    _pods: Iterable[Occupant]
    """Those that count on the node."""
    _: KW_ONLY
    cost: Callable[[Collection[Occupant]], tuple[object, ...]]
    """By it sets are compared."""
    may_go: Callable[[Occupant], bool] = lambda _pod: True

    def __post_init__(self) -> None:
        demands = [part.demand for part in self._ask.parts]
        self._demands = [demands[n] for n in order(demands)]
        self._rooms = {room.position: room for room in allowed(self._ask, self._node) if room.healthy}
        self._shares: dict[int, dict[Occupant, int]] = {position: {} for position in self._rooms}
        """Shares that pods have of each GPU, or may have, the cheapest first; none of pods that have all of it."""
        self._whole: dict[int, list[Occupant]] = {position: [] for position in self._rooms}
        """The pods that have each GPU whole."""
        self._whole_somewhere: list[Occupant] = []
        """The pods that have an unknown GPU whole."""
        for pod in sorted(self._pods, key=lambda pod: self.cost((pod,))):
            self._locate(pod)
        self._in_the_way = cache(self._find_in_the_way)

    def _locate(self, pod: Occupant) -> None:
        """Note on which GPUs a pod is, so that each GPU is asked for no pods but its own."""
        usage = pod.usage.as_listed(self._node.gpus.sizes, self._node.gpus.elsewhere)
        if usage.unplaced_gpus:
            self._whole_somewhere.append(pod)
        for position in self._rooms if usage.unplaced_shares else ():
            self._shares[position][pod] = usage.unplaced_shares
        for position, amount in usage.shares:
            if position in self._rooms:
                self._shares[position][pod] = amount + usage.unplaced_shares
        for position in usage.whole:
            if position in self._rooms:
                self._shares[position].pop(pod, None)
                self._whole[position].append(pod)

    def sets(self) -> dict[Pods, Collection[int]]:
        """Return for each GPU the pods that have to go so that the pod gets some of it, and all GPUs it gets then.

        The cheapest set comes first. More pods may have to go where one has an unknown GPU whole.
        """
        found: dict[Pods, Collection[int]] = {}
        for first in self._rooms:
            pods: Pods | None = frozenset()
            taken: dict[int, int] = {}
            for n, demand in enumerate(self._demands):
                pods = None if pods is None else self._with(demand, pods, taken, None if n else first)
            if pods is not None:
                found.setdefault(pods, taken.keys())
        return {pods: found[pods] for pods in sorted(found, key=self.cost)}

    def _with(self, demand: Demand, pods: Pods, taken: dict[int, int], first: int | None) -> Pods | None:
        """Return `pods` with those that go for one demand, GPU by GPU, beginning with `first`; note what is `taken`.

        By position the shares that are taken of each GPU, 0 for all of it. None: that cannot be.
        """
        whole = demand.kind is Kind.COUNT
        each = 0 if whole else demand.amount // demand.gpus
        mine: set[int] = set()
        for _ in range(demand.amount if whole else demand.gpus):
            ways = [
                (pods | more, at)
                for at, room in self._rooms.items()
                if at not in mine
                and fits_kind(demand, room)
                and (at not in taken or (each and taken[at]))  # a GPU that is taken whole is not shared
                and (more := self._in_the_way(at, taken.get(at, 0) + each)) is not None
            ]
            ways = [way for way in ways if first in {None, way[1]}]
            if not ways:
                return None
            pods, at = min(ways, key=lambda way: (self.cost(way[0]), way[1]))
            taken[at] = taken.get(at, 0) + each
            mine.add(at)
            first = None
        return pods

    def _find_in_the_way(self, position: int, wanted: int) -> Pods | None:
        """Return which pods have to go for so many shares of a GPU, 0 for all of it; None if that cannot be."""
        shares, size = self._shares[position], self._rooms[position].total
        needed = [*self._whole[position], *(() if wanted else (*shares, *self._whole_somewhere))]
        if wanted > size or not all(map(self.may_go, needed)):
            return None
        lacking = wanted - size + sum(shares.values()) if wanted else 0
        fewest = _fewest({pod: amount for pod, amount in shares.items() if self.may_go(pod)}, lacking)
        return None if fewest is None else frozenset((*needed, *fewest))


def _fewest(shares: Mapping[Occupant, int], lacking: int) -> list[Occupant] | None:
    """Return the fewest pods with so many shares of a GPU, and hardly more; None if all of them have less."""
    smallest = sorted(shares, key=lambda pod: shares[pod])
    taken: list[Occupant] = []
    spare = -lacking
    for pod in sorted(shares, key=lambda pod: -shares[pod]):
        if spare >= 0:
            break
        taken.append(pod)
        spare += shares[pod]
    if spare < 0:
        return None
    for n in reversed(range(len(taken))):
        for other in smallest:
            less = shares[taken[n]] - shares[other]
            if 0 < less <= spare and other not in taken:
                taken[n], spare = other, spare - less
                break
    return taken


def spared(pods: Pods, order: Sequence[Occupant], makes_room: Callable[[Pods], bool]) -> Pods:
    """Return `pods` without those that can stay after all, tried in this order."""
    fewer = pods
    for pod in order:
        if pod in fewer and makes_room(fewer - {pod}):
            fewer -= {pod}
    # A pod that stays shows of a GPU that it is not the unknown one of another pod, which may then stay too.
    return pods if fewer == pods else spared(fewer, order, makes_room)


@dataclass(frozen=True, slots=True)
class Ends:
    """Pods that make room if all of them end."""

    pods: tuple[Occupant, ...]
    """By namespace and name."""
    shares: int = 0
    """The sum of their shares; an unknown whole GPU counts as the node's largest."""


def ends_needed(ask: Ask, node: NodeView) -> Ends | None:
    """Return few pods of `node` that would have to end for `ask` to fit; None if even all of them are not enough.

    Preferred are fewer, then those with less memory, then those being deleted, then less important ones.
    """
    memory = {pod: pod.usage.size(node.candidate.gpus.sizes) for pod in node.pods}

    def fits(ended: Collection[Occupant]) -> bool:
        return unfit(ask, node.candidate.occupied(pod.usage for pod in node.pods if pod not in ended)) is None

    def cost(pods: Collection[Occupant]) -> tuple[object, ...]:
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
    best = spared(best, sorted(best, key=lambda pod: cost((pod,)), reverse=True), fits)
    return Ends(tuple(sorted(best, key=str)), sum(map(memory.__getitem__, best)))

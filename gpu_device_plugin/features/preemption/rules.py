"""Choose few pods of a node whose removal makes room for a pod, GPU by GPU.

Three decisions use the search: which pods would have to end, which to evict for one of higher priority, and which to
move (`capacity.plans`). It is greedy, as kube-scheduler is: where pods lie on several GPUs, another set may be a little
smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property

from gpu_device_plugin.model.placing import Demand, fits_kind
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, rooms_of
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import allowed, unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, TooLongError, order
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

Pods = frozenset[GpuConsumer]


@dataclass(eq=False, repr=False)
class VictimSearch:
    """The sets of pods that make room on one node."""

    _ask: GpuRequest
    _node: Candidate
    _pods: Iterable[GpuConsumer]
    """Those that count on the node."""
    _: KW_ONLY
    cost: Callable[[Collection[GpuConsumer]], tuple[object, ...]]
    """By it sets are compared."""
    may_go: Callable[[GpuConsumer], bool] = lambda _pod: True

    def __post_init__(self) -> None:
        demands = self._ask.demands
        self._demands = [demands[n] for n in order(demands)]
        self._rooms = {room.position: room for room in allowed(self._ask, self._node) if room.healthy}
        self._shares: dict[int, dict[GpuConsumer, int]] = {position: {} for position in self._rooms}
        """Shares that pods have of each GPU, or may have, the cheapest first; none of pods that have all of it."""
        self._whole: dict[int, list[GpuConsumer]] = {position: [] for position in self._rooms}
        """The pods that have each GPU whole."""
        self._whole_somewhere: list[GpuConsumer] = []
        """The pods that have an unknown GPU whole."""
        for pod in sorted(self._pods, key=lambda pod: self.cost((pod,))):
            self._locate(pod)
        self._in_the_way = cache(self._find_in_the_way)

    def _locate(self, pod: GpuConsumer) -> None:
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


def _fewest(shares: Mapping[GpuConsumer, int], lacking: int) -> list[GpuConsumer] | None:
    """Return the fewest pods with so many shares of a GPU, and hardly more; None if all of them have less."""
    smallest = sorted(shares, key=lambda pod: shares[pod])
    taken: list[GpuConsumer] = []
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


def spared(pods: Pods, order: Sequence[GpuConsumer], makes_room: Callable[[Pods], bool]) -> Pods:
    """Return `pods` without those that can stay after all, tried in this order."""
    fewer = pods
    for pod in order:
        if pod in fewer and makes_room(fewer - {pod}):
            fewer -= {pod}
    # A pod that stays shows of a GPU that it is not the unknown one of another pod, which may then stay too.
    return pods if fewer == pods else spared(fewer, order, makes_room)


# --- Preemption: pods of lower priority are evicted -------------------------------------------------------------------

# A step takes some microseconds. A request names up to a tenth of a cluster's nodes: after so many steps no further
# node is begun, and none is looked at for longer.
_MOST_STEPS = 3000
# To look at a node without some of its pods.
_STEPS_TO_EMPTY = 12
# Beside Kubernetes' names of resources, in which there is no space.
_SHARES, _WHOLE = "GPU shares", "whole GPUs"


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod for which others are evicted."""

    ask: GpuRequest
    priority: int
    """Only pods of lower priority are evicted for it."""
    requests: Mapping[str, int] | None = field(default_factory=dict)
    """Its requests for other resources, by name; None: it has demands that cannot be summed."""


def choose_on_each(
    preemptor: Preemptor, nodes: Iterable[tuple[Candidate, Collection[GpuConsumer], frozenset[str]]]
) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """Yield the nodes on which evicting helps, one after the other, with the uids of the pods to evict there.

    It ends early where that takes long, and asks for no further node then. No pod is to be evicted from a node that is
    left out; any of the others will do for a scheduler.
    """
    steps = 0
    for node, occupants, victims in nodes:
        effort, found = Effort(_MOST_STEPS), None
        with suppress(TooLongError):
            found = VictimChoice(preemptor, node, occupants, victims, effort).choose()
        if found is not None:
            yield node, found
        steps += effort.spent
        if steps >= _MOST_STEPS:
            return


def where_evicting_may_help(
    preemptor: Preemptor, nodes: Iterable[Candidate], on_node: Callable[[str], Collection[GpuConsumer]]
) -> Iterator[tuple[Candidate, int]]:
    """Yield the nodes on which kube-scheduler may find pods to evict for a pod, with the lowest priority there.

    The pod fits there without all pods of lower priority, and the sum of the free shares, or GPUs, does not suffice: if
    it does, kube-scheduler finds no pod to evict. It ends early where that takes long.
    """
    effort = Effort(_MOST_STEPS)
    packer = CachingPacker(preemptor.ask.demands, effort)
    asked = Counter[Kind]()
    for part in preemptor.ask.parts:
        asked[part.demand.kind] += part.demand.amount
    for node in nodes:
        effort.spend(1)
        free = {Kind.MEMORY: sum(node.summary.frees), Kind.COUNT: len(node.summary.unused)}
        if all(amount <= free[kind] for kind, amount in asked.items()):
            continue
        occupants = on_node(node.name)
        lower = [pod.priority for pod in occupants if pod.priority < preemptor.priority]
        if not lower:
            continue
        staying = node.occupied(pod.usage for pod in occupants if pod.priority >= preemptor.priority)
        try:
            effort.take(_STEPS_TO_EMPTY)
            if unfit(preemptor.ask, staying, packer) is None:
                yield node, min(lower)
        except TooLongError:
            return


@dataclass(eq=False)
class VictimChoice:
    """The choice of victims on one node, and the steps that it took."""

    _preemptor: Preemptor
    _node: Candidate
    _occupants: Collection[GpuConsumer]
    """All pods that count on the node."""
    _victims: frozenset[str]
    """The uids of those that kube-scheduler would evict, which makes room by the sums of the node."""
    _effort: Effort

    def __post_init__(self) -> None:
        self._packer = CachingPacker(self._preemptor.ask.demands, self._effort)
        self._staying = [pod for pod in self._occupants if not pod.terminating]
        self._proposed = frozenset(pod for pod in self._staying if pod.uid in self._victims)
        """Those of kube-scheduler's victims that are on GPUs."""
        self._free_to_stay = frozenset(filter(self._may_stay, self._proposed))

    @cached_property
    def _memory(self) -> Mapping[GpuConsumer, int]:
        sizes = self._node.gpus.sizes
        return {pod: pod.usage.size(sizes) for pod in self._staying}

    @cached_property
    def _frees(self) -> Mapping[GpuConsumer, Mapping[str, int]]:
        """The resources that the end of each pod frees, by name."""
        return {
            pod: {_SHARES: pod.usage.all_shares, _WHOLE: pod.usage.all_gpus, **(pod.requests or {})}
            for pod in self._staying
        }

    @cached_property
    def _needed(self) -> Mapping[str, int]:
        """The resources that evictions have to free by the sums of the node, by which kube-scheduler chose its victims.

        Pods without GPUs are not known here. But the sums suffice without kube-scheduler's victims; they also suffice
        if evictions free all that the pod asks, since no node is overcommitted, except in GPUs, which can fail under
        pods.
        """
        rooms = [room for room in rooms_of(self._node.gpus, [pod.usage for pod in self._staying]) if room.healthy]
        offered = {
            _SHARES: sum(room.total for room in rooms if not room.whole),
            _WHOLE: sum(not room.shared for room in rooms if room.card is None),
        }
        asked = Counter(self._preemptor.requests or {})
        for part in self._preemptor.ask.parts:
            asked[_SHARES if part.demand.kind is Kind.MEMORY else _WHOLE] += part.demand.amount
        return {
            name: min(
                self._freed(self._proposed, name),
                amount + self._freed(self._staying, name) - offered[name] if name in offered else amount,
            )
            for name, amount in asked.items()
        }

    def _freed(self, pods: Iterable[GpuConsumer], name: str) -> int:
        return sum([self._frees[pod].get(name, 0) for pod in pods])

    def _suffice(self, evicted: Collection[GpuConsumer]) -> bool:
        """Return whether the sums of the node suffice once these are gone."""
        return all(self._freed(evicted, name) >= amount for name, amount in self._needed.items())

    def choose(self) -> frozenset[str] | None:
        """Return the uids of the pods to evict from the node; None: evicting does not help, or there is none to evict.

        Kube-scheduler's victims as they are, where the GPUs have room without them: it has found that each of them is
        needed. Otherwise any pods of a lower priority whose eviction makes room on GPUs and gives back no less of
        anything else than that of the victims does, or all that the pod asks of it. Of the victims themselves those may
        stay of which it is known what they take, if what the pod asks can be added up.

        The most important one to evict is the least important that it can be. Then fewer are preferred, then more of
        kube-scheduler's own, which it chose with an eye to PodDisruptionBudgets, then those with less GPU memory; that
        is greedy (`VictimSearch`), but no pod is evicted that could stay. Raises TooLongError.
        """
        why = self._unfit_without(self._proposed)
        if why is None:
            return self._victims or None
        if why.unresolvable:
            return None
        best = self._least(self._proposed - self._free_to_stay)
        return None if best is None else (self._victims - {pod.uid for pod in self._free_to_stay}) | best

    def _may_stay(self, victim: GpuConsumer) -> bool:
        known = self._preemptor.requests is not None and victim.requests is not None
        return known and victim.priority < self._preemptor.priority

    def _least(self, gone: frozenset[GpuConsumer]) -> frozenset[str] | None:
        """Return the uids of the pods to evict if those that are `gone` go anyway."""
        others = [pod for pod in self._staying if pod not in gone]
        for most in sorted({pod.priority for pod in others if pod.priority < self._preemptor.priority}):
            everybody = gone.union(pod for pod in others if pod.priority <= most)
            if self._helps(everybody):
                self._effort.take(len(others) + len(self._node.gpus.gpus))
                search = VictimSearch(
                    self._preemptor.ask, self._node, others, cost=self._cost, may_go=everybody.__contains__
                )
                sets = {self._completed(gone | pods, most) for pods in search.sets()}
                best = next(filter(self._helps, sorted(sets, key=self._cost)), everybody)
                best = spared(best, sorted(best - gone, key=self._importance), self._helps)
                return frozenset(pod.uid for pod in best - gone)
        return None

    def _completed(self, evicted: frozenset[GpuConsumer], most: int) -> frozenset[GpuConsumer]:
        """Return pods with as many of kube-scheduler's victims as the sums of the node want besides."""
        others = sorted((pod for pod in self._proposed - evicted if pod.priority <= most), key=self._importance)
        while others and not self._suffice(evicted):
            evicted |= {others.pop()}
        return evicted

    def _helps(self, evicted: frozenset[GpuConsumer]) -> bool:
        return self._suffice(evicted) and self._unfit_without(evicted) is None

    def _unfit_without(self, evicted: frozenset[GpuConsumer]) -> FilterFailure | None:
        usages = [pod.usage for pod in self._staying if pod not in evicted]
        self._effort.take(4 + len(usages) // 2 + 2 * len(self._node.gpus.gpus))
        return unfit(self._preemptor.ask, self._node.occupied(usages), self._packer)

    def _importance(self, pod: GpuConsumer) -> tuple[int, bool, int, str]:
        """The most important first."""
        return -pod.priority, pod in self._proposed, -self._memory[pod], pod.uid

    def _cost(self, pods: Collection[GpuConsumer]) -> tuple[int, int, int, list[str]]:
        return (
            len(pods),
            sum(pod not in self._proposed for pod in pods),
            sum(map(self._memory.__getitem__, pods)),
            sorted(pod.uid for pod in pods),
        )

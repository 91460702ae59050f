"""Choose the pods to evict from a node so that a pod of higher priority fits there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import rooms_of
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.packing import CachingPacker, Effort, TooLongError
from gpu_device_plugin.core.cluster.victims import VictimSearch, spared
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.fitting import Unfit
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.cluster.usage import Occupant

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

    ask: Ask
    priority: int
    """Only pods of lower priority are evicted for it."""
    requests: Mapping[str, int] | None = field(default_factory=dict)
    """Its requests for other resources, by name; None: it has demands that cannot be summed."""


def choose_on_each(
    preemptor: Preemptor, nodes: Iterable[tuple[Candidate, Collection[Occupant], frozenset[str]]]
) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """Yield the nodes on which evicting helps, one after the other, with what `choose` says of each.

    It ends early where that takes long, and asks for no further node then. No pod is to be evicted from a node that is
    left out; any of the others will do for a scheduler.
    """
    steps = 0
    for node, occupants, victims in nodes:
        effort = Effort(_MOST_STEPS)
        found = choose(preemptor, node, occupants, victims, effort)
        if found is not None:
            yield node, found
        steps += effort.spent
        if steps >= _MOST_STEPS:
            return


def choose(
    preemptor: Preemptor,
    node: Candidate,
    occupants: Collection[Occupant],
    victims: frozenset[str],
    effort: Effort | None = None,
) -> frozenset[str] | None:
    """Return the uids of the pods to evict from `node` for a pod.

    `victims` as they are, where the GPUs have room without them: kube-scheduler has found that each of them is needed.
    Otherwise any pods of a lower priority whose eviction makes room on GPUs and gives back no less of anything else
    than that of `victims` does, or all that the pod asks of it. Of the victims themselves those may stay of which it is
    known what they take, if what the pod asks can be added up.

    The most important victim is the least important that it can be. Then fewer are preferred, then more of
    kube-scheduler's own, which it chose with an eye to PodDisruptionBudgets, then those with less GPU memory; that is
    greedy (`victims`), but no pod is evicted that could stay.

    `occupants` are all pods that count on the node, `victims` the uids of those that kube-scheduler would evict, which
    makes room by the sums of the node. None: evicting does not help, there is no pod to evict, or to find out takes
    more than the `effort`.
    """
    try:
        return _Choice(preemptor, node, occupants, victims, effort or Effort(_MOST_STEPS)).choose()
    except TooLongError:
        return None


def where_evicting_may_help(
    preemptor: Preemptor, nodes: Iterable[Candidate], on_node: Callable[[str], Collection[Occupant]]
) -> Iterator[tuple[Candidate, int]]:
    """Yield the nodes on which kube-scheduler may find pods to evict for a pod, with the lowest priority there.

    The pod fits there without all pods of lower priority, and the sum of the free shares, or GPUs, does not suffice: if
    it does, kube-scheduler finds no pod to evict. It ends early where that takes long.
    """
    effort = Effort(_MOST_STEPS)
    packer = CachingPacker([part.demand for part in preemptor.ask.parts], effort)
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
class _Choice:
    """The choice of victims on one node, and the steps that it took."""

    _preemptor: Preemptor
    _node: Candidate
    _occupants: Collection[Occupant]
    _victims: frozenset[str]
    _effort: Effort

    def __post_init__(self) -> None:
        self._packer = CachingPacker([part.demand for part in self._preemptor.ask.parts], self._effort)
        self._staying = [pod for pod in self._occupants if not pod.terminating]
        self._proposed = frozenset(pod for pod in self._staying if pod.uid in self._victims)
        """Those of kube-scheduler's victims that are on GPUs."""
        self._free_to_stay = frozenset(filter(self._may_stay, self._proposed))

    @cached_property
    def _memory(self) -> Mapping[Occupant, int]:
        sizes = self._node.gpus.sizes
        return {pod: pod.usage.size(sizes) for pod in self._staying}

    @cached_property
    def _frees(self) -> Mapping[Occupant, Mapping[str, int]]:
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

    def _freed(self, pods: Iterable[Occupant], name: str) -> int:
        return sum([self._frees[pod].get(name, 0) for pod in pods])

    def _suffice(self, evicted: Collection[Occupant]) -> bool:
        """Return whether the sums of the node suffice once these are gone."""
        return all(self._freed(evicted, name) >= amount for name, amount in self._needed.items())

    def choose(self) -> frozenset[str] | None:
        """As the function `choose`. Raises TooLongError."""
        why = self._unfit_without(self._proposed)
        if why is None:
            return self._victims or None
        if why.unresolvable:
            return None
        best = self._least(self._proposed - self._free_to_stay)
        return None if best is None else (self._victims - {pod.uid for pod in self._free_to_stay}) | best

    def _may_stay(self, victim: Occupant) -> bool:
        known = self._preemptor.requests is not None and victim.requests is not None
        return known and victim.priority < self._preemptor.priority

    def _least(self, gone: frozenset[Occupant]) -> frozenset[str] | None:
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

    def _completed(self, evicted: frozenset[Occupant], most: int) -> frozenset[Occupant]:
        """Return pods with as many of kube-scheduler's victims as the sums of the node want besides."""
        others = sorted((pod for pod in self._proposed - evicted if pod.priority <= most), key=self._importance)
        while others and not self._suffice(evicted):
            evicted |= {others.pop()}
        return evicted

    def _helps(self, evicted: frozenset[Occupant]) -> bool:
        return self._suffice(evicted) and self._unfit_without(evicted) is None

    def _unfit_without(self, evicted: frozenset[Occupant]) -> Unfit | None:
        usages = [pod.usage for pod in self._staying if pod not in evicted]
        self._effort.take(4 + len(usages) // 2 + 2 * len(self._node.gpus.gpus))
        return unfit(self._preemptor.ask, self._node.occupied(usages), self._packer)

    def _importance(self, pod: Occupant) -> tuple[int, bool, int, str]:
        """The most important first."""
        return -pod.priority, pod in self._proposed, -self._memory[pod], pod.uid

    def _cost(self, pods: Collection[Occupant]) -> tuple[int, int, int, list[str]]:
        return (
            len(pods),
            sum(pod not in self._proposed for pod in pods),
            sum(map(self._memory.__getitem__, pods)),
            sorted(pod.uid for pod in pods),
        )

"""Whom to evict from a node so that a pod of higher priority fits there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, combinations, groupby, islice, product
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import Packer, Packing, groups, unfit
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.fitting import Unfit
    from gpu_device_plugin.core.cluster.usage import Usage
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.model.placing import Demand

    _Cost = tuple[int, int, int, list[str]]

# A whole group of 4 GPUs has 70 places on a node of 8. Of three containers' 512 only the first are looked at.
_MOST_PLACES = 100
# 5 of 16 pods on one GPU are 4,368 sets, but of six different sizes at most 252 that differ by more than the name.
_MOST_SETS = 300
# A step takes about a microsecond. A request names up to a tenth of a cluster's nodes: after so many steps no further
# node is begun, and none is looked at for longer.
_MOST_STEPS = 15_000
# Beside Kubernetes' names of resources, in which there is no space.
_SHARES, _WHOLE = "GPU shares", "whole GPUs"


class _TooLongError(Exception):
    """To find out whom to evict from this node takes too many steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """A pod that counts on a node. It is equal to itself alone, which makes sets of them quick."""

    uid: str
    usage: Usage
    priority: int = 0
    leaving: bool = False
    """It ends anyway, so that nobody has to evict it; its room will be there, if it is not yet."""
    requests: Mapping[str, int] | None = field(default_factory=dict)
    """What it takes of the node besides, by resource; None: nobody can tell what else becomes free without it."""


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that wants in."""

    ask: Ask
    priority: int
    """Only pods of a lower one are evicted for it."""
    requests: Mapping[str, int] | None = field(default_factory=dict)
    """What it asks of a node besides, by resource; None: it asks for more than can be added up."""


def choose_on_each(
    preemptor: Preemptor, nodes: Iterable[tuple[Candidate, Collection[Occupant], frozenset[str]]]
) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """Yield the nodes on which evicting helps, with whom to evict there: as `choose` says, one after the other.

    It ends early where that takes long. Nodes that are left out are none to evict anybody from; any of the others will
    do for a scheduler.

    Args:
        preemptor: the pod.
        nodes: for each node what `choose` wants to know of it; not asked for further than needed.
    """
    steps = 0
    for node, occupants, victims in nodes:
        search = _Choice(preemptor, node)
        found = search.choose(occupants, victims)
        if found is not None:
            yield node, found
        steps += search.effort.steps
        if steps > _MOST_STEPS:
            return


def choose(
    preemptor: Preemptor, node: Candidate, occupants: Collection[Occupant], victims: frozenset[str]
) -> frozenset[str] | None:
    """Return whom to evict from `node` for a pod.

    `victims` as they are, where the GPUs have room without them: kube-scheduler has found that each of them is needed.
    Otherwise any pods of a lower priority whose eviction makes room on GPUs and gives back no less of anything else
    than that of `victims` does, or all that the pod asks of it. Of the victims themselves those may stay of which it is
    known what they take, if what the pod asks can be added up.

    Of all ways, the one whose most important victim is the least important, then with the fewest, then with the most of
    kube-scheduler's own, which it chose with an eye to PodDisruptionBudgets, then with the least GPU memory, then by
    uid. It may be another where there are too many to compare, where a pod lies on several GPUs or on unknown ones, and
    where something else than GPUs is short; but nobody is evicted who could stay.

    Args:
        preemptor: the pod.
        node: its GPUs; how they are used is taken from `occupants`.
        occupants: all pods that count on it.
        victims: uids of the pods that kube-scheduler would evict, which makes room by the sums of the node.

    Returns:
        None where evicting does not help, where there is nobody to evict, or where it takes too long to find out.
    """
    return _Choice(preemptor, node).choose(occupants, victims)


class _Effort:
    """How long one node was looked at."""

    def __init__(self) -> None:
        self.steps = 0

    def spend(self, steps: int) -> None:
        """Take note of steps. Raises _TooLongError when they were too many."""
        self.steps += steps
        if self.steps > _MOST_STEPS:
            raise _TooLongError


class _Choice:
    """Whom to evict from one node, and how long it took to find out."""

    def __init__(self, preemptor: Preemptor, node: Candidate) -> None:
        self._preemptor = preemptor
        self._node = node
        self._packer = Packer([part.demand for part in preemptor.ask.parts])
        self.effort = _Effort()

    def choose(self, occupants: Collection[Occupant], victims: frozenset[str]) -> frozenset[str] | None:
        """As the function `choose`."""
        try:
            return self._choose([pod for pod in occupants if not pod.leaving], victims)
        except _TooLongError:
            return None

    def _choose(self, there: Sequence[Occupant], victims: frozenset[str]) -> frozenset[str] | None:
        given = frozenset(pod for pod in there if pod.uid in victims)
        why = self._unfit([pod for pod in there if pod not in given])
        if why is None:
            return victims or None
        if why.unresolvable:
            return None
        may_stay = frozenset(filter(self._may_stay, given))
        # Once with all that kube-scheduler evicts out of the way, and once as if it had not chosen yet.
        begins = dict.fromkeys((given, given - may_stay))
        ways = [way for gone in begins if (way := self._least(there, given, gone, may_stay)) is not None]
        if not ways:
            return None
        _, evicted = min(ways, key=lambda way: way[0])
        return (victims - {pod.uid for pod in may_stay}) | {pod.uid for pod in evicted}

    def _may_stay(self, victim: Occupant) -> bool:
        known = self._preemptor.requests is not None and victim.requests is not None
        return known and victim.priority < self._preemptor.priority

    def _least(
        self,
        there: Sequence[Occupant],
        given: frozenset[Occupant],
        gone: frozenset[Occupant],
        may_stay: frozenset[Occupant],
    ) -> tuple[tuple[int, _Cost], frozenset[Occupant]] | None:
        """Return the best of the ways that begin without those who are `gone`, with what it is compared by."""
        staying = [pod for pod in there if pod not in gone]
        sums = _Sums(self._preemptor, self._node, there, given)

        def helps(evicted: frozenset[Occupant]) -> bool:
            return sums.suffice(evicted) and self._unfit([pod for pod in there if pod not in evicted]) is None

        for most in sorted({pod.priority for pod in staying if pod.priority < self._preemptor.priority}):
            if helps(gone | {pod for pod in staying if pod.priority <= most}):
                search = _Search(
                    self._preemptor.ask,
                    self._node,
                    staying,
                    most=most,
                    gone=gone,
                    given=given,
                    sums=sums,
                    helps=helps,
                    effort=self.effort,
                )
                evicted = search.spared(search.best(), may_stay) - (gone - may_stay)
                return search.cost(evicted), evicted
        return None

    def _unfit(self, occupants: Collection[Occupant]) -> Unfit | None:
        before = self._node
        self.effort.spend(3 * len(occupants) + 10 * len(before.gpus.gpus) + 20)
        usages = [pod.usage for pod in occupants]
        return unfit(self._preemptor.ask, candidate(before.name, before.gpus, usages), self._pack)

    def _pack(self, _demands: tuple[Demand, ...], frees: tuple[int, ...], idle: tuple[int, ...]) -> Packing:
        found = self._packer(frees, idle)
        self.effort.spend((found.steps + 1) * (len(frees) + 4))
        return found


class _Sums:
    """Whether a node has enough in all once some pods are gone: what kube-scheduler's own victims were chosen for.

    What else is on the node is not known here. But it suffices without those victims, and a pod that gets back all that
    it asks fits too, since no node gives more than it has; but for GPUs, which can fail while pods are on them.
    """

    def __init__(
        self, preemptor: Preemptor, node: Candidate, there: Sequence[Occupant], given: Collection[Occupant]
    ) -> None:
        rooms = [room for room in candidate("", node.gpus, [pod.usage for pod in there]).rooms if room.healthy]
        offered = {
            _SHARES: sum(room.total for room in rooms if not room.whole),
            _WHOLE: sum(not room.shared for room in rooms),
        }
        taken = sum((_gpus_of(pod) for pod in there), Counter[str]())
        asked = Counter(preemptor.requests or {})
        for part in preemptor.ask.parts:
            asked[_SHARES if part.demand.kind is Kind.MEMORY else _WHOLE] += part.demand.amount
        freed = self._freed(given)
        self._needed = {
            name: min(freed[name], amount + taken[name] - offered[name] if name in offered else amount)
            for name, amount in asked.items()
        }

    def suffice(self, evicted: Collection[Occupant]) -> bool:
        """Return whether that is so once these are gone."""
        freed = self._freed(evicted)
        return all(freed[name] >= amount for name, amount in self._needed.items())

    @staticmethod
    def _freed(pods: Iterable[Occupant]) -> Counter[str]:
        freed: Counter[str] = Counter()
        for pod in pods:
            freed.update(_gpus_of(pod))
            freed.update(pod.requests or {})
        return freed


def _gpus_of(pod: Occupant) -> Counter[str]:
    usage = pod.usage
    shares = sum(shares for _, shares in usage.shares) + usage.unplaced_shares
    return Counter({_SHARES: shares, _WHOLE: len(usage.whole) + usage.unplaced_gpus})


class _Search:
    """The ways to make room on one node by evicting pods up to some priority; to evict all of them helps."""

    def __init__(
        self,
        ask: Ask,
        node: Candidate,
        pods: Sequence[Occupant],
        *,
        most: int,
        gone: frozenset[Occupant],
        given: frozenset[Occupant],
        sums: _Sums,
        helps: Callable[[frozenset[Occupant]], bool],
        effort: _Effort,
    ) -> None:
        """Search.

        Args:
            ask: what the pod asks.
            node: its GPUs.
            pods: that are on them but for those who are `gone`.
            most: the highest priority of whom may be evicted.
            gone: who is evicted whatever is found.
            given: whom kube-scheduler would evict.
            sums: what has to become free beside GPUs.
            helps: says whether it helps to evict some pods and nobody else.
            effort: of this node.
        """
        self._ask = ask
        self._node = node
        self._pods = sorted(pods, key=lambda pod: pod.uid)
        self._most = most
        self._gone = gone
        self._given = given
        self._sums = sums
        self._helps = helps
        self._effort = effort
        self._sizes = {gpu.position: gpu.shares for gpu in node.gpus.gpus}
        self._memory = {pod: self._held(pod) for pod in (*self._pods, *gone)}
        self._known: dict[tuple[int, int], frozenset[Occupant] | None] = {}

    def best(self) -> frozenset[Occupant]:
        """Return whom to evict, with those who are gone anyway; some may be left out of it (`spared`)."""
        sets = {self._completed(pods) for place in self._places() if (pods := self._emptying(place)) is not None}
        # Where pods have GPUs whole of which nobody knows which, these sets may not do.
        everybody = self._gone | {pod for pod in self._pods if pod.priority <= self._most}
        return next(filter(self._helps, sorted(sets, key=self._cost)), everybody)

    def _completed(self, pods: frozenset[Occupant]) -> frozenset[Occupant]:
        """Return pods with as many of kube-scheduler's victims as the sums of the node want besides."""
        evicted = self._gone | pods
        others = sorted((pod for pod in self._given - evicted if pod.priority <= self._most), key=self._importance)
        while others and not self._sums.suffice(evicted):
            evicted |= {others.pop()}
            self._effort.spend(len(evicted))
        return evicted

    def spared(self, pods: frozenset[Occupant], may_stay: Collection[Occupant]) -> frozenset[Occupant]:
        """Return `pods` without those that can stay after all, as where one lies on several GPUs."""
        fewer = pods
        for pod in sorted(pods, key=self._importance):
            if (pod in may_stay or pod not in self._gone) and self._helps(fewer - {pod}):
                fewer -= {pod}
        # Who stays shows of a GPU that it is not the unknown one of somebody else, who may then stay too.
        return pods if fewer == pods else self.spared(fewer, may_stay)

    def _importance(self, pod: Occupant) -> tuple[int, bool, int, str]:
        """The most important first."""
        return -pod.priority, pod in self._given, -self._memory[pod], pod.uid

    def cost(self, pods: Collection[Occupant]) -> tuple[int, _Cost]:
        """What ways that begin differently are compared by."""
        return max((pod.priority for pod in pods), default=0), self._cost(pods)

    def _cost(self, pods: Collection[Occupant]) -> _Cost:
        return (
            len(pods),
            sum(pod not in self._given for pod in pods),
            sum(self._memory[pod] for pod in pods),
            sorted(pod.uid for pod in pods),
        )

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
            self._effort.spend(2 * len(demands))
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
        self._effort.spend(len(self._pods))
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

        def size(pod: Occupant) -> tuple[int, ...]:
            return -shares[pod], pod not in self._given, self._memory[pod]

        largest = sorted(pods, key=lambda pod: (*size(pod), pod.uid))
        sums = accumulate((shares[pod] for pod in largest), initial=0)
        number = next((n for n, given in enumerate(sums) if given >= lacking), None)
        if number is None:
            return None
        # The largest come first, so that what is left out is no set that is sure to do.
        sets = list(islice(groups([list(alike) for _, alike in groupby(largest, size)], number), _MOST_SETS))
        self._effort.spend(len(sets) * (number + 2) // 2)
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

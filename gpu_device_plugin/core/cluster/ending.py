"""Which pods of a node would have to end for a pod to fit there: as few as possible, then with as little memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, groupby, islice
from math import comb
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView, PodUse

_MOST_SETS = 1000
"""So many sets of one size are compared; where there are more, the answer may be larger than it has to be. A set takes
a tenth of a millisecond."""
_MOST_PLACES = 100
"""Up to so many groups of GPUs are looked at as the pod's place: 4 of 8 are 70, 8 of 16 would be 12,870."""


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
    search = _Search(ask, node)
    if not search.fits(node.pods):
        return None
    if search.fits(()):
        return Ends(())
    # Nearly every node: what has to end on one GPU does not depend on the others.
    if len(ask.parts) == 1 and all(_on_one_gpu(pod) for pod in node.pods) and not node.loose():
        return search.gpu_by_gpu()
    return search.all_together()


def _on_one_gpu(pod: PodUse) -> bool:
    return len(pod.usage.shares) + len(pod.usage.whole) == 1


class _Search:
    """The sets of pods of one node, and which of them make room."""

    def __init__(self, ask: Ask, node: NodeView) -> None:
        self._ask = ask
        self._node = node
        self._sizes = {gpu.position: gpu.shares for gpu in node.candidate.gpus.gpus}
        self._loose = {loose.pod: node.size(loose) for loose in node.loose()}
        demands = [part.demand for part in ask.parts]
        most = sum(demand.amount if demand.kind is Kind.COUNT else demand.gpus for demand in demands)
        self._wanted = min(most, len(self._sizes))
        """The pod gets at most so many GPUs; whoever is on none of them can stay."""

    def fits(self, ended: Collection[PodUse]) -> bool:
        """Whether the pod fits once these have ended."""
        return unfit(self._ask, _without(self._node, frozenset(ended))) is None

    # --- One demand, and every pod on a GPU of its own choice ---------------------------------------------------------

    def gpu_by_gpu(self) -> Ends:
        """Return the best set: clear each GPU as cheaply as possible, and take the cheapest ones."""
        cleared = [found for view in self._node.gpus() if (found := self._cleared(view)) is not None]
        cleared.sort(key=lambda found: self._cost(found[0]))
        pods = [pod for found, _ in cleared[: self._wanted] for pod in found]
        return self._ends(pods, fewest=all(exact for _, exact in cleared))

    def _cleared(self, view: GpuView) -> tuple[Sequence[PodUse], bool] | None:
        """Return who has to leave a GPU, and whether this is certainly the least; None if the pod cannot have it."""
        demand, wishes = self._ask.parts[0].demand, self._ask.wishes
        each = view.gpu.shares if demand.kind is Kind.COUNT else demand.amount // demand.gpus
        allowed = wishes.allow_model(view.gpu.model) and wishes.allow_uuid(view.gpu.uuid)
        if not view.room.healthy or view.gpu.shares < each or not allowed:
            return None
        # A pod that has the GPU whole counts with all of its shares, so that no set without it is enough.
        shares = {held.pod: held.shares for held in view.held}
        surplus = sum(shares.values()) + each - view.gpu.shares
        largest_first = sorted(shares, key=lambda pod: (-shares[pod], *_preferred(pod)))
        least: list[PodUse] = []
        while surplus > sum(shares[pod] for pod in least):
            least.append(largest_first[len(least)])
        sets = list(islice(_picks(_alike(shares), len(least)), _MOST_SETS + 1))
        enough = (pods for pods in sets if sum(shares[pod] for pod in pods) >= surplus)
        return min((*enough, least), key=self._cost), len(sets) <= _MOST_SETS

    # --- Everything else ----------------------------------------------------------------------------------------------

    def all_together(self) -> Ends:
        """Return the best set out of all that are worth to be tried, as far as there is time for it."""
        crowds = {at: sum(self._touches(pod, {at}) for pod in self._node.pods) for at in self._sizes}
        emptiest_first = sorted(crowds, key=lambda at: crowds[at])
        runs = range(len(emptiest_first) - self._wanted + 1)
        known = min((self._left_over(frozenset(emptiest_first[n : n + self._wanted])) for n in runs), key=self._cost)
        if comb(len(crowds), self._wanted) > _MOST_PLACES:
            return self._ends(known, fewest=False)
        return self._best(known, [frozenset(place) for place in combinations(emptiest_first, self._wanted)])

    def _best(self, known: Sequence[PodUse], places: Sequence[Collection[int]], size: int = 1) -> Ends:
        """Return the best set of at least `size` pods that is no larger than one that is known to make room."""
        sets = list(islice(self._sets(size, places), _MOST_SETS + 1))
        if size > len(known) or len(sets) > _MOST_SETS:
            return self._ends(known, fewest=False)
        for pods in sorted(sets, key=self._cost):
            if self.fits(pods):
                return self._ends(pods, fewest=True)
        return self._best(known, places, size + 1)

    def _left_over(self, place: Collection[int]) -> tuple[PodUse, ...]:
        """Let everybody end, then come back for whom the pod leaves room, first who is not in this place."""
        ended = set(self._node.pods)
        for pod in sorted(ended, key=lambda pod: (self._touches(pod, place), self._memory(pod), str(pod))):
            if self.fits(ended - {pod}):
                ended.remove(pod)
        return tuple(ended)

    def _sets(self, size: int, places: Sequence[Collection[int]]) -> Iterator[tuple[PodUse, ...]]:
        """Yield the sets of `size` pods that might make room, of sets that take the same only the one to prefer."""
        seen: set[frozenset[PodUse]] = set()
        for place in places:
            for pods in _picks(_alike(pod for pod in self._node.pods if self._touches(pod, place)), size):
                chosen = frozenset(pods)
                if chosen not in seen:
                    seen.add(chosen)
                    yield pods

    def _touches(self, pod: PodUse, place: Collection[int]) -> bool:
        usage = pod.usage
        return pod in self._loose or any(at in place for at in (*usage.whole, *(at for at, _ in usage.shares)))

    # --- What sets are compared by ------------------------------------------------------------------------------------

    def _memory(self, pod: PodUse) -> int:
        """Return the shares that end with a pod."""
        return (
            sum(shares for at, shares in pod.usage.shares if at in self._sizes)
            + sum(self._sizes.get(at, 0) for at in pod.usage.whole)
            + self._loose.get(pod, 0)
        )

    def _cost(self, pods: Collection[PodUse]) -> tuple[object, ...]:
        """Fewest, then least memory, then who ends anyway, then the least important, then by name."""
        return (
            len(pods),
            sum(map(self._memory, pods)),
            sum(not pod.deleting for pod in pods),
            sorted((pod.priority for pod in pods), reverse=True),
            sorted(map(str, pods)),
        )

    def _ends(self, pods: Collection[PodUse], *, fewest: bool) -> Ends:
        return Ends(tuple(sorted(pods, key=str)), sum(map(self._memory, pods)), fewest)


def _without(node: NodeView, ended: Collection[PodUse]) -> Candidate:
    before = node.candidate
    usages = [pod.usage for pod in node.pods if pod not in ended]
    return candidate(before.name, before.gpus, usages)


def _taken(pod: PodUse) -> tuple[object, ...]:
    usage = pod.usage
    return usage.shares, usage.whole, usage.unplaced_shares, usage.unplaced_gpus


def _preferred(pod: PodUse) -> tuple[object, ...]:
    return not pod.deleting, pod.priority, str(pod)


def _alike(pods: Iterable[PodUse]) -> list[list[PodUse]]:
    """Return pods in groups of those that take the same, in each the one to end first in front."""
    ordered = sorted(pods, key=lambda pod: (*_taken(pod), *_preferred(pod)))
    return [list(group) for _, group in groupby(ordered, key=_taken)]


def _picks(alike: Sequence[Sequence[PodUse]], size: int) -> Iterator[tuple[PodUse, ...]]:
    """Yield the ways to take `size` pods out of groups of equal ones."""
    if not size:
        yield ()
    elif sum(map(len, alike)) >= size:
        first, *rest = alike
        for number in range(min(size, len(first)) + 1):
            for others in _picks(rest, size - number):
                yield (*first[:number], *others)

"""Pack the demands of one pod onto the GPUs and MIG instances of a node, which differ by their free shares alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from operator import ge
from typing import TypeVar

from gpu_device_plugin.model.placing import Demand, Room
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Summary

T = TypeVar("T")

MOST_STEPS = 1000
"""A pod of several parts is placed by a search, and does not fit if the search takes more steps. Six containers on
eight GPUs that are all different take a few dozen; a step takes some microseconds."""
_MOST_PACKINGS = 10_000
"""The most packings that are cached for one pod; the cache is cleared when it is full."""


class TooLongError(Exception):
    """A search has no steps left. Its unfinished result must not be cached."""


class Effort:
    """The steps that a search has left: the same request has the same answer on every machine.

    Each search defines how long its step takes.
    """

    def __init__(self, steps: int) -> None:
        """Start with `steps`."""
        self._steps = steps
        self._left = steps

    @property
    def spent(self) -> int:
        """The number of steps taken."""
        return self._steps - self._left

    def renew(self) -> None:
        """Restore the whole budget for another search."""
        self._left = self._steps

    def spend(self, steps: int) -> None:
        """Count steps that were taken; never raises."""
        self._left -= steps

    def take(self, steps: int) -> None:
        """Count steps that were taken. Raises TooLongError if no step is left."""
        self.spend(steps)
        self.check()

    def check(self) -> None:
        """Raise TooLongError if no step is left."""
        if self._left <= 0:
            raise TooLongError


def finished(steps: Generator[None, None, T]) -> T:
    """Take all steps at once, and return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: T = end.value
        return found


@dataclass(frozen=True, slots=True)
class Packing:
    """The result of packing all demands of a pod onto GPUs and MIG instances that differ by their free shares alone."""

    taken: tuple[tuple[int, ...], ...] | None
    """For each demand for memory, in the order of `order`, the free shares of its GPUs before it takes its own; None:
    no packing was found. Demands for whole GPUs get the GPUs with the fewest free shares. Only demands for
    memory of one GPU get instances."""
    steps: int
    """How many steps the search took, each of some microseconds."""


@dataclass(slots=True)
class _Tried:
    """What one search has tried."""

    most_steps: int
    instances: Sequence[int]
    steps: int = 0
    vain: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)


class Packer:
    """Packs all demands of one pod onto a node's GPUs and instances; precomputes all that depends on the pod alone."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        """Pack `demands`."""
        self.demands = tuple(dict.fromkeys(demands))
        """Those that differ."""
        ordered = [demands[n] for n in order(demands)]
        self.whole = sum(demand.amount for demand in ordered if demand.kind is Kind.COUNT)
        """The number of GPUs that the pod takes whole."""
        self.pieces = [(demand.gpus, demand.amount // demand.gpus) for demand in ordered if demand.kind is Kind.MEMORY]
        """(GPUs, shares of each) of every demand for memory."""
        self._several = sum(gpus > 1 for gpus, _ in self.pieces)
        """How many of `pieces`, which come first, instances cannot serve: no container can use several."""
        self._each = sorted((each for gpus, each in self.pieces for _ in range(gpus)), reverse=True)
        """The shares of each GPU for memory, the most first."""
        # By n: the sum of shares of the n-th piece and all after it, and the fewest shares per GPU of any of them.
        self._sums = list(accumulate((gpus * each for gpus, each in reversed(self.pieces)), initial=0))[::-1]
        self._least = list(accumulate((each for _, each in reversed(self.pieces)), min))[::-1]

        # The largest demands: a number of whole GPUs, and by n the free shares of the GPU that has the n-th most.
        self._most_whole = max((demand.amount for demand in ordered if demand.kind is Kind.COUNT), default=0)
        self._most_shares: dict[int, int] = {}
        for gpus, each in self.pieces:
            self._most_shares[gpus - 1] = max(each, self._most_shares.get(gpus - 1, 0))

    def all_fit_alone(self, numbers: Summary, *, emptied: bool = False) -> bool:
        """Return whether each demand would fit if it were the only one; `emptied`: and if the node had no other pod."""
        gpus = numbers.gpus
        if self._most_whole > len(gpus.sizes if emptied else gpus.unused):
            return False
        for last, each in self._most_shares.items():
            usable = gpus if last else numbers
            frees = usable.sizes if emptied else usable.frees
            if last >= len(frees) or frees[last] < each:
                return False
        return True

    def too_large(self, numbers: Summary) -> int | None:
        """Return the place in `demands` of the first that would not fit even alone; None: more than numbers decides.

        The number of demands where each would fit alone, but the sum of the free shares does not suffice.
        """
        if self.all_fit_alone(numbers):
            return None if sum(numbers.frees) >= self._sums[0] else len(self.demands)
        return next(place for place, each in enumerate(self._alone) if not each.all_fit_alone(numbers))

    @cached_property
    def _alone(self) -> Sequence[Packer]:
        """Each of `demands` by itself."""
        return [Packer([demand]) for demand in self.demands]

    def surely_fits(self, numbers: Summary) -> bool:
        """Return whether the numbers of a node alone show that there is a packing, as they do of most nodes.

        One GPU has room for all pieces, or each piece has a GPU of its own: the search then succeeds at once. Whole
        GPUs are those with the fewest shares; to leave out the emptiest GPUs instead is on the safe side.
        """
        frees, each = (numbers.gpus if self._several else numbers).frees, self._each
        if not self.whole and not self._several and frees and frees[0] >= self._sums[0]:
            return True
        if len(frees) < self.whole + len(each) or len(numbers.gpus.unused) < self.whole:
            return False
        return all(map(ge, frees[self.whole :], each))

    def __call__(
        self, frees: Sequence[int], idle: Sequence[int], instances: Sequence[int] = (), most_steps: int = MOST_STEPS
    ) -> Packing:
        """Search for a packing in the free shares of each GPU and MIG instance that gives shares.

        `idle` are those of the GPUs that may also be taken whole. The search gives up after `most_steps`.
        """
        if self.whole > len(idle):
            return Packing(None, 0)
        left = sorted(frees)
        for free in sorted(idle)[: self.whole] if self.whole else ():
            # Those with the fewest free shares: no other choice leaves more room.
            left.remove(free)
        return self.packing(left, instances, most_steps)

    def packing(self, left: Sequence[int], instances: Sequence[int] = (), most_steps: int = MOST_STEPS) -> Packing:
        """Search with the free shares of GPUs that are `left` once whole ones are taken, and of `instances`."""
        tried = _Tried(most_steps, instances)
        return Packing(self._rest(0, left, tried), tried.steps)

    def _rest(self, done: int, left: Sequence[int], tried: _Tried) -> tuple[tuple[int, ...], ...] | None:
        """Return where the pieces go after those that are `done`, into the shares that are `left`; None: nowhere."""
        if done == len(self.pieces):
            return ()
        if done == self._several and tried.instances:
            left = sorted([*left, *tried.instances])
        useful = tuple(free for free in left if free >= self._least[done])
        beside = sum(tried.instances) if done < self._several else 0
        if sum(useful) + beside < self._sums[done] or (done, useful) in tried.vain:
            return None
        gpus, each = self.pieces[done]
        alike = [tuple(group) for free, group in groupby(useful) if free >= each]
        for taken in groups(alike, gpus):
            if tried.steps >= tried.most_steps:
                return None
            tried.steps += 1
            after = list(useful)
            for free in taken:
                after.remove(free)
            others = self._rest(done + 1, sorted([*after, *(free - each for free in taken)]), tried)
            if others is not None:
                return (taken, *others)
        tried.vain.add((done, useful))
        return None


class CachingPacker(Packer):
    """Packs the demands of one pod onto thousands of nodes: GPUs with equivalent room are searched only once.

    Says only whether there is a packing, not which.
    """

    def __init__(self, demands: Sequence[Demand], effort: Effort) -> None:
        """Search for no longer than `effort` allows: then `TooLongError` is raised."""
        super().__init__(demands)
        self.effort = effort
        self._smallest = min((each for _, each in self.pieces), default=0)
        self._cache: dict[tuple[int, ...], Packing] = {}

    @property
    def known(self) -> int:
        """The number of packings that are cached."""
        return len(self._cache)

    def packing(self, left: Sequence[int], instances: Sequence[int] = (), most_steps: int = MOST_STEPS) -> Packing:
        """Search as a `Packer` does."""
        if sum(left) + sum(instances) < self._sums[0]:
            return Packing(None, 0)
        # Fewer free shares than the smallest piece count as none, more than the sum of all pieces as that sum.
        key = tuple([min(free, self._sums[0]) for free in left if free >= self._smallest])
        if instances:
            # Memory of one GPU may be that of an instance; where that is all that is asked, they are as GPUs.
            beside = sorted([min(free, self._sums[0]) for free in instances if free >= self._smallest])
            key = (*key, *(-free for free in beside)) if self._several else tuple(sorted((*key, *beside)))
        packing = self._cache.get(key)
        if packing is None:
            self.effort.check()
            if len(self._cache) >= _MOST_PACKINGS:
                self._cache.clear()
            searched = super().packing(left, instances, most_steps)
            self.effort.spend(searched.steps + 1)
            packing = self._cache[key] = replace(searched, taken=searched.taken and ())
        return packing


def order(demands: Sequence[Demand]) -> list[int]:
    """Return the order in which demands are placed: whole GPUs first, for they need GPUs that are not in use."""
    return sorted(
        range(len(demands)),
        key=lambda n: (demands[n].kind is not Kind.COUNT, -demands[n].gpus, -demands[n].amount, n),
    )


def frees_of(rooms: Sequence[Room]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the arguments of a `Packer`: the free shares of GPUs that give shares, of unused ones, of instances."""
    # As `Room.gives_shares` and `Room.unused` say: to call these takes a fifth of what a filter takes of several parts.
    giving = [room for room in rooms if room.healthy and not room.whole]
    gpus = [room for room in giving if room.card is None]
    instances = () if len(gpus) == len(giving) else tuple([room.free for room in giving if room.card is not None])
    return tuple([room.free for room in gpus]), tuple([room.free for room in gpus if not room.shared]), instances


def groups(alike: Sequence[Sequence[T]], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the groups of `size` members that differ by how many they take of each kind in `alike`."""
    if not size:
        yield ()
    elif sum(map(len, alike)) >= size:
        for number in range(min(size, len(alike[0])), -1, -1):
            for others in groups(alike[1:], size - number):
                yield (*alike[0][:number], *others)

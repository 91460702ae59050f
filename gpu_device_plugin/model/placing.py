"""Choose GPUs for a demand, or say for each GPU why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.resources import Kind

# Up to this number of groups of whole GPUs, all are compared: 4 of 8 are 70. Beyond it, one is grown greedily from each
# of the GPUs that are connected best, and these are compared: 8 of 16 would be 12,870 groups.
_MOST_GROUPS = 70
_MOST_SEEDS = 16

TOGETHER = -1
"""The position of a `Room` that stands for all MIG instances of one GPU together: a rank is asked about it too."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One container's request for one resource."""

    kind: Kind
    amount: int
    """Shares in all, or whole GPUs."""
    gpus: int = 1
    """The number of GPUs with equal parts of the shares. More than one only where a scheduler promised it."""


@dataclass(slots=True)
class Room:
    """The state of one GPU as far as a demand depends on it.

    The fields are final for mypy: one that is frozen takes four times as long to make, and the kubelet waits while one
    is made of every GPU and MIG instance.
    """

    position: Final[int]
    total: Final[int]
    """Shares that it is cut into."""
    free: Final[int]
    """Shares that are available to this demand."""
    healthy: Final[bool] = True
    shared: Final[bool] = False
    """A share of it is in use."""
    whole: Final[bool] = False
    """It is in use as a whole GPU."""
    card: Final[int | None] = None
    """Of a MIG instance: a number that all instances of one GPU have in common. None: it is a whole GPU."""

    @property
    def gives_shares(self) -> bool:
        """Whether its free shares, if any, may be allocated."""
        return self.healthy and not self.whole

    @property
    def unused(self) -> bool:
        """Whether it may be allocated as a whole GPU, or as a whole MIG instance if it is one."""
        return self.healthy and not self.whole and not self.shared


Rank: TypeAlias = "Callable[[Room], float]"
"""From a GPU that fits to its rank; the lowest rank is chosen, see `preference` for ties. Where there are MIG
instances, it is asked about all of a GPU as one room too, whose position is `TOGETHER`."""
Ranks: TypeAlias = "Callable[[Demand], Rank]"
"""A rank for each demand."""


FIT = "fit"

POLICIES: Mapping[str, Rank] = {
    FIT: lambda room: room.free,
    "binpack": lambda room: room.free,
    "spread": lambda room: -room.free,
}
"""`binpack` fills one GPU before the next and keeps the others unused; `spread` takes the emptiest. `fit` takes the GPU
that costs the node the least placement value (`features.learning`); only the scheduler extender knows which pods come,
and where it does not decide, `fit` is `binpack`."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs chosen for a demand."""

    demand: Demand
    shares: tuple[tuple[int, int], ...]
    """(position of the GPU, number of shares) by position; for whole GPUs all of their shares."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The GPUs of this placement."""
        return tuple(position for position, _ in self.shares)

    def at_most(self, limit_shares: int | None) -> Placement:
        """Return it with all shares that its container may use of its one GPU; None: those that it is given."""
        if limit_shares is None:
            return self
        ((position, given),) = self.shares
        return replace(self, shares=((position, max(given, limit_shares)),))


class Obstacle(StrEnum):
    """Why one GPU cannot serve a demand, the most lasting reason first."""

    UNHEALTHY = "unhealthy"
    OTHER_KIND = "of another kind"
    """A MIG instance where GPUs are asked for, or the reverse."""
    SMALL = "smaller than the demand"
    WHOLE = "exclusively allocated"
    SHARED = "with shares in use"
    FULL = "too little room"


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """A demand that cannot be met: for each GPU the reason and its free shares."""

    demand: Demand
    reasons: tuple[tuple[Room, Obstacle], ...] = ()

    def sentence(self, share_mib: int) -> str:
        """Return the sentence for the owner of the pod, who knows neither shares nor device IDs."""
        if self.demand.kind is Kind.COUNT:
            return self._whole_sentence()
        asked = f"GPU memory: {format_mib(self.demand.amount * share_mib)} requested"
        if self.demand.gpus > 1:
            asked += f" from {self.demand.gpus} GPUs"
        if self.demand.amount % self.demand.gpus:
            return f"{asked}, which cannot be split evenly into whole shares"
        if self.demand.gpus > 1 and self.reasons and all(room.card is not None for room, _ in self.reasons):
            return f"{asked}, this node has MIG instances only, and no container can use several of them"
        return f"{asked}, {self._why_no_memory(share_mib)}"

    def _why_no_memory(self, share_mib: int) -> str:
        if not self.reasons:
            return "this node has no shared GPU"
        each = self.demand.amount // self.demand.gpus
        largest = max(room.total for room, _ in self.reasons)
        if largest < each and self.demand.gpus == 1:
            return f"the largest GPU of this node has {format_mib(largest * share_mib)}, so it can never run here"
        if not any(room.healthy for room, _ in self.reasons):
            return "no GPU of this node is healthy"
        open_to_shares = [room for room, _ in self.reasons if room.gives_shares]
        if not open_to_shares:
            return "all healthy GPUs of this node are exclusively allocated"
        if self.demand.gpus == 1:
            most = max(room.free for room in open_to_shares)
            return f"the emptiest healthy GPU has {format_mib(most * share_mib)} free"
        enough = sum(room.free >= each for room in open_to_shares if room.card is None)
        return f"healthy GPUs with {format_mib(each * share_mib)} free: {enough}"

    def _whole_sentence(self) -> str:
        asked = f"whole GPUs: {self.demand.amount} requested"
        reasons = [obstacle for room, obstacle in self.reasons if room.card is None]
        if len(reasons) < self.demand.amount:
            return f"{asked}, this node has {len(reasons)}, so it can never run here"
        why = Counter(reasons)
        free = why.pop(Obstacle.FULL, 0)
        others = ", ".join(f"{count} {obstacle}" for obstacle, count in sorted(why.items()))
        return f"{asked}, {free} free" + (f" ({others})" if others else "")


def place(
    demand: Demand,
    rooms: Sequence[Room],
    rank: Rank,
    closeness: Callable[[int, int], int] = lambda _a, _b: 0,
    must: Collection[int] = (),
) -> Placement | Unplaceable:
    """Choose GPUs for `demand` out of `rooms`, all of a node's, by the policy's `rank`.

    Whole GPUs are chosen by their `closeness`: how well two of them (by position) are connected, more is better. Whole
    MIG instances are chosen by their GPUs. The positions in `must` have to be part of the placement.
    """
    rooms, must = sorted(rooms, key=lambda room: room.position), frozenset(must)
    each, rest = divmod(demand.amount, demand.gpus)
    wanted = demand.gpus if demand.kind is Kind.MEMORY else demand.amount
    fitting = _fitting(demand, each, rooms)
    others = [room for room in fitting if room.position not in must] if must else fitting
    must_fits = len(fitting) - len(others) == len(must) <= wanted
    if len(fitting) < wanted or not must_fits or wanted < 1 or rest:
        return Unplaceable(demand, tuple((room, _obstacle(demand, each, room)) for room in rooms))
    if demand.kind is Kind.MEMORY:
        preferred = preference(rooms, rank)
        count = wanted - len(must)
        best = [min(others, key=preferred)] if count == 1 else sorted(others, key=preferred)[:count]
        chosen = sorted((*must, *(room.position for room in best)))
        return Placement(demand, tuple((position, each) for position in chosen))
    if demand.kind is Kind.INSTANCE:
        group = _of_few_cards(fitting, wanted, must)
    else:
        group = closest([room.position for room in fitting], wanted, closeness, must)
    total = {room.position: room.total for room in fitting}
    return Placement(demand, tuple((position, total[position]) for position in group))


def fits_kind(demand: Demand, room: Room) -> bool:
    """Return whether a GPU, or a MIG instance, is of the kind that a demand can be met with.

    No program can use several MIG instances at once (CUDA shows it one), so memory of several GPUs is of whole GPUs.
    """
    if demand.kind is Kind.MEMORY:
        return room.card is None or demand.gpus == 1
    return (room.card is None) is (demand.kind is Kind.COUNT)


def preference(rooms: Iterable[Room], rank: Rank) -> Callable[[Room], tuple[float, bool, float, int]]:
    """Return the key by which one of `rooms` is preferred for memory, the lowest first.

    Of equal ones a MIG instance comes before a GPU, which may be wanted whole. Of equal instances all those of a GPU
    together decide: the GPUs are filled one after the other, or all evenly, by policy.
    """
    sums: dict[int | None, tuple[int, int]] = {}
    for room in rooms:
        if (card := room.card) is not None:
            total, free = sums.get(card, (0, 0))
            sums[card] = total + room.total, free + (room.free if room.gives_shares else 0)
    of_card = {card: rank(Room(TOGETHER, total, free, card=card)) for card, (total, free) in sums.items()}
    return lambda room: (rank(room), room.card is None, of_card.get(room.card, 0.0), room.position)


def _fitting(demand: Demand, each: int, rooms: Iterable[Room]) -> list[Room]:
    """Return the GPUs that can serve a demand; `_obstacle` says why another cannot."""
    if demand.kind is not Kind.MEMORY:
        return [room for room in rooms if room.unused and fits_kind(demand, room)]
    # As `Room.gives_shares` says: to call it for 56 MIG instances takes a tenth of the time that the kubelet waits.
    giving = [room for room in rooms if room.free >= each and room.healthy and not room.whole]
    return giving if demand.gpus == 1 else [room for room in giving if fits_kind(demand, room)]


def _obstacle(demand: Demand, each: int, room: Room) -> Obstacle:
    memory = demand.kind is Kind.MEMORY
    table: Mapping[Obstacle, bool] = {
        Obstacle.UNHEALTHY: not room.healthy,
        Obstacle.OTHER_KIND: not fits_kind(demand, room),
        Obstacle.SMALL: memory and room.total < each,
        Obstacle.WHOLE: room.whole,
        Obstacle.SHARED: not memory and room.shared,
        Obstacle.FULL: memory and room.free < each,
    }
    return next((obstacle for obstacle, applies in table.items() if applies), Obstacle.FULL)


def _of_few_cards(rooms: Iterable[Room], size: int, must: frozenset[int]) -> tuple[int, ...]:
    """Return `size` instances of as few GPUs as possible, of those that have the fewest left.

    GPUs without instances in use can be divided anew.
    """
    left: dict[int | None, list[int]] = {}
    chosen, cards = sorted(must), set[int | None]()
    for room in rooms:
        if room.position in must:
            cards.add(room.card)
        else:
            left.setdefault(room.card, []).append(room.position)
    while (lacking := size - len(chosen)) > 0:
        # The GPU that this container has already, else the smallest that suffices, else the largest.
        card = min(
            left,
            key=lambda card: (
                card not in cards,
                len(left[card]) < lacking,
                len(left[card]) if len(left[card]) >= lacking else -len(left[card]),
                left[card][0],
            ),
        )
        chosen += sorted(left.pop(card))[:lacking]
    return tuple(sorted(chosen))


def closest(
    candidates: Iterable[int], size: int, closeness: Callable[[int, int], int], must: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the best connected group of `size` GPUs; among equals, the one whose rest is best connected.

    `closeness` says how well two of them, the lower position first, are connected. The group has all of `must`.
    """
    order = sorted(candidates)
    links = {a: {b: closeness(min(a, b), max(a, b)) for b in order if b != a} for a in order}
    sums = {a: sum(links[a].values()) for a in order}

    def placement_value(group: Sequence[int]) -> tuple[int, int, Sequence[int]]:
        """Rank by the links inside the group, then by those among the others: all links but the group's, each once."""
        inside = sum(links[a][b] for a, b in combinations(group, 2))
        return -inside, sum(sums[a] for a in group) - inside, group

    def grown(group: frozenset[int]) -> tuple[int, ...]:
        gained = {c: sum(links[c][m] for m in group) for c in order if c not in group}
        while len(group) < size:
            best = max(gained, key=lambda c: (gained[c], -c))
            group |= {best}
            del gained[best]
            for c in gained:
                gained[c] += links[c][best]
        return tuple(sorted(group))

    if comb(len(order), size) <= _MOST_GROUPS:
        return min((group for group in combinations(order, size) if must.issubset(group)), key=placement_value)
    likely = sorted(order, key=lambda c: (-sums[c], c))[:_MOST_SEEDS]
    seeds = [seed for c in (*must, *likely) if len(seed := must | {c}) <= size]
    return min(map(grown, seeds), key=placement_value)

"""Put a whole pod onto one node, or say why it does not fit there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpu_device_plugin.core.cluster.candidate import summary
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.placing import Placement, Refusal, place
from gpu_device_plugin.core.model.policy import POLICIES
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate, Summary
    from gpu_device_plugin.core.model.placing import Demand, Room
    from gpu_device_plugin.core.model.policy import Rank

    _Likeness = tuple[int, int, bool, bool, bool]

T = TypeVar("T")

_MOST_STEPS = 1000
"""A pod of several parts is put together by trying, and after so many steps it is taken for one that does not fit. Six
containers on eight GPUs that are all different take a few dozen; a step takes some microseconds."""

TOGETHER = "its GPUs have no room for all containers of the pod together"


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod's place on a node."""

    placements: tuple[Placement, ...]
    """One for each part of what it asks, in their order."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a pod does not fit on a node."""

    sentence: str
    """Completes "on this node ...". Equal for many nodes where it can be: kube-scheduler counts equal ones together."""
    unresolvable: bool
    """No pod of this node could make room by ending; kube-scheduler then looks for none to evict here."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Whether all demands of a pod go onto some GPUs at once, by how much these have free and nothing else."""

    taken: tuple[tuple[int, ...], ...] | None
    """For each demand for memory, in the order of `_order`, what its GPUs have free before it takes its part of them;
    None: no way was found. Whole are the GPUs that have the least."""
    steps: int
    """How many it took to find that out, each of some microseconds."""


Pack: TypeAlias = "Callable[[tuple[int, ...], tuple[int, ...]], Packing]"
"""A `Packer` for the demands of one pod, or what remembers its answers."""


def unfit(ask: Ask, node: Candidate, pack: Pack | None = None) -> Unfit | None:
    """Say why a pod does not fit on `node`, None if it does: as `fit` decides, without placing anything.

    Args:
        ask: what the pod asks; without any part it fits everywhere.
        node: the node with what is taken of it.
        pack: what to ask instead of a `Packer`.
    """
    if len(ask.parts) == 1 and not ask.wishes.choosy:
        # Asked of every node for nearly every pod.
        return unfit_by_kind(ask, node) or _too_large(ask.parts[0].demand, node, node.summary)
    if not ask.parts:
        return None
    found = _packed(ask, node, allowed(ask, node), pack)
    return found if isinstance(found, Unfit) else None


def fit(ask: Ask, node: Candidate, policy: str) -> Fit | Unfit:
    """Choose GPUs of `node` for every part of a pod.

    Args:
        ask: what the pod asks; without any part it fits everywhere.
        node: the node with what is taken of it.
        policy: which GPU is preferred where neither pod nor node says, a name in `POLICIES`.
    """
    if not ask.parts:
        return Fit(())
    rooms = allowed(ask, node)
    found = _packed(ask, node, rooms)
    if isinstance(found, Unfit):
        return found
    demands = [part.demand for part in ask.parts]
    rank = POLICIES[ask.wishes.gpu_policy or node.gpus.policy or policy]
    placements = _preferred(demands, rooms, rank, node.gpus.links.connection) or _as_packed(demands, rooms, found)
    return Fit(tuple(placements[n] for n in range(len(demands))))


def _packed(
    ask: Ask, node: Candidate, rooms: Sequence[Room], pack: Pack | None = None
) -> tuple[tuple[int, ...], ...] | Unfit:
    """Find a way to place all parts of a pod, or say why there is none."""
    why = unfit_by_kind(ask, node) or _alone(ask, node, rooms)
    if why is not None and (why.unresolvable or len(ask.parts) == 1):
        return why
    pack = pack or Packer([part.demand for part in ask.parts])
    if why is None and (taken := pack(*free_and_idle(rooms)).taken) is not None:
        return taken
    sizes = tuple(room.total for room in rooms if room.healthy)
    unresolvable = pack(sizes, sizes).taken is None
    if why is None or unresolvable:
        return Unfit(TOGETHER + _among(node, rooms), unresolvable)
    return why


def unfit_by_kind(ask: Ask, node: Candidate) -> Unfit | None:
    """Say why a pod fits on no node of this kind, whatever its GPUs are and have free; None if some may do."""
    if node.gpus.problem:
        return Unfit(node.gpus.problem, unresolvable=True)
    if not node.rooms:
        return Unfit("it shares no GPU", unresolvable=True)
    if node.gpus.divided:
        return _beyond_gpushare(ask, node)
    return None


def _beyond_gpushare(ask: Ask, node: Candidate) -> Unfit | None:
    if any(part.demand.kind is Kind.COUNT for part in ask.parts):
        return Unfit("its device plugin gives out no whole GPUs", unresolvable=True)
    # It knows the pod by its sum and the GPU by `IDX`. Where there is only one GPU it needs to know neither.
    if len(node.rooms) > 1 and (len(ask.parts) > 1 or ask.parts[0].demand.gpus > 1):
        return Unfit(
            "its device plugin serves only pods of which one container takes memory of one GPU", unresolvable=True
        )
    return None


def allowed(ask: Ask, node: Candidate) -> tuple[Room, ...]:
    """Return the rooms that the pod's annotations allow."""
    wishes = ask.wishes
    if not wishes.choosy:
        return node.rooms
    return tuple(
        room
        for gpu, room in zip(node.gpus.gpus, node.rooms, strict=True)
        if wishes.allow_model(gpu.model) and wishes.allow_uuid(gpu.uuid)
    )


def _among(node: Candidate, rooms: Sequence[Room]) -> str:
    return "" if len(rooms) == len(node.rooms) else ", among those that the pod's annotations allow"


def _alone(ask: Ask, node: Candidate, rooms: Sequence[Room]) -> Unfit | None:
    """Say why a part of a pod does not even fit alone into the rooms that are allowed, None if each does."""
    if not rooms:
        return Unfit("no GPU is one that the pod's annotations allow", unresolvable=True)
    numbers = node.summary if len(rooms) == len(node.rooms) else summary(rooms)
    answers = [why for part in ask.parts if (why := _too_large(part.demand, node, numbers)) is not None]
    first = min(answers, key=lambda why: not why.unresolvable, default=None)
    return None if first is None else Unfit(first.sentence + _among(node, rooms), first.unresolvable)


def _too_large(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    """Say why one demand does not fit into the rooms of which these are the numbers, None if it does."""
    if not numbers.sizes:
        return Unfit("no GPU is healthy", unresolvable=True)
    return (_too_many if demand.kind is Kind.COUNT else _too_much)(demand, node, numbers)


def _too_many(demand: Demand, _node: Candidate, numbers: Summary) -> Unfit | None:
    if len(numbers.sizes) < demand.amount:
        return Unfit(f"fewer than {demand.amount} GPUs are healthy", unresolvable=True)
    return (
        None
        if len(numbers.unused) >= demand.amount
        else Unfit(_lacking(demand.amount, "is", "are", "unused"), unresolvable=False)
    )


def _too_much(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    if last < len(numbers.frees) and numbers.frees[last] >= each:
        return None
    memory = _memory(each, node)
    if last >= len(numbers.sizes) or numbers.sizes[last] < each:
        return Unfit(_too_small(demand.gpus, each, node, numbers), unresolvable=True)
    if not numbers.frees:
        return Unfit("every GPU is in whole use", unresolvable=False)
    return Unfit(_lacking(demand.gpus, "has", "have", f"{memory} free"), unresolvable=False)


def _too_small(wanted: int, each: int, node: Candidate, numbers: Summary) -> str:
    """Say that too few GPUs have so many shares, and whether that is for those that are out of service."""
    large = sum(size >= each for size in numbers.failed)
    if wanted > 1:
        in_service = sum(size >= each for size in numbers.sizes)
        which = " in service" if in_service + large >= wanted else ""
        return f"fewer than {wanted} GPUs{which} have {_memory(each, node)} in all"
    if not large:
        return f"the largest GPU has {_memory(numbers.sizes[0], node)} in all"
    return (
        f"the largest GPU in service has {_memory(numbers.sizes[0], node)} in all, and one of "
        f"{_memory(numbers.failed[0], node)} is out of service"
    )


def _lacking(wanted: int, verb: str, verbs: str, what: str) -> str:
    return f"no GPU {verb} {what}" if wanted == 1 else f"fewer than {wanted} GPUs {verbs} {what}"


def _memory(shares: int, node: Candidate) -> str:
    return f"a gpu-mem of {shares}" if node.gpus.share_mib is None else format_mib(shares * node.gpus.share_mib)


# --- All parts at once ------------------------------------------------------------------------------------------------


class Packer:
    """Finds out whether all demands of one pod go together onto some GPUs; what depends on the pod alone is kept."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        """Pack `demands`."""
        ordered = [demands[n] for n in _order(demands)]
        self.whole = sum(demand.amount for demand in ordered if demand.kind is Kind.COUNT)
        """How many GPUs are taken whole."""
        self.pieces = [(demand.gpus, demand.amount // demand.gpus) for demand in ordered if demand.kind is Kind.MEMORY]
        """From how many GPUs how many shares each, by demand."""
        # What the n-th piece and all after it take in all, and the smallest part of any.
        self._sums = list(accumulate((gpus * each for gpus, each in reversed(self.pieces)), initial=0))[::-1]
        self._least = list(accumulate((each for _, each in reversed(self.pieces)), min))[::-1]

    def left(self, frees: Sequence[int], idle: Sequence[int]) -> list[int] | None:
        """Return what is free once whole GPUs are taken, the least first; None if there are too few of them."""
        if self.whole > len(idle):
            return None
        left = sorted(frees)
        for free in sorted(idle)[: self.whole]:
            # Those with the least: nothing that is left could do more than what is left so.
            left.remove(free)
        return left

    def __call__(self, frees: Sequence[int], idle: Sequence[int], most_steps: int = _MOST_STEPS) -> Packing:
        """Try it.

        Args:
            frees: shares free on each GPU that gives shares.
            idle: of those GPUs, which may also be taken whole: shares free on each.
            most_steps: when to give up.
        """
        left = self.left(frees, idle)
        if left is None:
            return Packing(None, 0)
        vain: set[tuple[int, tuple[int, ...]]] = set()
        steps = 0

        def rest(done: int, left: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
            nonlocal steps
            if done == len(self.pieces):
                return ()
            useful = tuple(free for free in left if free >= self._least[done])
            if sum(useful) < self._sums[done] or (done, useful) in vain:
                return None
            gpus, each = self.pieces[done]
            alike = [tuple(group) for free, group in groupby(useful) if free >= each]
            for taken in groups(alike, gpus):
                if steps >= most_steps:
                    return None
                steps += 1
                after = list(useful)
                for free in taken:
                    after.remove(free)
                others = rest(done + 1, sorted([*after, *(free - each for free in taken)]))
                if others is not None:
                    return (taken, *others)
            vain.add((done, useful))
            return None

        return Packing(rest(0, left), steps)


def _order(demands: Sequence[Demand]) -> list[int]:
    """Return in which order demands are placed: whole GPUs first, for they need GPUs that are not in use."""
    return sorted(
        range(len(demands)),
        key=lambda n: (demands[n].kind is not Kind.COUNT, -demands[n].gpus, -demands[n].amount, n),
    )


def free_and_idle(rooms: Sequence[Room]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shares free on each GPU that gives shares, and on each unused one: for a `Packer`."""
    return tuple(room.free for room in rooms if room.gives_shares), tuple(room.free for room in rooms if room.unused)


def _preferred(
    demands: Sequence[Demand], rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> dict[int, Placement] | None:
    """Give the largest demand the best place that leaves room for all others, then the next; None if it takes long."""
    order = _order(demands)
    found: dict[int, Placement] = {}
    steps = _MOST_STEPS
    for done, n in enumerate(order):
        others = Packer([demands[later] for later in order[done + 1 :]])
        ways = _ways(demands[n], rooms, rank, closeness)
        packing = Packing(None, 0)
        while packing.taken is None:
            placement = next(ways, None)
            if placement is None or steps < 0:
                return None
            left = _without(rooms, placement)
            packing = others(*free_and_idle(left), steps)
            steps -= 1 + packing.steps
            found[n] = placement
        rooms = left
    return found


def _as_packed(
    demands: Sequence[Demand], rooms: Sequence[Room], taken: Sequence[tuple[int, ...]]
) -> dict[int, Placement]:
    """Place demands in the way that a `Packer` has found."""
    found: dict[int, Placement] = {}
    idle = sorted((room for room in rooms if room.unused), key=lambda room: room.free)
    left = {room.position: room.free for room in rooms if room.gives_shares}
    ways = iter(taken)
    for n in _order(demands):
        demand = demands[n]
        if demand.kind is Kind.COUNT:
            group, idle = idle[: demand.amount], idle[demand.amount :]
            shares = {room.position: room.total for room in group}
            left = {position: free for position, free in left.items() if position not in shares}
        else:
            shares = {}
            for free in next(ways):
                position = next(at for at, now in left.items() if now == free and at not in shares)
                shares[position] = demand.amount // demand.gpus
            left = {position: free - shares.get(position, 0) for position, free in left.items()}
        found[n] = Placement(demand, tuple(sorted(shares.items())))
    return found


def _ways(
    demand: Demand, rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> Iterator[Placement]:
    """Yield the ways to place one demand, the preferred first; then, of ways that leave the same room, one of each."""
    best = place(demand, rooms, rank, closeness)
    yield from () if isinstance(best, Refusal) else (best,)
    memory = demand.kind is Kind.MEMORY
    each = demand.amount // demand.gpus
    alike: dict[_Likeness, list[Room]] = {}
    for room in sorted(rooms, key=lambda room: (rank(room.free), room.position)):
        if (room.gives_shares and room.free >= each) if memory else room.unused:
            alike.setdefault(_likeness(room), []).append(room)

    def on(group: Iterable[Room]) -> Placement:
        return Placement(demand, tuple(sorted((room.position, each if memory else room.total) for room in group)))

    yield from map(on, groups(list(alike.values()), demand.gpus if memory else demand.amount))


def groups(alike: Sequence[Sequence[T]], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the groups that differ by more than which of several of the same kind they take."""
    if not size:
        yield ()
    elif sum(map(len, alike)) >= size:
        for number in range(min(size, len(alike[0])), -1, -1):
            for others in groups(alike[1:], size - number):
                yield (*alike[0][:number], *others)


def _likeness(room: Room) -> _Likeness:
    """Return all of a room but which it is."""
    return room.total, room.free, room.healthy, room.shared, room.whole


def _without(rooms: Sequence[Room], placement: Placement) -> tuple[Room, ...]:
    """Return what room a placement leaves; a GPU taken whole has no share left, and a share of it is in use."""
    taken = dict(placement.shares)
    return tuple(
        replace(room, free=room.free - taken[room.position], shared=True) if room.position in taken else room
        for room in rooms
    )

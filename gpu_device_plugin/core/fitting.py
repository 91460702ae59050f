"""Put a whole pod onto one node, or say why it does not fit there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.candidate import summary
from gpu_device_plugin.core.memory import format_mib
from gpu_device_plugin.core.placing import Placement, Refusal, place
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate, Summary
    from gpu_device_plugin.core.placing import Demand, Room
    from gpu_device_plugin.core.policy import Rank

    _Likeness = tuple[int, int, bool, bool, bool]

# A pod of several parts is put together by trying, and after so many steps it is taken for one that does not fit. Six
# containers on eight GPUs that are all different take a few hundred.
_MOST_STEPS = 1000


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
    lasting: bool
    """No pod of this node could make room by ending."""


def unfit(ask: Ask, node: Candidate) -> Unfit | None:
    """Say why a pod does not fit on `node`, None if it does: as `fit` decides, mostly without placing anything."""
    if len(ask.parts) == 1:
        if ask.wishes.choosy:
            return _hopeless(ask, node) or _alone(ask, node, _allowed(ask, node))
        # Asked of every node for nearly every pod.
        return _hopeless(ask, node) or _too_large(ask.parts[0].demand, node, node.summary)
    answer = fit(ask, node, next(iter(POLICIES)))
    return answer if isinstance(answer, Unfit) else None


def fit(ask: Ask, node: Candidate, policy: str) -> Fit | Unfit:
    """Choose GPUs of `node` for every part of a pod.

    Args:
        ask: what the pod asks; without any part it fits everywhere.
        node: the node with what is taken of it.
        policy: which GPU is preferred where neither pod nor node says, a name in `POLICIES`.
    """
    if not ask.parts:
        return Fit(())
    rooms = _allowed(ask, node)
    demands = [part.demand for part in ask.parts]
    rank = POLICIES[ask.wishes.gpu_policy or node.policy or policy]
    why = _hopeless(ask, node) or _alone(ask, node, rooms)
    if why is None:
        found = _together(demands, rooms, rank, node.gpus.connection)
        if found is not None:
            return Fit(found)
    elif why.lasting or len(demands) == 1:
        return why
    emptied = tuple(replace(room, free=room.total, shared=False, whole=False) for room in rooms)
    lasting = _together(demands, emptied, rank, node.gpus.connection) is None
    if why is None or lasting:
        together = "its GPUs have no room for all containers of the pod together"
        return Unfit(together + _among(node, rooms), lasting)
    return why


def _hopeless(ask: Ask, node: Candidate) -> Unfit | None:
    if node.problem:
        return Unfit(node.problem, lasting=True)
    if not node.rooms:
        return Unfit("it shares no GPU", lasting=True)
    if node.gpus.divided:
        return _beyond_gpushare(ask, node)
    return None


def _beyond_gpushare(ask: Ask, node: Candidate) -> Unfit | None:
    if any(part.demand.kind is Kind.COUNT for part in ask.parts):
        return Unfit("its device plugin gives out no whole GPUs", lasting=True)
    # It knows the pod by its sum and the GPU by `IDX`. Where there is only one GPU it needs to know neither.
    if len(node.rooms) > 1 and (len(ask.parts) > 1 or ask.parts[0].demand.gpus > 1):
        return Unfit("its device plugin serves only pods of which one container takes memory of one GPU", lasting=True)
    return None


def _allowed(ask: Ask, node: Candidate) -> tuple[Room, ...]:
    """Return the rooms that the pod's annotations allow."""
    wishes = ask.wishes
    if not wishes.choosy:
        return node.rooms
    models = {model: wishes.allow_model(model) for model in {gpu.model for gpu in node.gpus.gpus}}
    allowed = {gpu.position for gpu in node.gpus.gpus if models[gpu.model] and wishes.allow_uuid(gpu.uuid)}
    return tuple(room for room in node.rooms if room.position in allowed)


def _among(node: Candidate, rooms: Sequence[Room]) -> str:
    return "" if len(rooms) == len(node.rooms) else ", among those that the pod's annotations allow"


def _alone(ask: Ask, node: Candidate, rooms: Sequence[Room]) -> Unfit | None:
    """Say why a part of a pod does not even fit alone into the rooms that are allowed, None if each does."""
    if not rooms:
        return Unfit("no GPU is one that the pod's annotations allow", lasting=True)
    numbers = node.summary if len(rooms) == len(node.rooms) else summary(rooms)
    answers = [why for part in ask.parts if (why := _too_large(part.demand, node, numbers)) is not None]
    first = min(answers, key=lambda why: not why.lasting, default=None)
    return None if first is None else Unfit(first.sentence + _among(node, rooms), first.lasting)


def _too_large(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    """Say why one demand does not fit into the rooms of which these are the numbers, None if it does."""
    if not numbers.sizes:
        return Unfit("no GPU is healthy", lasting=True)
    return (_too_many if demand.kind is Kind.COUNT else _too_much)(demand, node, numbers)


def _too_many(demand: Demand, _node: Candidate, numbers: Summary) -> Unfit | None:
    if len(numbers.sizes) < demand.amount:
        return Unfit(f"fewer than {demand.amount} GPUs are healthy", lasting=True)
    return (
        None if numbers.idle >= demand.amount else Unfit(_lacking(demand.amount, "is", "are", "unused"), lasting=False)
    )


def _too_much(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    if last < len(numbers.frees) and numbers.frees[last] >= each:
        return None
    if demand.gpus == 1 and numbers.sizes[0] < each:
        return Unfit(f"the largest GPU has {_memory(numbers.sizes[0], node)} in all", lasting=True)
    lasting = last >= len(numbers.sizes) or numbers.sizes[last] < each
    if not lasting and not numbers.frees:
        return Unfit("every GPU is in whole use", lasting=False)
    memory = _memory(each, node)
    return Unfit(_lacking(demand.gpus, "has", "have", f"{memory} in all" if lasting else f"{memory} free"), lasting)


def _lacking(wanted: int, verb: str, verbs: str, what: str) -> str:
    return f"no GPU {verb} {what}" if wanted == 1 else f"fewer than {wanted} GPUs {verbs} {what}"


def _memory(shares: int, node: Candidate) -> str:
    return f"a gpu-mem of {shares}" if node.gpus.share_mib is None else format_mib(shares * node.gpus.share_mib)


def _together(
    demands: Sequence[Demand], rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> tuple[Placement, ...] | None:
    """Place all demands at once; None if no way is found. The first found is taken: the best for the largest demand."""
    # Whole GPUs first: they need what nobody else uses.
    order = sorted(
        range(len(demands)),
        key=lambda n: (demands[n].kind is not Kind.COUNT, -demands[n].gpus, -demands[n].amount, n),
    )
    steps = iter(range(_MOST_STEPS))
    vain: set[tuple[int, tuple[_Likeness, ...]]] = set()

    def rest(done: int, rooms: Sequence[Room]) -> tuple[Placement, ...] | None:
        if done == len(order):
            return ()
        state = done, tuple(sorted(map(_likeness, rooms)))
        if state in vain:
            return None
        for placement in _ways(demands[order[done]], rooms, rank, closeness):
            if next(steps, None) is None:
                return None
            others = rest(done + 1, _without(rooms, placement))
            if others is not None:
                return (placement, *others)
        vain.add(state)
        return None

    found = rest(0, rooms)
    return None if found is None else tuple(found[order.index(n)] for n in range(len(demands)))


def _ways(
    demand: Demand, rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> Iterator[Placement]:
    """Yield the ways to place one demand, the preferred first; then, of ways that leave the same room, one of each."""
    best = place(demand, rooms, rank, closeness)
    if isinstance(best, Refusal):
        return
    yield best
    memory = demand.kind is Kind.MEMORY
    each = demand.amount // demand.gpus
    alike: dict[_Likeness, list[Room]] = {}
    for room in sorted(rooms, key=lambda room: (rank(room.free), room.position)):
        if room.healthy and not room.whole and (room.free >= each if memory else not room.shared):
            alike.setdefault(_likeness(room), []).append(room)
    for group in _groups(list(alike.values()), len(best.positions)):
        taken = sorted((room.position, each if memory else room.total) for room in group)
        yield Placement(demand, tuple(taken))


def _groups(alike: Sequence[Sequence[Room]], size: int) -> Iterator[tuple[Room, ...]]:
    """Yield the groups of rooms that differ by more than which of several rooms of the same kind they take."""
    if not size:
        yield ()
    elif sum(map(len, alike)) >= size:
        for number in range(min(size, len(alike[0])), -1, -1):
            for others in _groups(alike[1:], size - number):
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

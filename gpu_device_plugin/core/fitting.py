"""Put a whole pod onto one node, or say why it does not fit there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from gpu_device_plugin.core.candidate import summary
from gpu_device_plugin.core.memory import format_mib
from gpu_device_plugin.core.placing import Placement, Refusal, place
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate, Summary
    from gpu_device_plugin.core.placing import Demand, Room
    from gpu_device_plugin.core.policy import Rank

# A pod of several parts is put together by trying, and after so many steps it is taken for one that does not fit. Five
# containers on eight GPUs that are all different take a few hundred.
_MOST_STEPS = 5000


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
    if len(ask.parts) == 1 and not ask.wishes.choosy:
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
    hopeless = _hopeless(ask, node)
    if hopeless is not None:
        return hopeless
    rooms = tuple(room for room in node.rooms if not ask.wishes.choosy or _allowed(ask, node, room.position))
    if not rooms:
        return Unfit("no GPU is one that the pod's annotations allow", lasting=True)
    rank = POLICIES[ask.wishes.gpu_policy or node.policy or policy]
    demands = [part.demand for part in ask.parts]
    found = _together(demands, rooms, rank, node.gpus.connection)
    if found is not None:
        return Fit(found)
    among = "" if len(rooms) == len(node.rooms) else ", among those that the pod's annotations allow"
    numbers = summary(rooms)
    alone = [why for demand in demands if (why := _too_large(demand, node, numbers)) is not None]
    for why in sorted(alone, key=lambda why: not why.lasting):
        return Unfit(why.sentence + among, why.lasting)
    emptied = tuple(replace(room, free=room.total, shared=False, whole=False) for room in rooms)
    return Unfit(
        f"its GPUs have no room for all containers of the pod together{among}",
        lasting=_together(demands, emptied, rank, node.gpus.connection) is None,
    )


def _hopeless(ask: Ask, node: Candidate) -> Unfit | None:
    if node.problem:
        return Unfit(node.problem, lasting=True)
    if not node.rooms:
        return Unfit("it shares no GPU", lasting=True)
    if node.gpus.divided and any(part.demand.kind is Kind.COUNT for part in ask.parts):
        return Unfit("its device plugin gives out no whole GPUs", lasting=True)
    return None


def _allowed(ask: Ask, node: Candidate, position: int) -> bool:
    return any(gpu.position == position and ask.wishes.allow(gpu.uuid, gpu.model) for gpu in node.gpus.gpus)


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

    def rest(done: int, rooms: Sequence[Room]) -> tuple[Placement, ...] | None:
        if done == len(order):
            return ()
        for placement in _ways(demands[order[done]], rooms, rank, closeness):
            if next(steps, None) is None:
                return None
            others = rest(done + 1, _without(rooms, placement))
            if others is not None:
                return (placement, *others)
        return None

    found = rest(0, rooms)
    return None if found is None else tuple(found[order.index(n)] for n in range(len(demands)))


def _ways(
    demand: Demand, rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> Iterator[Placement]:
    """Yield the ways to place one demand, the preferred first, and of ways that leave the same room only one."""
    best = place(demand, rooms, rank, closeness)
    if isinstance(best, Refusal):
        return
    yield best
    memory = demand.kind is Kind.MEMORY
    each = demand.amount // demand.gpus if memory else 0
    fitting = [
        room for room in rooms if room.healthy and not room.whole and (room.free >= each if memory else not room.shared)
    ]
    at = {room.position: room for room in rooms}
    seen = {_left(at[position] for position in best.positions)}
    fitting.sort(key=lambda room: (rank(room.free), room.position))
    for group in combinations(fitting, demand.gpus if memory else demand.amount):
        if (left := _left(group)) not in seen:
            seen.add(left)
            taken = sorted((room.position, each if memory else room.total) for room in group)
            yield Placement(demand, tuple(taken))


def _left(group: Iterable[Room]) -> tuple[tuple[int, int, bool], ...]:
    return tuple(sorted((room.total, room.free, room.shared) for room in group))


def _without(rooms: Sequence[Room], placement: Placement) -> tuple[Room, ...]:
    taken = dict(placement.shares)
    whole = placement.demand.kind is Kind.COUNT
    return tuple(
        room
        if room.position not in taken
        else replace(room, whole=True)
        if whole
        else replace(room, free=room.free - taken[room.position], shared=True)
        for room in rooms
    )

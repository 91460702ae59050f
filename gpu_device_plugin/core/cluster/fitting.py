"""Place all parts of a pod on the GPUs of one node, or say why it does not fit there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpu_device_plugin.core.cluster.candidate import summary
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.placing import Placement, Refusal, fits_kind, place, preference
from gpu_device_plugin.core.model.policy import FIT, POLICIES
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.candidate import Candidate, Summary
    from gpu_device_plugin.core.model.placing import Demand, Room
    from gpu_device_plugin.core.model.policy import Rank, Ranks

    _Likeness = tuple[int, int, bool, bool, bool, bool]

T = TypeVar("T")

_MOST_STEPS = 1000
"""A pod of several parts is placed by a search, and does not fit if the search takes more steps. Six containers on
eight GPUs that are all different take a few dozen; a step takes some microseconds."""

TOGETHER = "its GPUs have no room for all containers of the pod together"
_NONE_ALLOWED = "the pod's annotations allow none of its GPUs"
_WHOLE_INSTANCES = "its MIG instances are given whole, by the resources of their profiles, and it shares no GPU"
_NO_GPU = "it has MIG instances only, none of its GPUs is whole"
_ONE_EACH = "it has MIG instances only, and no container can use several of them"
_NOT_ALL = (
    "kube-scheduler gives out its GPUs by ResourceClaims (DRA) and may choose any, and the pod's annotations do not "
    "allow all of them"
)


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod's place on a node."""

    placements: tuple[Placement, ...]
    """One for each part of its demand, in their order; none where kube-scheduler chooses the GPUs (`by_claims`)."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a pod does not fit on a node."""

    sentence: str
    """Completes "on this node ...". The same text on many nodes where possible: kube-scheduler counts equal reasons."""
    unresolvable: bool
    """Even if all pods of this node ended, there would be no room; kube-scheduler then looks for no victims here."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The result of packing all demands of a pod onto GPUs and MIG instances that differ by their free shares alone."""

    taken: tuple[tuple[int, ...], ...] | None
    """For each demand for memory, in the order of `_order`, the free shares of its GPUs before it takes its own; None:
    no packing was found. Demands for whole GPUs get the GPUs with the fewest free shares. Only demands for
    memory of one GPU get instances."""
    steps: int
    """How many steps the search took, each of some microseconds."""


Pack: TypeAlias = "Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], Packing]"
"""A `Packer` for the demands of one pod, or a cache in front of one."""


def unfit(ask: Ask, node: Candidate, pack: Pack | None = None) -> Unfit | None:
    """Return why a pod does not fit on `node`, None if it does: the verdict of `fit`, without a placement.

    Args:
        ask: the pod's demand; without any part it fits everywhere.
        node: the node with its free room.
        pack: used in place of a `Packer`.
    """
    if by_claims(ask, node):
        return _unfit_by_claims(ask, node)
    if len(ask.parts) == 1 and not ask.wishes.choosy:
        # The path of nearly every pod, for every node.
        return unfit_by_kind(ask, node) or _too_large(ask.parts[0].demand, node, node.summary)
    if not ask.parts:
        return None
    found = _packed(ask, node, allowed(ask, node), pack)
    return found if isinstance(found, Unfit) else None


def fit(ask: Ask, node: Candidate, policy: str, ranks: Ranks | None = None) -> Fit | Unfit:
    """Choose GPUs of `node` for every part of a pod.

    Args:
        ask: the pod's demand; without any part it fits everywhere.
        node: the node with its free room.
        policy: which GPU is preferred where neither pod nor node says, a name in `POLICIES`.
        ranks: what `fit` prefers on this node for each demand of the pod; None: it is `binpack`.
    """
    if not ask.parts:
        return Fit(())
    if by_claims(ask, node):
        return _unfit_by_claims(ask, node) or Fit(())
    rooms = allowed(ask, node)
    found = _packed(ask, node, rooms)
    if isinstance(found, Unfit):
        return found
    demands = [part.demand for part in ask.parts]
    chosen = gpu_policy_of(ask, node, policy)
    rank_of = ranks if ranks is not None and chosen == FIT else lambda _demand: POLICIES[chosen]
    placements = _preferred(demands, rooms, rank_of, node.gpus.links.connection) or _as_packed(demands, rooms, found)
    return Fit(tuple(placements[n] for n in range(len(demands))))


def by_claims(ask: Ask, node: Candidate) -> bool:
    """Return whether kube-scheduler itself allocates a pod's GPUs on a node, by a claim that it makes of the limits.

    It does so for whole GPUs alone: a DeviceClass can stand for a number of devices, not for parts of them.
    """
    if not node.gpus.claims or node.gpus.away:
        return False
    return bool(ask.parts) and all(part.demand.kind is Kind.COUNT for part in ask.parts)


def _unfit_by_claims(ask: Ask, node: Candidate) -> Unfit | None:
    """Return why a pod may not get GPUs of a node from kube-scheduler, which knows nothing of the pod's annotations.

    Whether enough GPUs are free is for kube-scheduler to say: it alone knows which are allocated.
    """
    rooms = allowed(ask, node)
    if len(rooms) == len(node.rooms):
        return None
    return Unfit(_NOT_ALL if rooms else _NONE_ALLOWED, unresolvable=True)


def gpu_policy_of(ask: Ask, node: Candidate, policy: str) -> str:
    """Return the policy by which GPUs of a node are chosen for a pod: the pod's, else the node's, else `policy`."""
    return ask.wishes.gpu_policy or node.gpus.policy or policy


def _packed(
    ask: Ask, node: Candidate, rooms: Sequence[Room], pack: Pack | None = None
) -> tuple[tuple[int, ...], ...] | Unfit:
    """Return a packing of all parts of a pod, or why there is none."""
    why = unfit_by_kind(ask, node) or _alone(ask, node, rooms)
    if why is not None and (why.unresolvable or len(ask.parts) == 1):
        return why
    pack = pack or Packer([part.demand for part in ask.parts])
    if why is None and (taken := pack(*frees_of(rooms)).taken) is not None:
        return taken
    sizes = tuple(room.total for room in rooms if room.healthy and room.card is None)
    instances = tuple(room.total for room in rooms if room.healthy and room.card is not None)
    unresolvable = pack(sizes, sizes, instances).taken is None
    if why is None or unresolvable:
        return Unfit(TOGETHER + _among(node, rooms), unresolvable)
    return why


def unfit_by_kind(ask: Ask, node: Candidate) -> Unfit | None:
    """Return why a pod fits on no node of this kind, whatever the models and free room of its GPUs; None if it may."""
    if node.gpus.problem:
        return Unfit(node.gpus.problem, unresolvable=True)
    if not node.rooms:
        return Unfit(_WHOLE_INSTANCES if node.gpus.instances else "it shares no GPU", unresolvable=True)
    if node.gpus.divided:
        return _beyond_gpushare(ask, node)
    return None


def _beyond_gpushare(ask: Ask, node: Candidate) -> Unfit | None:
    if any(part.demand.kind is Kind.COUNT for part in ask.parts):
        return Unfit("its device plugin does not allocate whole GPUs", unresolvable=True)
    # It finds the pod by the sum of its limits and the GPU by `IDX`. On a node with one GPU it needs neither.
    if len(node.rooms) > 1 and (len(ask.parts) > 1 or ask.parts[0].demand.gpus > 1):
        return Unfit(
            "its device plugin serves only pods with one container that takes memory of one GPU", unresolvable=True
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
        if wishes.allow_model(gpu.model) and wishes.allow_uuid(gpu.uuid, gpu.card)
    )


def _among(node: Candidate, rooms: Sequence[Room]) -> str:
    return "" if len(rooms) == len(node.rooms) else ", among the GPUs that the pod's annotations allow"


def _alone(ask: Ask, node: Candidate, rooms: Sequence[Room]) -> Unfit | None:
    """Return why some part of a pod does not fit even alone into the allowed rooms, None if each part does."""
    if not rooms:
        return Unfit(_NONE_ALLOWED, unresolvable=True)
    numbers = node.summary if len(rooms) == len(node.rooms) else summary(rooms)
    answers = [why for part in ask.parts if (why := _too_large(part.demand, node, numbers)) is not None]
    first = min(answers, key=lambda why: not why.unresolvable, default=None)
    return None if first is None else Unfit(first.sentence + _among(node, rooms), first.unresolvable)


def _too_large(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    """Return why one demand does not fit into the rooms that `numbers` summarizes, None if it does."""
    if demand.kind is Kind.COUNT or demand.gpus > 1:
        numbers = numbers.gpus
        if not numbers.sizes and not numbers.failed:
            return Unfit(_NO_GPU if demand.kind is Kind.COUNT else _ONE_EACH, unresolvable=True)
    if not numbers.sizes:
        return Unfit(f"no {_hardware(numbers)} is healthy", unresolvable=True)
    return (_too_many if demand.kind is Kind.COUNT else _too_much)(demand, node, numbers)


def _hardware(numbers: Summary) -> str:
    """Return what `numbers` summarize."""
    if numbers.of_gpus is None:
        return "GPU"
    return "GPU or MIG instance" if numbers.gpus.sizes or numbers.gpus.failed else "MIG instance"


def _too_many(demand: Demand, _node: Candidate, numbers: Summary) -> Unfit | None:
    if len(numbers.sizes) < demand.amount:
        return Unfit(f"fewer than {demand.amount} GPUs are healthy", unresolvable=True)
    return (
        None
        if len(numbers.unused) >= demand.amount
        else Unfit(_lacking(demand.amount, "GPU", "is", "are", "unused"), unresolvable=False)
    )


def _too_much(demand: Demand, node: Candidate, numbers: Summary) -> Unfit | None:
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    if last < len(numbers.frees) and numbers.frees[last] >= each:
        return None
    memory = _memory(each, node)
    if last >= len(numbers.sizes) or numbers.sizes[last] < each:
        return Unfit(_too_small(demand.gpus, each, node, numbers), unresolvable=True)
    if not numbers.frees:
        return Unfit(f"every {_hardware(numbers)} is in whole use", unresolvable=False)
    return Unfit(_lacking(demand.gpus, _hardware(numbers), "has", "have", f"{memory} free"), unresolvable=False)


def _too_small(wanted: int, each: int, node: Candidate, numbers: Summary) -> str:
    """Say that too few GPUs have `each` shares, and whether GPUs out of service are the reason."""
    large = sum(size >= each for size in numbers.failed)
    if wanted > 1:
        in_service = sum(size >= each for size in numbers.sizes)
        which = " in service" if in_service + large >= wanted else ""
        return f"fewer than {wanted} GPUs{which} have {_memory(each, node)} in all"
    if not large:
        return f"the largest {_hardware(numbers)} has {_memory(numbers.sizes[0], node)} in all"
    return (
        f"the largest {_hardware(numbers)} in service has {_memory(numbers.sizes[0], node)} in all, and one of "
        f"{_memory(numbers.failed[0], node)} is out of service"
    )


def _lacking(wanted: int, hardware: str, verb: str, verbs: str, what: str) -> str:
    return f"no {hardware} {verb} {what}" if wanted == 1 else f"fewer than {wanted} {hardware}s {verbs} {what}"


def _memory(shares: int, node: Candidate) -> str:
    return f"a gpu-mem of {shares}" if node.gpus.share_mib is None else format_mib(shares * node.gpus.share_mib)


# --- All parts at once ------------------------------------------------------------------------------------------------


class Packer:
    """Packs all demands of one pod onto a node's GPUs and instances; precomputes all that depends on the pod alone."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        """Pack `demands`."""
        ordered = [demands[n] for n in _order(demands)]
        self.whole = sum(demand.amount for demand in ordered if demand.kind is Kind.COUNT)
        """The number of GPUs that the pod takes whole."""
        self.pieces = [(demand.gpus, demand.amount // demand.gpus) for demand in ordered if demand.kind is Kind.MEMORY]
        """(GPUs, shares of each) of every demand for memory."""
        self._several = sum(gpus > 1 for gpus, _ in self.pieces)
        """How many of `pieces`, which come first, instances cannot serve: no container can use several."""
        # By n: the sum of shares of the n-th piece and all after it, and the fewest shares per GPU of any of them.
        self._sums = list(accumulate((gpus * each for gpus, each in reversed(self.pieces)), initial=0))[::-1]
        self._least = list(accumulate((each for _, each in reversed(self.pieces)), min))[::-1]

    def left(self, frees: Sequence[int], idle: Sequence[int]) -> list[int] | None:
        """Return the free shares of GPUs that remain once whole ones are taken, the least first; None: too few idle."""
        if self.whole > len(idle):
            return None
        left = sorted(frees)
        for free in sorted(idle)[: self.whole] if self.whole else ():
            # Those with the fewest free shares: no other choice leaves more room.
            left.remove(free)
        return left

    def __call__(
        self, frees: Sequence[int], idle: Sequence[int], instances: Sequence[int] = (), most_steps: int = _MOST_STEPS
    ) -> Packing:
        """Search for a packing.

        Args:
            frees: the free shares of each GPU that gives shares.
            idle: the free shares of each of those GPUs that may also be taken whole.
            instances: the free shares of each MIG instance that gives shares.
            most_steps: the search gives up after these.
        """
        left = self.left(frees, idle)
        return Packing(None, 0) if left is None else self.packing(left, instances, most_steps)

    def packing(self, left: Sequence[int], instances: Sequence[int] = (), most_steps: int = _MOST_STEPS) -> Packing:
        """Search with the free shares of GPUs that are `left` once whole ones are taken, and of `instances`."""
        vain: set[tuple[int, tuple[int, ...]]] = set()
        steps = 0

        def rest(done: int, left: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
            nonlocal steps
            if done == len(self.pieces):
                return ()
            if done == self._several and instances:
                left = sorted([*left, *instances])
            useful = tuple(free for free in left if free >= self._least[done])
            beside = sum(instances) if done < self._several else 0
            if sum(useful) + beside < self._sums[done] or (done, useful) in vain:
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


def _preferred(
    demands: Sequence[Demand], rooms: Sequence[Room], ranks: Ranks, closeness: Callable[[int, int], int]
) -> dict[int, Placement] | None:
    """Place each demand, the largest first, best where all later ones still have room; None if that takes too long."""
    order = _order(demands)
    found: dict[int, Placement] = {}
    steps = _MOST_STEPS
    for done, n in enumerate(order):
        others = Packer([demands[later] for later in order[done + 1 :]])
        ways = _ways(demands[n], rooms, ranks(demands[n]), closeness)
        packing = Packing(None, 0)
        while packing.taken is None:
            placement = next(ways, None)
            if placement is None or steps < 0:
                return None
            left = _without(rooms, placement)
            packing = others(*frees_of(left), steps)
            steps -= 1 + packing.steps
            found[n] = placement
        rooms = left
    return found


def _as_packed(
    demands: Sequence[Demand], rooms: Sequence[Room], taken: Sequence[tuple[int, ...]]
) -> dict[int, Placement]:
    """Place demands as a `Packer` has found."""
    found: dict[int, Placement] = {}
    idle = sorted((room for room in rooms if room.unused and room.card is None), key=lambda room: room.free)
    gpus = {room.position for room in rooms if room.card is None}
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
                may = left if demand.gpus == 1 else gpus
                position = next(at for at, now in left.items() if now == free and at in may and at not in shares)
                shares[position] = demand.amount // demand.gpus
            left = {position: free - shares.get(position, 0) for position, free in left.items()}
        found[n] = Placement(demand, tuple(sorted(shares.items())))
    return found


def _ways(
    demand: Demand, rooms: Sequence[Room], rank: Rank, closeness: Callable[[int, int], int]
) -> Iterator[Placement]:
    """Yield the ways to place one demand: the preferred one, then one of each group that leaves the same room."""
    best = place(demand, rooms, rank, closeness)
    yield from () if isinstance(best, Refusal) else (best,)
    memory = demand.kind is Kind.MEMORY
    each = demand.amount // demand.gpus
    alike: dict[_Likeness, list[Room]] = {}
    for room in sorted((room for room in rooms if fits_kind(demand, room)), key=preference(rooms, rank)):
        if (room.gives_shares and room.free >= each) if memory else room.unused:
            alike.setdefault(_likeness(room), []).append(room)

    def on(group: Iterable[Room]) -> Placement:
        return Placement(demand, tuple(sorted((room.position, each if memory else room.total) for room in group)))

    yield from map(on, groups(list(alike.values()), demand.gpus if memory else demand.amount))


def groups(alike: Sequence[Sequence[T]], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the groups of `size` members that differ by how many they take of each kind in `alike`."""
    if not size:
        yield ()
    elif sum(map(len, alike)) >= size:
        for number in range(min(size, len(alike[0])), -1, -1):
            for others in groups(alike[1:], size - number):
                yield (*alike[0][:number], *others)


def _likeness(room: Room) -> _Likeness:
    """Return all of a room but its position: rooms with the same likeness are interchangeable."""
    return room.total, room.free, room.healthy, room.shared, room.whole, room.card is None


def _without(rooms: Sequence[Room], placement: Placement) -> tuple[Room, ...]:
    """Return the room that a placement leaves; a GPU taken whole has no free share, and counts as shared."""
    taken = dict(placement.shares)
    return tuple(
        replace(room, free=room.free - taken[room.position], shared=True) if room.position in taken else room
        for room in rooms
    )

"""Place all parts of a pod on the GPUs of one node, or say why it does not fit there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.placing import (
    FIT,
    POLICIES,
    Demand,
    Placement,
    Rank,
    Ranks,
    Room,
    Unplaceable,
    fits_kind,
    place,
    preference,
)
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, Summary, summary
from gpu_device_plugin.scheduler.rules.filter_failure import (
    NEVER_TOGETHER,
    NO_GPU,
    NO_WHOLE,
    NONE_ALLOWED,
    NOT_ALL,
    ONE_CONTAINER,
    ONE_EACH,
    SHARES_NONE,
    TOGETHER,
    WHOLE_INSTANCES,
    FilterFailure,
    among,
    cordoned,
    hardware_of,
    memory_of,
    resolvable,
    too_small,
    unresolvable,
)
from gpu_device_plugin.scheduler.rules.packing import MOST_STEPS, Packer, Packing, frees_of, groups, order
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

_Likeness = tuple[int, int, bool, bool, bool, bool]

_NOTHING = Summary()


@dataclass(frozen=True, slots=True)
class Fit:
    """A pod's place on a node."""

    placements: tuple[Placement, ...]
    """One for each part of its demand, in their order; none where kube-scheduler chooses the GPUs (`by_claims`)."""


def unfit(ask: GpuRequest, node: Candidate, packer: Packer | None = None) -> FilterFailure | None:
    """Return why a pod does not fit on `node`, None if it does: the verdict of `fit`, without a placement.

    A demand without any part fits everywhere. Where many nodes are asked about one pod, `packer` is for its demands.
    """
    if not ask.parts:
        return None
    why = _unfit(ask, node, packer)
    return why and _but_for_cordons(why, ask, node)


def _unfit(ask: GpuRequest, node: Candidate, packer: Packer | None) -> FilterFailure | None:
    if by_claims(ask, node):
        return _unfit_by_claims(ask, node)
    why = unfit_by_kind(ask, node)
    if why is not None:
        return why
    rooms = allowed(ask, node)
    numbers = _numbers(node, rooms)
    packer = packer or Packer(ask.demands)
    if packer.surely_fits(numbers):
        return None
    if len(ask.parts) == 1:
        return _alone(packer.demands, node, rooms, numbers)
    found = _packed(node, rooms, numbers, packer)
    return found if isinstance(found, FilterFailure) else None


def fit(ask: GpuRequest, node: Candidate, policy: str, ranks: Ranks | None = None) -> Fit | FilterFailure:
    """Choose GPUs of `node` for every part of a pod.

    Where neither pod nor node names a policy, `policy` decides which GPU is preferred. `ranks` are what the policy
    `fit` prefers on this node; None: it is `binpack`.
    """
    if not ask.parts:
        return Fit(())
    found = _fit(ask, node, policy, ranks)
    return found if isinstance(found, Fit) else _but_for_cordons(found, ask, node)


def _fit(ask: GpuRequest, node: Candidate, policy: str, ranks: Ranks | None) -> Fit | FilterFailure:
    if by_claims(ask, node):
        return _unfit_by_claims(ask, node) or Fit(())
    why = unfit_by_kind(ask, node)
    if why is not None:
        return why
    rooms = allowed(ask, node)
    demands = ask.demands
    found = _packed(node, rooms, _numbers(node, rooms), Packer(demands))
    if isinstance(found, FilterFailure):
        return found
    chosen = gpu_policy_of(ask, node, policy)
    rank_of = ranks if ranks is not None and chosen == FIT else lambda _demand: POLICIES[chosen]
    placements = _preferred(demands, rooms, rank_of, node.gpus.links.connection) or _as_packed(demands, rooms, found)
    return Fit(tuple(placements[n] for n in range(len(demands))))


def _but_for_cordons(found: FilterFailure, ask: GpuRequest, node: Candidate) -> FilterFailure:
    """Return why a pod does not fit on a node: a cordon, or else what the reason would be without any."""
    if not node.gpus.cordoned:
        return found
    if (other := unfit(ask, opened := node.opened())) is not None:
        return replace(other, unresolvable=found.unresolvable)
    wanted = {room.position for room in allowed(ask, opened)}
    first = next(gpu for gpu in node.gpus.cordoned if gpu.position in wanted and not gpu.unhealthy)
    parameters = ("gpu", first.position), ("cordon", cordoned(first.cordon or Cordon()))
    return FilterFailure("gpu-cordoned", "GPU {gpu} is {cordon}", parameters, found.unresolvable)


def after(node: Candidate, found: Fit, amounts: Amounts = NO_AMOUNTS) -> Candidate:
    """Return a node once a pod has its place there, and requests `amounts` of its CPU and memory."""
    rooms = node.rooms
    for placement in found.placements:
        rooms = without(rooms, placement)
    left = None if node.left is None else node.left.without([amounts])
    return replace(node, rooms=rooms, summary=summary(rooms), left=left)


def by_claims(ask: GpuRequest, node: Candidate) -> bool:
    """Return whether kube-scheduler itself allocates a pod's GPUs on a node, by a claim that it makes of the limits.

    It does so for whole GPUs alone: a DeviceClass can stand for a number of devices, not for parts of them.
    """
    if not node.gpus.claims or node.gpus.away:
        return False
    return bool(ask.parts) and all(part.demand.kind is Kind.COUNT for part in ask.parts)


def _unfit_by_claims(ask: GpuRequest, node: Candidate) -> FilterFailure | None:
    """Return why a pod may not get GPUs of a node from kube-scheduler, which knows nothing of the pod's annotations.

    Whether enough GPUs are free is for kube-scheduler to say: it alone knows which are allocated.
    """
    # It gives no MIG instance for gpu-count, so the annotations need not allow those.
    every = sum(room.card is None for room in node.rooms)
    rooms = sum(room.card is None for room in allowed(ask, node))
    if rooms == every:
        return None
    return NOT_ALL if rooms else NONE_ALLOWED


def gpu_policy_of(ask: GpuRequest, node: Candidate, policy: str) -> str:
    """Return the policy by which GPUs of a node are chosen for a pod: the pod's, else the node's, else `policy`."""
    return ask.selector.gpu_policy or node.gpus.policy or policy


def _packed(
    node: Candidate, rooms: Sequence[Room], numbers: Summary, packer: Packer
) -> tuple[tuple[int, ...], ...] | FilterFailure:
    """Return a packing of all parts of a pod into the allowed rooms, or why there is none."""
    why = None
    if not packer.all_fit_alone(numbers):
        resolvable = packer.all_fit_alone(numbers, emptied=True)
        why = _alone(packer.demands, node, rooms, numbers, resolvable=resolvable)
    if why is not None and why.unresolvable:
        return why
    if why is None:
        # The numbers have all that decides, but for which of the GPUs are unused, and which are instances.
        by_numbers = numbers.of_gpus is None and not packer.whole
        taken = (packer(numbers.frees, ()) if by_numbers else packer(*frees_of(rooms))).taken
        if taken is not None:
            return taken
    if numbers.of_gpus is None:
        emptied = packer(numbers.sizes, numbers.sizes)
    else:
        sizes = tuple(room.total for room in rooms if room.healthy and room.card is None)
        instances = tuple(room.total for room in rooms if room.healthy and room.card is not None)
        emptied = packer(sizes, sizes, instances)
    if why is None or emptied.taken is None:
        never = emptied.taken is None and emptied.steps < MOST_STEPS  # else the search was given up
        return among(NEVER_TOGETHER if never else TOGETHER, node, rooms)
    return why


def room_decides(node: Candidate) -> bool:
    """Return whether the room of a node's GPUs decides alone if a pod without wishes for GPUs fits there."""
    gpus = node.gpus
    return bool(node.rooms) and not (gpus.problem or gpus.claims or gpus.divided)


@dataclass(frozen=True, slots=True)
class Hardware:
    """All that decides, beside its free room, whether and why a pod of one part does not fit on a node."""

    model: str | None
    """Of all its GPUs; None: they are of several."""
    sizes: tuple[int, ...]
    failed: tuple[int, ...]
    taken: bool
    """All its GPUs are in whole use."""
    share_mib: int | None


def hardware(node: Candidate) -> Hardware | None:
    """Return that of a node where `room_decides`; None: it has MIG instances, or cordons, where more decides."""
    numbers, models = node.summary, node.gpus.models
    if numbers.of_gpus is not None or node.gpus.cordoned:
        return None
    model = next(iter(models)) if len(models) == 1 else None
    return Hardware(model, numbers.sizes, numbers.failed, not numbers.frees, node.gpus.share_mib)


def unfit_by_kind(ask: GpuRequest, node: Candidate) -> FilterFailure | None:
    """Return why a pod fits on no node of this kind, whatever the models and free room of its GPUs; None if it may."""
    if node.gpus.problem:
        return unresolvable("gpus-problem", "{problem}", problem=node.gpus.problem)
    if not node.rooms:
        return WHOLE_INSTANCES if node.gpus.instances else SHARES_NONE
    if not node.gpus.divided:
        return None
    if any(part.demand.kind is Kind.COUNT for part in ask.parts):
        return NO_WHOLE
    # It finds the pod by the sum of its limits and the GPU by `IDX`. On a node with one GPU it needs neither.
    if len(node.rooms) > 1 and (len(ask.parts) > 1 or ask.parts[0].demand.gpus > 1):
        return ONE_CONTAINER
    return None


def allowed(ask: GpuRequest, node: Candidate) -> tuple[Room, ...]:
    """Return the rooms that the pod's annotations allow; `node.rooms` itself where these are all."""
    preferences, gpus = ask.selector, node.gpus
    if not preferences.choosy:
        return node.rooms
    if not _named(preferences, gpus):
        # Of nearly all nodes the models decide, and most have GPUs of one model.
        if preferences.use_uuids or not any(map(preferences.allow_model, gpus.models)):
            return ()
        if all(map(preferences.allow_model, gpus.models)):
            return node.rooms
    return tuple(
        room
        for gpu, room in zip(gpus.gpus, node.rooms, strict=True)
        if preferences.allow_model(gpu.model) and preferences.allow_uuid(gpu.uuid, gpu.card)
    )


def _numbers(node: Candidate, rooms: Sequence[Room]) -> Summary:
    """Return the numbers that summarize the allowed rooms of a node."""
    if rooms is node.rooms:
        return node.summary
    return summary(rooms) if rooms else _NOTHING


def _named(preferences: GpuSelector, gpus: NodeGpus) -> bool:
    """Return whether wishes name a GPU of a node, or the GPU of one of its MIG instances."""
    return bool(preferences.named) and not (
        preferences.named.isdisjoint([gpu.uuid for gpu in gpus.gpus]) and preferences.named.isdisjoint(gpus.parents)
    )


def _alone(
    demands: Iterable[Demand], node: Candidate, rooms: Sequence[Room], numbers: Summary, *, resolvable: bool = False
) -> FilterFailure:
    """Return why some demand does not fit even alone into the allowed rooms, which `numbers` summarizes.

    `resolvable` says that each is known to fit alone once no other pod is left.
    """
    if not rooms:
        return NONE_ALLOWED
    answers = (why for demand in demands if (why := _too_large(demand, node, numbers)) is not None)
    first = next(answers)
    if not first.unresolvable and not resolvable:
        first = next((why for why in answers if why.unresolvable), first)
    return among(first, node, rooms)


def _too_large(demand: Demand, node: Candidate, numbers: Summary) -> FilterFailure | None:
    """Return why one demand does not fit into the rooms that `numbers` summarizes, None if it does."""
    if demand.kind is Kind.COUNT or demand.gpus > 1:
        numbers = numbers.gpus
        if not numbers.sizes and not numbers.failed:
            return NO_GPU if demand.kind is Kind.COUNT else ONE_EACH
    if not numbers.sizes:
        return unresolvable("none-healthy", "no healthy {hardware}", hardware=hardware_of(numbers))
    if demand.kind is Kind.MEMORY:
        return _too_much(demand, node, numbers)
    if len(numbers.sizes) < demand.amount:
        return unresolvable("too-few-healthy", "fewer than {wanted} healthy GPUs", wanted=demand.amount)
    if len(numbers.unused) >= demand.amount:
        return None
    text = "no unused GPU" if demand.amount == 1 else "fewer than {wanted} unused GPUs"
    return FilterFailure("too-few-unused", text, (("wanted", demand.amount),))


def _too_much(demand: Demand, node: Candidate, numbers: Summary) -> FilterFailure | None:
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    if last < len(numbers.frees) and numbers.frees[last] >= each:
        return None
    if last >= len(numbers.sizes) or numbers.sizes[last] < each:
        return too_small(demand.gpus, each, node, numbers)
    hardware, amount = hardware_of(numbers), memory_of(each, node)
    if not numbers.frees:
        return resolvable("all-whole", "all {hardware}s are exclusively allocated", hardware=hardware)
    if demand.gpus == 1:
        # On thousands of nodes for one pod, so without what names of parameters cost.
        return FilterFailure(
            "none-free", "no {hardware} has {amount} free", (("hardware", hardware), ("amount", amount))
        )
    text = "fewer than {wanted} {hardware}s have {amount} free"
    return resolvable("too-few-free", text, wanted=demand.gpus, hardware=hardware, amount=amount)


# --- All parts at once ------------------------------------------------------------------------------------------------


def _preferred(
    demands: Sequence[Demand], rooms: Sequence[Room], ranks: Ranks, closeness: Callable[[int, int], int]
) -> dict[int, Placement] | None:
    """Place each demand, the largest first, best where all later ones still have room; None if that takes too long."""
    ordered = order(demands)
    found: dict[int, Placement] = {}
    steps = MOST_STEPS
    for done, n in enumerate(ordered):
        others = Packer([demands[later] for later in ordered[done + 1 :]])
        ways = _ways(demands[n], rooms, ranks(demands[n]), closeness)
        packing = Packing(None, 0)
        while packing.taken is None:
            placement = next(ways, None)
            if placement is None or steps < 0:
                return None
            left = without(rooms, placement)
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
    for n in order(demands):
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
    yield from () if isinstance(best, Unplaceable) else (best,)
    memory = demand.kind is Kind.MEMORY
    each = demand.amount // demand.gpus
    alike: dict[_Likeness, list[Room]] = {}
    for room in sorted((room for room in rooms if fits_kind(demand, room)), key=preference(rooms, rank)):
        if (room.gives_shares and room.free >= each) if memory else room.unused:
            alike.setdefault(likeness(room), []).append(room)

    def on(group: Iterable[Room]) -> Placement:
        return Placement(demand, tuple(sorted((room.position, each if memory else room.total) for room in group)))

    yield from map(on, groups(list(alike.values()), demand.gpus if memory else demand.amount))


def likeness(room: Room) -> _Likeness:
    """Return all of a room but its position: rooms with the same likeness are interchangeable."""
    return room.total, room.free, room.healthy, room.shared, room.whole, room.card is None


def without(rooms: Sequence[Room], placement: Placement) -> tuple[Room, ...]:
    """Return the room that a placement leaves; a GPU taken whole has no free share, and counts as shared."""
    taken = dict(placement.shares)
    return tuple(
        replace(room, free=room.free - taken[room.position], shared=True) if room.position in taken else room
        for room in rooms
    )

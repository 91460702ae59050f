"""From what a pod asks to what the kubelet gives it: no step says anything but the one before it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.contract.keys import SPLIT_LABEL
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.contract.promises import Promise, promises
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.placing import POLICIES, Demand, Placement, Room
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part, ask
from gpu_device_plugin.scheduler.rules.usage import NOTHING, Usage, promise, usage_of
from tests.resources import COUNT, MEM, RESOURCES

MODELS = ("Tesla T4", "NVIDIA A10")


@st.composite
def nodes(draw: st.DrawFn, *, gpushare: bool = True) -> Candidate:
    """Small nodes, parts of which are in use; with some of gpushare's among them, that cannot do everything."""
    number = draw(st.integers(0, 4))
    divided = gpushare and draw(st.sampled_from([False] * 7 + [True]))
    parents = st.none() if divided or draw(st.booleans()) else st.sampled_from((None, "GPU-8", "GPU-9"))
    gpus = NodeGpus(
        tuple(
            ListedGpu(
                n,
                draw(st.integers(1, 8)),
                f"GPU-{n}",
                draw(st.sampled_from(MODELS)),
                unhealthy=draw(st.sampled_from(["", "", "", "", "hot"])),
                cordon=draw(st.sampled_from([None] * 5 + [Cordon("alice")])),
                instance=None if (parent := draw(parents)) is None else ListedInstance(parent, 0, n, "1g.10gb", n),
            )
            for n in range(number)
        ),
        share_mib=1024,
        divided=divided,
        links=Links(tuple((a, b, draw(st.sampled_from(Closeness)), 0) for a, b in combinations(range(number), 2))),
        policy=draw(st.none() | st.sampled_from(sorted(POLICIES))),
    )
    usages = [
        Usage(
            tuple(
                (n, draw(st.integers(1, gpu.shares))) for n, gpu in enumerate(gpus.gpus) if draw(st.integers(0, 2)) == 0
            ),
            tuple(n for n, gpu in enumerate(gpus.gpus) if gpu.instance is None and draw(st.integers(0, 5)) == 0),
            draw(st.sampled_from([0, 0, 0, 0, 1])),
        )
    ]
    return candidate("n", gpus, usages)


selector = st.sampled_from(
    [
        *[NO_PREFERENCES] * 5,
        GpuSelector(use_models=("T4",)),
        GpuSelector(avoid_models=("T4",)),
        GpuSelector(avoid_uuids=("GPU-0", "GPU-2")),
        GpuSelector(use_uuids=("GPU-1", "GPU-9")),
        GpuSelector(avoid_uuids=("GPU-8",)),
        GpuSelector(gpu_policy="spread"),
    ]
)
demands = (
    st.builds(Demand, st.just(Kind.MEMORY), st.integers(1, 8))
    | st.builds(Demand, st.just(Kind.MEMORY), st.sampled_from([2, 4, 6]), st.just(2))
    | st.builds(Demand, st.just(Kind.COUNT), st.integers(1, 2))
)
asks = st.builds(
    lambda asked, wished: GpuRequest(tuple(map(Part, asked)), wished), st.lists(demands, max_size=3), selector
)
policies = st.sampled_from(sorted(POLICIES))


def allowed(there: Candidate, wished: GpuSelector) -> list[Room]:
    named = {gpu.position: gpu for gpu in there.gpus.gpus}
    return [
        room
        for room in there.rooms
        if wished.allow_model(named[room.position].model)
        and wished.allow_uuid(named[room.position].uuid, named[room.position].card)
    ]


def goes(demands: Sequence[Demand], rooms: Sequence[Room]) -> bool:
    """Whether there is any way at all to place everything: all are tried."""
    if not demands:
        return True
    first, *others = demands
    memory = first.kind is Kind.MEMORY
    each = first.amount // first.gpus
    alone = memory and first.gpus == 1
    ready = [
        room
        for room in rooms
        if room.healthy and not room.whole and (room.free >= each if memory else not room.shared)
        if alone or room.card is None
    ]
    return any(
        goes(others, [taken(room, each if memory else None) if room in group else room for room in rooms])
        for group in combinations(ready, first.gpus if memory else first.amount)
    )


def taken(room: Room, shares: int | None) -> Room:
    """A room without these shares, or in whole use."""
    return replace(room, whole=True) if shares is None else replace(room, free=room.free - shares, shared=True)


@given(asks, nodes(gpushare=False), policies)
def test_a_pod_fits_if_there_is_any_way_to_place_it(asked: GpuRequest, there: Candidate, policy: str) -> None:
    possible = goes([part.demand for part in asked.parts], allowed(there, asked.selector))
    assert isinstance(fit(asked, there, policy), Fit) == possible


@given(asks, nodes(), policies)
def test_whoever_asks_why_gets_the_answer_of_who_places(asked: GpuRequest, there: Candidate, policy: str) -> None:
    found = fit(asked, there, policy)
    assert unfit(asked, there) == (found if isinstance(found, FilterFailure) else None)
    assert fit(asked, there, policy) == found


@given(asks, nodes(), policies)
def test_no_place_is_larger_than_the_room_or_of_a_gpu_that_is_not_allowed(
    asked: GpuRequest, there: Candidate, policy: str
) -> None:
    found = fit(asked, there, policy)
    if isinstance(found, FilterFailure):
        return
    rooms = {room.position: room for room in allowed(there, asked.selector)}
    whole: set[int] = set()
    shares = dict.fromkeys(rooms, 0)
    for part, placement in zip(asked.parts, found.placements, strict=True):
        assert placement.demand == part.demand
        assert list(placement.shares) == sorted(set(placement.shares))
        for position, number in placement.shares:
            assert rooms[position].healthy
            assert not rooms[position].whole
            assert position not in whole
            assert rooms[position].card is None or len(placement.shares) == 1
            if part.demand.kind is Kind.COUNT:
                assert number == rooms[position].total
                assert not rooms[position].shared
                assert rooms[position].card is None
                whole.add(position)
            else:
                assert number == part.demand.amount / part.demand.gpus
                shares[position] += number
    assert all(number <= rooms[position].free for position, number in shares.items())
    assert whole.isdisjoint(position for position, number in shares.items() if number)


@given(asks, nodes(), policies)
def test_what_can_never_be_cannot_be_on_the_empty_node(asked: GpuRequest, there: Candidate, policy: str) -> None:
    found = fit(asked, there, policy)
    empty = fit(asked, candidate(there.name, there.gpus, []), policy)
    if isinstance(found, FilterFailure):
        assert found.unresolvable == isinstance(empty, FilterFailure)
    else:
        assert isinstance(empty, Fit)


# --- from the promise to the devices


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """Pods with init containers, sidecars and others, of which some ask for memory or for whole GPUs."""
    containers = []
    first = draw(st.lists(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), max_size=3))
    for kinds in (first, [ContainerKind.APP] * draw(st.integers(0, 3))):
        for index, kind in enumerate(kinds):
            resource, most = draw(st.sampled_from([(MEM, 5), (MEM, 5), (COUNT, 2)]))
            amount = draw(st.integers(0, most))
            containers.append(Container(f"{kind}{index}", kind, index, {resource.name: amount} if amount else {}))
    split = draw(st.sampled_from(["1", "1", "1", "2", "3"]))
    return Pod("u", "default", "a", labels={SPLIT_LABEL: split}, containers=tuple(containers))


def placed(pod: Pod, there: Candidate, policy: str) -> tuple[Pod, tuple[Placement, ...]]:
    """The pod with its promise, and its place; pods that find none are passed over."""
    asked = ask(pod, RESOURCES)
    assume(isinstance(asked, GpuRequest))
    assert isinstance(asked, GpuRequest)
    found = fit(asked, there, policy)
    assume(isinstance(found, Fit))
    assert isinstance(found, Fit)
    return replace(pod, annotations=promise(asked, found.placements, there.gpus, 7)), found.placements


@given(pods(), nodes(), policies)
def test_a_promised_pod_takes_exactly_its_place(pod: Pod, there: Candidate, policy: str) -> None:
    promised, placements = placed(pod, there, policy)
    shares: dict[int, int] = {}
    whole: set[int] = set()
    for placement in placements:
        if placement.demand.kind is Kind.COUNT:
            whole.update(placement.positions)
        for position, number in placement.shares if placement.demand.kind is Kind.MEMORY else ():
            shares[position] = shares.get(position, 0) + number
    use = usage_of(promised, RESOURCES)
    assert use == Usage(tuple(sorted(shares.items())), tuple(sorted(whole)))
    assert (use == NOTHING) == (not placements)


@given(pods(), nodes(), policies)
def test_every_container_that_asks_is_promised_what_it_asks(pod: Pod, there: Candidate, policy: str) -> None:
    promised, _ = placed(pod, there, policy)
    found = promises(promised, RESOURCES)
    for container in pod.containers:
        for resource in RESOURCES:
            amount = container.limits.get(resource.name, 0)
            own = found.get((container.name, resource.kind))
            if not amount:
                assert own is None
                continue
            assert own is not None
            assert amount == (sum(n for _, n in own.shares) if resource is MEM else len(own.shares))


Device = tuple[Kind, int, int]
"""One device ID: of which resource, of which GPU, and its number."""


def served(pod: Pod, sizes: dict[int, int], random: Random) -> dict[str, set[Device]]:
    """What the kubelet gives the containers of a pod on GPUs with so many free shares.

    Containers come in their order. A container gets first, at random, what ordinary init containers before it had and
    nobody else kept; for the rest the plugin chooses, where the container was promised it.
    """
    promised = promises(pod, RESOURCES)
    free = {(Kind.COUNT, position, 0) for position in sizes}
    free.update((Kind.MEMORY, position, n) for position, size in sizes.items() for n in range(size))
    reusable: set[Device] = set()
    found = {}
    for container in pod.containers:
        mine: set[Device] = set()
        for resource in RESOURCES:
            amount = container.limits.get(resource.name, 0)
            again = sorted(device for device in reusable if device[0] is resource.kind)
            mine.update(random.sample(again, min(amount, len(again))))
            if len(mine) < amount:
                mine.update(chosen(promised[container.name, resource.kind], resource.kind, mine, free, amount))
        free -= mine
        reusable = reusable | mine if container.kind is ContainerKind.INIT else reusable - mine
        found[container.name] = mine
    return found


def chosen(promise: Promise, kind: Kind, mine: set[Device], free: set[Device], amount: int) -> list[Device]:
    """What the plugin adds to the devices that a container has already."""
    added: list[Device] = []
    for position, shares in promise.shares:
        has = sum(device[1] == position for device in mine)
        added += sorted(device for device in free if device[:2] == (kind, position))[: shares - has]
    return added[: amount - len(mine)]


@given(pods(), nodes(), policies, st.randoms(use_true_random=False))
def test_the_kubelet_gives_every_container_what_it_was_promised(
    pod: Pod, there: Candidate, policy: str, random: Random
) -> None:
    """And at its peak, which lasts, the pod holds what it is counted with."""
    promised, _ = placed(pod, there, policy)
    sizes = {room.position: room.free if room.shared else room.total for room in there.rooms}
    found = served(promised, sizes, random)
    said = promises(promised, RESOURCES)
    use = usage_of(promised, RESOURCES)
    for container in pod.containers:
        devices = found[container.name]
        assert len(devices) == sum(container.limits.values())
        memory = said.get((container.name, Kind.MEMORY))
        for position, shares in memory.shares if memory is not None else ():
            assert sum(device[:2] == (Kind.MEMORY, position) for device in devices) == shares
        # Whole GPUs that are handed on go to the next in any order; all of them are the pod's.
        assert {position for kind, position, _ in devices if kind is Kind.COUNT} <= set(use.whole)
    everything = set[Device]().union(*found.values())
    held = {position: sum(d[:2] == (Kind.MEMORY, position) for d in everything) for _, position, _ in everything}
    assert {position: shares for position, shares in held.items() if shares} == dict(use.shares)
    assert {position for kind, position, _ in everything if kind is Kind.COUNT} == set(use.whole)

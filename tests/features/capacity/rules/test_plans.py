"""Plans have few moves, and each can be carried out."""

import random
from collections.abc import Generator, Sequence
from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.rules.movable import (
    Fits,
    PlannedNode,
    PlannedPod,
    UnmovableReason,
    after,
)
from gpu_device_plugin.features.capacity.rules.plans import Drain, Plan, drain, on_gpus, planning
from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.keys import CORDONS
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import candidate, with_cordons
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage
from tests.features.capacity.rules.clusters import World, cheapest, node, random_world, resident
from tests.searches import plan
from tests.steps import result_of


def checked(world: World, found: Plan) -> tuple[int, int, int] | None:
    """Carry out a plan step by step; return its moves, their highest priority and shares."""
    if found is None:
        return None
    highest = world.goal.priority if isinstance(world.goal, Fits) else None
    spent = dict.fromkeys(world.budgets, 0)
    now, priority, shares = world.sites, -1, 0
    for move in found:
        by_name = {site.node.name: site for site in now}
        target, pod = by_name[move.node], move.pod
        assert (pod.pod.uid, pod.pod.usage) in {
            (each.pod.uid, each.pod.usage) for each in by_name[move.origin].residents
        }
        assert pod.stays is None
        assert highest is None or pod.pod.priority <= highest
        assert target.open
        assert pod.nodes is None or move.node in pod.nodes
        if pod.budget:
            spent[pod.budget] += 1
        # Before the eviction: the pod itself still has its room.
        assert target.node.left is None or target.node.left.cover(pod.amounts)
        rooms = {room.position: room for room in target.node.rooms}
        for placement in move.placements:
            for at, amount in placement.shares:
                assert rooms[at].free >= amount
                assert not rooms[at].whole
                assert not (placement.demand.kind == "count" and rooms[at].shared)
        assert all(sum(dict(each.shares).get(at, 0) for each in move.placements) <= rooms[at].free for at in rooms)
        priority, shares = max(priority, pod.pod.priority), shares + pod.pod.usage.size(target.node.gpus.sizes)
        now = after(now, [move])
    assert spent.items() <= {name: min(count, world.budgets[name]) for name, count in spent.items()}.items()
    assert reached(world, now)
    assert sum(len(site.residents) for site in now) == sum(len(site.residents) for site in world.sites)
    return len(found), priority, shares


def reached(world: World, sites: tuple[PlannedNode, ...]) -> bool:
    goal = world.goal
    if isinstance(goal, Fits):
        return any(
            goal.allows(site)
            and unfit(goal.ask, site.node) is None
            and (site.node.left is None or site.node.left.cover(goal.amounts))
            for site in sites
        )
    assert isinstance(goal, int)
    return sum(not site.residents for site in sites) >= goal


@pytest.mark.chance
def test_plans_are_within_one_move_of_the_best_of_all_ways(chance_seed: int, request: pytest.FixtureRequest) -> None:
    """210 clusters, and 1,002 where `make explore` chooses the seeds. A greedy search misses a plan now and then."""
    chance = random.Random(chance_seed)  # noqa: S311
    number = 35 if request.config.getoption("--hypothesis-seed") is None else 167
    missed = 0
    for _ in range(number):
        world = random_world(chance)
        made, best = checked(world, plan(world.sites, world.goal, world.budgets)), cheapest(world)
        missed += made is None and best is not None
        assert made is None or (best is not None and made[0] <= best[0] + 1)
    assert missed <= 1 + number // 20


def mem(amount: int) -> Fits:
    return Fits(GpuRequest((Part(Demand(Kind.MEMORY, amount)),)))


def crowd(nodes: int) -> tuple[PlannedNode, ...]:
    """Nodes of two GPUs of 8, each with 3 free beside a pod of 2 and one of 3."""
    made = []
    for at in range(nodes):
        site = node(f"n{at:02}", [8, 8])
        for gpu in range(2):
            for shares in (2, 3):
                found = resident(f"p{at:02}-{gpu}-{shares}", [Demand(Kind.MEMORY, shares)], site)
                assert found is not None
                placed = replace(found.pod, usage=Usage(((gpu, shares),)))
                site = site.changed(come=replace(found, pod=placed))
        made.append(site)
    return tuple(made)


def test_the_steps_are_small_and_their_number_is_bounded() -> None:
    """Eight pods of 5 GPUs have to leave for a node to be free, and each has many places."""
    taken = 0

    def counted(most: int) -> Generator[None, None, Plan]:
        nonlocal taken
        steps = planning(crowd(12), 3, {}, most)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: Plan = done.value
                return found
            taken += 1
            yield

    found = result_of(counted(10_000))
    assert taken >= 24 // 8
    assert found is not None
    assert len(found) == 12
    assert result_of(counted(20)) is None


def test_a_pod_makes_room_for_one_that_makes_room() -> None:
    """8 are wanted; 5 of GPU a must go to b, where 4 must go to c first."""
    sites = [node("a", [8]), node("b", [8]), node("c", [4])]
    for at, (name, shares) in enumerate((("p", 5), ("q", 4))):
        found = resident(name, [Demand(Kind.MEMORY, shares)], sites[at])
        assert found is not None
        sites[at] = sites[at].changed(come=found)
    found_plan = plan(sites, replace(mem(8), nodes=frozenset({"a"})))
    assert [(str(move.pod), move.node) for move in found_plan or ()] == [("ns/q", "c"), ("ns/p", "b")]


def test_pods_that_want_certain_gpus_are_told_apart() -> None:
    """The only GPU that p may go to besides its own is the second of b."""
    sites = [node("a", [8]), node("b", [8, 8])]
    found = resident("p", [Demand(Kind.MEMORY, 4)], sites[0])
    assert found is not None
    picky = replace(found, ask=replace(found.ask, selector=GpuSelector(use_uuids={"a-0", "b-1"})))
    sites[0] = sites[0].changed(come=picky)
    found_plan = plan(sites, replace(mem(8), nodes=frozenset({"a"})))
    assert [(move.node, move.shares) for move in found_plan or ()] == [("b", {1: 4})]


def test_nodes_without_gpus_and_those_with_claims_are_never_free() -> None:
    bare = PlannedNode(candidate("bare", NodeGpus(), ()))
    claim = GpuConsumer("claim", Usage(whole=(0,)))
    claims = replace(node("c", [8]), residents=(PlannedPod(claim, stays=UnmovableReason.CLAIMS),), open=False)
    assert plan([bare, claims], 1) is None
    assert plan([], 1) is None
    assert plan([node("n", [8]), bare], 1) == ()


# --- GPUs that are drained --------------------------------------------------------------------------------------------


def aside(sites: Sequence[PlannedNode], uuid: str) -> list[PlannedNode]:
    """Return the nodes with a GPU put aside."""
    text = write_cordons({uuid: Cordon("alice")})
    assert text is not None
    nodes = [replace(site.node, gpus=with_cordons(site.node.gpus, {CORDONS: text})) for site in sites]
    return [replace(site, node=marked).changed() for site, marked in zip(sites, nodes, strict=True)]


def filled(*sites: PlannedNode, **pods: tuple[int, int]) -> list[PlannedNode]:
    """Return nodes with pods, each by the number of its node and its shares."""
    there = list(sites)
    for name, (at, shares) in pods.items():
        found = resident(name, [Demand(Kind.MEMORY, shares)], there[at])
        assert found is not None
        there[at] = there[at].changed(come=found)
    return there


def told(found: Drain) -> list[tuple[str, str, dict[int, int]]]:
    return [(move.pod.pod.uid, move.node, dict(move.shares)) for move in found.moves]


def test_pods_leave_a_gpu_for_another_one_of_the_node_too() -> None:
    sites = aside(filled(node("a", [8, 8]), p=(0, 3), q=(0, 8)), "a-0")
    assert told(drain(sites, "a", [0], {})) == []
    sites = aside(filled(node("a", [8, 8]), p=(0, 3)), "a-0")
    found = drain(sites, "a", [0], {})
    assert told(found) == [("p", "a", {1: 3})]
    assert on_gpus(found.then[0], [0]) == []


def test_a_gpu_without_pods_takes_no_moves() -> None:
    assert drain(aside([node("a", [8])], "a-0"), "a", [0], {}) == Drain(then=tuple(aside([node("a", [8])], "a-0")))


def test_pods_that_have_no_room_stay_and_the_others_go() -> None:
    sites = aside(filled(node("a", [16]), node("b", [4]), p=(0, 3), q=(0, 9)), "a-0")
    found = drain(sites, "a", [0], {})
    assert told(found) == [("p", "b", {0: 3})]
    assert [str(pod) for pod in found.stuck] == ["ns/q"]
    assert [str(pod) for pod in on_gpus(found.then[0], [0])] == ["ns/q"]


def test_others_make_room_for_pods_that_leave() -> None:
    """5 leave a; b has 4 free and one pod of 4, which fits on c."""
    sites = aside(filled(node("a", [8]), node("b", [8]), node("c", [4]), p=(0, 5), r=(1, 4)), "a-0")
    assert told(drain(sites, "a", [0], {})) == [("r", "c", {0: 4}), ("p", "b", {0: 5})]


@pytest.mark.parametrize(("small", "leaves"), [((), "b"), ((3, 3), "a")])
def test_a_pod_that_has_made_room_for_another_one_has_left(small: tuple[int, ...], leaves: str) -> None:
    """Room for `big` is made by `two`, which has a part of the drained GPU and is planned next."""
    first = filled(node("a", [8, 8, *small]), big=(0, 5))[0]
    two = resident("two", [Demand(Kind.MEMORY, 4, 2)], first)
    assert two is not None
    first = first.changed(come=replace(two, pod=replace(two.pod, usage=Usage(((0, 2), (1, 2))))))
    kept = PlannedPod(GpuConsumer("kept", Usage(((1, 3),))), stays=UnmovableReason.STORAGE)
    second = node("b", [8, 8])
    for at in (0, 1):
        full = Usage(((at, 8 if small else 6),))
        second = second.changed(come=PlannedPod(GpuConsumer(f"full-{at}", full), stays=UnmovableReason.STORAGE))
    found = drain(aside([first.changed(come=kept), second], "a-0"), "a", [0], {})
    assert [(uid, name) for uid, name, _ in told(found)] == [("two", leaves), ("big", "a")]
    assert (found.stuck, on_gpus(found.then[0], [0])) == ((), [])


def test_budgets_hold_for_all_moves_of_a_drain_together() -> None:
    sites = filled(node("a", [8]), node("b", [8]), p=(0, 3), q=(0, 2))
    guarded = [replace(each, budget="ns/one") for each in sites[0].residents]
    sites = aside([replace(sites[0], residents=tuple(guarded)), sites[1]], "a-0")
    found = drain(sites, "a", [0], {"ns/one": 1})
    assert (told(found), [str(pod) for pod in found.stuck]) == ([("p", "b", {0: 3})], ["ns/q"])


def test_pods_that_stay_for_a_reason_of_their_own_are_not_moved() -> None:
    sites = filled(node("a", [8]), node("b", [8]), p=(0, 3), q=(0, 2))
    kept = [
        replace(each, stays=UnmovableReason.STORAGE) if each.pod.uid == "p" else each for each in sites[0].residents
    ]
    found = drain(aside([replace(sites[0], residents=tuple(kept)), sites[1]], "a-0"), "a", [0], {})
    assert told(found) == [("q", "b", {0: 2})]
    assert [str(pod) for pod in on_gpus(found.then[0], [0])] == ["ns/p"]


@pytest.mark.chance
def test_a_drained_gpu_keeps_only_pods_that_stay_or_have_no_room(chance_seed: int) -> None:
    chance = random.Random(chance_seed)  # noqa: S311
    for _ in range(60):
        world = random_world(chance)
        site = chance.choice(world.sites)
        position = chance.choice(site.node.gpus.gpus).position
        sites = aside(world.sites, site.node.gpus.gpus[position].uuid)
        found = drain(sites, site.node.name, [position], world.budgets)
        now = sites
        for move in found.moves:
            target = {each.node.name: each for each in now}[move.node]
            rooms = {room.position: room for room in target.node.rooms}
            for placement in move.placements:
                assert all(rooms[at].gives_shares and rooms[at].free >= amount for at, amount in placement.shares)
            now = list(after(now, [move]))
        there = next(each for each in now if each.node.name == site.node.name)
        stuck = {pod.pod.uid for pod in found.stuck}
        assert all(pod.stays is not None or pod.pod.uid in stuck for pod in on_gpus(there, [position]))

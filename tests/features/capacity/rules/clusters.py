"""Small random clusters to move pods in, and a search that knows nothing of how plans are found."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from gpu_device_plugin.features.capacity.rules.movable import (
    Fits,
    PlannedNode,
    PlannedPod,
    UnmovableReason,
    usage_at,
)
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

Place = tuple[str, tuple[tuple[int, int, bool], ...]]
"""A node, and there (position, shares, whether all of the GPU)."""
State = tuple[tuple[Place, ...], tuple[int, ...]]
"""The place of each pod, and the evictions by budget."""

MODELS = ("T4", "A10")


@dataclass(frozen=True)
class World:
    """A cluster and what is wanted of it."""

    sites: tuple[PlannedNode, ...]
    goal: Fits | int
    budgets: Mapping[str, int]


def resident(name: str, demands: Sequence[Demand], site: PlannedNode, **more: Any) -> PlannedPod | None:
    """Return a pod on the emptiest GPUs of a node; None: it has no room there."""
    preferences = GpuSelector(use_models=tuple(more.pop("models", ())))
    asked = GpuRequest(tuple(map(Part, demands)), preferences)
    amounts = more.get("amounts", Amounts())
    found = fit(asked, site.node, "spread")
    if not isinstance(found, Fit) or (site.node.left is not None and not site.node.left.cover(amounts)):
        return None
    occupant = GpuConsumer(name, usage_at(found.placements), int(more.pop("priority", 0)), False, {}, "ns", name)
    return PlannedPod(occupant, asked, **more)


def node(name: str, sizes: Sequence[int], *, cpu: int | None = None, model: str = "T4") -> PlannedNode:
    """Return an empty node."""
    gpus = NodeGpus(tuple(ListedGpu(at, size, f"{name}-{at}", model) for at, size in enumerate(sizes)), 1024)
    return PlannedNode(candidate(name, gpus, (), None if cpu is None else Amounts(cpu, 1 << 20)))


def random_demands(chance: random.Random, size: int) -> list[Demand]:
    """Return what a pod asks for."""
    match chance.choices(["shares", "whole", "split", "parts"], [12, 3, 2, 1])[0]:
        case "whole":
            return [Demand(Kind.COUNT, chance.choice([1, 1, 2]))]
        case "split":
            return [Demand(Kind.MEMORY, 2 * chance.randint(1, size // 2), 2)]
        case "parts":
            return [Demand(Kind.MEMORY, chance.randint(1, size // 2)) for _ in range(2)]
    return [Demand(Kind.MEMORY, chance.randint(1, size - 1))]


def random_world(chance: random.Random) -> World:
    """Return a cluster so small that all of its states can be counted, mostly one whose goal is not reached yet."""
    for _ in range(3):
        world = _world(chance)
        wants, begin = world.goal, (tuple(_place(pod, site) for site in world.sites for pod in site.residents), ())
        pods = [pod for site in world.sites for pod in site.residents]
        if not _reached(wants, begin, pods, {site.node.name: site for site in world.sites}):
            break
    return world


def _world(chance: random.Random) -> World:
    size = chance.choice([4, 6, 8])
    cpu = chance.choice([None, None, 3, 4])
    sites: dict[str, PlannedNode] = {}
    for number in range(chance.randint(2, 4)):
        model = chance.choice([MODELS[0], MODELS[0], MODELS[1]])
        site = node(f"n{number}", [size] * chance.randint(1, 2), cpu=cpu, model=model)
        sites[f"n{number}"] = replace(site, open=chance.random() < 0.9)
    names = sorted(sites)
    budgets = {"ns/one": 1, "ns/two": 2}
    for number in range(chance.randint(4, 7)):
        name = chance.choice(names)
        found = resident(
            f"p{number}",
            random_demands(chance, size),
            sites[name],
            priority=chance.choice([0, 0, 0, 1, 5]),
            amounts=Amounts(chance.choice([0, 1, 2]), 0) if cpu else Amounts(),
            nodes=frozenset({name, *chance.sample(names, 2)}) if chance.random() < 0.2 else None,
            budget=chance.choice(["", "", "", "ns/one", "ns/two"]),
            stays=UnmovableReason.NO_CONTROLLER if chance.random() < 0.1 else None,
            models=[MODELS[0]] if sites[name].node.gpus.models == {MODELS[0]} and chance.random() < 0.2 else [],
        )
        if found is not None:
            sites[name] = sites[name].changed(come=found)
    goal: Fits | int = chance.randint(1, 2)
    if chance.random() < 0.8:
        asked = GpuRequest(tuple(map(Part, random_demands(chance, size))))
        allowed = frozenset(chance.sample(names, 2)) if chance.random() < 0.2 else None
        goal = Fits(asked, Amounts(int(bool(cpu)), 0), allowed, chance.choice([None, 0, 1, 9]))
    return World(tuple(sites.values()), goal, budgets)


# --- Every state, one after the other --------------------------------------------------------------------------------


def cheapest(world: World) -> tuple[int, int, int] | None:
    """Return the fewest moves, their highest priority and their shares, by trying everything; None: there is no way."""
    sites = {site.node.name: site for site in world.sites}
    highest = world.goal.priority if isinstance(world.goal, Fits) else None
    pods = [pod for site in world.sites for pod in site.residents]
    movable = [pod.stays is None and (highest is None or pod.pod.priority <= highest) for pod in pods]
    names = sorted(world.budgets)
    begin: State = (
        tuple(_place(pod, site) for site in world.sites for pod in site.residents),
        (0,) * len(names),
    )
    layer: dict[State, set[tuple[int, int]]] = {begin: {(-1, 0)}}
    seen: dict[State, set[tuple[int, int]]] = {}
    moves = 0
    while layer:
        reached = [cost for state, costs in layer.items() if _reached(world.goal, state, pods, sites) for cost in costs]
        if reached:
            return (moves, *min(reached))
        following: dict[State, set[tuple[int, int]]] = {}
        for state, costs in layer.items():
            seen[state] = costs
            for number, pod in enumerate(pods):
                if not movable[number] or state[0][number] != begin[0][number]:
                    continue  # no pod is moved twice
                budget = names.index(pod.budget) if pod.budget else None
                if budget is not None and state[1][budget] >= world.budgets[pod.budget]:
                    continue
                spent = tuple(used + (at == budget) for at, used in enumerate(state[1]))
                size = pod.pod.usage.size(next(iter(sites.values())).node.gpus.sizes)
                for place in _places(Fits(pod.ask, pod.amounts, pod.nodes), state, pods, sites):
                    after = (*state[0][:number], place, *state[0][number + 1 :]), spent
                    new = {(max(highest_yet, pod.pod.priority), shares + size) for highest_yet, shares in costs}
                    # To come to a state later than before is never better.
                    if after not in seen:
                        following.setdefault(after, set()).update(new)
        layer = {state: _undominated(costs) for state, costs in following.items()}
        moves += 1
    return None


def _undominated(costs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return {
        one for one in costs if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in costs)
    }


def _place(pod: PlannedPod, site: PlannedNode) -> Place:
    usage, sizes = pod.pod.usage, site.node.gpus.sizes
    shares = [(at, amount, False) for at, amount in usage.shares] + [(at, sizes[at], True) for at in usage.whole]
    return site.node.name, tuple(sorted(shares))


def _reached(goal: Fits | int, state: State, pods: Sequence[PlannedPod], sites: Mapping[str, PlannedNode]) -> bool:
    if isinstance(goal, Fits):
        return next(_places(goal, state, pods, sites), None) is not None
    assert isinstance(goal, int)
    used = {name for name, _ in state[0]}
    return sum(name not in used for name in sites) >= goal


def _places(want: Fits, state: State, pods: Sequence[PlannedPod], sites: Mapping[str, PlannedNode]) -> Iterator[Place]:
    for name, site in sites.items():
        if not site.open or (want.nodes is not None and name not in want.nodes):
            continue
        gpus = site.node.gpus
        if want.ask.selector.use_models and not gpus.models <= set(want.ask.selector.use_models):
            continue
        here = [(pod, place[1]) for pod, place in zip(pods, state[0], strict=True) if place[0] == name]
        if site.node.allocatable is not None:
            left = site.node.allocatable.without([pod.amounts for pod, _ in here])
            if not left.cover(want.amounts):
                continue
        free = {at: [size, False] for at, size in gpus.sizes.items()}
        for _, used in here:
            for at, shares, _whole in used:
                free[at] = [free[at][0] - shares, True]
        for given in _assigned([part.demand for part in want.ask.parts], free, gpus.sizes):
            yield name, given


def _assigned(
    demands: Sequence[Demand], free: Mapping[int, Sequence[int]], sizes: Mapping[int, int]
) -> Iterator[tuple[tuple[int, int, bool], ...]]:
    """Yield every way to give GPUs to demands, given the free shares of each and whether it is in use."""
    if not demands:
        yield ()
        return
    first, *others = demands
    whole = first.kind is Kind.COUNT
    number, each = (first.amount, 0) if whole else (first.gpus, first.amount // first.gpus)
    for chosen in combinations(free, number):
        taken = {at: sizes[at] if whole else each for at in chosen}
        if any((whole and free[at][1]) or free[at][0] < shares for at, shares in taken.items()):
            continue
        # A GPU that is taken whole has no free share left, so that nothing else comes there.
        left = {at: [have - taken.get(at, 0), used or at in taken] for at, (have, used) in free.items()}
        for rest in _assigned(others, left, sizes):
            shares: dict[int, int] = {at: amount for at, amount, _ in rest}
            for at, amount in taken.items():
                shares[at] = shares.get(at, 0) + amount
            every = {at for at, _, all_ in rest if all_} | (set(chosen) if whole else set())
            yield tuple(sorted((at, amount, at in every) for at, amount in shares.items()))

"""Plans have the fewest and cheapest moves, and each can be carried out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.capacity.movable import after
from gpu_device_plugin.core.capacity.places import Fits
from gpu_device_plugin.core.capacity.plans import plan
from gpu_device_plugin.core.cluster.fitting import unfit
from tests.core.capacity.clusters import cheapest, random_world

if TYPE_CHECKING:
    from gpu_device_plugin.core.capacity.movable import Site
    from gpu_device_plugin.core.capacity.plans import Plan
    from tests.core.capacity.clusters import World


def checked(world: World, found: Plan) -> tuple[int, int, int] | None:
    """Carry out a plan step by step; return its moves, their highest priority and shares."""
    if found.moves is None:
        return None
    highest = world.goal.priority if isinstance(world.goal, Fits) else None
    spent = dict.fromkeys(world.budgets, 0)
    now, priority, shares = world.sites, -1, 0
    for move in found.moves:
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
    return len(found.moves), priority, shares


def reached(world: World, sites: tuple[Site, ...]) -> bool:
    goal = world.goal
    if isinstance(goal, Fits):
        return any(
            goal.allows(site)
            and unfit(goal.ask, site.node) is None
            and (site.node.left is None or site.node.left.cover(goal.amounts))
            for site in sites
        )
    return sum(not site.residents for site in sites) >= goal.number


@pytest.mark.chance
def test_plans_are_as_short_and_as_cheap_as_the_best_of_all_ways(
    chance_seed: int, request: pytest.FixtureRequest
) -> None:
    """210 clusters, and 1,002 where `make explore` chooses the seeds."""
    chance = random.Random(chance_seed)  # noqa: S311
    for _ in range(35 if request.config.getoption("--hypothesis-seed") is None else 167):
        world = random_world(chance)
        found = plan(world.sites, world.goal, world.budgets)
        best = cheapest(world)
        assert checked(world, found) == best
        # That there is no way at all shows only once all states were seen.
        assert found.exact or best is None
        assert not found.exact or found.bound == (None if best is None else best[0])

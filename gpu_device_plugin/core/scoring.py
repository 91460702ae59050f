"""How well a node suits a pod among those on which it fits, 0 to 10, by policy."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from gpu_device_plugin.core.fitting import Fit, fit
from gpu_device_plugin.core.gpus import Closeness
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate

MOST = 10
"""The highest score that kube-scheduler expects of an extender."""

_FULLNESS = 6
"""How much of the score of `binpack` says how full the node gets; the rest says what the pod spoils there."""


def simple(ask: Ask) -> bool:
    """Whether a score needs no more than a node's summary: one GPU's memory for a pod that takes any GPU."""
    return (
        len(ask.parts) == 1
        and not ask.wishes.choosy
        and ask.parts[0].demand.kind is Kind.MEMORY
        and ask.parts[0].demand.gpus == 1
    )


def score(ask: Ask, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return how well a node suits a pod; 0 also where it does not fit.

    `spread` likes nodes by what remains free. `binpack` likes full nodes, and among these the ones on which memory
    comes from GPUs that are in shared use already, and whole GPUs are well connected.

    Args:
        ask: what the pod asks.
        node: the node with what is taken of it.
        node_policy: `binpack` or `spread`, where the pod does not say.
        gpu_policy: which GPU is preferred, where neither pod nor node says.
    """
    policy = ask.wishes.node_policy or node_policy
    numbers = node.summary
    if not numbers.total or not ask.parts:
        return 0
    if simple(ask):
        wanted = ask.parts[0].demand.amount
        if numbers.best < wanted:
            return 0
        # As `fit` does on GPUs of one size: it spreads onto an unused GPU as long as there is one.
        packs = (ask.wishes.gpu_policy or node.policy or gpu_policy) == "binpack"
        sparing = numbers.best_shared >= wanted and (packs or not numbers.idle)
        return points_for(policy, (numbers.used + wanted) / numbers.total, float(sparing))
    found = fit(ask, node, gpu_policy)
    if not isinstance(found, Fit):
        return 0
    taken = sum(shares for placement in found.placements for _, shares in placement.shares)
    return points_for(policy, (numbers.used + taken) / numbers.total, sparing_of(found, node))


def points_for(policy: str, full: float, sparing: float) -> int:
    """Return the score of a node that gets this full, where the pod spoils nothing (1), all (0) or some of it."""
    if policy == "spread":
        return round(MOST * (1 - full))
    return round(_FULLNESS * full + (MOST - _FULLNESS) * sparing)


def sparing_of(found: Fit, node: Candidate) -> float:
    """Return 0 to 1: how many of the GPUs for memory were opened before, and how well whole ones are connected."""
    rooms = {room.position: room for room in node.rooms}
    points: list[float] = []
    for placement in found.placements:
        if placement.demand.kind is Kind.MEMORY:
            points += [float(rooms[position].shared) for position in placement.positions]
        else:
            pairs = list(combinations(placement.positions, 2))
            best = max(Closeness) * 100
            points += [min(1.0, node.gpus.connection(a, b) / best) for a, b in pairs] or [1.0]
    return sum(points) / len(points)

"""Plan the moves after which each of several waiting pods has room, or GPUs are free of pods.

The room of a move is free while the pod that moves still runs: it is held for the replacement before the eviction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Stays, after, usage_at
from gpu_device_plugin.core.capacity.plan_search import Fits, Plan, PodGone, plan
from gpu_device_plugin.core.cluster.fitting import Fit, fit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.capacity.movable import Move, Resident, Site

_POLICY = "binpack"


def plan_each(
    sites: Iterable[Site], waiting: Iterable[Resident], budgets: Mapping[str, int]
) -> Iterator[tuple[Resident, Plan, tuple[Site, ...]]]:
    """Yield for each waiting pod its plan, and the nodes once the plan is carried out and the pod is there.

    The most important pods come first. Each plan begins with the nodes as the one before leaves them.
    """
    now, left = tuple(sites), Counter(budgets)
    hopeless: set[Fits] = set()
    for pod in sorted(waiting, key=lambda pod: -pod.pod.priority):
        goal = Fits(pod.ask, pod.amounts, pod.nodes, pod.pod.priority)
        found = Plan(None) if goal in hopeless else plan(now, goal, left)
        if found.moves is None:
            hopeless.add(goal)
        else:
            now = settled(after(now, found.moves), pod)
            left.subtract(move.pod.budget for move in found.moves)
        yield pod, found, now


def settled(sites: Iterable[Site], pod: Resident) -> tuple[Site, ...]:
    """Return the nodes with a waiting pod on the first one where it has room; as they are: it has room nowhere."""
    goal, done = Fits(pod.ask, pod.amounts, pod.nodes), list(sites)
    for index, site in enumerate(done):
        found = fit(pod.ask, site.node, _POLICY) if goal.allows(site) else None
        if isinstance(found, Fit):
            placed = replace(pod.pod, usage=usage_at(found.placements))
            done[index] = site.changed(come=replace(pod, pod=placed, stays=Stays.PLANNED))
            break
    return tuple(done)


# --- GPUs that are drained --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drain:
    """The moves that take pods off GPUs of a node."""

    moves: tuple[Move, ...] = ()
    stuck: tuple[Resident, ...] = ()
    """Pods that may be moved, but have no room elsewhere."""
    then: tuple[Site, ...] = ()
    """The nodes once the moves are made."""


def drain(sites: Iterable[Site], node: str, positions: Collection[int], budgets: Mapping[str, int]) -> Drain:
    """Return the moves that take all pods off GPUs of a node, which are put aside, or as many of them as possible.

    Pods that no plan moves stay, see `Resident.stays`.
    """
    now, left = tuple(sites), Counter(budgets)
    there = [each for site in now if site.node.name == node for each in on_gpus(site, positions) if each.stays is None]
    moves: list[Move] = []
    stuck: list[Resident] = []
    for resident in sorted(there, key=lambda each: (-len(each.pod.usage.whole), -each.pod.usage.all_shares, str(each))):
        found = plan(now, PodGone(node, resident.pod.uid), left).moves
        if found is None:
            stuck.append(resident)
            continue
        now = after(now, found)
        moves += found
        left.subtract(move.pod.budget for move in found)
    return Drain(tuple(moves), tuple(stuck), now)


def on_gpus(site: Site, positions: Collection[int]) -> list[Resident]:
    """Return what counts on GPUs of a node."""
    wanted = frozenset(positions)
    return [each for each in site.residents if wanted & {*dict(each.pod.usage.shares), *each.pod.usage.whole}]

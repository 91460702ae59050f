"""Find few moves of pods after which a waiting pod has room, or nodes are free of pods.

The room of a move is free while the pod that moves still runs: it is held for the replacement before the eviction. The
search is greedy: each pod takes the place that spoils the least room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import nlargest

from gpu_device_plugin.features.capacity.rules.movable import (
    Fits,
    Move,
    PlannedNode,
    PlannedPod,
    UnmovableReason,
    after,
    usage_at,
)
from gpu_device_plugin.features.preemption.rules import VictimSearch
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.resources import NO_AMOUNTS, Kind
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, unfit
from gpu_device_plugin.scheduler.rules.packing import Effort, Packer, TooLongError, finished
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

Steps = Generator[None, None, None]
Cost = tuple[int, int, int]
Plan = tuple[Move, ...] | None
"""The moves to make, one after the other; None: no plan was found."""
Way = tuple[tuple[int, int], str, tuple[Placement, ...]]
"""A place for a pod: the unused GPUs that it begins for shares and the free shares beside it, the node, and there.
"""
Closed = Mapping[str, Collection[int]]
"""By name of a node, the GPUs to which no pod moves."""

MOST_STEPS = 30_000
"""Three seconds. A step is a place that is looked at, and takes a tenth of a millisecond."""
STEPS_AT_ONCE = 8
"""After so many a search yields."""
_STEPS_OF_SETS = 5
"""To find out which pods have to leave a node."""
_MOST_NODES, _MOST_NEAR, _MOST_STUCK = 48, 4, 4
"""It tries so many of the nodes that the fewest pods have to leave, for a pod that makes room fewer; and on each until
so many pods could not be moved."""
_DEEPEST = 2
"""How many pods make room for one another in a row."""
_POLICY = "binpack"


def planning(
    sites: Iterable[PlannedNode], goal: Fits | int, budgets: Mapping[str, int], most_steps: int = MOST_STEPS
) -> Generator[None, None, Plan]:
    """Search for a plan by which a pod fits, or so many nodes have no pods on GPUs; yield every millisecond or two.

    No pod is moved twice. Of the plans that it comes to it is one with the fewest moves, then one whose most important
    pod is the least important, then one that moves the fewest shares. `budgets` are the evictions that each
    PodDisruptionBudget allows; all moves of a plan count together, as if no replacement became ready meanwhile. After
    `most_steps` the result is the best plan so far.
    """
    search = _Search(sites, budgets, most_steps, goal.priority if isinstance(goal, Fits) else None)
    with suppress(TooLongError):
        yield from search.room_anywhere(goal) if isinstance(goal, Fits) else search.free_nodes(goal)
    return None if search.best is None else search.best.moves


def plan_each(
    sites: Iterable[PlannedNode], waiting: Iterable[PlannedPod], budgets: Mapping[str, int]
) -> Iterator[tuple[PlannedPod, Plan, tuple[PlannedNode, ...]]]:
    """Yield for each waiting pod its plan, and the nodes once the plan is carried out and the pod is there.

    The most important pods come first. Each plan begins with the nodes as the one before leaves them.
    """
    now, left = tuple(sites), Counter(budgets)
    hopeless: set[Fits] = set()
    for pod in sorted(waiting, key=lambda pod: -pod.pod.priority):
        goal = Fits(pod.ask, pod.amounts, pod.nodes, pod.pod.priority)
        found = None if goal in hopeless else finished(planning(now, goal, left))
        if found is None:
            hopeless.add(goal)
        else:
            now = settled(after(now, found), pod)
            left.subtract(move.pod.budget for move in found)
        yield pod, found, now


def settled(sites: Iterable[PlannedNode], pod: PlannedPod) -> tuple[PlannedNode, ...]:
    """Return the nodes with a waiting pod on the first one where it has room; as they are: it has room nowhere."""
    goal, done = Fits(pod.ask, pod.amounts, pod.nodes), list(sites)
    for index, site in enumerate(done):
        found = fit(pod.ask, site.node, _POLICY) if goal.allows(site) else None
        if isinstance(found, Fit):
            placed = replace(pod.pod, usage=usage_at(found.placements))
            done[index] = site.changed(come=replace(pod, pod=placed, stays=UnmovableReason.PLANNED))
            break
    return tuple(done)


# --- GPUs that are drained --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drain:
    """The moves that take pods off GPUs of a node."""

    moves: tuple[Move, ...] = ()
    stuck: tuple[PlannedPod, ...] = ()
    """Pods that may be moved, but have no room elsewhere."""
    then: tuple[PlannedNode, ...] = ()
    """The nodes once the moves are made."""


def drain(sites: Iterable[PlannedNode], node: str, positions: Collection[int], budgets: Mapping[str, int]) -> Drain:
    """Return the moves that take all pods off GPUs of a node, which are put aside, or as many of them as possible.

    Pods that no plan moves stay, see `PlannedPod.stays`.
    """
    now = tuple(sites)
    there = [each for site in now if site.node.name == node for each in on_gpus(site, positions) if each.stays is None]
    largest = sorted(there, key=lambda each: (-len(each.pod.usage.whole), -each.pod.usage.all_shares, str(each)))
    moves, stuck = _Search(now, budgets, MOST_STEPS).moved_away(node, largest)
    return Drain(moves, stuck, after(now, moves))


def on_gpus(site: PlannedNode, positions: Collection[int]) -> list[PlannedPod]:
    """Return what counts on GPUs of a node."""
    wanted = frozenset(positions)
    return [each for each in site.residents if wanted & {*dict(each.pod.usage.shares), *each.pod.usage.whole}]


# --- The search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    """The cluster after some moves."""

    changed: Mapping[str, PlannedNode] = field(default_factory=dict)
    """The nodes that are not as they were, by name."""
    moves: tuple[Move, ...] = ()
    shares: int = 0
    """Of the pods that moved."""

    @property
    def cost(self) -> Cost:
        return len(self.moves), max((move.pod.pod.priority for move in self.moves), default=0), self.shares


class _Search:
    def __init__(
        self, sites: Iterable[PlannedNode], budgets: Mapping[str, int], most_steps: int, highest: int | None = None
    ) -> None:
        self._sites = {site.node.name: site for site in sorted(sites, key=lambda site: site.node.name)}
        self._highest = highest
        """No pod of a higher priority is moved; None: any may be."""
        self._budgets = budgets
        self._effort = Effort(most_steps)
        self._packer = cache(Packer)
        self._known: dict[Fits, list[Way]] = {}
        """By what a pod needs, its places on the nodes as they were, the least wasteful first; one of each node."""
        self.best: _State | None = None

    def moved_away(self, node: str, pods: Iterable[PlannedPod]) -> tuple[tuple[Move, ...], tuple[PlannedPod, ...]]:
        """Return the moves of pods off their GPUs of a node, and the pods without room. Each may take all steps."""
        state = _State()
        stuck: list[PlannedPod] = []
        for resident in pods:
            if resident not in self._at(state, node).residents:
                continue  # it has moved to make room for another one
            self._effort.renew()
            tried = None
            with suppress(TooLongError):
                tried = finished(self._relocated(state, resident, node, 1, {}))
            state = tried or state
            stuck += [] if tried else [resident]
        return state.moves, tuple(stuck)

    def _keep(self, state: _State | None) -> None:
        if state is not None and (self.best is None or state.cost < self.best.cost):
            self.best = state

    def room_anywhere(self, want: Fits) -> Steps:
        """Make room on one node after the other, where the fewest pods have to leave first."""
        begin = _State()
        for pods, name in (yield from self._nearest(begin, want, {}, _MOST_NODES)):
            if self.best is not None and pods > len(self.best.moves):
                return
            self._keep((yield from self._room_made(begin, name, want, _DEEPEST, {})))

    def free_nodes(self, number: int) -> Steps:
        """Empty the nodes with the fewest pods; where that is not enough, once more without the first, and so on."""
        order = sorted((site for site in self._sites.values() if site.node.gpus.gpus), key=lambda s: len(s.residents))
        for first in range(min(_MOST_NEAR, len(order))):
            state = _State()
            closed: dict[str, Collection[int]] = {}
            """The nodes that are free."""
            for site in order[first:]:
                if len(closed) == number:
                    break
                name, gpus = site.node.name, site.node.gpus.sizes
                tried: _State | None = state
                residents = self._at(state, name).residents
                for each in sorted(residents, key=lambda each: each.pod.usage.size(gpus), reverse=True):
                    if tried is not None:
                        tried = yield from self._relocated(tried, each, name, 1, {**closed, name: gpus})
                if tried is not None:
                    state, closed = tried, {**closed, name: gpus}
            if len(closed) == number:
                self._keep(state)
                return

    # --- Room for a pod -----------------------------------------------------------------------------------------------

    def _nearest(
        self, state: _State, want: Fits, closed: Closed, most: int
    ) -> Generator[None, None, list[tuple[int, str]]]:
        """Return nodes that the fewest pods have to leave for a pod, and how many; of many nodes the emptiest."""
        gpus = sum(each.gpus if each.kind is Kind.MEMORY else each.amount for each in want.ask.demands)
        sites = [self._at(state, name) for name in self._sites if name not in closed]
        emptiest = nlargest(len(sites), sites, key=lambda site: sum(site.node.summary.frees[:gpus]))
        found: list[tuple[int, str]] = []
        while emptiest and len(found) < most:
            site = emptiest.pop(0)
            yield from self._took(_STEPS_OF_SETS)
            if self._has_room(site, want):
                return [(0, site.node.name)]
            leaving = self._leaving(site, want)
            found += [] if leaving is None else [(max(1, len(leaving[0])), site.node.name)]
        return sorted(found)

    def _has_room(self, site: PlannedNode, want: Fits) -> bool:
        return want.allows(site) and unfit(want.ask, site.node, self._packer(want.ask.demands)) is None

    def _leaving(
        self, site: PlannedNode, want: Fits, stuck: Collection[str] = ()
    ) -> tuple[frozenset[GpuConsumer], Collection[int]] | None:
        """Return the pods that may make room on GPUs of a node, without those that are `stuck`, with these GPUs."""
        if not replace(want, amounts=NO_AMOUNTS).allows(site):
            return None
        why = unfit(want.ask, site.node, self._packer(want.ask.demands))
        if why is not None and why.unresolvable:
            return None
        movable = {each.pod for each in site.residents if self._may_go(each) and each.pod.uid not in stuck}
        sizes = {each.pod: each.pod.usage.size(site.node.gpus.sizes) for each in site.residents}

        def cost(pods: Collection[GpuConsumer]) -> tuple[object, ...]:
            most = max((pod.priority for pod in pods), default=0)
            return len(pods), most, sum(map(sizes.__getitem__, pods)), sorted(pod.uid for pod in pods)

        search = VictimSearch(want.ask, site.node, sizes, cost=cost, may_go=movable.__contains__)
        return next(iter(search.sets().items()), None)

    def _room_made(
        self, state: _State, name: str, want: Fits, deeper: int, closed: Closed
    ) -> Generator[None, None, _State | None]:
        """Move pods off a node until a pod has room there; None: no way was found."""
        stuck: set[str] = set()
        while len(stuck) < _MOST_STUCK and (found := self._leaving(self._at(state, name), want, stuck)) is not None:
            leaving, gpus = {pod.uid for pod in found[0]}, found[1]
            tried: _State | None = state
            while tried is not None and not self._has_room(site := self._at(tried, name), want):
                # What GPUs are short of first, then what has the most CPU.
                there = [each for each in site.residents if self._may_go(each) and each.pod.uid not in stuck]
                left = [each for each in there if each.pod.uid in leaving]
                sizes, others = site.node.gpus.sizes, [each for each in there if each.amounts != NO_AMOUNTS]
                if not left and not others:
                    return None
                resident = (
                    max(left, key=lambda each: each.pod.usage.size(sizes))
                    if left
                    else max(others, key=lambda each: each.amounts.cpu_milli)
                )
                # A pod that moves within the node gives back none of its CPU.
                enough = site.node.left is None or site.node.left.cover(want.amounts)
                shut = {**closed, name: gpus if left and enough else sizes}
                tried = yield from self._relocated(tried, resident, name, deeper, shut)
                if tried is None:
                    stuck.add(resident.pod.uid)
            if tried is not None:
                return tried
        return None

    def _relocated(
        self, state: _State, resident: PlannedPod, origin: str, deeper: int, closed: Closed
    ) -> Generator[None, None, _State | None]:
        """Move a pod to other GPUs, making room there if need be; None: no way was found."""
        if not self._may_go(resident) or not self._affordable(state, resident):
            return None
        want = Fits(resident.ask, resident.amounts, resident.nodes)
        way = yield from self._place(state, want, closed)
        if way is not None:
            return self._moved(state, resident, origin, way)
        for _, name in (yield from self._nearest(state, want, closed, _MOST_NEAR)) if deeper else ():
            made = yield from self._room_made(state, name, want, deeper - 1, closed)
            way = None if made is None else self._way(self._at(made, name), want, ())
            if made is not None and way is not None and self._affordable(made, resident):
                return self._moved(made, resident, origin, way)
        return None

    def _may_go(self, resident: PlannedPod) -> bool:
        pod = resident.pod
        too_important = self._highest is not None and pod.priority > self._highest
        return resident.stays is None and not pod.usage.unplaced and not too_important

    def _affordable(self, state: _State, resident: PlannedPod) -> bool:
        """Return whether the PodDisruptionBudget of a pod allows one more eviction."""
        spent = sum(move.pod.budget == resident.budget for move in state.moves)
        return not resident.budget or spent < self._budgets.get(resident.budget, 0)

    def _moved(self, state: _State, resident: PlannedPod, origin: str, way: Way) -> _State:
        _, name, placements = way
        source = self._at(state, origin)
        move = Move(resident, origin, name, placements)
        sites = {**self._sites, **state.changed}
        now = after([sites[each] for each in dict.fromkeys((origin, name))], [move])
        changed = {**state.changed, **{site.node.name: site for site in now}}
        return _State(changed, (*state.moves, move), state.shares + resident.pod.usage.size(source.node.gpus.sizes))

    # --- Places -------------------------------------------------------------------------------------------------------

    def _place(self, state: _State, want: Fits, closed: Closed) -> Generator[None, None, Way | None]:
        """Return the place for a pod that spoils the least room."""
        if want not in self._known:
            found = []
            for site in self._sites.values():
                if want.allows(site) and self._packer(want.ask.demands).all_fit_alone(site.node.summary):
                    yield from self._took(1)
                    found.append(self._way(site, want, ()))
            self._known[want] = sorted((way for way in found if way is not None), key=lambda way: way[:2])
        yield from self._took(1)
        anew = {*state.changed, *closed}
        ways = [self._way(self._at(state, name), want, closed.get(name, ())) for name in anew]
        ways.append(next((way for way in self._known[want] if way[1] not in anew), None))
        return min((way for way in ways if way is not None), key=lambda way: way[:2], default=None)

    def _way(self, site: PlannedNode, want: Fits, closed: Collection[int]) -> Way | None:
        """Return the best place for a pod on a node."""
        node = site.node
        if closed:
            node = node.restricted({at: size for at, size in node.gpus.sizes.items() if at not in closed})
        found = fit(want.ask, node, _POLICY) if want.allows(site) else None
        if found is None or isinstance(found, FilterFailure) or not found.placements:
            return None
        rooms = {room.position: room for room in node.rooms}
        begun = beside = 0
        for placement in found.placements:
            for position, shares in placement.shares:
                begun += placement.demand.kind is Kind.MEMORY and not rooms[position].shared
                beside += rooms[position].free - shares
        return (begun, beside), node.name, found.placements

    def _at(self, state: _State, name: str) -> PlannedNode:
        return state.changed.get(name) or self._sites[name]

    def _took(self, steps: int) -> Steps:
        """Count steps, and yield where it is time. Raises TooLongError if no step is left."""
        before = self._effort.spent // STEPS_AT_ONCE
        self._effort.take(steps)
        if self._effort.spent // STEPS_AT_ONCE > before:
            yield

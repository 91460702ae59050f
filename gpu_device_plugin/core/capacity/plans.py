"""Find the fewest and cheapest moves of pods after which a waiting pod has room, or nodes are free of pods.

The room of a move is free while the pod that moves still runs: it is held for the replacement before the eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Stays, after, usage_at
from gpu_device_plugin.core.capacity.places import Fits, PodsGone, covers
from gpu_device_plugin.core.capacity.states import STEPS_AT_ONCE, Layouts, State
from gpu_device_plugin.core.cluster.fitting import Fit, fit
from gpu_device_plugin.core.cluster.packing import TooLongError
from gpu_device_plugin.core.cluster.victims import VictimSearch
from gpu_device_plugin.model.resources import NO_AMOUNTS

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.capacity.movable import Move, Resident, Site
    from gpu_device_plugin.core.capacity.places import Goal
    from gpu_device_plugin.core.capacity.states import Steps
    from gpu_device_plugin.core.cluster.usage import Occupant

MOST_STEPS = 30_000
"""Three seconds."""
_MOST_NODES, _MOST_SETS = 48, 4
"""The heuristic tries so many of the nodes that the fewest pods have to leave, and of the sets of pods there."""
_DEEPEST = 2
"""How many pods make room for one another in a row, for the heuristic."""
_POLICY = "binpack"


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves to make, one after the other."""

    moves: tuple[Move, ...] | None
    """None: no plan was found."""
    bound: int | None
    """No plan has fewer moves; None: no moves at all reach the goal."""
    exact: bool
    """Everything was compared: no plan has fewer moves, nor is one with as many cheaper. False: the steps ran out."""

    @property
    def fewest(self) -> bool:
        """Whether it is known that no plan has fewer moves."""
        return self.moves is not None and len(self.moves) == self.bound


def plan(
    sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int] | None = None, most_steps: int = MOST_STEPS
) -> Plan:
    """Return the fewest moves that reach a goal, and of these the cheapest: see `planning`."""
    steps = planning(sites, goal, budgets, most_steps)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Plan = done.value
            return found


def plan_each(
    sites: Iterable[Site], waiting: Iterable[Resident], budgets: Mapping[str, int], most_steps: int = MOST_STEPS
) -> Iterator[tuple[Resident, Plan, tuple[Site, ...]]]:
    """Yield for each waiting pod its plan, and the nodes once the plan is carried out and the pod is there.

    The most important pods come first. Each plan begins with the nodes as the one before leaves them.
    """
    now, left = tuple(sites), dict(budgets)
    hopeless: set[Fits] = set()
    for pod in sorted(waiting, key=lambda pod: -pod.pod.priority):
        goal = Fits(pod.ask, pod.amounts, pod.nodes, pod.pod.priority)
        found = Plan(None, None, exact=False) if goal in hopeless else plan(now, goal, left, most_steps)
        if found.moves is None:
            hopeless.add(goal)
        else:
            now = after(now, found.moves)
            for move in found.moves:
                left[move.pod.budget] = left.get(move.pod.budget, 0) - 1
            now = settled(now, pod)
        yield pod, found, now


@dataclass(frozen=True, slots=True)
class Drain:
    """The moves that take pods off GPUs of a node."""

    moves: tuple[Move, ...] = ()
    stuck: tuple[Resident, ...] = ()
    """Pods that may be moved, but have no room elsewhere."""
    then: tuple[Site, ...] = ()
    """The nodes once the moves are made."""


def drain(
    sites: Iterable[Site],
    node: str,
    positions: Collection[int],
    budgets: Mapping[str, int],
    most_steps: int = MOST_STEPS,
) -> Drain:
    """Return the moves that take all pods off GPUs of a node, which are put aside; else as many pods as possible.

    Pods that no plan moves stay, see `Resident.stays`.
    """
    now, left = tuple(sites), dict(budgets)
    there = [each for site in now if site.node.name == node for each in on_gpus(site, positions) if each.stays is None]
    together = plan(now, PodsGone(node, frozenset(each.pod.uid for each in there)), left, most_steps)
    if together.moves is not None or not there:
        return Drain(together.moves or (), then=after(now, together.moves or ()))
    moves: list[Move] = []
    stuck: list[Resident] = []
    for resident in sorted(there, key=lambda each: (-len(each.pod.usage.whole), -each.pod.usage.all_shares, str(each))):
        one = plan(now, PodsGone(node, frozenset({resident.pod.uid})), left, most_steps)
        if one.moves is None:
            stuck.append(resident)
            continue
        now = after(now, one.moves)
        moves += one.moves
        for move in one.moves:
            left[move.pod.budget] = left.get(move.pod.budget, 0) - 1
    return Drain(tuple(moves), tuple(stuck), now)


def on_gpus(site: Site, positions: Collection[int]) -> list[Resident]:
    """Return what counts on GPUs of a node."""
    wanted = frozenset(positions)
    return [each for each in site.residents if wanted & {*dict(each.pod.usage.shares), *each.pod.usage.whole}]


def settled(sites: Iterable[Site], pod: Resident) -> tuple[Site, ...]:
    """Return the nodes with a waiting pod on the first one where it has room; as they are: it has room nowhere."""
    goal, done = Fits(pod.ask, pod.amounts, pod.nodes), list(sites)
    for index, site in enumerate(done):
        found = fit(pod.ask, site.node, _POLICY) if goal.allows(site) and covers(site, pod.amounts) else None
        if isinstance(found, Fit):
            placed = replace(pod.pod, usage=usage_at(found.placements))
            done[index] = site.changed(come=replace(pod, pod=placed, stays=Stays.PLANNED))
            break
    return tuple(done)


def planning(
    sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int] | None = None, most_steps: int = MOST_STEPS
) -> Generator[None, None, Plan]:
    """Search for a plan, and yield every millisecond or two.

    No pod is moved twice. Of the plans with the fewest moves it is one whose most important pod is the least important,
    then one that moves the fewest shares. `budgets` are the evictions that each PodDisruptionBudget allows; all moves
    of a plan count together, as if no replacement became ready meanwhile. After `most_steps` the result is the best
    plan so far.
    """
    return _Search(sites, goal, budgets or {}, most_steps).run()


class _Search:
    def __init__(self, sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int], most_steps: int) -> None:
        self._goal = goal
        self._layouts = Layouts(sites, goal, budgets, most_steps)
        self._seen: dict[object, list[tuple[int, float, int]]] = {}
        """By state, with how many moves left and at what cost the search came there."""
        self._best: State | None = None
        self._cut = False
        """A state was left because it needs more moves."""

    def run(self) -> Generator[None, None, Plan]:
        """Search; see `planning`."""
        yield from self._layouts.prepare()
        begin = State()
        least, _ = self._layouts.least(begin)
        if least == inf:
            return Plan(None, None, exact=True)
        bound = int(least)
        try:
            yield from self._guess(begin)
            self._cut = True
            while self._cut and bound <= len(self._layouts.kind):
                self._cut = False
                yield from self._deepen(begin, bound)
                if self._best is not None and len(self._best.moves) == bound:
                    return Plan(self._best.moves, bound, exact=True)
                bound += 1
            return Plan(None, None, exact=True)
        except TooLongError:
            return Plan(None if self._best is None else self._best.moves, bound, exact=False)

    # --- All plans, by the number of moves ----------------------------------------------------------------------------

    def _deepen(self, state: State, left: int) -> Steps:
        """Look for plans that reach the goal from a state with up to `left` further moves."""
        least, threshold = self._layouts.least(state)
        if not least:
            self._best = state
        self._cut = self._cut or left < least < inf
        if not 0 < least <= left or self._known(state, left):
            return
        # Then only moves off the nodes that count are tried, and those that bring the goal no nearer are not.
        tight = least == left
        self._cut = self._cut or tight
        for _, resident, origin in self._layouts.sources(state, threshold if tight else inf):
            if self._layouts.step():
                yield
            if self._too_dear(state, resident, left) or not self._helps(state, resident, origin, tight=tight):
                continue
            yield from self._layouts.survey(self._layouts.kind[resident.pod.uid])
            for index, way in self._layouts.places(state, resident, origin):
                if self._layouts.step():
                    yield
                yield from self._deepen(self._layouts.moved(state, resident, origin, index, way), left - 1)
                if self._too_dear(state, resident, left):
                    break

    def _helps(self, state: State, resident: Resident, origin: int, *, tight: bool) -> bool:
        """Return whether a pod may move, and, if it has to, brings the goal nearer by leaving its node."""
        here = self._layouts.at(state, origin)
        nearer = not tight or self._layouts.changed(here, resident, None).need < here.need
        return nearer and self._layouts.affordable(state, resident)

    def _too_dear(self, state: State, resident: Resident, left: int) -> bool:
        """Return whether a plan that moves a pod now is no cheaper than one that is known and as short."""
        best = self._best
        return (
            best is not None
            and len(best.moves) == len(state.moves) + left
            and self._layouts.cost_after(state, resident) >= (best.priority, best.shares)
        )

    def _known(self, state: State, left: int) -> bool:
        """Return whether the search was in this state before, with as many moves left and at no higher cost."""
        changed = [(at, here.signature) for at, here in state.changed.items()]
        key = (
            tuple(sorted((at, each) for at, each in changed if each != self._layouts.base[at].signature)),
            tuple(sorted(state.spent.items())),
        )
        before = self._seen.setdefault(key, [])
        now = left, state.priority, state.shares
        if any(
            left <= more and priority <= state.priority and shares <= state.shares for more, priority, shares in before
        ):
            return True
        before.append(now)
        return False

    # --- A first plan, one pod after the other ------------------------------------------------------------------------

    def _guess(self, begin: State) -> Steps:
        """Find a plan node by node, where the fewest pods have to leave first, and keep the best."""
        if isinstance(self._goal, Fits):
            for here in self._layouts.by_need[:_MOST_NODES]:
                if here.need == inf or (self._best is not None and here.need > len(self._best.moves)):
                    return
                found = yield from self._make_room(begin, here.index, self._goal, _DEEPEST, frozenset())
                self._keep(found)
            return
        state, free = begin, {here.index for here in self._layouts.base if not here.need}
        for here in self._layouts.by_need:
            if here.need in {0, inf}:
                continue
            if len(free) >= self._layouts.number:
                break
            tried: State | None = state
            barred = frozenset(free if isinstance(self._goal, PodsGone) else {*free, here.index})
            there = self._layouts.to_leave(self._layouts.at(state, here.index).site)
            for resident in sorted(there or (), key=self._layouts.size, reverse=True):
                if tried is not None:
                    tried = yield from self._relocate(tried, resident, here.index, 1, barred)
            if tried is not None and not self._layouts.to_leave(self._layouts.at(tried, here.index).site):
                state = tried
                free.add(here.index)
        self._keep(state)

    def _keep(self, state: State | None) -> None:
        if state is None or self._layouts.least(state)[0]:
            return
        cost, best = (len(state.moves), state.priority, state.shares), self._best
        if best is None or cost < (len(best.moves), best.priority, best.shares):
            self._best = state

    def _make_room(
        self, state: State, index: int, want: Fits, deeper: int, barred: frozenset[int]
    ) -> Generator[None, None, State | None]:
        """Move pods off a node until a pod has room there; None: no way was found."""
        here = self._layouts.at(state, index)
        by_pod = {resident.pod: resident for resident in here.site.residents}

        def cost(pods: Collection[Occupant]) -> tuple[object, ...]:
            sizes = sum(self._layouts.size(by_pod[pod])[0] for pod in pods)
            return len(pods), max((pod.priority for pod in pods), default=0), sizes, sorted(pod.uid for pod in pods)

        may_go = {pod: self._layouts.may_go(resident) for pod, resident in by_pod.items()}
        search = VictimSearch(want.ask, here.site.node, by_pod, cost=cost, may_go=may_go.__getitem__)
        self._layouts.effort.take(20)
        yield
        found: list[State] = []
        for pods in list(search.sets())[:_MOST_SETS]:
            tried: State | None = state
            leaving = {pod.uid for pod in pods}
            while tried is not None and self._layouts.leaving(self._layouts.at(tried, index), want):
                there = self._layouts.at(tried, index).site.residents
                # What GPUs are short of first, then what has the most CPU.
                left = [each for each in there if each.pod.uid in leaving] or [
                    each for each in there if self._layouts.may_go(each) and each.amounts != NO_AMOUNTS
                ]
                resident = max(left, key=lambda each: (*self._layouts.size(each), each.amounts.cpu_milli), default=None)
                leaving.discard("" if resident is None else resident.pod.uid)
                tried = yield from self._relocate(tried, resident, index, deeper, barred | {index})
            if tried is not None:
                found.append(tried)
        return min(found, key=lambda each: (len(each.moves), each.priority, each.shares), default=None)

    def _relocate(
        self, state: State, resident: Resident | None, origin: int, deeper: int, barred: frozenset[int]
    ) -> Generator[None, None, State | None]:
        """Move a pod to another node, making room there if need be; None: no way was found, or there is no pod."""
        if resident is None or not self._layouts.may_go(resident) or not self._layouts.affordable(state, resident):
            return None
        kind = self._layouts.kind[resident.pod.uid]
        yield from self._layouts.survey(kind)
        for index, way in self._layouts.places(state, resident, origin):
            if self._layouts.step():
                yield
            if index not in barred:
                return self._layouts.moved(state, resident, origin, index, way)
        near = (yield from self._nearest(state, kind, barred)) if deeper else []
        for index in near:
            made = yield from self._make_room(state, index, self._layouts.wants[kind], deeper - 1, barred)
            ways = [] if made is None else self._layouts.ways(self._layouts.at(made, index), kind)
            if made is not None and ways and self._layouts.affordable(made, resident):
                return self._layouts.moved(made, resident, origin, index, ways[0][1])
        return None

    def _nearest(self, state: State, kind: int, barred: frozenset[int]) -> Generator[None, None, list[int]]:
        """Return the nodes that the fewest pods have to leave for a kind of pod, but for those that are barred."""
        found: list[tuple[float, int]] = []
        for each in self._layouts.base:
            here = self._layouts.at(state, each.index)
            need = self._layouts.leaving(here, self._layouts.wants[kind])
            if need < inf and here.index not in barred:
                found.append((need, here.index))
            if not here.index % STEPS_AT_ONCE:
                self._layouts.effort.take(1)
                yield
        return [index for _, index in nsmallest(_MOST_SETS, found)]

"""Find the fewest and cheapest moves of pods after which a waiting pod has room, or nodes are free of pods.

The room of a move is free while the pod that moves still runs: it is held for the replacement before the eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import merge
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.capacity.movable import Move
from gpu_device_plugin.core.capacity.places import covers, fewest_leaving, places, waste
from gpu_device_plugin.core.cluster.packing import Effort, Packer, TooLongError
from gpu_device_plugin.core.cluster.victims import VictimSearch
from gpu_device_plugin.core.model.resources import NO_AMOUNTS, Amounts, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.capacity.movable import Site, Tenant
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.model.placing import Placement

    _Steps = Generator[None, None, None]
    _Waste = tuple[int, int]
    _Source = tuple[tuple[int, int, int, str, str, str], Tenant, int]
    """A rank, the cheapest first; a pod that may move, and the index of its node."""

MOST_STEPS = 40_000
"""A step is a place or a node that is looked at; it takes up to a tenth of a millisecond."""
_STEPS_AT_ONCE = 20
_MOST_NODES, _MOST_SETS = 48, 4
"""The heuristic tries so many of the nodes that the fewest pods have to leave, and of the sets of pods there."""
_DEEPEST = 2
"""How many pods make room for one another in a row, for the heuristic."""
_MOST_MOVES = 64


@dataclass(frozen=True, slots=True)
class Fits:
    """The goal that a pod has room on one of the nodes that its own terms allow."""

    ask: Ask
    amounts: Amounts = NO_AMOUNTS
    nodes: frozenset[str] | None = None
    """None: all."""
    priority: int | None = None
    """Pods of a higher one are not moved for it; None: any may be."""

    def allows(self, site: Site) -> bool:
        """Return whether the pod may go to a node, whatever room it has."""
        return site.open and (self.nodes is None or site.node.name in self.nodes)


@dataclass(frozen=True, slots=True)
class NodesFree:
    """The goal that this many nodes have no pods on their GPUs."""

    number: int


Goal: TypeAlias = Fits | NodesFree


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


def planning(
    sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int] | None = None, most_steps: int = MOST_STEPS
) -> Generator[None, None, Plan]:
    """Search for a plan, and yield every millisecond or two.

    Of the plans with the fewest moves it is one whose most important pod is the least important, then one that moves
    the fewest shares. `budgets` are the evictions that each PodDisruptionBudget allows; all moves of a plan count
    together, as if no replacement became ready meanwhile. After `most_steps` the result is the best plan so far.
    """
    return _Search(sites, goal, budgets or {}, most_steps).run()


class _Here:
    """A node in some state of the search."""

    __slots__ = ("index", "leaving", "moved", "need", "signature", "site", "ways")

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.site = site
        self.signature: tuple[object, ...] = ()
        """Its pods by kind and GPU: a node with equal ones is in the same state."""
        self.need: float = inf
        """At least so many pods have to leave it for the goal."""
        self.leaving: dict[Fits, float] = {}
        """The same for pods that move."""
        self.ways: dict[int, list[tuple[_Waste, tuple[Placement, ...]]]] = {}
        """The places for each kind of pod, with what they waste."""
        self.moved: dict[tuple[object, ...], _Here] = {}
        """The node after pods have left, or come."""


@dataclass(frozen=True, slots=True)
class _State:
    changed: Mapping[int, _Here] = field(default_factory=dict)
    """The nodes that are not as they were, by index."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """Evictions by PodDisruptionBudget."""
    moves: tuple[Move, ...] = ()
    priority: float = -inf
    """The highest of the pods that moved."""
    shares: int = 0
    """Of the pods that moved."""


class _Search:
    """One search. A kind of pods are those between which a plan need not choose."""

    def __init__(self, sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int], most_steps: int) -> None:
        self._sites = sorted(sites, key=lambda site: site.node.name)
        self._goal = goal
        self._number = 1 if isinstance(goal, Fits) else goal.number
        self._highest = goal.priority if isinstance(goal, Fits) else None
        self._budgets = budgets
        self._effort = Effort(most_steps)
        self._kinds: dict[tuple[object, ...], int] = {}
        self._wants: list[Fits] = []
        """By kind, what the replacement of a pod needs."""
        self._sizes: list[int] = []
        """By kind, the shares of a pod."""
        self._kind: dict[str, int] = {}
        """By UID of each pod that may be moved."""
        self._spread = 1
        """The most GPUs that such a pod has, now or after a move."""
        self._packers: dict[Ask, Packer] = {}
        self._base: list[_Here] = []
        self._alike: list[object] = []
        """By node, what it has in common with those that are interchangeable with it."""
        self._by_need: list[_Here] = []
        self._base_sources: list[_Source] = []
        self._targets: dict[int, list[tuple[_Waste, int, int]]] = {}
        """By kind, the places on the nodes as they were: waste, node, and the place's number among the node's."""
        self._seen: dict[object, list[tuple[int, float, int]]] = {}
        """By state, with how many moves left and at what cost the search came there."""
        self._best: _State | None = None
        self._cut = False
        """A state was left because it needs more moves."""

    def run(self) -> Generator[None, None, Plan]:
        """Search; see `planning`."""
        yield from self._prepare()
        begin = _State()
        least, _ = self._least(begin)
        if least == inf:
            return Plan(None, None, exact=True)
        bound = int(least)
        try:
            yield from self._guess(begin)
            while bound <= _MOST_MOVES:
                self._cut = False
                yield from self._deepen(begin, bound)
                if self._best is not None and len(self._best.moves) == bound:
                    return Plan(self._best.moves, bound, exact=True)
                if not self._cut:
                    return Plan(None, None, exact=True)
                bound += 1
        except TooLongError:
            pass
        return Plan(None if self._best is None else self._best.moves, bound, exact=False)

    # --- Nodes and pods -----------------------------------------------------------------------------------------------

    def _prepare(self) -> _Steps:
        for site in self._sites:
            for tenant in site.tenants:
                self._sort_in(tenant, site)
        sets = {each.nodes for site in self._sites for each in site.tenants} | {
            self._goal.nodes if isinstance(self._goal, Fits) else None
        }
        named = any(want.ask.wishes.named for want in self._wants)
        for index, site in enumerate(self._sites):
            here = self._here(index, site)
            self._base.append(here)
            inside = tuple([each is not None and site.node.name in each for each in sets])
            gpus = tuple([(gpu.position, gpu.shares, gpu.model, gpu.unhealthy) for gpu in site.node.gpus.gpus])
            rooms = tuple([(room.free, room.shared, room.whole) for room in site.node.rooms])
            # Where pods want certain GPUs, no node is like another.
            itself = site.node.name if named or site.node.gpus.cards else id(site.node.gpus.links)
            self._alike.append((itself, gpus, rooms, site.open, site.node.left, here.signature, inside))
            self._base_sources += self._sources_on(here)
            if not index % _STEPS_AT_ONCE:
                yield
        self._by_need = sorted(self._base, key=lambda here: (here.need, here.index))
        self._base_sources.sort(key=lambda source: source[0])

    def _sort_in(self, tenant: Tenant, site: Site) -> None:
        pod = tenant.pod
        if tenant.stays is not None or pod.usage.unplaced:
            return
        if self._highest is not None and pod.priority > self._highest:
            return
        size = pod.usage.size(site.node.gpus.sizes)
        key = tenant.ask, tenant.amounts, pod.priority, tenant.budget, tenant.nodes, size
        kind = self._kind[pod.uid] = self._kinds.setdefault(key, len(self._kinds))
        if kind == len(self._wants):
            self._wants.append(Fits(tenant.ask, tenant.amounts, tenant.nodes))
            self._sizes.append(size)
            demands = [part.demand for part in tenant.ask.parts]
            gpus = [each.gpus if each.kind is Kind.MEMORY else each.amount for each in demands]
            self._spread = max(self._spread, sum(gpus))
        self._spread = max(self._spread, len(pod.usage.shares) + len(pod.usage.whole))

    def _may_go(self, tenant: Tenant) -> bool:
        return tenant.pod.uid in self._kind

    def _here(self, index: int, site: Site) -> _Here:
        here = _Here(index, site)
        pods = [(self._kind.get(each.pod.uid, -1), each.pod.usage) for each in site.tenants]
        here.signature = tuple(sorted((kind, usage.shares, usage.whole) for kind, usage in pods))
        if isinstance(self._goal, Fits):
            here.need = self._leaving(here, self._goal)
        elif site.node.gpus.gpus:
            here.need = len(site.tenants) if all(map(self._may_go, site.tenants)) else inf
        return here

    def _leaving(self, here: _Here, want: Fits) -> float:
        """Return how many pods have to leave a node at least, so that a pod has room there."""
        known = here.leaving.get(want)
        if known is None:
            packer = self._packers.get(want.ask)
            if packer is None:
                packer = self._packers[want.ask] = Packer([part.demand for part in want.ask.parts])
            known = here.leaving[want] = (
                fewest_leaving(want.ask, want.amounts, here.site, self._may_go, self._spread, packer)
                if want.allows(here.site)
                else inf
            )
        return known

    def _ways(self, here: _Here, kind: int) -> list[tuple[_Waste, tuple[Placement, ...]]]:
        """Return the places of a kind of pod on a node, the least wasteful first."""
        known = here.ways.get(kind)
        if known is None:
            want, site = self._wants[kind], here.site
            found: list[tuple[Placement, ...]] = []
            if want.allows(site) and covers(site, want.amounts):
                found = list(places(want.ask, site, self._labels(here).__getitem__))
            known = here.ways[kind] = sorted(((waste(way, site), way) for way in found), key=lambda way: way[0])
        return known

    def _labels(self, here: _Here) -> Mapping[int, object]:
        """Return by position what makes a GPU differ from others for the search: its model, and the pods there."""
        gpus = here.site.node.gpus
        on_gpu: dict[int, list[tuple[object, ...]]] = {gpu.position: [] for gpu in gpus.gpus}
        for tenant in here.site.tenants:
            usage, kind = tenant.pod.usage, self._kind.get(tenant.pod.uid, -1)
            several = tenant.pod.uid if len(usage.shares) + len(usage.whole) > 1 else ""
            for position, shares in (*usage.shares, *((at, 0) for at in usage.whole)):
                on_gpu.get(position, []).append((kind, shares, several))
        named = any(want.ask.wishes.named for want in self._wants)
        return {
            gpu.position: (
                gpu.model,
                gpu.uuid if named else gpus.cards.get(gpu.position),
                tuple(sorted(on_gpu[gpu.position])),
            )
            for gpu in gpus.gpus
        }

    # --- States -------------------------------------------------------------------------------------------------------

    def _at(self, state: _State, index: int) -> _Here:
        return state.changed.get(index) or self._base[index]

    def _least(self, state: _State) -> tuple[float, float]:
        """Return how many moves the goal takes at least, and how many those nodes need at most that count for it."""
        needs = [here.need for here in state.changed.values()]
        untouched = (here.need for here in self._by_need if here.index not in state.changed)
        needs += [need for need, _ in zip(untouched, range(self._number))]
        smallest = sorted(needs)[: self._number]
        return (sum(smallest), smallest[-1]) if len(smallest) == self._number else (inf, inf)

    def _moved(self, state: _State, tenant: Tenant, origin: int, index: int, way: tuple[Placement, ...]) -> _State:
        """Return the state after a move, whose PodDisruptionBudget must allow it."""
        source = self._at(state, origin)
        move = Move(tenant, source.site.node.name, self._base[index].site.node.name, way)
        changed = dict(state.changed)
        changed[origin] = self._changed(source, tenant, None)
        changed[index] = self._changed(changed.get(index) or self._base[index], None, move.replacement)
        spent = {**state.spent, tenant.budget: state.spent.get(tenant.budget, 0) + 1} if tenant.budget else state.spent
        priority, shares = self._cost_after(state, tenant)
        return _State(changed, spent, (*state.moves, move), priority, shares)

    def _changed(self, here: _Here, gone: Tenant | None, come: Tenant | None) -> _Here:
        key = (
            None if gone is None else gone.pod.uid,
            None if come is None else (come.pod.uid, come.pod.usage.shares, come.pod.usage.whole),
        )
        known = here.moved.get(key)
        if known is None:
            known = here.moved[key] = self._here(here.index, here.site.changed(gone, come))
        return known

    def _cost_after(self, state: _State, tenant: Tenant) -> tuple[float, int]:
        size = self._sizes[self._kind[tenant.pod.uid]]
        return max(state.priority, tenant.pod.priority), state.shares + size

    def _affordable(self, state: _State, tenant: Tenant) -> bool:
        return not tenant.budget or state.spent.get(tenant.budget, 0) < self._budgets.get(tenant.budget, 0)

    # --- All plans, by the number of moves ----------------------------------------------------------------------------

    def _deepen(self, state: _State, left: int) -> _Steps:
        """Look for plans that reach the goal from a state with up to `left` further moves."""
        least, threshold = self._least(state)
        if least > left:
            self._cut = self._cut or least < inf
            return
        if not least:
            self._best = state
            return
        if self._known(state, left):
            return
        tight = least == left
        for _, tenant, origin in self._sources(state, threshold if tight else inf):
            if not self._affordable(state, tenant) or self._too_dear(state, tenant, left):
                continue
            here = self._at(state, origin)
            if tight and self._changed(here, tenant, None).need >= here.need:
                continue
            yield from self._survey(self._kind[tenant.pod.uid])
            for index, way in self._places(state, tenant, origin):
                self._effort.take(1)
                if not self._effort.spent % _STEPS_AT_ONCE:
                    yield
                yield from self._deepen(self._moved(state, tenant, origin, index, way), left - 1)
                if self._too_dear(state, tenant, left):
                    break

    def _too_dear(self, state: _State, tenant: Tenant, left: int) -> bool:
        """Return whether a plan that moves a pod now is no cheaper than one that is known and as short."""
        best = self._best
        return (
            best is not None
            and len(best.moves) == len(state.moves) + left
            and self._cost_after(state, tenant) >= (best.priority, best.shares)
        )

    def _known(self, state: _State, left: int) -> bool:
        """Return whether the search was in this state before, with as many moves left and at no higher cost."""
        changed = [(at, here.signature) for at, here in state.changed.items()]
        key = (
            tuple(sorted((at, each) for at, each in changed if each != self._base[at].signature)),
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

    def _sources_on(self, here: _Here) -> list[_Source]:
        """Return the pods of a node that may move; one of several alike."""
        found: dict[tuple[object, ...], _Source] = {}
        for tenant in filter(self._may_go, here.site.tenants):
            pod, kind = tenant.pod, self._kind[tenant.pod.uid]
            rank = pod.priority, self._sizes[kind], here.index, pod.namespace, pod.name, pod.uid
            found.setdefault((kind, pod.usage.shares, pod.usage.whole), (rank, tenant, here.index))
        return sorted(found.values(), key=lambda source: source[0])

    def _sources(self, state: _State, threshold: float) -> Iterator[_Source]:
        """Yield the pods that may move, the cheapest first, of the nodes that need up to `threshold`."""
        fresh = [
            source for here in state.changed.values() if here.need <= threshold for source in self._sources_on(here)
        ]
        untouched = (
            source
            for source in self._base_sources
            if source[2] not in state.changed and self._base[source[2]].need <= threshold
        )
        return merge(sorted(fresh, key=lambda source: source[0]), untouched, key=lambda source: source[0])

    def _survey(self, kind: int) -> _Steps:
        """Find the places for a kind of pod on the nodes as they were."""
        if kind in self._targets:
            return
        found: list[tuple[_Waste, int, int]] = []
        for here in self._base:
            found += [(waste, here.index, number) for number, (waste, _) in enumerate(self._ways(here, kind))]
            if not here.index % _STEPS_AT_ONCE:
                self._effort.take(_STEPS_AT_ONCE // 4)
                yield
        self._targets[kind] = sorted(found)

    def _places(self, state: _State, tenant: Tenant, origin: int) -> Iterator[tuple[int, tuple[Placement, ...]]]:
        """Yield the places for a pod's replacement, the least wasteful first; one of several alike. After `_survey`."""
        kind = self._kind[tenant.pod.uid]
        fresh = sorted(
            (waste, here.index, number)
            for here in state.changed.values()
            for number, (waste, _) in enumerate(self._ways(here, kind))
        )
        seen: set[object] = set()
        for _, index, number in merge(fresh, (each for each in self._targets[kind] if each[1] not in state.changed)):
            alike = index if index == origin or index in state.changed else self._alike[index]
            if (alike, number) not in seen:
                seen.add((alike, number))
                yield index, self._ways(self._at(state, index), kind)[number][1]

    # --- A first plan, one pod after the other ------------------------------------------------------------------------

    def _guess(self, begin: _State) -> _Steps:
        """Find a plan node by node, where the fewest pods have to leave first, and keep the best."""
        if isinstance(self._goal, Fits):
            for here in self._by_need[:_MOST_NODES]:
                if here.need == inf or (self._best is not None and here.need > len(self._best.moves)):
                    return
                found = yield from self._make_room(begin, here.index, self._goal, _DEEPEST, frozenset())
                self._keep(found)
            return
        state, free = begin, {here.index for here in self._base if not here.need}
        for here in self._by_need:
            if here.need in {0, inf}:
                continue
            if len(free) >= self._number:
                break
            tried: _State | None = state
            for tenant in sorted(self._at(state, here.index).site.tenants, key=self._size, reverse=True):
                if tried is not None:
                    tried = yield from self._relocate(tried, tenant, here.index, 1, frozenset({*free, here.index}))
            if tried is not None and not self._at(tried, here.index).site.tenants:
                state = tried
                free.add(here.index)
        self._keep(state)

    def _keep(self, state: _State | None) -> None:
        if state is None or self._least(state)[0]:
            return
        cost, best = (len(state.moves), state.priority, state.shares), self._best
        if best is None or cost < (len(best.moves), best.priority, best.shares):
            self._best = state

    def _size(self, tenant: Tenant) -> tuple[int, str]:
        return self._sizes[self._kind[tenant.pod.uid]] if self._may_go(tenant) else 0, tenant.pod.uid

    def _make_room(
        self, state: _State, index: int, want: Fits, deeper: int, barred: frozenset[int]
    ) -> Generator[None, None, _State | None]:
        """Move pods off a node until a pod has room there; None: no way was found."""
        here = self._at(state, index)
        by_pod = {tenant.pod: tenant for tenant in here.site.tenants}

        def cost(pods: Collection[Occupant]) -> tuple[object, ...]:
            sizes = sum(self._size(by_pod[pod])[0] for pod in pods)
            return len(pods), max((pod.priority for pod in pods), default=0), sizes, sorted(pod.uid for pod in pods)

        search = VictimSearch(want.ask, here.site.node, by_pod, cost=cost, may_go=lambda pod: self._may_go(by_pod[pod]))
        self._effort.take(20)
        yield
        found: list[_State] = []
        for pods in search.sets()[:_MOST_SETS]:
            tried: _State | None = state
            leaving = {pod.uid for pod in pods}
            while tried is not None and self._leaving(self._at(tried, index), want):
                there = self._at(tried, index).site.tenants
                # What GPUs are short of first, then what has the most CPU.
                left = [each for each in there if each.pod.uid in leaving] or [
                    each for each in there if self._may_go(each) and each.amounts != NO_AMOUNTS
                ]
                if not left:
                    tried = None
                    break
                tenant = max(left, key=lambda each: (*self._size(each), each.amounts.cpu_milli))
                leaving.discard(tenant.pod.uid)
                tried = yield from self._relocate(tried, tenant, index, deeper, barred | {index})
            if tried is not None:
                found.append(tried)
        return min(found, key=lambda each: (len(each.moves), each.priority, each.shares), default=None)

    def _relocate(
        self, state: _State, tenant: Tenant, origin: int, deeper: int, barred: frozenset[int]
    ) -> Generator[None, None, _State | None]:
        """Move a pod to another node, making room there if need be; None: no way was found."""
        if not self._may_go(tenant) or not self._affordable(state, tenant):
            return None
        kind = self._kind[tenant.pod.uid]
        yield from self._survey(kind)
        for index, way in self._places(state, tenant, origin):
            self._effort.take(1)
            if index not in barred:
                return self._moved(state, tenant, origin, index, way)
        if not deeper:
            return None
        want = self._wants[kind]
        near: list[tuple[float, int]] = []
        for here in self._base:
            if here.index not in barred and (need := self._leaving(self._at(state, here.index), want)) < inf:
                near.append((need, here.index))
            if not here.index % _STEPS_AT_ONCE:
                self._effort.take(_STEPS_AT_ONCE // 4)
                yield
        for _, index in sorted(near)[:_MOST_SETS]:
            made = yield from self._make_room(state, index, want, deeper - 1, barred)
            ways = [] if made is None else self._ways(self._at(made, index), kind)
            if made is not None and ways and self._affordable(made, tenant):
                return self._moved(made, tenant, origin, index, ways[0][1])
        return None

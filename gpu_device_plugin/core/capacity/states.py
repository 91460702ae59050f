"""The states that a cluster may be in between moves of pods, and which moves lead on from each."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Move, Stays
from gpu_device_plugin.core.capacity.places import Fits, NodesFree, PodsGone, covers, fewest_leaving, places, waste
from gpu_device_plugin.core.cluster.packing import Effort, Packer
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.capacity.movable import Resident, Site
    from gpu_device_plugin.core.capacity.places import Goal
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.model.placing import Placement

    Steps = Generator[None, None, None]
    Waste = tuple[int, int]
    Source = tuple[tuple[int, int, int, str, str, str], Resident, int]
    """A rank, the cheapest first; a pod that may move, and the index of its node."""

STEPS_AT_ONCE = 8
"""After so many a search yields. A step is a place or a node that is looked at, and takes a tenth of a millisecond."""


class Here:
    """A node in some state of the search."""

    __slots__ = ("index", "leaving", "moved", "need", "signature", "site", "sources", "ways")

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.site = site
        self.signature: tuple[object, ...] = ()
        """Its pods by kind and GPU: a node with equal ones is in the same state."""
        self.need: float = inf
        """At least so many pods have to leave it for the goal."""
        self.leaving: dict[Fits, float] = {}
        """The same for pods that move."""
        self.ways: dict[int, list[tuple[Waste, tuple[Placement, ...]]]] = {}
        """The places for each kind of pod, with what they waste."""
        self.moved: dict[tuple[object, ...], Here] = {}
        """The node after pods have left, or come."""
        self.sources: list[Source] | None = None
        """Its pods that may move, once they were asked for."""


@dataclass(frozen=True, slots=True)
class State:
    """The cluster after some moves."""

    changed: Mapping[int, Here] = field(default_factory=dict)
    """The nodes that are not as they were, by index."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """Evictions by PodDisruptionBudget."""
    moves: tuple[Move, ...] = ()
    priority: float = -inf
    """The highest of the pods that moved."""
    shares: int = 0
    """Of the pods that moved."""


class Layouts:
    """The layouts that moves lead to, and the moves from each. Pods of one kind are interchangeable for a plan."""

    def __init__(self, sites: Iterable[Site], goal: Goal, budgets: Mapping[str, int], most_steps: int) -> None:
        """Begin with `sites`; see `plans.planning`."""
        self._sites = sorted(sites, key=lambda site: site.node.name)
        self._goal = goal
        self.number = goal.number if isinstance(goal, NodesFree) else 1
        """Of nodes that have to reach the goal."""
        self._highest = goal.priority if isinstance(goal, Fits) else None
        self._budgets = budgets
        self.effort = Effort(most_steps)
        self._kinds: dict[tuple[object, ...], int] = {}
        self.wants: list[Fits] = []
        """By kind, what the replacement of a pod needs."""
        self._sizes: list[int] = []
        """By kind, the shares of a pod."""
        self.kind: dict[str, int] = {}
        """By UID of each pod that may be moved."""
        self._spread = 1
        """The most GPUs that such a pod has, now or after a move."""
        self._named = False
        """A pod wants certain GPUs."""
        self._packers: dict[Ask, Packer] = {}
        self.base: list[Here] = []
        """The nodes as they were."""
        self.by_need: list[Here] = []
        """The same, those first that the fewest pods have to leave."""
        self._alike: list[object] = []
        """By node, what it has in common with those that are interchangeable with it."""
        self._targets: dict[int, list[tuple[Waste, int, int]]] = {}
        """By kind, the places on the nodes as they were: waste, node, and the place's number among the node's."""

    # --- Nodes and pods -----------------------------------------------------------------------------------------------

    def prepare(self) -> Steps:
        """Look at every node. To be done first."""
        for index, site in enumerate(self._sites):
            for resident in site.residents:
                self._sort_in(resident, site)
            if not index % STEPS_AT_ONCE:
                yield
        sets = {each.nodes for site in self._sites for each in site.residents} | {
            self._goal.nodes if isinstance(self._goal, Fits) else None
        }
        self._named = any(want.ask.wishes.named for want in self.wants)
        for index, site in enumerate(self._sites):
            here = self._here(index, site)
            self.base.append(here)
            inside = tuple([each is not None and site.node.name in each for each in sets])
            gpus = tuple([(gpu.position, gpu.shares, gpu.model, gpu.closed) for gpu in site.node.gpus.gpus])
            rooms = tuple([(room.free, room.shared, room.whole) for room in site.node.rooms])
            # Where pods want certain GPUs, no node is like another.
            itself = site.node.name if self._named or site.node.gpus.cards else id(site.node.gpus.links)
            self._alike.append((itself, gpus, rooms, site.open, site.node.left, here.signature, inside))
            if not index % STEPS_AT_ONCE:
                yield
        self.by_need = sorted(self.base, key=lambda here: (here.need, here.index))

    def _sort_in(self, resident: Resident, site: Site) -> None:
        pod = resident.pod
        if resident.stays is not None or pod.usage.unplaced:
            return
        if self._highest is not None and pod.priority > self._highest:
            return
        size = pod.usage.size(site.node.gpus.sizes)
        key = resident.ask, resident.amounts, pod.priority, resident.budget, resident.nodes, size
        kind = self.kind[pod.uid] = self._kinds.setdefault(key, len(self._kinds))
        if kind == len(self.wants):
            self.wants.append(Fits(resident.ask, resident.amounts, resident.nodes))
            self._sizes.append(size)
            demands = [part.demand for part in resident.ask.parts]
            gpus = [each.gpus if each.kind is Kind.MEMORY else each.amount for each in demands]
            self._spread = max(self._spread, sum(gpus))
        self._spread = max(self._spread, len(pod.usage.shares) + len(pod.usage.whole))

    def may_go(self, resident: Resident) -> bool:
        """Return whether a pod may be moved for the goal."""
        return resident.stays is None and resident.pod.uid in self.kind

    def _kind_of(self, resident: Resident) -> int:
        """Return the kind of a pod that may be moved; all others are alike: -1."""
        return self.kind[resident.pod.uid] if self.may_go(resident) else -1

    def _here(self, index: int, site: Site) -> Here:
        here = Here(index, site)
        pods = [(self._kind_of(each), each.pod.usage) for each in site.residents]
        here.signature = tuple(sorted((kind, usage.shares, usage.whole) for kind, usage in pods))
        if isinstance(self._goal, Fits):
            here.need = self.leaving(here, self._goal)
        elif (leaving := self.to_leave(site)) is not None and all(map(self.may_go, leaving)):
            here.need = len(leaving)
        return here

    def to_leave(self, site: Site) -> Sequence[Resident] | None:
        """Return the pods that have to leave a node for a goal other than `Fits`; None: it cannot count for that."""
        if isinstance(self._goal, PodsGone):
            if site.node.name != self._goal.node:
                return None
            uids = self._goal.uids
            return [each for each in site.residents if each.pod.uid in uids and each.stays is not Stays.MOVED]
        return site.residents if site.node.gpus.gpus else None

    def leaving(self, here: Here, want: Fits) -> float:
        """Return how many pods have to leave a node at least, so that a pod has room there."""
        known = here.leaving.get(want)
        if known is None:
            packer = self._packers.get(want.ask)
            if packer is None:
                packer = self._packers[want.ask] = Packer([part.demand for part in want.ask.parts])
            known = here.leaving[want] = fewest_leaving(want, here.site, self.may_go, self._spread, packer)
        return known

    def ways(self, here: Here, kind: int) -> list[tuple[Waste, tuple[Placement, ...]]]:
        """Return the places of a kind of pod on a node, the least wasteful first."""
        known = here.ways.get(kind)
        if known is None:
            want, site = self.wants[kind], here.site
            found: list[tuple[Placement, ...]] = []
            if want.allows(site) and covers(site, want.amounts):
                found = list(places(want.ask, site, self._labels(here).__getitem__))
            known = here.ways[kind] = sorted(((waste(way, site), way) for way in found), key=lambda way: way[0])
        return known

    def _labels(self, here: Here) -> Mapping[int, object]:
        """Return by position what makes a GPU differ from others for the search: its model, and the pods there."""
        gpus = here.site.node.gpus
        on_gpu: dict[int, list[tuple[object, ...]]] = {gpu.position: [] for gpu in gpus.gpus}
        for resident in here.site.residents:
            usage, kind = resident.pod.usage, self._kind_of(resident)
            several = resident.pod.uid if len(usage.shares) + len(usage.whole) > 1 else ""
            for position, shares in (*usage.shares, *((at, 0) for at in usage.whole)):
                on_gpu.get(position, []).append((kind, shares, several))
        return {
            gpu.position: (
                gpu.model,
                gpu.uuid if self._named else gpus.cards.get(gpu.position),
                tuple(sorted(on_gpu[gpu.position])),
            )
            for gpu in gpus.gpus
        }

    def step(self) -> bool:
        """Count a step, and return whether to yield. Raises TooLongError if no step is left."""
        self.effort.take(1)
        return not self.effort.spent % STEPS_AT_ONCE

    # --- States -------------------------------------------------------------------------------------------------------

    def at(self, state: State, index: int) -> Here:
        """Return a node in a state."""
        return state.changed.get(index) or self.base[index]

    def least(self, state: State) -> tuple[float, float]:
        """Return how many moves the goal takes at least, and how many those nodes need at most that count for it."""
        needs = [here.need for here in state.changed.values()]
        untouched = (here.need for here in self.by_need if here.index not in state.changed)
        needs += islice(untouched, self.number)
        smallest = sorted(needs)[: self.number]
        return (sum(smallest), smallest[-1]) if len(smallest) == self.number else (inf, inf)

    def moved(self, state: State, resident: Resident, origin: int, index: int, way: tuple[Placement, ...]) -> State:
        """Return the state after a move, whose PodDisruptionBudget must allow it."""
        source = self.at(state, origin)
        move = Move(resident, source.site.node.name, self.base[index].site.node.name, way)
        changed = dict(state.changed)
        changed[origin] = self.changed(source, resident, None)
        changed[index] = self.changed(changed.get(index) or self.base[index], None, move.replacement)
        spent = (
            {**state.spent, resident.budget: state.spent.get(resident.budget, 0) + 1}
            if resident.budget
            else state.spent
        )
        priority, shares = self.cost_after(state, resident)
        return State(changed, spent, (*state.moves, move), priority, shares)

    def changed(self, here: Here, gone: Resident | None, come: Resident | None) -> Here:
        """Return a node after a pod has left, or come."""
        key = (
            None if gone is None else gone.pod.uid,
            None if come is None else (come.pod.uid, come.pod.usage.shares, come.pod.usage.whole),
        )
        known = here.moved.get(key)
        if known is None:
            known = here.moved[key] = self._here(here.index, here.site.changed(gone, come))
        return known

    def cost_after(self, state: State, resident: Resident) -> tuple[float, int]:
        """Return the highest priority and the shares of all that moves once a pod has moved too."""
        size = self._sizes[self.kind[resident.pod.uid]]
        return max(state.priority, resident.pod.priority), state.shares + size

    def affordable(self, state: State, resident: Resident) -> bool:
        """Return whether the PodDisruptionBudget of a pod allows one more eviction."""
        return not resident.budget or state.spent.get(resident.budget, 0) < self._budgets.get(resident.budget, 0)

    def sources(self, state: State, threshold: float) -> Iterator[Source]:
        """Yield the pods that may move, the cheapest first, of the nodes that need up to `threshold`."""
        nodes = [here for here in state.changed.values() if here.need <= threshold]
        near = takewhile(lambda here: here.need <= threshold, self.by_need)
        nodes += [here for here in near if here.index not in state.changed]
        return merge(*map(self._sources_on, nodes), key=itemgetter(0))

    def _sources_on(self, here: Here) -> list[Source]:
        """Return the pods of a node that may move, the cheapest first; one of several alike."""
        if here.sources is None:
            found: dict[tuple[object, ...], Source] = {}
            for resident in filter(self.may_go, here.site.residents):
                pod, kind = resident.pod, self.kind[resident.pod.uid]
                rank = pod.priority, self._sizes[kind], here.index, pod.namespace, pod.name, pod.uid
                found.setdefault((kind, pod.usage.shares, pod.usage.whole), (rank, resident, here.index))
            here.sources = sorted(found.values(), key=itemgetter(0))
        return here.sources

    def survey(self, kind: int) -> Steps:
        """Find the places for a kind of pod on the nodes as they were."""
        if kind in self._targets:
            return
        found: dict[Waste, list[tuple[Waste, int, int]]] = {}
        for here in self.base:
            for number, (spoilt, _) in enumerate(self.ways(here, kind)):
                found.setdefault(spoilt, []).append((spoilt, here.index, number))
            if not here.index % STEPS_AT_ONCE:
                self.effort.take(1)
                yield
        self._targets[kind] = [each for spoilt in sorted(found) for each in found[spoilt]]

    def places(self, state: State, resident: Resident, origin: int) -> Iterator[tuple[int, tuple[Placement, ...]]]:
        """Yield the places for a pod's replacement, the least wasteful first; one of several alike. After `_survey`."""
        kind = self.kind[resident.pod.uid]
        fresh = sorted(
            (spoilt, here.index, number)
            for here in state.changed.values()
            for number, (spoilt, _) in enumerate(self.ways(here, kind))
        )
        seen: set[object] = set()
        for _, index, number in merge(fresh, (each for each in self._targets[kind] if each[1] not in state.changed)):
            alike = index if index == origin or index in state.changed else self._alike[index]
            if (alike, number) not in seen:
                seen.add((alike, number))
                yield index, self.ways(self.at(state, index), kind)[number][1]

    def size(self, resident: Resident) -> tuple[int, str]:
        """Return the key by which the largest of some pods is found."""
        return self._sizes[self.kind[resident.pod.uid]] if self.may_go(resident) else 0, resident.pod.uid

"""Run one policy over pods that come, and leave, and may be moved."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.capacity.movable import Fits, Resident, Site, Stays
from gpu_device_plugin.core.capacity.plans import plan
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.usage import Occupant, Usage
from gpu_device_plugin.core.value.fair_learning import due, studied
from gpu_device_plugin.core.value.price_learning import learn
from gpu_device_plugin.core.value.workload_mix import WorkloadMix
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.programs.simulate.model import SimulationOutcome, capacity_of, demand_of
from gpu_device_plugin.programs.simulate.policies.extender_policies import ByFullness, ByValue, asked
from gpu_device_plugin.programs.simulate.policies.fgd import BestFit, Fgd, LeastAllocated
from gpu_device_plugin.programs.simulate.rooms import NodeSampling, Placer, Rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.capacity.movable import Move
    from gpu_device_plugin.core.value.node_types import NodeType
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Arrivals, Bools, Ints, Start, Workload
    from gpu_device_plugin.programs.simulate.rooms import Policy

    Place = tuple[int, Sequence[int]]
    """A row, and the positions of GPUs there."""

POLICIES = ("fit", "binpack", "spread", "fgd", "bestfit")
"""The policies of the scheduler extender, and two for comparison."""


def run(
    policy: str,
    nodes: Sequence[Start],
    workload: Workload,
    arrivals: Arrivals,
    seed: int,
    *,
    cold: bool = False,
    others_apart: bool = False,
    percentage: int = 100,
    rebalance: float = 0.0,
    progress: Callable[[int], None] = lambda _done: None,
) -> SimulationOutcome:
    """Let pods come, and return which of them found room; a pod that finds none does not come again.

    `policy` is a name in `POLICIES`. `seed` is that of the order of nodes: of equal ones the first is chosen. With
    `cold`, `fit` and `fgd` do not know the workload and learn from the pods that come; until then they are `bestfit`.
    With `others_apart` the policy places pods with GPUs only, and kube-scheduler the others (`LeastAllocated`).
    `percentage` is kube-scheduler's `percentageOfNodesToScore`: 100 for all nodes, 0 for its adaptive default.
    `rebalance` is the part of the pods that have come which may be moved, so that one that finds no room does.
    `progress` is called now and then with how many pods have come.
    """
    order = np.random.default_rng(seed).permutation(len(nodes))
    ordered = [nodes[at] for at in order]
    began = time.process_time()
    rooms = Rooms(ordered)
    without_gpus = LeastAllocated(rooms) if others_apart else None
    placer = _placer(policy, rooms, workload, cold=cold, without_gpus=without_gpus)
    rebalancer = Rebalancer(placer, ordered, rebalance)
    (accepted, missed), places = _placed(placer, arrivals, NodeSampling(rooms, percentage), rebalancer, progress)
    shares = demand_of(workload, nodes)[np.array(arrivals.pods, np.int64)]
    cpu_s = time.process_time() - began
    after = tuple([replace(node, left=rooms.left(row)) for row, node in enumerate(ordered)])
    return SimulationOutcome(
        policy, arrivals.pods, accepted, missed, shares, capacity_of(nodes), cpu_s, after, places, rebalancer.moves
    )


def _placed(
    placer: Placer,
    arrivals: Arrivals,
    sampling: NodeSampling,
    rebalancer: Rebalancer,
    progress: Callable[[int], None],
) -> tuple[Bools, list[tuple[int, Sequence[int]] | None]]:
    """Return which pods were accepted, and which were missed; and where each is."""
    placed = np.zeros((2, len(arrivals.pods)), np.bool_)
    places: list[tuple[int, Sequence[int]] | None] = []
    running: list[tuple[float, int]] = []
    """When a pod leaves, and its number."""
    for n, kind in enumerate(arrivals.pods):
        if not n % 500:
            progress(n)
        if arrivals.at is not None:
            while running and running[0][0] <= arrivals.at[n]:
                _, ended = heapq.heappop(running)
                placer.leave(arrivals.pods[ended], *rebalancer.remove(ended))
        sample = sampling.rows(placer.kinds[kind])
        rebalancer.came += 1
        found = placer.place(kind, sample)
        placed[1, n] = found is not None and found[0] not in sample
        if found is None and rebalancer.make_room(kind):
            found = placer.place(kind)
        placed[0, n] = found is not None
        places.append(found)
        if found is not None:
            rebalancer.put(n, kind, found)
            if arrivals.at is not None and arrivals.life is not None:
                heapq.heappush(running, (arrivals.at[n] + arrivals.life[n], n))
    progress(len(arrivals.pods))
    return placed, places


def _placer(policy: str, rooms: Rooms, workload: Workload, *, cold: bool, without_gpus: Policy | None) -> Placer:
    if cold and policy in {"fit", "fgd"}:
        return _LearningPlacer(rooms, workload.kinds, policy, without_gpus)
    chosen: Policy
    match policy:
        case "fit":
            chosen = ByValue(rooms, learn(workload.mix(), _node_types(rooms)))
        case "fgd":
            chosen = Fgd(rooms, workload.mix())
        case "bestfit":
            chosen = BestFit(rooms)
        case _:
            chosen = ByFullness(rooms, policy)
    return Placer(rooms, workload.kinds, chosen, without_gpus)


def _node_types(rooms: Rooms) -> Mapping[NodeType, int]:
    """Return how many nodes with GPUs there are of each type."""
    return Counter(node_type for node_type in rooms.node_types if node_type.sizes)


class _LearningPlacer(Placer):
    """Learns from the pods that found room so far, at the same times as the scheduler extender."""

    def __init__(self, rooms: Rooms, kinds: Sequence[PodKind], policy: str, without_gpus: Policy | None) -> None:
        super().__init__(rooms, kinds, BestFit(rooms), without_gpus)
        self._name = policy
        self._mix = WorkloadMix()
        self._learned_from = 0

    def place(self, kind: int, sample: Ints | None = None) -> tuple[int, Sequence[int]] | None:
        if self.policy_for(kind) is not self.policy:
            return super().place(kind, sample)
        if due(self._mix.arrivals, self._learned_from, 0.0, outdated=False):
            self._learned_from = self._mix.arrivals
            self.follow(self._learned())
        found = super().place(kind, sample)
        if found is not None:
            self._mix.add([self.kinds[kind]], 0.0)
        return found

    def _learned(self) -> Policy:
        if self._name == "fgd":
            return Fgd(self.rooms, self._mix.parts())
        usable = studied(self._mix, _node_types(self.rooms)).usable
        return BestFit(self.rooms) if usable is None else ByValue(self.rooms, usable)


_MOST_STEPS = 3000
"""A tenth of what people wait for: many pods come."""
_VAIN = 50
"""After a search that found nothing, pods of the kind are refused at once until so many pods have left."""


class Rebalancer:
    """Moves running pods, within a budget, where a pod that comes would otherwise find no room.

    It plans moves as `kubectl inspect gpushare plan` does, and makes them at once.
    """

    def __init__(self, placer: Placer, nodes: Sequence[Start], part: float) -> None:
        """Move up to `part` of the pods that have come; `nodes` are those that `placer` places on."""
        self._placer = placer
        self._part = part
        self._kinds = [asked(kind) for kind in placer.kinds]
        self._nodes = [_empty(node, row) for row, node in enumerate(nodes)]
        """The GPUs of each row, and the usage of the pods that run there from the beginning and stay."""
        self._sites: dict[int, Site] = {}
        """By row, as long as nothing there changes."""
        self._on: dict[int, dict[int, int]] = {}
        """By row, the pods that came there, by number, with their kinds."""
        self._vain: dict[int, int] = {}
        """By kind, how many pods had left when a search found nothing."""
        self.places: dict[int, Place] = {}
        """By number, where each running pod is."""
        self.came = self.left = self.moves = 0

    def put(self, number: int, kind: int, place: Place) -> None:
        """Take note of a pod that was placed."""
        self.places[number] = place
        if self._placer.kinds[kind].gpus:
            self._on.setdefault(place[0], {})[number] = kind
        self._sites.pop(place[0], None)

    def remove(self, number: int) -> Place:
        """Take note of a pod that leaves, and return where it was."""
        row, gpus = self.places.pop(number)
        self._on.get(row, {}).pop(number, None)
        self._sites.pop(row, None)
        self.left += 1
        return row, gpus

    def make_room(self, kind: int) -> bool:
        """Move pods so that one of a kind has room; return whether it has."""
        allowance = int(self._part * self.came) - self.moves
        vain = self._vain.get(kind)
        pod = self._placer.kinds[kind]
        if not pod.gpus or allowance < 1 or (vain is not None and self.left - vain < _VAIN):
            return False
        goal = Fits(self._kinds[kind], Amounts(pod.cpu_milli, pod.memory_mib))
        found = plan(map(self._site, range(len(self._nodes))), goal, {}, _MOST_STEPS).moves
        if found is None or len(found) > allowance:
            self._vain[kind] = self.left
            return False
        for move in found:
            self._make(move)
        return True

    def _make(self, move: Move) -> None:
        number = int(move.pod.pod.uid)
        row, gpus = self.places[number]
        kind, placer = self._on[row].pop(number), self._placer
        target, positions = int(move.node), sorted(move.shares)
        placer.leave(kind, row, gpus)
        placer.take(kind, target, positions)
        self._sites.pop(row, None)
        self.put(number, kind, (target, positions))
        self.moves += 1

    def _site(self, row: int) -> Site:
        known = self._sites.get(row)
        if known is None:
            gpus, fixed = self._nodes[row]
            stays = [Resident(Occupant(f"fixed-{row}", fixed), stays=Stays.NO_CONTROLLER)] if fixed.shares else []
            pods = [self._resident(number, kind) for number, kind in self._on.get(row, {}).items()]
            rooms = self._placer.rooms
            left = Amounts(int(rooms.cpu[row]), int(rooms.memory[row]))
            residents = (*stays, *pods)
            node = candidate(f"{row:08}", gpus, [each.pod.usage for each in residents], left)
            known = self._sites[row] = Site(node, residents)
        return known

    def _resident(self, number: int, kind: int) -> Resident:
        pod, (_, gpus) = self._placer.kinds[kind], self.places[number]
        positions = sorted(gpus)
        usage = Usage(tuple((at, pod.shares) for at in positions)) if pod.shares else Usage(whole=tuple(positions))
        occupant = Occupant(str(number), usage, name=str(number))
        return Resident(occupant, self._kinds[kind], Amounts(pod.cpu_milli, pod.memory_mib))


def _empty(node: Start, row: int) -> tuple[NodeGpus, Usage]:
    gpus = zip(node.shape.gpus, node.left.frees, strict=True)
    listed = [
        ListedGpu(at, gpu.size, f"{row}-{at}", gpu.model, unhealthy="" if free >= 0 else "it gives no shares")
        for at, (gpu, free) in enumerate(gpus)
    ]
    sizes = node.shape.sizes
    fixed = [(at, sizes[at] - free) for at, free in enumerate(node.left.frees) if 0 <= free < sizes[at]]
    return NodeGpus(tuple(listed)), Usage(tuple(fixed))

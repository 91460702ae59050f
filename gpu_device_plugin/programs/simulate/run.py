"""Run one policy over pods that come, and leave."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.value.fair_learning import due, studied
from gpu_device_plugin.core.value.price_learning import learn
from gpu_device_plugin.core.value.workload_mix import WorkloadMix
from gpu_device_plugin.programs.simulate.model import SimulationOutcome, capacity_of, demand_of
from gpu_device_plugin.programs.simulate.placer import Placer
from gpu_device_plugin.programs.simulate.policies.extender_policies import ByFullness, ByValue
from gpu_device_plugin.programs.simulate.policies.fgd import BestFit, Fgd, LeastAllocated
from gpu_device_plugin.programs.simulate.rebalancing import Rebalancer
from gpu_device_plugin.programs.simulate.rooms import NodeSampling, Rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.value.node_types import NodeType
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Arrivals, Bools, Ints, Start, Workload
    from gpu_device_plugin.programs.simulate.placer import Policy

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

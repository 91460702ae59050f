"""Pods that come and leave again, and what moving some of them gains: ``python -m bench.leaving``.

100 nodes of 8 GPUs; pods of 4 to 16 of 24 shares and of 1, 4 and 8 whole GPUs ask for all GPUs together. Moves are
planned as `kubectl inspect gpushare plan` does, take no time, and any pod may be moved: the most that they can gain.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from bench.policies import placer_on
from gpu_device_plugin.core.capacity.movable import Resident, Site, Stays
from gpu_device_plugin.core.capacity.places import Fits
from gpu_device_plugin.core.capacity.plans import plan
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.usage import Occupant, Usage
from gpu_device_plugin.core.value.marginal_value import Left
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.model import Workload, capacity_of, check_demand, demand_of
from gpu_device_plugin.programs.simulate.placing import asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.capacity.movable import Move
    from gpu_device_plugin.programs.simulate.model import Start
    from gpu_device_plugin.programs.simulate.placing import Placer

    Place = tuple[int, Sequence[int]]
    """A row, and the positions of GPUs there."""

NODES = "100x gpus=8 mem=24 cpu=256 memory=2Ti"
PODS = "40x mem=4; 30x mem=8; 20x mem=16; 6x count=1; 3x count=4; 1x count=8"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Pods in the order in which they come, as places in `Workload.kinds`."""

    pods: Sequence[int]
    at: Sequence[float]
    """When each comes, in mean lifetimes."""
    life: Sequence[float]
    """For how long it runs, likewise."""


def departing(workload: Workload, nodes: Sequence[Start], seed: int, load: float, lifetimes: float = 5.0) -> Arrivals:
    """Return arrivals of pods that leave again: the list in ever new orders, evenly spaced, from empty nodes on.

    `load` is what the running pods ask for on average, as a part of the GPUs of the nodes; pods come for `lifetimes`
    mean lifetimes, and a lifetime is exponentially distributed.
    """
    rng = random.Random(seed)  # noqa: S311 - the same order every time
    demand = demand_of(workload, nodes)
    listed = [demand[pod] for pod in workload.pods]
    wanted = load * capacity_of(nodes)
    check_demand(listed, wanted * lifetimes)
    rate = wanted * len(listed) / sum(listed)
    number = int(rate * lifetimes)
    orders = (rng.sample(workload.pods, len(listed)) for _ in range(number // len(listed) + 1))
    pods = [*chain.from_iterable(orders)][:number]
    return Arrivals(pods, [n / rate for n in range(number)], [rng.expovariate(1.0) for _ in pods])


@dataclass(frozen=True, slots=True)
class LeavingOutcome:
    """What came of pods that come and leave."""

    accepted: Sequence[bool]
    """By arrival."""
    shares: Sequence[float]
    """By arrival, what it asks of all GPUs."""
    nodes: Sequence[Start]
    """As they are after the last pod has come."""
    moves: int

    @property
    def rejected(self) -> float:
        """The part of all shares asked for that was not given."""
        return sum(n for n, ok in zip(self.shares, self.accepted, strict=True) if not ok) / sum(self.shares)


def run_leaving(
    policy: str,
    nodes: Sequence[Start],
    workload: Workload,
    arrivals: Arrivals,
    seed: int,
    *,
    cold: bool = False,
    rebalance: float = 0.0,
) -> LeavingOutcome:
    """Let pods come and leave; `rebalance` is the part of those that have come which may be moved for another."""
    ordered = random.Random(seed).sample(nodes, len(nodes))  # noqa: S311 - the same order every time
    placer = placer_on(ordered, policy, workload, cold=cold)
    rebalancer = Rebalancer(placer, ordered, rebalance)
    accepted: list[bool] = []
    running: list[tuple[float, int]] = []
    """When a pod leaves, and its number."""
    for n, kind in enumerate(arrivals.pods):
        while running and running[0][0] <= arrivals.at[n]:
            _, ended = heapq.heappop(running)
            leave(placer, arrivals.pods[ended], *rebalancer.remove(ended))
        rebalancer.came += 1
        found = placer.place(kind)
        if found is None and rebalancer.make_room(kind):
            found = placer.place(kind)
        accepted.append(found is not None)
        if found is not None:
            rebalancer.put(n, kind, found)
            heapq.heappush(running, (arrivals.at[n] + arrivals.life[n], n))
    demand = demand_of(workload, nodes)
    after = [replace(node, left=left) for node, left in zip(ordered, placer.lefts, strict=True)]
    return LeavingOutcome(accepted, [demand[kind] for kind in arrivals.pods], after, rebalancer.moves)


def leave(placer: Placer, kind: int, row: int, gpus: Sequence[int]) -> None:
    """Give back what a pod has taken."""
    pod, left, sizes = placer.kinds[kind], placer.lefts[row], placer.shapes[row].sizes
    frees = list(left.frees)
    for at in gpus:
        frees[at] = frees[at] + pod.shares if pod.shares else sizes[at]
    placer.put(row, Left(tuple(frees), left.cpu_milli + pod.cpu_milli, left.memory_mib + pod.memory_mib))


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
        leave(placer, kind, row, gpus)
        placer.put(target, placer.lefts[target].after(placer.kinds[kind], positions))
        self._sites.pop(row, None)
        self.put(number, kind, (target, positions))
        self.moves += 1

    def _site(self, row: int) -> Site:
        known = self._sites.get(row)
        if known is None:
            gpus, fixed = self._nodes[row]
            stays = [Resident(Occupant(f"fixed-{row}", fixed), stays=Stays.NO_CONTROLLER)] if fixed.shares else []
            pods = [self._resident(number, kind) for number, kind in self._on.get(row, {}).items()]
            room = self._placer.lefts[row]
            left = Amounts(room.cpu_milli, room.memory_mib)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.leaving", description=__doc__)
    parser.add_argument("--nodes", default=NODES, help="in words, as for simulate")
    parser.add_argument("--pods", default=PODS, help="likewise")
    parser.add_argument("--load", type=float, default=1.0, help="what running pods ask for, as a part of the GPUs")
    parser.add_argument("--policies", nargs="+", default=["fit", "spread"], help="also binpack, fgd and bestfit")
    options = parser.parse_args(argv)
    nodes, workload = nodes_in(options.nodes), Workload.of(pods_in(options.pods))
    arrivals = departing(workload, nodes, 0, options.load)
    print("| policy | refused of the GPU asked for | with moves of up to 1 % of the pods |\n|---|---|---|", flush=True)
    for policy in options.policies:
        still, moved = (run_leaving(policy, nodes, workload, arrivals, 0, rebalance=part) for part in (0.0, 0.01))
        part = 100 * moved.moves / len(arrivals.pods)
        print(f"| {policy} | {100 * still.rejected:.1f} % | {100 * moved.rejected:.1f} % ({part:.1f} %) |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

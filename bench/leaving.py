"""Pods that come and leave again, and what moving some of them gains: ``python -m bench.leaving``.

100 nodes of 8 GPUs; pods of 4 to 16 of 24 shares and of 1, 4 and 8 whole GPUs ask for all GPUs together. Moves are
planned as `kubectl inspect gpushare plan` does, take no time, and any pod may be moved: the most that they can gain.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bench.policies import policy_named
from gpu_device_plugin.features.capacity.rules.movable import Fits, PlannedNode, PlannedPod, UnmovableReason
from gpu_device_plugin.features.capacity.rules.plans import planning
from gpu_device_plugin.features.learning.rules.arrivals import Placer, asked
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import run
from gpu_device_plugin.programs.simulate.model import Workload, departing
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.packing import finished
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.features.capacity.rules.movable import Move
    from gpu_device_plugin.features.learning.rules.arrivals import Start
    from gpu_device_plugin.programs.simulate.model import SimulationOutcome

    Arrivals = tuple[Sequence[int], Sequence[int]]
    """As `departing` returns them."""

NODES = "100x gpus=8 mem=24 cpu=256 memory=2Ti"
PODS = "40x mem=4; 30x mem=8; 20x mem=16; 6x count=1; 3x count=4; 1x count=8"


def run_moving(
    policy: str, nodes: Sequence[Start], workload: Workload, arrivals: Arrivals, seed: int, *, part: float
) -> tuple[SimulationOutcome, int]:
    """Return the outcome of `run`, and how many pods were moved for others, up to `part` of those that had come."""
    made: list[Rebalancer] = []

    def placing(ordered: Sequence[Start]) -> Rebalancer:
        made.append(Rebalancer(ordered, workload, policy, part))
        return made[0]

    pods, stays = arrivals
    return run(policy, nodes, workload, pods, seed, stays=stays, placing=placing), made[0].moves


_MOST_STEPS = 3000
"""A tenth of what people wait for: many pods come."""
_VAIN = 50
"""After a search that found nothing, pods of the kind are refused at once until so many pods have left."""


class Rebalancer(Placer):
    """Moves running pods, within a budget, where a pod that comes would otherwise find no room.

    It plans moves as `kubectl inspect gpushare plan` does, and makes them at once.
    """

    def __init__(self, nodes: Sequence[Start], workload: Workload, policy: str, part: float) -> None:
        """Place by a policy, and move up to `part` of the pods that have come."""
        super().__init__(nodes, workload.kinds, policy_named(policy, nodes, workload))
        self._part = part
        self._asks = [asked(kind) for kind in workload.kinds]
        self._nodes = [_empty(node, row) for row, node in enumerate(nodes)]
        """The GPUs of each row, and the usage of the pods that run there from the beginning and stay."""
        self._sites: dict[int, PlannedNode] = {}
        """By row, as long as nothing there changes."""
        self._on: dict[int, dict[int, int]] = {}
        """By row, the pods that came there, by number, with their kinds."""
        self._vain: dict[int, int] = {}
        """By kind, how many pods had left when a search found nothing."""
        self._left = self.moves = 0

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod, after moves where it finds no room otherwise."""
        found = super().place(kind)
        if found is None and self._make_room(kind):
            found = super().place(kind)
        if found is not None:
            self._note(len(self.came), kind, found[0])
        return found

    def leave(self, number: int) -> None:
        """Give back what a pod has taken, where it is now."""
        if (place := self.came[number][1]) is not None:
            self._left += 1
            self._take_away(number, place[0])

    def _take_away(self, number: int, row: int) -> None:
        super().leave(number)
        self._on.get(row, {}).pop(number, None)
        self._sites.pop(row, None)

    def _note(self, number: int, kind: int, row: int) -> None:
        if self.kinds[kind].gpus:
            self._on.setdefault(row, {})[number] = kind
        self._sites.pop(row, None)

    def _make_room(self, kind: int) -> bool:
        """Move pods so that one of a kind has room; return whether it has."""
        allowance = int(self._part * (len(self.came) + 1)) - self.moves
        vain = self._vain.get(kind)
        pod = self.kinds[kind]
        if not pod.gpus or allowance < 1 or (vain is not None and self._left - vain < _VAIN):
            return False
        goal = Fits(self._asks[kind], Amounts(pod.cpu_milli, pod.memory_mib))
        found = finished(planning(map(self._site, range(len(self._nodes))), goal, {}, _MOST_STEPS))
        if found is None or len(found) > allowance:
            self._vain[kind] = self._left
            return False
        for move in found:
            self._make(move)
        return True

    def _make(self, move: Move) -> None:
        number, target, positions = int(move.pod.pod.uid), int(move.node), sorted(move.shares)
        kind, place = self.came[number]
        if place is not None:
            self._take_away(number, place[0])
        self.put(target, self.lefts[target].after(self.kinds[kind], positions))
        self.came[number] = kind, (target, positions)
        self._note(number, kind, target)
        self.moves += 1

    def _site(self, row: int) -> PlannedNode:
        known = self._sites.get(row)
        if known is None:
            gpus, fixed = self._nodes[row]
            stays = (
                [PlannedPod(GpuConsumer(f"fixed-{row}", fixed), stays=UnmovableReason.NO_CONTROLLER)]
                if fixed.shares
                else []
            )
            pods = [self._resident(number, kind) for number, kind in self._on.get(row, {}).items()]
            room = self.lefts[row]
            left = Amounts(room.cpu_milli, room.memory_mib)
            residents = (*stays, *pods)
            node = candidate(f"{row:08}", gpus, [each.pod.usage for each in residents], left)
            known = self._sites[row] = PlannedNode(node, residents)
        return known

    def _resident(self, number: int, kind: int) -> PlannedPod:
        pod, place = self.kinds[kind], self.came[number][1]
        positions = sorted(place[1]) if place else []
        usage = Usage(tuple((at, pod.shares) for at in positions)) if pod.shares else Usage(whole=tuple(positions))
        occupant = GpuConsumer(str(number), usage, name=str(number))
        return PlannedPod(occupant, self._asks[kind], Amounts(pod.cpu_milli, pod.memory_mib))


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
        (still, _), (moved, moves) = (
            run_moving(policy, nodes, workload, arrivals, 0, part=part) for part in (0.0, 0.01)
        )
        part = 100 * moves / len(moved.pods)
        print(f"| {policy} | {100 * still.rejected:.1f} % | {100 * moved.rejected:.1f} % ({part:.1f} %) |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Move running pods, within a budget, where a pod that comes would otherwise find no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Resident, Site, Stays
from gpu_device_plugin.core.capacity.places import Fits
from gpu_device_plugin.core.capacity.plans import plan
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.usage import Occupant, Usage
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.core.model.resources import Amounts
from gpu_device_plugin.programs.simulate.policies.extender_policies import asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.capacity.movable import Move
    from gpu_device_plugin.programs.simulate.model import Start
    from gpu_device_plugin.programs.simulate.placer import Placer

    Place = tuple[int, Sequence[int]]
    """A row, and the positions of GPUs there."""

_MOST_STEPS = 3000
"""A tenth of what people wait for: many pods come."""
_VAIN = 50
"""After a search that found nothing, pods of the kind are refused at once until so many pods have left."""


class Rebalancer:
    """Plans moves as `kubectl inspect gpushare plan` does, and makes them at once."""

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

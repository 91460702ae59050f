"""Find the nodes that kube-scheduler shows to the extender."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Ints
    from gpu_device_plugin.programs.simulate.rooms import Rooms


def nodes_to_find(nodes: int, percentage: int) -> int:
    """Return how many nodes kube-scheduler looks for (`numFeasibleNodesToFind` in its schedule_one.go)."""
    percentage = percentage or max(5, 50 - nodes // 125)
    return min(nodes, max(100, nodes * percentage // 100))


class NodeSampling:
    """Goes round the nodes: a sample begins where the one before it ended. Zones are not modelled."""

    def __init__(self, rooms: Rooms, percentage: int) -> None:
        self._rooms = rooms
        self._wanted = nodes_to_find(len(rooms), percentage)
        self._start = 0

    def rows(self, kind: PodKind) -> Ints:
        """Return the sample for a pod, in the order in which kube-scheduler finds it."""
        passing = np.flatnonzero(self._rooms.passing(kind))
        passing = np.roll(passing, -int(passing.searchsorted(self._start)))
        # kube-scheduler ends at the first node that is too many. Where there is none, it has gone round once.
        if len(passing) > self._wanted:
            self._start = int(passing[self._wanted])
        return passing[: self._wanted]

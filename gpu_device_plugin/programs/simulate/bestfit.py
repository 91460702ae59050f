"""BestFit, for comparison: the node with the least left, and the fullest of its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.worth.appraising import NEVER
from gpu_device_plugin.programs.simulate.states import states_after

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.programs.simulate.rooms import Floats, Ints, Rooms


class BestFit:
    """Scores nodes by what they have left of CPU and GPUs, each as a part of the largest node's."""

    def __init__(self, rooms: Rooms) -> None:
        """Score `rooms`."""
        self.rooms = rooms
        self._most_cpu = max([1, *(shape.cpu_milli for shape in rooms.shapes)])
        self._most_shares = max(1, int(np.maximum(rooms.size, 0).sum(1).max(initial=1)))

    def refresh(self, rows: Ints) -> None:
        """Nothing is remembered of rows."""

    def of(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        rooms = self.rooms
        states, fits = states_after(kind, rooms, rows)
        cpu, memory = rooms.cpu[rows] - kind.cpu_milli, rooms.memory[rows] - kind.memory_mib
        fits &= ((cpu >= 0) & (memory >= 0))[:, None]
        left = np.maximum(states, 0).sum(2) / self._most_shares + (cpu / self._most_cpu)[:, None]
        # As published, rounded to a hundred steps: so many nodes are equal, and their order decides.
        found: Floats = np.where(fits, np.floor(100 * (1 - left / 2)), NEVER).max(1)
        return found

    def gpus(self, kind: PodKind, row: int) -> list[int]:
        """Return the fullest GPUs of a row on which a pod fits, by position."""
        rooms = self.rooms
        states, fits = states_after(kind, rooms, np.array([row]))
        taken = rooms.free[row] - states[0]
        # Of the states that are possible, the one whose GPUs keep least.
        kept = np.where(fits[0], np.where(taken > 0, states[0], 0).sum(1), np.iinfo(np.int64).max)
        return [int(at) for at in np.nonzero(taken[int(kept.argmin())])[0]]

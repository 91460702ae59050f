"""What each of thousands of nodes gains by a pod: `core.worth.appraising`, for all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.worth.learning import SCARCITY, STRANDED, cells
from gpu_device_plugin.core.worth.shapes import wishes_of

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.fleet_index.rooms import Bools, Floats, Ints, Rooms

NEVER = -np.inf
"""The gain of a node on which the pod does not fit, or whose shape the tables do not know."""


class Gains:
    """Computes gains by tables that were learned; `core.worth.appraising.Appraiser` says what they are."""

    def __init__(self, rooms: Rooms, tables: Tables) -> None:
        """Appraise `rooms`, which may change later; call `refresh` for the rows that did."""
        self.rooms = rooms
        # Shapes and kinds of GPUs that are first seen later have no table; they get the last row, which is empty.
        self._shapes, self._gpus = len(rooms.shapes), len(rooms.gpus)
        self._levels = np.array(tables.levels, np.int64)
        levels = len(tables.levels) + 1
        most = max((cells(size) for size, _ in rooms.gpus), default=0)
        # One cell more, the last and empty one: the index -1 finds it.
        self._packed = np.zeros((self._gpus + 1, levels, most + 2))
        for code, gpu in enumerate(rooms.gpus):
            for level, values in enumerate(tables.packed.get(gpu, ())):
                self._packed[code, level, : len(values)] = values
        together = max((len(shape.sizes) for shape in rooms.shapes), default=0) + 1
        self._together = np.zeros((self._shapes + 1, levels, together))
        self._wanted = np.zeros(self._shapes + 1)
        self._known = np.zeros(self._shapes + 1, np.bool_)
        for code, shape in enumerate(rooms.shapes):
            self._wanted[code] = tables.wanted.get(shape, 0.0)
            self._known[code] = shape in tables.wanted
            for level, worths in enumerate(tables.together.get(shape, ())):
                self._together[code, level, : len(worths)] = worths
        self._cpu_worth = np.array(tables.cpu_worth)
        per_cpu, per_memory = tables.cpu_per_share, tables.memory_per_share
        self._shares_per_cpu = [1 / (each * per_cpu) for each in SCARCITY] if per_cpu else []
        self._shares_per_mib = [1 / (each * per_memory) for each in SCARCITY] if per_memory else []
        self._idle_cpu, self._idle_share = tables.idle_cpu, tables.idle_share
        self._fine = all(cells(size) == size for size, _ in rooms.gpus)
        self.worth = np.zeros(len(rooms))
        """Of the room of each row, in shares."""
        self.refresh(np.arange(len(rooms)))

    def __repr__(self) -> str:
        return f"<Gains: {self.rooms!r}, {len(self._levels)} levels of CPU>"

    @property
    def complete(self) -> bool:
        """Whether the tables know every shape that a row has."""
        return bool(self._known[np.minimum(self.rooms.shape, self._shapes)][self.rooms.shape > 0].all())

    def refresh(self, rows: Ints) -> None:
        """Appraise rows again that have changed."""
        rooms = self.rooms
        if len(self.worth) < len(rooms):
            self.worth = np.pad(self.worth, (0, len(rooms) - len(self.worth)))
        free, cpu = rooms.free[rows], rooms.cpu[rows]
        level = np.searchsorted(self._levels, cpu, side="right")
        packed = self._packed_worth(rows, level, free).sum(1)
        shape = np.minimum(rooms.shape[rows], self._shapes)
        total, unused = np.maximum(free, 0).sum(1), (_unused(free, rooms.size[rows])).sum(1)
        stranded = self._stranded(cpu, rooms.memory[rows], total)
        self.worth[rows] = packed + self._rest(shape, level, cpu, total, unused) - stranded

    def of(self, kind: PodKind, rows: Ints) -> Floats:
        """Return what rows gain by a pod, in shares; `NEVER` where it does not fit."""
        rooms = self.rooms
        free, size = rooms.free[rows], rooms.size[rows]
        cpu, memory = rooms.cpu[rows] - kind.cpu_milli, rooms.memory[rows] - kind.memory_mib
        shape = np.minimum(rooms.shape[rows], self._shapes)
        fits = (cpu >= 0) & (memory >= 0) & self._known[shape]
        level = np.searchsorted(self._levels, cpu, side="right")
        now = self._packed_worth(rows, level, free)
        packed, full, total = now.sum(1), _unused(free, size), np.maximum(free, 0).sum(1)
        unused = full.sum(1)
        allowed = self._allowed(kind, rows)
        if kind.gpus and kind.shares:
            room = (free >= kind.shares) & allowed
            fits &= room.sum(1) >= kind.gpus
            change = self._packed_worth(rows, level, np.maximum(-1, free - kind.shares)) - now
            opened = change + np.where(full, self._opened(shape, level, unused)[:, None], 0.0)
            opened[~room] = NEVER
            taken = np.argsort(-opened, 1, kind="stable")[:, : kind.gpus]
            packed = packed + np.take_along_axis(np.where(room, change, 0.0), taken, 1).sum(1)
            unused = unused - np.take_along_axis(full & room, taken, 1).sum(1)
            total = total - kind.shares * kind.gpus
        elif kind.gpus:
            may = full & allowed
            fits &= may.sum(1) >= kind.gpus
            given = may & (np.cumsum(may, 1) <= kind.gpus)
            packed = packed - np.where(given, now, 0.0).sum(1)
            total = total - np.where(given, free, 0).sum(1)
            unused = unused - given.sum(1)
        found = packed + self._rest(shape, level, cpu, total, unused) - self._stranded(cpu, memory, total)
        found -= self.worth[rows] + self._idle_cpu * cpu + self._idle_share * total
        return np.where(fits, found, NEVER)

    def gpus(self, kind: PodKind, row: int) -> list[int]:
        """Return the GPUs of a row on which a pod costs least, by position; the pod fits there."""
        rooms, at = self.rooms, np.array([row])
        free, full, allowed = rooms.free[at], _unused(rooms.free[at], rooms.size[at]), self._allowed(kind, at)
        if not kind.shares:
            return [int(at) for at in np.nonzero((full & allowed)[0])[0][: kind.gpus]]
        level = np.searchsorted(self._levels, rooms.cpu[at] - kind.cpu_milli, side="right")
        change = self._packed_worth(at, level, np.maximum(-1, free - kind.shares)) - self._packed_worth(at, level, free)
        shape = np.minimum(rooms.shape[at], self._shapes)
        change += np.where(full, self._opened(shape, level, full.sum(1))[:, None], 0.0)
        change[(free < kind.shares) | ~allowed] = NEVER
        return [int(at) for at in np.argsort(-change[0], kind="stable")[: kind.gpus]]

    def _allowed(self, kind: PodKind, rows: Ints) -> Bools:
        """Return which GPUs the wishes of a kind allow."""
        if kind.models == ((), ()):
            return np.ones((1, 1), np.bool_)
        wishes = wishes_of(kind)
        by_gpu = np.array([wishes.allow_model(model) for _, model in self.rooms.gpus])
        return by_gpu[self.rooms.gpu[rows]]

    def _packed_worth(self, rows: Ints, level: Ints, free: Ints) -> Floats:
        """Return what could be packed into each GPU; `free` is -1 where nothing can."""
        gpu = np.minimum(self.rooms.gpu[rows], self._gpus)
        if not self._fine:
            size = np.maximum(self.rooms.size[rows], 1)
            free = np.where(free > 0, free * np.minimum(size, cells(1 << 60)) // size, free)
        return self._packed[gpu, level[:, None], free]

    def _opened(self, shape: Ints, level: Ints, unused: Ints) -> Floats:
        """Return what a node gains if one GPU less is unused."""
        return self._together[shape, level, np.maximum(0, unused - 1)] - self._together[shape, level, unused]

    def _rest(self, shape: Ints, level: Ints, cpu: Ints, total: Ints, unused: Ints) -> Floats:
        """Return the worth of nodes but for that of what could be packed into each GPU, and for stranded GPUs."""
        worth = self._wanted[shape] * total
        worth += self._together[shape, level, unused]
        worth += self._cpu_worth[level] * cpu
        return worth

    def _stranded(self, cpu: Ints, memory: Ints, total: Ints) -> Floats:
        """Return what is lost by GPUs without CPU or memory for the pods on them."""
        stranded = np.zeros(len(total))
        for each in self._shares_per_cpu:
            stranded += np.maximum(0.0, total - cpu * each)
        for each in self._shares_per_mib:
            stranded += np.maximum(0.0, total - memory * each)
        return STRANDED / len(SCARCITY) * stranded


def _unused(free: Ints, size: Ints) -> Bools:
    unused: Bools = (free == size) & (free > 0)
    return unused

"""What each of thousands of nodes gains by a pod: `core.worth.appraising`, for all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.worth.appraising import ties_of
from gpu_device_plugin.core.worth.learning import SCARCITY, STRANDED, cells
from gpu_device_plugin.core.worth.shapes import needs_gpus

if TYPE_CHECKING:
    from collections.abc import Generator

    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.fleet_index.rooms import Bools, Floats, Ints, Rooms

NEVER = -np.inf
"""The gain of a node on which the pod does not fit, or whose shape the tables do not know."""


_BLOCK = 1024
"""Rows that are computed together: their numbers fit into the processor's cache, and their memory is used again."""


class Gains:
    """Computes gains by tables that were learned; `core.worth.appraising.Appraiser` says what they are."""

    def __init__(self, rooms: Rooms, tables: Tables) -> None:
        """Appraise `rooms`, which may change later; call `refresh` for the rows that did."""
        for _ in self._begin(rooms, tables):
            pass

    @classmethod
    def in_steps(cls, rooms: Rooms, tables: Tables) -> Generator[None, None, Gains]:
        """Return the same in steps of a millisecond or two; call `refresh` for the rows that changed meanwhile too."""
        gains = cls.__new__(cls)
        yield from gains._begin(rooms, tables)
        return gains

    def _begin(self, rooms: Rooms, tables: Tables) -> Generator[None, None, None]:
        self.rooms = rooms
        # Shapes and kinds of GPUs that are first seen later have no table; they get the last row, which is empty.
        self._shapes, self._gpus = len(rooms.shapes), len(rooms.gpus)
        self._levels = np.array(tables.levels, np.int64)
        levels = len(tables.levels) + 1
        most = max((cells(gpu.size) for gpu in rooms.gpus), default=0)
        packed = np.zeros((self._gpus + 1, levels, most + 1))
        for code, gpu in enumerate(rooms.gpus[: self._gpus]):
            for level, values in enumerate(tables.packed.get(gpu, ())):
                packed[code, level, : len(values)] = values
            yield
        # One number finds an entry, three would take three times as long.
        self._packed, self._steps = packed.ravel(), (levels * (most + 1), most + 1)
        together = max((len(shape.sizes) for shape in rooms.shapes), default=0) + 1
        self._together = np.zeros((self._shapes + 1, levels, together))
        self._wanted = np.zeros(self._shapes + 1)
        self._known = np.zeros(self._shapes + 1, np.bool_)
        for code, shape in enumerate(rooms.shapes[: self._shapes]):
            self._wanted[code] = tables.wanted.get(shape, 0.0)
            self._known[code] = shape in tables.wanted
            for level, worths in enumerate(tables.together.get(shape, ())):
                self._together[code, level, : len(worths)] = worths
            yield
        self._cpu_worth = np.array(tables.cpu_worth)
        per_cpu, per_memory = tables.cpu_per_share, tables.memory_per_share
        self._shares_per_cpu = [1 / (each * per_cpu) for each in SCARCITY] if per_cpu else []
        self._shares_per_mib = [1 / (each * per_memory) for each in SCARCITY] if per_memory else []
        self._idle_cpu, self._idle_share = tables.idle_cpu, tables.idle_share
        self._fine = all(cells(gpu.size) == gpu.size for gpu in rooms.gpus)
        self.worth = np.zeros(len(rooms))
        """Of the room of each row, in shares."""
        for first in range(0, len(rooms), _BLOCK):
            self.refresh(np.arange(first, min(first + _BLOCK, len(rooms))))
            yield

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
        shape = self._shape(rows)
        total, unused = np.maximum(free, 0).sum(1), (_unused(free, rooms.whole[rows])).sum(1)
        stranded = self._stranded(cpu, rooms.memory[rows], total)
        self.worth[rows] = packed + self._rest(shape, level, cpu, total, unused) - stranded

    def of(self, kind: PodKind, rows: Ints) -> Floats:
        """Return what rows gain by a pod, in shares; `NEVER` where it does not fit."""
        if len(rows) <= _BLOCK:
            return self._of(kind, rows)
        return np.concatenate([self._of(kind, rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK)])

    def of_all(self, kind: PodKind) -> Floats:
        """Return what every row gains by a pod; as `of`, and faster."""
        blocks = [slice(at, at + _BLOCK) for at in range(0, len(self.rooms), _BLOCK)]
        return np.concatenate([np.zeros(0), *(self._of(kind, block) for block in blocks)])

    def _of(self, kind: PodKind, rows: Ints | slice) -> Floats:
        rooms = self.rooms
        free, whole = rooms.free[rows], rooms.whole[rows]
        cpu, memory = rooms.cpu[rows] - kind.cpu_milli, rooms.memory[rows] - kind.memory_mib
        shape = self._shape(rows)
        fits = (cpu >= 0) & (memory >= 0) & self._known[shape]
        level = np.searchsorted(self._levels, cpu, side="right")
        now = self._packed_worth(rows, level, free)
        packed, full, total = now @ np.ones(now.shape[1]), _unused(free, whole), _sums(np.maximum(free, 0))
        unused = _sums(full)
        allowed = allowed_gpus(kind, rooms, rows)
        if kind.gpus and kind.shares:
            room = (free >= kind.shares) & allowed
            if needs_gpus(kind):
                room &= whole > 0
            fits &= _sums(room) >= kind.gpus
            change = self._packed_worth(rows, level, free - kind.shares) - now
            preferred = change + full * self._opened(shape, level, unused)[:, None]
            preferred[~room] = NEVER
            taken = _first(preferred, kind.gpus)
            packed = packed + np.take_along_axis(change, taken, 1).sum(1)
            # More than there are only where the pod does not fit.
            unused = np.maximum(0, unused - np.take_along_axis(full, taken, 1).sum(1))
            total = total - kind.shares * kind.gpus
        elif kind.gpus:
            may = full & allowed
            fits &= _sums(may) >= kind.gpus
            given = may & (np.cumsum(may, 1) <= kind.gpus)
            packed = packed - np.where(given, now, 0.0).sum(1)
            total = total - _sums(np.where(given, free, 0))
            unused = unused - _sums(given)
        found = packed + self._rest(shape, level, cpu, total, unused) - self._stranded(cpu, memory, total)
        found -= self.worth[rows] + self._idle_cpu * cpu + self._idle_share * total
        return np.where(fits, found, NEVER)

    def gpus(self, kind: PodKind, row: int) -> list[int]:
        """Return the GPUs of a row on which a pod costs least, by position; the pod fits there."""
        rooms, at = self.rooms, np.array([row])
        free, whole, allowed = rooms.free[at], rooms.whole[at], allowed_gpus(kind, rooms, at)
        full = _unused(free, whole)
        if not kind.shares:
            return [int(at) for at in np.nonzero((full & allowed)[0])[0][: kind.gpus]]
        level = np.searchsorted(self._levels, rooms.cpu[at] - kind.cpu_milli, side="right")
        change = self._packed_worth(at, level, free - kind.shares) - self._packed_worth(at, level, free)
        shape = self._shape(at)
        preferred = change + full * self._opened(shape, level, full.sum(1))[:, None]
        preferred[(free < kind.shares) | ~allowed | (needs_gpus(kind) & (whole <= 0))] = NEVER
        cards = rooms.shapes[rooms.shape[row]].cards
        if not cards:
            return [int(at) for at in _first(preferred, kind.gpus)[0]]
        usable = np.broadcast_to(allowed, free.shape)[0]
        ties = ties_of(cards, free[0].tolist(), usable.tolist())
        return sorted(range(len(cards)), key=lambda at: (-preferred[0, at], ties[at], at))[: kind.gpus]

    def _packed_worth(self, rows: Ints | slice, level: Ints, free: Ints) -> Floats:
        """Return what could be packed into each GPU: nothing where less than one share is free."""
        gpu, free = self.rooms.gpu[rows], np.maximum(free, 0)
        if len(self.rooms.gpus) > self._gpus:
            # A kind of GPU that the tables do not know is worth nothing.
            gpu, free = np.minimum(gpu, self._gpus), np.where(gpu < self._gpus, free, 0)
        if not self._fine:
            size = np.maximum(self.rooms.size[rows], 1)
            free = free * np.minimum(size, cells(1 << 60)) // size
        by_gpu, by_level = self._steps
        return self._packed.take(gpu * by_gpu + (level * by_level)[:, None] + free)

    def _opened(self, shape: Ints, level: Ints, unused: Ints) -> Floats:
        """Return what a node gains if one GPU less is unused."""
        return self._of_several(shape, level, np.maximum(0, unused - 1)) - self._of_several(shape, level, unused)

    def _of_several(self, shape: Ints, level: Ints, unused: Ints) -> Floats:
        """Return what unused GPUs of nodes are worth together."""
        return self._together[shape, level, np.where(shape < self._shapes, unused, 0)]

    def _shape(self, rows: Ints | slice) -> Ints:
        """Return the code of the shape of rows, one that the tables do not know replaced by the last one."""
        shape = self.rooms.shape[rows]
        return shape if len(self.rooms.shapes) == self._shapes else np.minimum(shape, self._shapes)

    def _rest(self, shape: Ints, level: Ints, cpu: Ints, total: Ints, unused: Ints) -> Floats:
        """Return the worth of nodes but for that of what could be packed into each GPU, and for stranded GPUs."""
        worth = self._wanted[shape] * total
        worth += self._of_several(shape, level, unused)
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


def allowed_gpus(kind: PodKind, rooms: Rooms, rows: Ints | slice) -> Bools:
    """Return which GPUs of rows the wishes of a kind allow."""
    if not kind.wishes.choosy:
        return np.ones((1, 1), np.bool_)
    by_gpu = np.array([kind.wishes.allow_model(gpu.model) for gpu in rooms.gpus])
    return by_gpu[rooms.gpu[rows]]


def _sums(columns: Ints | Bools) -> Ints:
    """Return the sum of each row; a product is several times as fast as a sum over so few columns."""
    sums: Ints = np.matmul(columns, np.ones(columns.shape[1], np.int64))
    return sums


def _first(preferred: Floats, number: int) -> Ints:
    """Return the places of the largest values of each row, of equal ones the first."""
    if number == 1 and preferred.shape[1]:
        found: Ints = preferred.argmax(1)[:, None]
        return found
    return np.argsort(-preferred, 1, kind="stable")[:, :number]


def _unused(free: Ints, whole: Ints) -> Bools:
    unused: Bools = (free == whole) & (free > 0)
    return unused

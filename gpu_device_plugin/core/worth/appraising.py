"""Appraise the room that a node has left, and choose the GPUs on which a pod costs least of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.worth.learning import SCARCITY, STRANDED, cell
from gpu_device_plugin.core.worth.shapes import wishes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.core.worth.shapes import Shape

CLOSED = -1
"""The free shares of a GPU that gives none, whatever ends on it: it is out of service."""


@dataclass(frozen=True, slots=True)
class Left:
    """The room that a node has left."""

    frees: tuple[int, ...]
    """Free shares of each GPU; `CLOSED` where it gives none."""
    cpu_milli: int
    memory_mib: int

    @property
    def shares(self) -> int:
        """Free shares of all GPUs."""
        return sum(free for free in self.frees if free > 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """GPUs of a node for a pod, and what is gained by them."""

    gain: float
    """In shares, usually negative: of several nodes the one that loses least is the best."""
    gpus: tuple[int, ...]
    """Places in `Left.frees`."""


@dataclass(frozen=True, slots=True)
class Appraiser:
    """Appraises by tables that were learned."""

    tables: Tables

    def worth(self, shape: Shape, left: Left) -> float:
        """Return what the room of a node is worth, in shares."""
        tables = self.tables
        level = self._level(left.cpu_milli)
        packed = (self._packed(shape, at, level, free) for at, free in enumerate(left.frees))
        return (
            sum(packed)
            + tables.wanted[shape] * left.shares
            + tables.together[shape][level][len(_unused(shape, left.frees))]
            + tables.cpu_worth[level] * left.cpu_milli
            - STRANDED / len(SCARCITY) * sum(self._stranded(left))
        )

    def choose(self, kind: PodKind, shape: Shape, left: Left) -> Choice | None:
        """Return the GPUs on which a pod costs least; None where it does not fit."""
        cpu, memory = left.cpu_milli - kind.cpu_milli, left.memory_mib - kind.memory_mib
        if cpu < 0 or memory < 0:
            return None
        allowed = tuple(map(wishes_of(kind).allow_model, shape.models))
        if kind.shares:
            fitting = [at for at, free in enumerate(left.frees) if free >= kind.shares and allowed[at]]
            changes = {at: self.change(shape, left.frees, cpu, at, kind.shares) for at in fitting}
            taken = sorted(fitting, key=lambda at: (-changes[at], at))[: kind.gpus]
        else:
            taken = [at for at in _unused(shape, left.frees) if allowed[at]][: kind.gpus]
        if len(taken) < kind.gpus:
            return None
        frees = list(left.frees)
        for at in taken:
            frees[at] -= kind.shares or frees[at]
        after = Left(tuple(frees), cpu, memory)
        idle = self.tables.idle_cpu * cpu + self.tables.idle_share * after.shares
        return Choice(self.worth(shape, after) - self.worth(shape, left) - idle, tuple(taken))

    def change(self, shape: Shape, frees: tuple[int, ...], cpu_milli: int, at: int, shares: int) -> float:
        """Return what one GPU gains if a pod takes shares of it and leaves the node this CPU: usually a loss."""
        free, level = frees[at], self._level(cpu_milli)
        change = self._packed(shape, at, level, free - shares) - self._packed(shape, at, level, free)
        if free == shape.sizes[at]:
            together = self.tables.together[shape][level]
            unused = len(_unused(shape, frees))
            change += together[unused - 1] - together[unused]
        return change

    def _level(self, cpu_milli: int) -> int:
        return bisect_right(self.tables.levels, cpu_milli)

    def _packed(self, shape: Shape, at: int, level: int, free: int) -> float:
        size = shape.sizes[at]
        return self.tables.packed[size, shape.models[at]][level][cell(free, size)] if free > 0 else 0.0

    def _stranded(self, left: Left) -> Iterable[float]:
        for each in SCARCITY:
            for amount, per_share in (
                (left.cpu_milli, self.tables.cpu_per_share),
                (left.memory_mib, self.tables.memory_per_share),
            ):
                if per_share:
                    yield max(0.0, left.shares - amount / (each * per_share))


def _unused(shape: Shape, frees: tuple[int, ...]) -> list[int]:
    return [at for at, (free, size) in enumerate(zip(frees, shape.sizes, strict=True)) if free == size]

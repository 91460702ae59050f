"""Appraise the room that a node has left, and choose the GPUs on which a pod costs least of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.worth.learning import SCARCITY, STRANDED, cell
from gpu_device_plugin.core.worth.shapes import GpuKind, needs_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

    def after(self, kind: PodKind, gpus: Iterable[int]) -> Left:
        """Return the room that is left once a pod has these GPUs."""
        frees = list(self.frees)
        for at in gpus:
            frees[at] -= kind.shares or frees[at]
        return Left(tuple(frees), self.cpu_milli - kind.cpu_milli, self.memory_mib - kind.memory_mib)


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
            + tables.together[shape][level][len(unused(shape, left.frees))]
            + tables.cpu_worth[level] * left.cpu_milli
            - STRANDED / len(SCARCITY) * sum(self._stranded(left))
        )

    def choose(self, kind: PodKind, shape: Shape, left: Left) -> Choice | None:
        """Return the GPUs on which a pod costs least; None where it does not fit."""
        cpu, memory = left.cpu_milli - kind.cpu_milli, left.memory_mib - kind.memory_mib
        if cpu < 0 or memory < 0:
            return None
        allowed = tuple(map(kind.wishes.allow_model, shape.models))
        if kind.shares:
            only_gpus = needs_gpus(kind)
            may = [ok and not (only_gpus and shape.card(at) is not None) for at, ok in enumerate(allowed)]
            fitting = [at for at, free in enumerate(left.frees) if free >= kind.shares and may[at]]
            changes = {at: self.change(shape, left.frees, cpu, at, kind.shares) for at in fitting}
            ties = ties_of(shape.cards or (None,) * len(left.frees), left.frees, allowed)
            taken = sorted(fitting, key=lambda at: (-changes[at], ties[at], at))[: kind.gpus]
        else:
            taken = [at for at in unused(shape, left.frees) if allowed[at]][: kind.gpus]
        if len(taken) < kind.gpus:
            return None
        after = left.after(kind, taken)
        idle = self.tables.idle_cpu * cpu + self.tables.idle_share * after.shares
        return Choice(self.worth(shape, after) - self.worth(shape, left) - idle, tuple(taken))

    def change(self, shape: Shape, frees: tuple[int, ...], cpu_milli: int, at: int, shares: int) -> float:
        """Return what one GPU gains if a pod takes shares of it and leaves the node this CPU: usually a loss."""
        free, level = frees[at], self._level(cpu_milli)
        change = self._packed(shape, at, level, free - shares) - self._packed(shape, at, level, free)
        if free == shape.sizes[at] and shape.card(at) is None:
            together = self.tables.together[shape][level]
            number = len(unused(shape, frees))
            change += together[number - 1] - together[number]
        return change

    def _level(self, cpu_milli: int) -> int:
        return bisect_right(self.tables.levels, cpu_milli)

    def _packed(self, shape: Shape, at: int, level: int, free: int) -> float:
        size = shape.sizes[at]
        gpu = GpuKind(size, shape.models[at], shape.card(at) is not None)
        return self.tables.packed[gpu][level][cell(free, size)] if free > 0 else 0.0

    def _stranded(self, left: Left) -> Iterable[float]:
        for each in SCARCITY:
            for amount, per_share in (
                (left.cpu_milli, self.tables.cpu_per_share),
                (left.memory_mib, self.tables.memory_per_share),
            ):
                if per_share:
                    yield max(0.0, left.shares - amount / (each * per_share))


def unused(shape: Shape, frees: tuple[int, ...]) -> list[int]:
    """Return the GPUs that no pod uses; MIG instances cannot be taken as GPUs."""
    whole = [at for at, (free, size) in enumerate(zip(frees, shape.sizes, strict=True)) if free == size]
    return [at for at in whole if shape.cards[at] is None] if shape.cards else whole


def ties_of(cards: Sequence[int | None], frees: Sequence[int], allowed: Sequence[bool]) -> Sequence[tuple[bool, int]]:
    """Return for each GPU what decides between equals: instances come first, those of the fullest GPU before others.

    So does `core.model.placing.preference`, which knows the allowed ones alone.

    Args:
        cards: see `Shape.cards`.
        frees: see `Left.frees`.
        allowed: which of them the pod may have.
    """
    together: Counter[int] = Counter()
    for at, card in enumerate(cards):
        if card is not None and allowed[at]:
            together[card] += max(0, frees[at])
    return [(card is None, 0 if card is None else together[card]) for card in cards]

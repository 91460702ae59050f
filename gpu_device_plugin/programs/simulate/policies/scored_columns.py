"""Policies that score nodes in columns, with each score remembered until its node changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpu_device_plugin.core.value.marginal_value import NEVER, Appraiser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.marginal_value import Appraisal, Left
    from gpu_device_plugin.core.value.price_learning import Tables
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.rooms import Floats, Ints, Rooms


class ColumnScorer(Protocol):
    """Scores nodes for one kind of pod."""

    def of(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""

    def gpus(self, kind: PodKind, row: int) -> Sequence[int]:
        """Return the GPUs of a row that a pod gets, by position; it fits there."""

    def refresh(self, rows: Ints) -> None:
        """Take note of rows that have changed."""


class ColumnFit:
    """The policy `fit`, by tables that were learned."""

    def __init__(self, rooms: Rooms, tables: Tables) -> None:
        """Score `rooms`."""
        self.rooms = rooms
        self._appraiser = Appraiser(tables)
        self._appraisals: list[Appraisal | None] = [None] * len(rooms)
        self.refresh(np.arange(len(rooms)))

    def refresh(self, rows: Ints) -> None:
        """Appraise rows again that have changed."""
        for row in rows.tolist():
            shape, left = self.rooms.node(row)
            self._appraisals[row] = self._appraiser.appraise(shape, left)

    def of(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        appraisals, gain = self._appraisals, self._appraiser.gain
        return np.array(
            [NEVER if (room := appraisals[row]) is None else gain(kind, room) for row in rows.tolist()], np.float64
        )

    def gpus(self, kind: PodKind, row: int) -> Sequence[int]:
        """Return the GPUs of a row on which a pod costs least, by position."""
        room = self._appraisals[row]
        return () if room is None else self._appraiser.gpus(kind, room)


class Columns:
    """Places pods on nodes in columns; of equal nodes the first row is chosen."""

    def __init__(self, rooms: Rooms, kinds: Sequence[PodKind], scorer: ColumnScorer) -> None:
        """Place pods of these kinds by one policy."""
        self.rooms = rooms
        self._kinds = kinds
        self._scorer = scorer
        self._scores: dict[int, Floats] = {}
        self._marks: dict[int, int] = {}
        """Of each kind, how many changes its scores include."""
        self._changes: list[int] = []
        """Rows, in the order of their changes."""

    def follow(self, scorer: ColumnScorer) -> None:
        """Score by another policy, or by newer tables, from now on."""
        self._scorer = scorer
        self._scores.clear()

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod; return its row and its GPUs by position, None where it fits on no node."""
        if not len(self.rooms):
            return None
        scores = self._current(kind)
        row = int(scores.argmax())
        if scores[row] == NEVER:
            return None
        pod = self._kinds[kind]
        gpus = self._scorer.gpus(pod, row) if pod.gpus else ()
        self.take(kind, row, gpus)
        return row, gpus

    def take(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod where somebody else has decided."""
        pod, rooms = self._kinds[kind], self.rooms
        for gpu in gpus:
            rooms.free[row, gpu] -= pod.shares or rooms.free[row, gpu]
        rooms.cpu[row] -= pod.cpu_milli
        rooms.memory[row] -= pod.memory_mib
        self._changed(row)

    def leave(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Give back what a pod has taken."""
        pod, rooms = self._kinds[kind], self.rooms
        for gpu in gpus:
            rooms.free[row, gpu] = rooms.free[row, gpu] + pod.shares if pod.shares else rooms.size[row, gpu]
        rooms.cpu[row] += pod.cpu_milli
        rooms.memory[row] += pod.memory_mib
        self._changed(row)

    def left(self, row: int) -> Left:
        """Return what a node has left now."""
        return self.rooms.node(row)[1]

    def _changed(self, row: int) -> None:
        self._changes.append(row)
        self._scorer.refresh(np.array([row]))

    def _current(self, kind: int) -> Floats:
        scores = self._scores.get(kind)
        if scores is None:
            scores = self._scores[kind] = self._scorer.of(self._kinds[kind], np.arange(len(self.rooms)))
        elif changed := set(self._changes[self._marks[kind] :]):
            rows = np.fromiter(changed, np.int64, len(changed))
            scores[rows] = self._scorer.of(self._kinds[kind], rows)
        self._marks[kind] = len(self._changes)
        return scores

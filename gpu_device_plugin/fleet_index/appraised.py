"""The policy `fit` for one pod on thousands of nodes: what each gains by it, remembered until the node changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.cluster.scoring import MOST, connected
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.fleet_index.gains import NEVER, Gains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.fitting import Unfit
    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.fleet_index.rooms import Floats, Ints
    from gpu_device_plugin.fleet_index.table import NodeTable

_MOST_KINDS = 3
"""The most different parts of one pod that are appraised, the largest ones: a part takes milliseconds."""
_MOST_GROUPS = 16
"""The most groups of unused GPUs that are compared by their links: one takes up to half a millisecond."""
_EQUAL = 1e-9
"""Gains that differ by less are equal, in shares."""


class Appraised:
    """The worth of all nodes of a table by tables that were learned, kept current."""

    def __init__(self, table: NodeTable, tables: Tables) -> None:
        """Appraise all nodes."""
        self._table = table
        self._tables = tables
        self._begin()

    def _begin(self) -> None:
        self._begun = self._table.begun
        self._mark, _ = self._table.changed_since(0)
        self.gains = Gains(self._table.rooms, self._tables)

    def update(self) -> None:
        """Appraise the nodes again that have changed; the table is current."""
        if self._begun != self._table.begun:
            self._begin()
            return
        self._mark, changed = self._table.changed_since(self._mark)
        self.gains.refresh(_rows(self._table, changed))


class GainsOfPod:
    """What each row gains by one kind of pod."""

    def __init__(self, table: NodeTable, gains: Gains, kinds: Sequence[PodKind]) -> None:
        """Take the largest of the pod's parts; equal ones are appraised once."""
        self._table = table
        self.gains = gains
        largest = sorted(Counter(kinds).items(), key=lambda item: -item[0].gpus * max(1, item[0].shares))
        self._kinds = largest[:_MOST_KINDS]
        self._mark = 0
        self._known: Floats = np.zeros(0)

    def now(self) -> Floats:
        """Return the gain of each row, `NEVER` where the pod has no room for itself; valid until the next change."""
        self._mark, changed = self._table.changed_since(self._mark)
        rooms = self._table.rooms
        if len(self._known) < len(rooms):
            changed = None
            self._known = np.full(len(rooms), NEVER)
        rows = _rows(self._table, changed)
        if len(rows):
            found = [number * self.gains.of(kind, rows) for kind, number in self._kinds]
            self._known[rows] = np.sum(found, axis=0)
        return self._known


def _rows(table: NodeTable, changed: Sequence[int] | None) -> Ints:
    return np.arange(len(table.rooms)) if changed is None else np.unique(np.array(changed, np.int64))


def scores_among(
    rows: Sequence[int | None], verdicts: Sequence[Unfit | None], gains: Floats, ask: Ask, table: NodeTable
) -> list[int]:
    """Return the scores of some rows, None being a node that is not known; 0 where the pod does not fit.

    Of the nodes that gain most, those are preferred whose unused GPUs are best connected.
    """
    fitting = [(at, row) for at, row in enumerate(rows) if row is not None and verdicts[row] is None]
    found = scores(gains[[row for _, row in fitting]])
    best = [row for (_, row), score in zip(fitting, found, strict=True) if score == MOST]
    preferred = set(_best_connected(best, ask, table))
    answer = [0] * len(rows)
    for (at, row), score in zip(fitting, found, strict=True):
        answer[at] = score if score < MOST or row in preferred else MOST - 1
    return answer


def scores(gains: Floats) -> list[int]:
    """Return the scores of nodes, 0 to 10, by their gains.

    kube-scheduler adds the scores of its other plugins, so they are relative to each other: only the best nodes get 10,
    and the others are spread evenly from 0 to 9.
    """
    known = gains > NEVER
    if not known.any():
        return [0] * len(gains)
    best, worst = gains[known].max(), gains[known].min()
    below = np.floor((MOST - 1) * (np.where(known, gains, worst) - worst) / max(best - worst, _EQUAL))
    return [int(score) for score in np.where(gains >= best - _EQUAL, MOST, below)]


def _best_connected(rows: Sequence[int], ask: Ask, table: NodeTable) -> Sequence[int]:
    """Return the rows whose unused GPUs are best connected for the largest group of whole ones that a pod takes."""
    amount = max((part.demand.amount for part in ask.parts if part.demand.kind is Kind.COUNT), default=1)
    if amount == 1 or len(rows) < 2:
        return rows
    by_group: dict[int, list[int]] = {}
    for row in rows:
        by_group.setdefault(table.group[row], []).append(row)
    tried = sorted(by_group.items(), key=lambda item: -len(item[1]))[:_MOST_GROUPS]
    near = {group: connected(*table.groups.examples[group], amount) for group, _ in tried}
    nearest = max(near.values())
    return [row for group, there in tried if near[group] == nearest for row in there]

"""The policy `fit` for one pod on thousands of nodes: what each gains by it, remembered until the node changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.cluster.scoring import MIDDLE, MOST, connected
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.fleet_index.gains import NEVER, Gains

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.fitting import Unfit
    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.fleet_index.rooms import Floats, Ints
    from gpu_device_plugin.fleet_index.table import NodeTable

_MOST_GROUPS = 4
"""The most groups of unused GPUs that are compared by their links: one takes up to half a millisecond."""
NO_ROW = -1
_EQUAL = 1e-9
"""Gains that differ by less are equal, in shares."""


class Appraised:
    """The worth of all nodes of a table by tables that were learned, kept current."""

    def __init__(self, table: NodeTable, tables: Tables) -> None:
        """Appraise no node yet: see `appraise`."""
        self._table = table
        self._tables = tables

    def appraise(self) -> Generator[None, None, None]:
        """Appraise all nodes, in steps of a millisecond or two."""
        self._begun = self._table.begun
        self._mark, _ = self._table.changed_since(0)
        self.gains = yield from Gains.in_steps(self._table.rooms, self._tables)

    def update(self) -> None:
        """Appraise the nodes again that have changed; the table is current."""
        if self._begun != self._table.begun:
            for _ in self.appraise():
                pass
            return
        self._mark, changed = self._table.changed_since(self._mark)
        self.gains.refresh(np.arange(len(self._table.rooms)) if changed is None else np.array(changed, np.int64))


class GainsOfPod:
    """What each row gains by one kind of pod."""

    def __init__(self, table: NodeTable, gains: Gains, kinds: Sequence[PodKind]) -> None:
        """Appraise the largest of the pod's parts, with all CPU and memory: each part takes milliseconds."""
        self._table = table
        self.gains = gains
        largest = max(kinds, key=lambda kind: (kind.gpus > 0 and not kind.shares, kind.gpus * kind.shares, kind.gpus))
        cpu, memory = sum(kind.cpu_milli for kind in kinds), sum(kind.memory_mib for kind in kinds)
        self._kind = replace(largest, cpu_milli=cpu, memory_mib=memory)
        self._mark = 0
        self._known: Floats = np.zeros(0)

    def now(self) -> Floats:
        """Return the gain of each row, `NEVER` where the pod has no room for itself; valid until the next change."""
        self._mark, changed = self._table.changed_since(self._mark)
        if changed is None or len(self._known) < len(self._table.rooms):
            self._known = self.gains.of_all(self._kind)
        elif changed:
            rows = np.array(changed, np.int64)
            self._known[rows] = self.gains.of(self._kind, rows)
        return self._known


def scores_among(
    rows: Sequence[int], verdicts: Sequence[Unfit | None], gains: Floats, ask: Ask, table: NodeTable
) -> list[int]:
    """Return the scores of some rows, `NO_ROW` being a node that is not known; 0 where the pod does not fit.

    To a pod without GPUs a node without GPUs is worth most: there it takes nothing that pods with GPUs need. Of the
    nodes that gain most, those are preferred whose unused GPUs are best connected. Nodes that serve claims are not
    appraised, for we do not know what room they have: they get `MIDDLE`, and do not count for the scale.
    """
    # One row more, the last one, on which nothing fits: `NO_ROW` finds it.
    fits = np.zeros(len(gains) + 1, np.bool_)
    fits[: len(verdicts)] = [why is None for why in verdicts]
    named = np.array(rows, np.int64)
    middle = fits[named] & np.isin(named, list(table.claims))
    fits[list(table.claims)] = False
    if not ask.parts:
        gains = np.where(table.rooms.shape == 0, 0.0, gains)
    found = scores(np.where(fits, np.append(gains, NEVER), NEVER)[named])
    amount = max((part.demand.amount for part in ask.parts if part.demand.kind is Kind.COUNT), default=1)
    if amount > 1:
        best = named[found == MOST]
        found[np.isin(named, np.setdiff1d(best, _best_connected(best.tolist(), amount, table)))] = MOST - 1
    found[middle] = MIDDLE
    answer: list[int] = found.tolist()
    return answer


def scores(gains: Floats) -> Ints:
    """Return the scores of nodes, 0 to 10, by their gains.

    kube-scheduler adds the scores of its other plugins, so they are relative to each other: only the best nodes get 10,
    and the others are spread evenly from 0 to 9.
    """
    known = gains > NEVER
    if not known.any():
        return np.zeros(len(gains), np.int64)
    best, worst = gains[known].max(), gains[known].min()
    below = (MOST - 1) * (np.where(known, gains, worst) - worst) / max(best - worst, _EQUAL)
    return np.where(gains >= best - _EQUAL, MOST, below.astype(np.int64))


def _best_connected(rows: Sequence[int], amount: int, table: NodeTable) -> Sequence[int]:
    """Return the rows of which `amount` unused GPUs are best connected."""
    by_group: dict[int, list[int]] = {}
    for row in rows:
        by_group.setdefault(table.group[row], []).append(row)
    tried = sorted(by_group.items(), key=lambda item: -len(item[1]))[:_MOST_GROUPS]
    near = {group: connected(*table.groups.examples[group], amount) for group, _ in tried}
    nearest = max(near.values(), default=0.0)
    return [row for group, there in tried if near[group] == nearest for row in there]

"""Score thousands of nodes for a pod column by column, with the results of `core.cluster.scoring.score_of_fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.effort import TooLongError
from gpu_device_plugin.core.cluster.scoring import MIDDLE, connected, score_for, score_of_fit, wanted
from gpu_device_plugin.fleet_index.table import apart, column, picked
from gpu_device_plugin.fleet_index.verdicts import allowing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.effort import Effort
    from gpu_device_plugin.fleet_index.table import Find, NodeTable

_MOST_ANSWERS = 50_000
"""The most scores cached for one pod; the cache is cleared when it is full."""
_STEPS_OF_A_GROUP = 5
"""The cost of finding the best connected group of GPUs, in steps of `Effort`."""
_STEPS_OF_A_ROW = 1
"""The cost of scoring one node of which a pod may have some GPUs and not others."""


def scores(ask: Ask, table: NodeTable, node_policy: str, gpu_policy: str, effort: Effort) -> Find[int]:
    """Return a function that scores rows for one pod, which fits on all of them."""
    if not ask.parts:
        return lambda rows, _left_over: [0] * len(rows)
    every = _Scores(ask, table, node_policy, gpu_policy, effort)

    def one(row: int) -> int:
        return score_of_fit(ask, table.nodes[row], node_policy, gpu_policy)

    some = _by_wishes(ask, table, effort, every, one) if ask.wishes.choosy else every
    return apart(table, some, lambda _row: MIDDLE)


def _by_wishes(ask: Ask, table: NodeTable, effort: Effort, every: Find[int], one: Callable[[int], int]) -> Find[int]:
    """Return a function that scores rows for one pod whose annotations exclude GPUs.

    Args:
        ask: the pod's demand.
        table: the rows.
        effort: how many steps may be taken.
        every: scores rows of which the pod may have any GPU.
        one: scores a row of which it may have some.
    """
    allowed = allowing(ask.wishes, table)

    def find(rows: Sequence[int], left_over: list[int]) -> list[int]:
        suited = [row for row, model in zip(rows, picked(table.model, rows), strict=True) if allowed(row, model)]
        found: dict[int, int] = {}
        for row in set(rows).difference(suited):
            try:
                effort.check()
            except TooLongError:
                suited.append(row)
                left_over.append(row)
            else:
                effort.spend(_STEPS_OF_A_ROW)
                found[row] = one(row)
        found.update(zip(suited, every(suited, left_over), strict=True))
        return [found[row] for row in rows]

    return find


class _Scores:
    """The scores of rows of which a pod may have any GPU."""

    def __init__(self, ask: Ask, table: NodeTable, node_policy: str, gpu_policy: str, effort: Effort) -> None:
        self._wanted = wanted(ask)
        self._table = table
        self._policy = ask.wishes.node_policy or node_policy
        self._wished = ask.wishes.gpu_policy
        self._gpu_policy = gpu_policy
        self._effort = effort
        self._connected: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, float], int] = {}

    def __call__(self, rows: Sequence[int], left_over: list[int]) -> list[int]:
        known = self._known
        keys = zip(picked(self._table.fill, rows), self._spared(rows, left_over), strict=True)
        return [known.get(key) or self._score(key) for key in keys]

    def _score(self, key: tuple[int, float]) -> int:
        fill, spared = key
        if len(self._known) >= _MOST_ANSWERS:
            self._known.clear()
        full = self._wanted.full(self._table.fills.examples[fill])
        found = self._known[key] = score_for(self._policy, full, spared / self._wanted.spoilable)
        return found

    def _spared(self, rows: Sequence[int], left_over: list[int]) -> Sequence[float]:
        """Return for each row how many spoilable units the pod spares; 0 under a policy that ignores them."""
        spared: Sequence[float] = [0] * len(rows)
        if self._policy == "spread":
            return spared
        for each, gpus in self._wanted.memory:
            spared = self._opened(spared, each, gpus, rows)
        for amount, pairs in self._wanted.counts:
            spared = [a + pairs * b for a, b in zip(spared, self._near(amount, rows, left_over), strict=True)]
        return spared

    def _opened(self, spared: Sequence[float], each: int, gpus: int, rows: Sequence[int]) -> Sequence[float]:
        """Add for each row how many of the GPUs that give the pod memory are already in use."""
        said = {self._wished} if self._wished else set(self._table.policy)
        packs = {policy: (policy or self._gpu_policy) != "spread" for policy in said}
        if all(packs.values()):
            return self._opened_by_packing(spared, each, gpus, rows)
        left = [max(0, gpus - unused) for unused in picked(self._table.unused, rows)]
        if not any(packs.values()):
            return [a + b for a, b in zip(spared, left, strict=True)]
        found = self._opened_by_packing([0] * len(rows), each, gpus, rows)
        packing = [packs[policy] for policy in picked(self._table.policy, rows)]
        return [a + (b if p else c) for a, b, c, p in zip(spared, found, left, packing, strict=True)]

    def _opened_by_packing(self, spared: Sequence[float], each: int, gpus: int, rows: Sequence[int]) -> Sequence[float]:
        shared = self._table.shared_of_any if gpus == 1 else self._table.shared
        for at in range(gpus):
            spared = [a + (free >= each) for a, free in zip(spared, column(shared, at, rows), strict=True)]
        return spared

    def _near(self, amount: int, rows: Sequence[int], left_over: list[int]) -> Sequence[float]:
        """Return for each row how well its best `amount` unused GPUs are connected; 0 where no steps are left."""
        groups = picked(self._table.group, rows)
        found: dict[int, float] = {}
        for group in dict.fromkeys(groups):
            try:
                found[group] = self._best(group, amount)
            except TooLongError:
                continue
        left_over += [row for row, group in zip(rows, groups, strict=True) if group not in found]
        return [found.get(group, 0.0) for group in groups]

    def _best(self, group: int, amount: int) -> float:
        found = self._connected.get((group, amount))
        if found is None:
            self._effort.check()
            self._effort.spend(_STEPS_OF_A_GROUP)
            found = self._connected[group, amount] = connected(*self._table.groups.examples[group], amount)
        return found

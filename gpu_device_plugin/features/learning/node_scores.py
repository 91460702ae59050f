"""What nodes gain by a pod, by what was learned; the worth of each is remembered until the node changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from weakref import WeakValueDictionary

from gpu_device_plugin.features.learning.rules.marginal_value import (
    NEVER,
    Appraisal,
    Appraiser,
    FreeCapacity,
    free_capacity,
    ranks_on,
    shape_of,
)
from gpu_device_plugin.features.learning.rules.price_learning import Tables
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, largest_kind
from gpu_device_plugin.model.gpus import Links
from gpu_device_plugin.model.placing import Ranks
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator, Rows
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scoring import MIDDLE, MOST, connected

_AT_ONCE = 16
"""So many nodes are appraised in one step."""
_MOST_GROUPS = 4
"""The most groups of unused GPUs that are compared by their links: one takes up to half a millisecond."""
_EQUAL = 1e-9
"""Gains that differ by less are equal, in shares."""


class NodeTypes:
    """How many nodes with GPUs there are of each shape."""

    def __init__(self, nodes: View) -> None:
        """Count `nodes`."""
        self._nodes = nodes
        self._mark = 0
        self._shapes: dict[str, NodeType] = {}
        self._counts: Counter[NodeType] = Counter()

    def count(self) -> Mapping[NodeType, int]:
        """Return the number of nodes of each shape."""
        self._mark, changed = self._nodes.changed_since(self._mark)
        candidates = self._nodes.candidates
        for name in {*self._shapes, *candidates} if changed is None else changed:
            node, before = candidates.get(name), self._shapes.pop(name, None)
            shape = None if node is None else shape_of(node)
            if shape is not None and shape.sizes:
                self._shapes[name] = shape
                self._counts[shape] += 1
            if before is not None:
                self._counts[before] -= 1
        return +self._counts


class _Appraised:
    """The nodes appraised by tables that were learned, each again once it has changed and somebody asks."""

    def __init__(self, rows: Rows, tables: Tables) -> None:
        self._rows = rows
        self.tables = tables
        self._appraiser = Appraiser(tables)
        self.ranks = partial(ranks_on, self._appraiser)
        self._known: WeakValueDictionary[tuple[NodeType, FreeCapacity], Appraisal] = WeakValueDictionary()
        """Nodes with equal room have one appraisal, and gain as much."""
        self._rooms: list[Appraisal | None] = []
        self._seen: list[Candidate | None] = []
        """By row, the node that was appraised. A node that changes becomes another object."""

    def rooms(self, rows: Iterable[int]) -> Sequence[Appraisal | None]:
        """Return the appraisals by row, which are current for `rows`; valid until the next change."""
        for _ in self.refresh(rows):
            pass
        return self._rooms

    def refresh(self, rows: Iterable[int]) -> Generator[None, None, None]:
        """Appraise those of `rows` that have changed, in small steps."""
        nodes, rooms, seen = self._rows.nodes, self._rooms, self._seen
        for column in (rooms, seen):
            column.extend(repeat(None, len(nodes) - len(column)))
        for number, row in enumerate([row for row in rows if seen[row] is not nodes[row]]):
            seen[row] = node = nodes[row]
            rooms[row] = None if node is None else self._appraisal(shape_of(node), free_capacity(node))
            if number % _AT_ONCE == _AT_ONCE - 1:
                yield

    def _appraisal(self, shape: NodeType, left: FreeCapacity) -> Appraisal | None:
        found = self._known.get((shape, left))
        if found is None and (found := self._appraiser.appraise(shape, left)) is not None:
            self._known[shape, left] = found
        return found

    def gains(self, ask: GpuRequest, rows: Sequence[int], amounts: Amounts) -> list[float]:
        """Return what `rows`, on which a pod fits, gain by it; `NEVER` where its CPU or memory does not fit.

        Appraised is the largest of the pod's parts, with all CPU and memory. What room nodes have that serve claims is
        not known: they gain `NEVER` too.
        """
        rooms, kind, gain = self.rooms(rows), largest_kind(ask, amounts), self._appraiser.gain
        known: dict[int, float] = {}
        for room in map(rooms.__getitem__, rows):
            if id(room) not in known:
                known[id(room)] = gain(kind, room)
        gains = [known[id(rooms[row])] for row in rows]
        if ask.parts:
            return gains
        # A pod without GPUs takes nothing on a node without GPUs that pods with GPUs need.
        return [
            0.0 if (node := self._rows.nodes[row]) is not None and not node.gpus.gpus and not node.gpus.claims else gain
            for row, gain in zip(rows, gains, strict=True)
        ]


class NodeScores:
    """Scores nodes by the tables that were learned; a `Ranker`."""

    def __init__(self, evaluator: NodeEvaluator) -> None:
        """Score the nodes that `evaluator` judges."""
        self.evaluator, self._rows = evaluator, evaluator.rows
        self._types = NodeTypes(evaluator.nodes)
        self._appraised: _Appraised | None = None

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        """Score by these tables from the end of these steps on; None: as without any."""
        self.evaluator.prepare()
        appraised = None
        if tables is not None:
            appraised = _Appraised(self._rows, tables)
            yield from appraised.refresh(range(len(self._rows.nodes)))
        self._appraised = appraised

    def node_types(self) -> Mapping[NodeType, int]:
        """Return how many nodes with GPUs there are of each shape."""
        return self._types.count()

    @property
    def outdated(self) -> bool:
        """Whether there is a node of a shape that the tables do not know; it scores 0."""
        return self._appraised is not None and not self._appraised.tables.wanted.keys() >= self.node_types().keys()

    def stranded(self) -> Iterator[tuple[Candidate, float]]:
        """Yield the nodes that are appraised, each with its `Appraisal.stranded`; none before something is learned."""
        self.evaluator.prepare()
        rooms = [] if self._appraised is None else self._appraised.rooms(range(len(self._rows.nodes)))
        for node, room in zip(self._rows.nodes, rooms, strict=False):
            if node is not None and room is not None:
                yield node, room.stranded

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what is preferred on a node for a pod that requests these amounts; None: nothing is learned."""
        return None if self._appraised is None else self._appraised.ranks(node, amounts)

    def best(self, ask: GpuRequest, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return those of `rows` that gain most by a pod that fits on them; None before something is learned."""
        if self._appraised is None:
            return None
        gains = self._appraised.gains(ask, rows, amounts)
        if max(gains) > NEVER:
            return self._of_most_gain(ask, rows, gains)
        # Of all others nothing is known but that they lack CPU or memory, or are of a new shape.
        return [row for row in rows if row in self._rows.claims] or rows

    def scores(self, ask: GpuRequest, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return scores relative to each other of rows on which a pod fits; None before something is learned.

        Only the nodes that gain most get 10, and the others are spread evenly from 0 to 9.
        """
        if self._appraised is None:
            return None
        gains = self._appraised.gains(ask, rows, amounts)
        able = [gain for gain in gains if gain > NEVER]
        best, worst = max(able, default=0.0), min(able, default=0.0)
        first, scale = best - _EQUAL, (MOST - 1) / max(best - worst, _EQUAL)
        top = set(self._of_most_gain(ask, rows, gains)) if able else set()
        claims = self._rows.claims
        return [
            (MIDDLE if row in claims else 0)
            if gain == NEVER
            else MOST
            if row in top
            else MOST - 1
            if gain >= first
            else int((gain - worst) * scale)
            for row, gain in zip(rows, gains, strict=True)
        ]

    def _of_most_gain(self, ask: GpuRequest, rows: Sequence[int], gains: Sequence[float]) -> Sequence[int]:
        """Return the rows that gain most; for several whole GPUs those of which the unused ones are best connected."""
        first = max(gains) - _EQUAL
        best = [row for row, gain in zip(rows, gains, strict=True) if gain >= first]
        amount = max((part.demand.amount for part in ask.parts if part.demand.kind is Kind.COUNT), default=1)
        if amount == 1 or len(best) == 1:
            return best
        by_group: dict[tuple[Links, tuple[int, ...]], list[int]] = {}
        for row in best:
            node = self._rows.nodes[row]
            if node is not None:
                by_group.setdefault((node.gpus.links, node.summary.unused), []).append(row)
        tried = sorted(by_group, key=lambda group: -len(by_group[group]))[:_MOST_GROUPS]
        near = {group: connected(*group, amount, self.evaluator.groups) for group in tried}
        nearest = max(near.values())
        chosen = {row for group in tried if near[group] == nearest for row in by_group[group]}
        return [row for row in best if row in chosen]

"""Scores of thousands of nodes by what was learned, each cached until the node changes. See docs/decisions/0021."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from gpu_device_plugin.features.learning.rules.marginal_value import (
    NEVER,
    Appraisal,
    Appraiser,
    free_capacity,
    ranks_on,
    shape_of,
)
from gpu_device_plugin.features.learning.rules.price_learning import Tables
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, largest_kind
from gpu_device_plugin.model.gpus import Links
from gpu_device_plugin.model.placing import Ranks
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.node_evaluator import UNTRIED, NodeEvaluator, Remembered, RequestResults, Rows
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.packing import TooLongError
from gpu_device_plugin.scheduler.rules.scoring import MIDDLE, MOST, connected

_MOST_AMOUNTS = 4
"""The most different requests for CPU and memory that are cached for one demand. With 5,000 nodes each takes 40 kB."""
_MOST_GROUPS = 4
"""The most groups of unused GPUs that are compared by their links: one takes up to half a millisecond."""
_EQUAL = 1e-9
"""Gains that differ by less are equal, in shares."""


class NodeTypes:
    """The shapes of the nodes that an evaluator judges."""

    def __init__(self, evaluator: NodeEvaluator) -> None:
        """Follow the nodes of `evaluator`."""
        self._evaluator, self._rows = evaluator, evaluator.rows
        self._mark = 0
        self.at: list[NodeType | None] = [None]
        """By row, the shape of each node that has GPUs."""
        self._counts: Counter[NodeType] = Counter()

    def update(self) -> None:
        """Apply the changes of the rows."""
        changed, self._mark = self._rows.changes.since(self._mark), self._rows.changes.latest
        self.at.extend([None] * (len(self._rows.nodes) - len(self.at)))
        for row in range(1, len(self.at)) if changed is None else changed:
            node, before = self._rows.nodes[row], self.at[row]
            shape = None if node is None else shape_of(node)
            self.at[row] = shape = shape if shape is not None and shape.sizes else None
            if before != shape:
                self._counts.update({} if shape is None else {shape: 1})
                self._counts.subtract({} if before is None else {before: 1})

    def count(self) -> Mapping[NodeType, int]:
        """Return how many nodes with GPUs there are of each shape."""
        self._evaluator.prepare()  # not the rows alone: whoever has shapes of its own has them of the same nodes
        self.update()
        return +self._counts


class _Appraised:
    """All nodes appraised by tables that were learned."""

    def __init__(self, rows: Rows, types: NodeTypes, tables: Tables) -> None:
        self._types = types
        self.tables = tables
        self.appraiser = appraiser = Appraiser(tables)

        def appraisal(row: int) -> Appraisal | None:
            node, node_type = rows.nodes[row], types.at[row]
            return None if node is None or node_type is None else appraiser.appraise(node_type, free_capacity(node))

        self._rows = rows
        self.rooms: Remembered[Appraisal | None] = Remembered(rows, appraisal, [], None)
        # What is remembered for a demand goes with the evaluator's results for it.
        self._gains: WeakKeyDictionary[RequestResults, OrderedDict[Amounts, Remembered[float]]] = WeakKeyDictionary()

    def marginal_values(self, pod: RequestResults, amounts: Amounts, rows: Sequence[int]) -> Sequence[float]:
        """Return what `rows` gain by a pod that requests these amounts, `NEVER` where it does not fit; by row.

        Appraised is the largest of the pod's parts, with all CPU and memory. What room nodes have that serve claims is
        not known: they gain `NEVER` too.
        """
        verdicts, gains = pod.verdicts.now(rows), self._gains.setdefault(pod, OrderedDict())
        marginal_values = gains.pop(amounts, None)
        if marginal_values is None:
            rooms, kind, gain_of = self.rooms.now(), largest_kind(pod.ask, amounts), self.appraiser.gain
            types, claims = self._types, self._rows.claims
            # A pod without GPUs takes nothing on a node without GPUs that pods with GPUs need.
            elsewhere = NEVER if pod.ask.parts else 0.0

            def gain(row: int) -> float:
                if verdicts[row] is UNTRIED:
                    raise TooLongError
                if verdicts[row] is not None or row in claims:
                    return NEVER
                room = rooms[row]
                if room is not None:
                    return gain_of(kind, room)
                return elsewhere if types.at[row] is None else NEVER

            marginal_values = Remembered(self._rows, gain, array("d"), NEVER, estimate=lambda _row: NEVER)
        gains[amounts] = marginal_values
        if len(gains) > _MOST_AMOUNTS:
            gains.popitem(last=False)
        return marginal_values.now(rows)


class NodeScores:
    """Scores nodes by the tables that were learned; a `Ranker`."""

    def __init__(self, evaluator: NodeEvaluator) -> None:
        """Score the nodes that `evaluator` judges."""
        self.evaluator, self._rows = evaluator, evaluator.rows
        self._types = NodeTypes(evaluator)
        self._appraised: _Appraised | None = None

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        """Score by these tables from the end of these steps on; None: as without any."""
        self.evaluator.prepare()
        appraised = None
        if tables is not None:
            appraised = _Appraised(self._rows, self._types, tables)
            yield from appraised.rooms.refresh()
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
        rooms = [] if self._appraised is None else self._appraised.rooms.now()
        for node, room in zip(self._rows.nodes, rooms, strict=False):
            if node is not None and room is not None:
                yield node, room.stranded

    def prepare(self) -> None:
        """Appraise the nodes that have changed."""
        self._types.update()
        if self._appraised is not None:
            self._appraised.rooms.now()

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what is preferred on a node for a pod that requests these amounts; None: nothing is learned."""
        return None if self._appraised is None else ranks_on(self._appraised.appraiser, node, amounts)

    def scores(self, pod: RequestResults, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return scores relative to each other; None before something is learned.

        Only the nodes that gain most get 10, and the others are spread evenly from 0 to 9.
        """
        if self._appraised is None:
            return None
        marginal_values = self._appraised.marginal_values(pod, amounts, rows)
        verdicts = pod.verdicts.now(rows)
        named = [marginal_values[row] for row in rows]
        best, worst = max(named, default=NEVER), min(named, default=NEVER)
        if worst == NEVER:
            worst = min([gain for gain in named if gain > NEVER], default=NEVER)
        first, scale = best - _EQUAL, (MOST - 1) / max(best - worst, _EQUAL)
        scores = [0 if gain == NEVER else MOST if gain >= first else int((gain - worst) * scale) for gain in named]
        amount = max((part.demand.amount for part in pod.ask.parts if part.demand.kind is Kind.COUNT), default=1)
        if amount > 1:
            # Of the nodes that gain most, those are preferred whose unused GPUs are best connected.
            best_rows = [row for row, score in zip(rows, scores, strict=True) if score == MOST]
            spoilt = set(best_rows) - self._best_connected(best_rows, amount)
            scores = [MOST - 1 if row in spoilt else score for row, score in zip(rows, scores, strict=True)]
        claims = self._rows.claims
        if not claims:
            return scores
        return [
            MIDDLE if row in claims and verdicts[row] is None else score
            for row, score in zip(rows, scores, strict=True)
        ]

    def _best_connected(self, rows: Sequence[int], amount: int) -> set[int]:
        """Return the rows of which `amount` unused GPUs are best connected."""
        by_group: dict[tuple[Links, tuple[int, ...]], set[int]] = {}
        for row in rows:
            node = self._rows.nodes[row]
            if node is not None:
                by_group.setdefault((node.gpus.links, node.summary.unused), set()).add(row)
        tried = sorted(by_group, key=lambda group: -len(by_group[group]))[:_MOST_GROUPS]
        near = {group: connected(*group, amount) for group in tried}
        nearest = max(near.values(), default=0.0)
        return set[int]().union(*[by_group[group] for group in tried if near[group] == nearest])

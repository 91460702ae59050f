"""Verdicts and scores of thousands of nodes for one pod, within the time that a scheduler waits.

`scheduler/rules` decides node by node; here each of its results is cached until the node changes. The searches of one
request have a limit of steps, after which it looks at no further node that may need one. See docs/decisions/0021.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gpu_device_plugin.features.learning.rules.marginal_value import NEVER, Appraiser, free_capacity, ranks_on, shape_of
from gpu_device_plugin.features.learning.rules.workload_mix import largest_kind
from gpu_device_plugin.model.placing import FIT
from gpu_device_plugin.model.resources import NO_AMOUNTS, Kind
from gpu_device_plugin.scheduler.rules.changes import ChangeLog
from gpu_device_plugin.scheduler.rules.fitting import FilterFailure, reason_of_one, room_decides, unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, TooLongError
from gpu_device_plugin.scheduler.rules.scoring import MIDDLE, MOST, Scorer, connected

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, MutableSequence, Sequence

    from gpu_device_plugin.features.learning.rules.marginal_value import Appraisal
    from gpu_device_plugin.features.learning.rules.price_learning import Tables
    from gpu_device_plugin.features.learning.rules.workload_mix import NodeType
    from gpu_device_plugin.model.gpus import Links
    from gpu_device_plugin.model.placing import Ranks
    from gpu_device_plugin.model.resources import Amounts
    from gpu_device_plugin.scheduler.rules.candidate import Candidate
    from gpu_device_plugin.scheduler.rules.changes import View
    from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

V = TypeVar("V")

_MOST_STEPS = 1000
"""The most steps of one request for results that are not cached; a step takes some microseconds."""
_MOST_ASKS = 64
"""The most different demands that are cached. With 5,000 nodes each takes 80 kB."""
_MOST_AMOUNTS = 4
"""The most different requests for CPU and memory that are cached for one demand. With 5,000 nodes each takes 40 kB."""
_MOST_GROUPS = 4
"""The most groups of unused GPUs that are compared by their links: one takes up to half a millisecond."""
_EQUAL = 1e-9
"""Gains that differ by less are equal, in shares."""
_AT_ONCE = 16
"""So many nodes are appraised in one step."""

UNKNOWN = FilterFailure("this node is not known to the GPU scheduler yet", unresolvable=False)
UNTRIED = FilterFailure(
    "the search for GPUs for all containers of the pod together is not finished yet", unresolvable=False
)


class Ranker(Protocol):
    """Scores nodes where the policy is `fit`. Without one, that policy is `binpack`."""

    def scores(self, pod: RequestResults, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return the score of a pod that requests these amounts for each row; None: it cannot tell yet."""

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what is preferred on a node for a pod that requests these amounts; None: it cannot tell yet."""

    def prepare(self) -> None:
        """Compute what can be computed before the next request, once the rows are up to date."""


class NodeEvaluator:
    """Judges nodes for pods.

    Its results equal those of the rules, with one exception: where one request runs out of steps before all packings
    have been tried, the pod does not fit on the nodes left over (`UNTRIED`), or these get an estimate as their score.
    Tried packings are cached, so that the next request gets further.
    """

    def __init__(self, nodes: View) -> None:
        """Judge `nodes`."""
        self._rows = _Rows(nodes)
        self._pods: OrderedDict[GpuRequest, RequestResults] = OrderedDict()
        self._appraised: _Appraised | None = None

    def __repr__(self) -> str:
        return f"<NodeEvaluator: {len(self._rows.index)} nodes, remembers {len(self._pods)} pods>"

    def verdicts(self, ask: GpuRequest, names: Sequence[str]) -> Sequence[FilterFailure | None]:
        """Return `fitting.unfit` of one pod for each named node; `UNKNOWN` where no node has the name."""
        pod, rows = self._pod(ask), self._rows.named(names)
        verdicts = pod.verdicts.now(rows)
        return [verdicts[row] for row in rows]

    def fitting(self, ask: GpuRequest) -> list[Candidate]:
        """Return all nodes that one pod fits on."""
        verdicts = self._pod(ask).verdicts.now()
        return [node for node, why in zip(self._rows.nodes, verdicts, strict=True) if why is None and node is not None]

    def scores(
        self, ask: GpuRequest, names: Sequence[str], node_policy: str, gpu_policy: str, amounts: Amounts = NO_AMOUNTS
    ) -> Sequence[int]:
        """Return the score of one pod for each named node; 0 where it does not fit, and where no node has the name.

        Under the policy `fit`, with tables, scores are relative: only the nodes that gain most get 10, and the others
        are spread evenly from 0 to 9. Otherwise they are those of `Scorer`.
        The policies hold where neither pod nor node says.
        """
        pod, rows = self._pod(ask), self._rows.named(names)
        if self._appraised is not None and (ask.selector.node_policy or node_policy) == FIT:
            marginal_values = pod.marginal_values(self._appraised, amounts, rows)
            return self._scores_by_gain(ask, rows, pod.verdicts.now(rows), marginal_values)
        scores = pod.scores(node_policy, gpu_policy, rows)
        return [scores[row] for row in rows]

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        """Score by these tables, where the policy is `fit`, from the end of these steps on; None: as without any."""
        self.prepare()
        appraised = None
        if tables is not None:
            appraised = _Appraised(self._rows, tables)
            yield from appraised.rooms.refresh()
        self._appraised = appraised
        for pod in self._pods.values():
            pod.gains.clear()

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: unknown yet."""
        return None if self._appraised is None else ranks_on(self._appraised.appraiser, node, amounts)

    def node_types(self) -> Mapping[NodeType, int]:
        """Return how many nodes with GPUs there are of each shape."""
        self.prepare()
        return +self._rows.node_types

    def stranded(self) -> Iterator[tuple[Candidate, float]]:
        """Yield the nodes that are appraised, each with its `Appraisal.stranded`; none before something is learned."""
        self.prepare()
        rooms = [] if self._appraised is None else self._appraised.rooms.now()
        for node, room in zip(self._rows.nodes, rooms, strict=False):
            if node is not None and room is not None:
                yield node, room.stranded

    @property
    def outdated(self) -> bool:
        """Whether there is a node of a shape that the tables do not know; it scores 0."""
        return self._appraised is not None and not self._appraised.tables.wanted.keys() >= self.node_types().keys()

    def prepare(self) -> None:
        """Apply the changes of nodes, so that the next request need not wait for that."""
        self._rows.update()
        if self._appraised is not None:
            self._appraised.rooms.now()

    def _pod(self, ask: GpuRequest) -> RequestResults:
        self.prepare()
        pod = self._pods.pop(ask, None) or RequestResults(ask, self._rows)
        self._pods[ask] = pod
        if len(self._pods) > _MOST_ASKS:
            self._pods.popitem(last=False)
        return pod

    def _scores_by_gain(
        self,
        ask: GpuRequest,
        rows: Sequence[int],
        verdicts: Sequence[FilterFailure | None],
        marginal_values: Sequence[float],
    ) -> list[int]:
        named = [marginal_values[row] for row in rows]
        best, worst = max(named, default=NEVER), min(named, default=NEVER)
        if worst == NEVER:
            worst = min([gain for gain in named if gain > NEVER], default=NEVER)
        first, scale = best - _EQUAL, (MOST - 1) / max(best - worst, _EQUAL)
        scores = [0 if gain == NEVER else MOST if gain >= first else int((gain - worst) * scale) for gain in named]
        amount = max((part.demand.amount for part in ask.parts if part.demand.kind is Kind.COUNT), default=1)
        if amount > 1:
            # Of the nodes that gain most, those are preferred whose unused GPUs are best connected.
            best_rows = [row for row, score in zip(rows, scores, strict=True) if score == MOST]
            spoilt = set(best_rows) - self._best_connected(best_rows, amount)
            scores = [MOST - 1 if row in spoilt else score for row, score in zip(rows, scores, strict=True)]
        if not self._rows.claims:
            return scores
        return [
            MIDDLE if row in self._rows.claims and verdicts[row] is None else score
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


class _Rows:
    """The nodes, each in a row for as long as it exists; later another node may get the row. No node is in row 0."""

    def __init__(self, nodes: View) -> None:
        self._view = nodes
        self._mark = 0
        self.changes: ChangeLog[int] = ChangeLog()
        self._vacant: list[int] = []
        self.index: dict[str, int] = {}
        """The row of each node by its name."""
        self.nodes: list[Candidate | None] = [None]
        self.by_room: list[bool] = [False]
        """Whether `room_decides` on each node."""
        self.shape_at: list[NodeType | None] = [None]
        """The shape of each node that has GPUs."""
        self.node_types: Counter[NodeType] = Counter()
        """How many nodes there are of each."""
        self.claims: set[int] = set()
        """The rows whose nodes serve claims: kube-scheduler allocates their GPUs."""

    def named(self, names: Sequence[str]) -> list[int]:
        """Return the rows of the named nodes, 0 for one that is not known."""
        return list(map(self.index.get, names, repeat(0)))

    def update(self) -> None:
        self._mark, changed = self._view.changed_since(self._mark)
        candidates = self._view.candidates
        for name in {*self.index, *candidates} if changed is None else changed:
            node, row = candidates.get(name), self.index.get(name)
            if node is None:
                if row is not None:
                    self._vacant.append(self.index.pop(name))
                    self._write(row, None)
                continue
            if row is None:
                if not self._vacant:
                    self._vacant.append(len(self.nodes))
                    self.nodes.append(None)
                    self.by_room.append(False)
                    self.shape_at.append(None)
                row = self.index[name] = self._vacant.pop()
            self._write(row, node)

    def _write(self, row: int, node: Candidate | None) -> None:
        before, node_type = self.shape_at[row], None if node is None else shape_of(node)
        self.nodes[row] = node
        self.by_room[row] = node is not None and room_decides(node)
        self.shape_at[row] = node_type = node_type if node_type is not None and node_type.sizes else None
        if before != node_type:
            self.node_types.update({} if node_type is None else {node_type: 1})
            self.node_types.subtract({} if before is None else {before: 1})
        (self.claims.add if node is not None and node.gpus.claims else self.claims.discard)(row)
        self.changes.add(row)


@dataclass(eq=False, repr=False)
class _Remembered(Generic[V]):
    """A result for each row, computed when it is asked for, and again when the node there has changed."""

    _rows: _Rows
    _result: Callable[[int], V]
    _values: MutableSequence[V]
    """Empty at first; gets the results."""
    _blank: V
    """Stands for a result that nobody has asked for."""
    effort: Effort | None = None
    """Limits what one request computes."""
    estimate: Callable[[int], V] | None = None
    """Stands for a result that TooLongError keeps it from."""

    def __post_init__(self) -> None:
        self._estimate = self.estimate or self._result
        self._mark = 0
        self._outdated = bytearray()
        """By row, 1 where there is no current result."""

    def now(self, rows: Sequence[int] | None = None) -> Sequence[V]:
        """Return the results by row, which are current for `rows`, or None for all; valid until the next change."""
        for _ in self.refresh(rows):
            pass
        return self._values

    def refresh(self, rows: Sequence[int] | None = None) -> Generator[None, None, None]:
        """Compute what is missing or out of date for `rows`, or None for all, in small steps."""
        changed, self._mark = self._rows.changes.since(self._mark), self._rows.changes.latest
        values, outdated = self._values, self._outdated
        values.extend(repeat(self._blank, len(self._rows.nodes) - len(values)))
        if changed is None:
            outdated.clear()
        outdated.extend(repeat(1, len(values) - len(outdated)))
        for row in changed or ():
            outdated[row] = 1
        if self.effort is not None:
            self.effort.renew()
        for number, row in enumerate(self._due(rows)):
            try:
                values[row] = self._result(row)
                outdated[row] = 0
            except TooLongError:
                values[row] = self._estimate(row)
            if number % _AT_ONCE == _AT_ONCE - 1:
                yield

    def _due(self, rows: Sequence[int] | None) -> list[int]:
        """Return the rows that are out of date: those of `rows`, or all, which is faster where `rows` are many."""
        outdated = self._outdated
        if rows is not None and 4 * len(rows) < len(outdated):
            return [row for row in rows if outdated[row]]
        return list(compress(range(len(outdated)), outdated))


class _Appraised:
    """All nodes appraised by tables that were learned."""

    def __init__(self, rows: _Rows, tables: Tables) -> None:
        self.tables = tables
        self.appraiser = appraiser = Appraiser(tables)

        def appraisal(row: int) -> Appraisal | None:
            node, node_type = rows.nodes[row], rows.shape_at[row]
            return None if node is None or node_type is None else appraiser.appraise(node_type, free_capacity(node))

        self.rooms: _Remembered[Appraisal | None] = _Remembered(rows, appraisal, [], None)


class RequestResults:
    """The cached results for pods with equal demands."""

    def __init__(self, ask: GpuRequest, rows: _Rows) -> None:
        self._ask = ask
        self._rows = rows
        effort = Effort(_MOST_STEPS)
        packer = CachingPacker([part.demand for part in ask.parts], effort)
        sentences: dict[FilterFailure, FilterFailure] = {}
        several, choosy = len(ask.parts) > 1, ask.selector.choosy
        reasons: dict[tuple[object, ...], FilterFailure | None] = {}
        """By `reason_of_one`, where that decides."""

        def verdict(row: int) -> FilterFailure | None:
            """Return `unfit`, which takes several times as long as what is tried here first on most nodes."""
            node = rows.nodes[row]
            if node is None:
                return UNKNOWN
            alike = None
            if not choosy and rows.by_room[row]:
                if packer.surely_fits(node.summary):
                    return None
                alike = None if several else reason_of_one(node)
                if alike in reasons:
                    return reasons[alike]
            if several:
                effort.check()
            why = unfit(ask, node, packer)
            # Many nodes have equal reasons: each is kept once.
            why = None if why is None else sentences.setdefault(why, why)
            if alike is not None:
                reasons[alike] = why
            return why

        self.verdicts: _Remembered[FilterFailure | None] = _Remembered(
            rows, verdict, [], UNTRIED, effort=effort, estimate=lambda _row: UNTRIED
        )
        self._scores: tuple[tuple[str, str], _Remembered[int]] | None = None
        self.gains: OrderedDict[Amounts, _Remembered[float]] = OrderedDict()

    def marginal_values(self, appraised: _Appraised, amounts: Amounts, rows: Sequence[int]) -> Sequence[float]:
        """Return what `rows` gain by a pod that requests these amounts, `NEVER` where it does not fit; by row.

        Appraised is the largest of the pod's parts, with all CPU and memory. What room nodes have that serve claims is
        not known: they gain `NEVER` too.
        """
        verdicts = self.verdicts.now(rows)
        marginal_values = self.gains.pop(amounts, None)
        if marginal_values is None:
            rooms, kind, gain_of = appraised.rooms.now(), largest_kind(self._ask, amounts), appraised.appraiser.gain
            # A pod without GPUs takes nothing on a node without GPUs that pods with GPUs need.
            elsewhere = NEVER if self._ask.parts else 0.0

            def gain(row: int) -> float:
                if verdicts[row] is UNTRIED:
                    raise TooLongError
                if verdicts[row] is not None or row in self._rows.claims:
                    return NEVER
                room = rooms[row]
                if room is not None:
                    return gain_of(kind, room)
                return elsewhere if self._rows.shape_at[row] is None else NEVER

            marginal_values = _Remembered(self._rows, gain, array("d"), NEVER, estimate=lambda _row: NEVER)
        self.gains[amounts] = marginal_values
        if len(self.gains) > _MOST_AMOUNTS:
            self.gains.popitem(last=False)
        return marginal_values.now(rows)

    def scores(self, node_policy: str, gpu_policy: str, rows: Sequence[int]) -> Sequence[int]:
        """Return `Scorer.score` of `rows` on which the pod fits, 0 of those on which it does not; by row."""
        verdicts = self.verdicts.now(rows)
        if self._scores is None or self._scores[0] != (node_policy, gpu_policy):
            effort = Effort(_MOST_STEPS)
            scorer = Scorer(self._ask, node_policy, gpu_policy, effort)

            def score(row: int) -> int:
                if verdicts[row] is UNTRIED:
                    raise TooLongError
                node = self._rows.nodes[row]
                return 0 if node is None or verdicts[row] is not None else scorer.score(node)

            def estimate(row: int) -> int:
                node = self._rows.nodes[row]
                return 0 if node is None or verdicts[row] is not None else scorer.estimate(node)

            remembered = _Remembered(self._rows, score, array("b"), 0, effort=effort, estimate=estimate)
            self._scores = (node_policy, gpu_policy), remembered
        return self._scores[1].now(rows)

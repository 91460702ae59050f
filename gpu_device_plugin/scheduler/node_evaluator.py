"""Verdicts and scores of thousands of nodes for one pod, within the time that a scheduler waits.

`scheduler/rules` decides node by node; here each of its results is cached until the node changes. The searches of one
request have a limit of steps, after which it looks at no further node that may need one. See docs/decisions/0021.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Generic, Protocol, TypeVar

from gpu_device_plugin.model.placing import FIT, Ranks
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.changes import ChangeLog, View
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import reason_of_one, room_decides, unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, TooLongError
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scoring import Scorer

V = TypeVar("V")

_MOST_STEPS = 1000
"""The most steps of one request for results that are not cached; a step takes some microseconds."""
_MOST_ASKS = 64
"""The most different demands that are cached. With 5,000 nodes each takes 80 kB."""
_AT_ONCE = 16
"""So many nodes are appraised in one step."""

UNKNOWN = FilterFailure("node-unknown", "this node is not known to the GPU scheduler yet")
UNTRIED = FilterFailure(
    "search-unfinished", "the search for GPUs for all containers of the pod together is not finished yet"
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
        self.rows = Rows(nodes)
        self._pods: OrderedDict[GpuRequest, RequestResults] = OrderedDict()
        self.ranker: Ranker | None = None

    def __repr__(self) -> str:
        return f"<NodeEvaluator: {len(self.rows.index)} nodes, remembers {len(self._pods)} pods>"

    def verdicts(self, ask: GpuRequest, names: Sequence[str]) -> Sequence[FilterFailure | None]:
        """Return `fitting.unfit` of one pod for each named node; `UNKNOWN` where no node has the name."""
        pod, rows = self._pod(ask), self.rows.named(names)
        verdicts = pod.verdicts.now(rows)
        return [verdicts[row] for row in rows]

    def fitting(self, ask: GpuRequest) -> list[Candidate]:
        """Return all nodes that one pod fits on."""
        verdicts = self._pod(ask).verdicts.now()
        return [node for node, why in zip(self.rows.nodes, verdicts, strict=True) if why is None and node is not None]

    def scores(
        self, ask: GpuRequest, names: Sequence[str], node_policy: str, gpu_policy: str, amounts: Amounts = NO_AMOUNTS
    ) -> Sequence[int]:
        """Return the score of one pod for each named node; 0 where it does not fit, and where no node has the name.

        Under the policy `fit` they are the ranker's, where it can tell. Otherwise they are those of `Scorer`.
        The policies hold where neither pod nor node says.
        """
        pod, rows = self._pod(ask), self.rows.named(names)
        if self.ranker is not None and (ask.selector.node_policy or node_policy) == FIT:
            ranked = self.ranker.scores(pod, rows, amounts)
            if ranked is not None:
                return ranked
        scores = pod.scores(node_policy, gpu_policy, rows)
        return [scores[row] for row in rows]

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: unknown yet."""
        return None if self.ranker is None else self.ranker.ranks(node, amounts)

    def prepare(self) -> None:
        """Apply the changes of nodes, so that the next request need not wait for that."""
        self.rows.update()
        if self.ranker is not None:
            self.ranker.prepare()

    def _pod(self, ask: GpuRequest) -> RequestResults:
        self.prepare()
        pod = self._pods.pop(ask, None) or RequestResults(ask, self.rows)
        self._pods[ask] = pod
        if len(self._pods) > _MOST_ASKS:
            self._pods.popitem(last=False)
        return pod


class Rows:
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
        self.claims: set[int] = set()
        """The rows whose nodes serve claims: kube-scheduler allocates their GPUs."""

    def named(self, names: Sequence[str]) -> list[int]:
        """Return the rows of the named nodes, 0 for one that is not known."""
        return list(map(self.index.get, names, repeat(0)))

    def update(self) -> None:
        """Apply the changes of the nodes."""
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
                row = self.index[name] = self._vacant.pop()
            self._write(row, node)

    def _write(self, row: int, node: Candidate | None) -> None:
        self.nodes[row] = node
        self.by_room[row] = node is not None and room_decides(node)
        (self.claims.add if node is not None and node.gpus.claims else self.claims.discard)(row)
        self.changes.add(row)


@dataclass(eq=False, repr=False)
class Remembered(Generic[V]):
    """A result for each row, computed when it is asked for, and again when the node there has changed."""

    _rows: Rows
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


class RequestResults:
    """The cached results for pods with equal demands."""

    def __init__(self, ask: GpuRequest, rows: Rows) -> None:
        self.ask = ask
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

        self.verdicts: Remembered[FilterFailure | None] = Remembered(
            rows, verdict, [], UNTRIED, effort=effort, estimate=lambda _row: UNTRIED
        )
        self._scores: tuple[tuple[str, str], Remembered[int]] | None = None

    def scores(self, node_policy: str, gpu_policy: str, rows: Sequence[int]) -> Sequence[int]:
        """Return `Scorer.score` of `rows` on which the pod fits, 0 of those on which it does not; by row."""
        verdicts = self.verdicts.now(rows)
        if self._scores is None or self._scores[0] != (node_policy, gpu_policy):
            effort = Effort(_MOST_STEPS)
            scorer = Scorer(self.ask, node_policy, gpu_policy, effort)

            def score(row: int) -> int:
                if verdicts[row] is UNTRIED:
                    raise TooLongError
                node = self._rows.nodes[row]
                return 0 if node is None or verdicts[row] is not None else scorer.score(node)

            def estimate(row: int) -> int:
                node = self._rows.nodes[row]
                return 0 if node is None or verdicts[row] is not None else scorer.estimate(node)

            remembered = Remembered(self._rows, score, array("b"), 0, effort=effort, estimate=estimate)
            self._scores = (node_policy, gpu_policy), remembered
        return self._scores[1].now(rows)

"""Verdicts and scores of thousands of nodes for one pod, within the time that a scheduler waits.

`scheduler/rules` decides node by node. Here the numbers that decide most verdicts stand in columns, so that only nodes
that may fit are looked at as objects. The searches of one request have a limit of steps. See docs/decisions/0035.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Protocol

from gpu_device_plugin.model.placing import FIT, Demand, Ranks
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import Hardware, hardware, room_decides, unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, TooLongError
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scoring import Groups, Scorer

MOST_STEPS = 1000
"""The most steps of one request in searches; a step takes some microseconds."""
_MOST_DEMANDS, _MOST_PACKINGS = 256, 50_000
"""The most demands of several parts whose tried packings are cached, and of these in all; each takes up to 0.5 kB."""
MOST_SCORED = 128
"""Of so many nodes with room the best is chosen: with a hundred the GPUs become as full as with all."""
MOST_OFFERED = 16
"""Of so many equally good nodes kube-scheduler's own plugins choose."""
_AT_ONCE = 512
"""So many nodes are compared with a pod before more of them are looked at."""
_MOST_KINDS = 4096
"""The most kinds of hardware that are told apart: GPUs fail and return in ever new combinations."""
_ANY = 1 << 31
"""In place of the number of shares, or of GPUs, where more than the room decides."""

UNKNOWN = FilterFailure("node-unknown", "this node is not known to the GPU scheduler yet")
UNTRIED = FilterFailure(
    "search-unfinished", "the search for GPUs for all containers of the pod together is not finished yet"
)


class Ranker(Protocol):
    """Scores nodes where the policy is `fit`. Without one, that policy is `binpack`."""

    def scores(self, ask: GpuRequest, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return the score of a pod that fits on these rows and requests these amounts; None: it cannot tell yet."""

    def best(self, ask: GpuRequest, rows: Sequence[int], amounts: Amounts) -> Sequence[int] | None:
        """Return those of `rows` that suit the same pod best; None: it cannot tell yet."""

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what is preferred on a node for a pod that requests these amounts; None: it cannot tell yet."""


class NodeEvaluator:
    """Judges nodes for pods.

    Its results equal those of the rules, with two exceptions. Where one request runs out of steps before all packings
    have been tried, the pod does not fit on the nodes left over (`UNTRIED`), or these get an estimate as their score;
    tried packings are cached, so that the next request gets further. And the best is that of the first `MOST_SCORED`.
    """

    def __init__(self, nodes: View) -> None:
        """Judge `nodes`."""
        self.nodes = nodes
        self.rows = Rows(nodes)
        self._packers: OrderedDict[tuple[Demand, ...], CachingPacker] = OrderedDict()
        """Of demands of several parts: the latest at the end."""
        self.ranker: Ranker | None = None
        self.groups: Groups = {}

    def __repr__(self) -> str:
        return f"<NodeEvaluator: {len(self.rows.index)} nodes, searches for {len(self._packers)} demands>"

    def search(self, ask: GpuRequest, names: Sequence[str] | None = None) -> Search:
        """Return what judges the named nodes for one pod, or all, as they are now."""
        self.prepare()
        demands = ask.demands
        packer = self._packers.pop(demands, None) or CachingPacker(demands, Effort(MOST_STEPS))
        packer.effort.renew()
        if len(demands) > 1:
            packers = self._packers
            packers[demands] = packer
            while len(packers) > _MOST_DEMANDS or sum(each.known for each in packers.values()) > _MOST_PACKINGS:
                packers.popitem(last=False)
        return Search(ask, self.rows, list(self.rows.index) if names is None else names, packer)

    def verdicts(self, ask: GpuRequest, names: Sequence[str]) -> list[FilterFailure | None]:
        """Return `fitting.unfit` of one pod for each named node; `UNKNOWN` where no node has the name."""
        search = self.search(ask, names)
        return list(map(search.why, search.rows))

    def best(
        self,
        search: Search,
        node_policy: str,
        gpu_policy: str,
        amounts: Amounts = NO_AMOUNTS,
        besides: Collection[str] = (),
    ) -> list[str]:
        """Return the nodes that suit a pod best, `besides` some: `MOST_OFFERED` at most, none if it fits on no other.

        None, too, where no node suits a pod without GPUs better than others. The policies hold where neither pod nor
        node says.
        """
        others = set(self.rows.named(besides))
        rows = list(islice((row for row in search.fitting() if row not in others), MOST_SCORED))
        ranker = self._ranker_for(search.ask, node_policy)
        best = None if ranker is None or not rows else ranker.best(search.ask, rows, amounts)
        if best is None and not search.ask.parts:
            return []
        if len(rows) > 1:
            if best is None:
                scores = self._scores(search.ask, rows, node_policy, gpu_policy)
                highest = max(scores)
                best = [row for row, score in zip(rows, scores, strict=True) if score == highest]
            rows = list(best[:MOST_OFFERED])
        return [node.name for node in self.rows.at(rows)]

    def scores(
        self, ask: GpuRequest, names: Sequence[str], node_policy: str, gpu_policy: str, amounts: Amounts = NO_AMOUNTS
    ) -> Sequence[int]:
        """Return the score of one pod for each named node; 0 where it does not fit, and where no node has the name.

        Under the policy `fit` they are the ranker's, where it can tell. Otherwise they are those of `Scorer`.
        """
        search = self.search(ask, names)
        rows = list(search.fitting())
        ranker = self._ranker_for(ask, node_policy)
        scores = None if ranker is None else ranker.scores(ask, rows, amounts)
        if scores is None:
            scores = self._scores(ask, rows, node_policy, gpu_policy)
        by_row = dict(zip(rows, scores, strict=True))
        return [by_row.get(row, 0) for row in search.rows]

    def _scores(self, ask: GpuRequest, rows: Iterable[int], node_policy: str, gpu_policy: str) -> list[int]:
        """Return `Scorer.score` of rows on which a pod fits; an estimate of those for which there is no time."""
        scorer = Scorer(ask, node_policy, gpu_policy, Effort(MOST_STEPS), self.groups)
        scores = []
        for node in self.rows.at(rows):
            try:
                scores.append(scorer.score(node))
            except TooLongError:
                scores.append(scorer.estimate(node))
        return scores

    def _ranker_for(self, ask: GpuRequest, node_policy: str) -> Ranker | None:
        return self.ranker if (ask.selector.node_policy or node_policy) == FIT else None

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: unknown yet."""
        return None if self.ranker is None else self.ranker.ranks(node, amounts)

    def prepare(self) -> None:
        """Apply the changes of nodes, so that the next request need not wait for that."""
        self.rows.update()


class Rows:
    """The nodes, each in a row for as long as it exists; later another node may get the row. No node is in row 0."""

    def __init__(self, nodes: View) -> None:
        self._view = nodes
        self._mark = 0
        self._vacant: list[int] = []
        self.index: dict[str, int] = {}
        """The row of each node by its name."""
        self.nodes: list[Candidate | None] = [None]
        self.frees: list[int] = [-1]
        """The most free shares on one GPU or MIG instance of each node; `_ANY` where not `room_decides`."""
        self.unused: list[int] = [-1]
        """The unused GPUs of each node, likewise."""
        self.alike: list[int] = [0]
        """The number in `kinds` of each node's hardware; 0: a pod has to look at the node."""
        self.kinds: list[Hardware | None] = [None]
        self._numbers: dict[Hardware | None, int] = {None: 0}
        self.claims: set[int] = set()
        """The rows whose nodes serve claims: kube-scheduler allocates their GPUs."""

    def named(self, names: Iterable[str]) -> list[int]:
        """Return the rows of the named nodes, 0 for one that is not known."""
        return list(map(self.index.get, names, repeat(0)))

    def at(self, rows: Iterable[int]) -> Iterator[Candidate]:
        """Yield the nodes in these rows."""
        return (node for row in rows if (node := self.nodes[row]) is not None)

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
                    for column in (self.frees, self.unused, self.alike):
                        column.append(0)
                row = self.index[name] = self._vacant.pop()
            self._write(row, node)

    def _write(self, row: int, node: Candidate | None) -> None:
        self.nodes[row] = node
        alone = node is not None and room_decides(node)
        self.frees[row] = -1 if node is None else node.summary.best if alone else _ANY
        self.unused[row] = -1 if node is None else len(node.summary.gpus.unused) if alone else _ANY
        self.alike[row] = self._number(hardware(node) if node is not None and alone else None)
        (self.claims.add if node is not None and node.gpus.claims else self.claims.discard)(row)

    def _number(self, kind: Hardware | None) -> int:
        number = self._numbers.get(kind, 0)
        if not number and kind is not None and len(self.kinds) < _MOST_KINDS:
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number


class Search:
    """Judges the named nodes for one pod, in one request."""

    def __init__(self, ask: GpuRequest, table: Rows, names: Sequence[str], packer: CachingPacker) -> None:
        self.ask = ask
        self.names = names
        self.unfinished = False
        """Whether nodes were left over (`UNTRIED`)."""
        self._table = table
        self._rows: list[int] = []
        """Of the first names, as far as they were looked at."""
        self._packer = packer
        memory = [part.demand for part in ask.parts if part.demand.kind is Kind.MEMORY]
        self._shares = max((demand.amount // demand.gpus for demand in memory), default=0)
        self._several = len(ask.parts) > 1
        self._counted = not self._several and all(demand.gpus == 1 for demand in memory)
        """The numbers in the columns decide, where the room does."""
        self._models = self._allowed() if ask.selector.choosy else None
        self._by_kind: dict[tuple[int, int | None], FilterFailure] = {}
        """The reason by the number of the hardware, where it is the same on all nodes with that that have no room: it
        always is for a pod of one part, and if no room would be enough. Of several parts also by `Packer.too_large`."""
        self._by_row: dict[int, FilterFailure] = {}

    def _allowed(self) -> list[bool | None]:
        """Return for each kind of hardware whether the pod may have its GPUs; None: a part of them, or not known."""
        selector, kinds = self.ask.selector, self._table.kinds
        if selector.named:
            return [None] * len(kinds)
        return [None if kind is None or kind.model is None else selector.allow_model(kind.model) for kind in kinds]

    @property
    def rows(self) -> list[int]:
        """The row of each node, 0 for one that is not known."""
        self._rows += self._table.named(self.names[len(self._rows) :])
        return self._rows

    def fitting(self) -> Iterator[int]:
        """Yield the rows of the nodes on which the pod fits, in their order, looked for as they are taken."""
        for first in range(0, len(self.names), _AT_ONCE):
            if first == len(self._rows):
                self._rows += self._table.named(self.names[first : first + _AT_ONCE])
            yield from self._fitting(self._rows[first : first + _AT_ONCE])

    def _fitting(self, rows: Sequence[int]) -> Iterable[int]:
        table, models = self._table, self._models
        if not self.ask.parts:
            return [row for row in rows if row]
        if self._shares:
            least, frees = self._shares, table.frees
            rows = [row for row in rows if frees[row] >= least]
        if self._packer.whole:
            least, unused = self._packer.whole, table.unused
            rows = [row for row in rows if unused[row] >= least]
        if models is not None:
            alike = table.alike
            rows = [row for row in rows if models[alike[row]] is not False]
        if not self._counted or (models is not None and any(models[alike[row]] is None for row in rows)):
            return (row for row in rows if self.why(row) is None)
        return [row for row in rows if table.frees[row] < _ANY or self.why(row) is None]

    def reasons(self) -> Mapping[FilterFailure, Sequence[str]]:
        """Return why the pod does not fit, with the nodes of which that is true; it fits on none of them."""
        alike, found = self._table.alike, defaultdict[FilterFailure, list[str]](list)
        by_kind: dict[int, list[str]] = {}
        for name, row in zip(self.names, self.rows, strict=True):
            group = by_kind.get(alike[row])
            if group is None:
                why = self.why(row) or UNTRIED
                group = found[why]
                if self._by_kind.get((alike[row], None)) is why:
                    by_kind[alike[row]] = group
            group.append(name)
        return found

    def fits(self, node: Candidate) -> bool:
        """Return whether the pod fits on a node that is in no row; False, too, where no steps are left."""
        return self._unfit(node) is None

    def _unfit(self, node: Candidate) -> FilterFailure | None:
        try:
            return unfit(self.ask, node, self._packer)
        except TooLongError:
            self.unfinished = True
            return UNTRIED

    def why(self, row: int) -> FilterFailure | None:
        """Return why the pod does not fit on a row: `unfit`, which takes several times as long as what is tried first.

        `UNTRIED` where no steps are left.
        """
        node = self._table.nodes[row]
        if node is None:
            return UNKNOWN
        kind = self._table.alike[row]
        allowed = True if self._models is None else self._models[kind]
        if allowed is None:
            kind = 0
        known = self._by_kind.get((kind, None)) or self._by_row.get(row)
        if known is None or not known.unresolvable:
            if allowed and self._table.frees[row] < _ANY and self._packer.surely_fits(node.summary):
                return None
            place = self._packer.too_large(node.summary) if kind and self._several else None
            known = known or self._by_kind.get((kind, place)) or self._looked_at(row, node, kind, place)
        return known

    def _looked_at(self, row: int, node: Candidate, kind: int, place: int | None) -> FilterFailure | None:
        why = self._unfit(node)
        if why is not None:
            if kind and (why.unresolvable or not self._several):
                self._by_kind[kind, None] = why
            elif place is not None:
                self._by_kind[kind, place] = why
            else:
                self._by_row[row] = why
        return why

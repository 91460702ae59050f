"""Cached verdicts and scores for one pod on thousands of nodes, within the time that a scheduler waits.

The results are those of `core.cluster.fitting` and `core.cluster.scoring`, which judge node by node. Here all nodes are
judged together, column by column; every result is cached until its node changes, and one request has a step limit.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import repeat
from typing import TYPE_CHECKING, Generic, TypeVar

from gpu_device_plugin.core.cluster.effort import Effort
from gpu_device_plugin.core.model.amounts import NO_AMOUNTS
from gpu_device_plugin.core.model.policy import FIT
from gpu_device_plugin.core.worth.mix import kinds_of
from gpu_device_plugin.fleet_index.appraised import NO_ROW, Appraised, GainsOfPod, scores_among
from gpu_device_plugin.fleet_index.scores import scores
from gpu_device_plugin.fleet_index.table import NodeTable
from gpu_device_plugin.fleet_index.verdicts import UNKNOWN, UNTRIED, verdicts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.fitting import Unfit
    from gpu_device_plugin.core.model.amounts import Amounts
    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.shapes import Shape
    from gpu_device_plugin.fleet_index.gains import Gains
    from gpu_device_plugin.fleet_index.rooms import Floats
    from gpu_device_plugin.fleet_index.table import Find, Nodes

V = TypeVar("V")

_MOST_STEPS = 1000
"""The most steps of one request for results that are not cached; a step takes some microseconds."""
_MOST_ASKS = 64
"""The most different demands that are cached. With 5,000 nodes each takes 80 kB."""
_MOST_AMOUNTS = 4
"""The most different requests for CPU and memory that are cached for one demand. With 5,000 nodes each takes 40 kB."""


class Judge:
    """Judges nodes for pods.

    Its results equal the core's, with one exception: where one request runs out of steps before all packings have been
    tried, the pod does not fit on the nodes left over (`UNTRIED`), or these are scored as if their GPUs were not
    connected, and as if the pod's annotations allowed all of them. Tried packings are cached, so that the next request
    gets further.
    """

    def __init__(self, nodes: Nodes) -> None:
        """Judge `nodes`."""
        self._table = NodeTable(nodes)
        self._begun = 0
        self._pods: OrderedDict[Ask, _Pod] = OrderedDict()
        self._appraised: Appraised | None = None

    def __repr__(self) -> str:
        return f"<Judge: {self._table!r}, remembers {len(self._pods)} pods>"

    def verdicts(self, ask: Ask, names: Sequence[str]) -> Sequence[Unfit | None]:
        """Return `fitting.unfit` of one pod for each named node; `UNKNOWN` where no node has the name."""
        found = self._pod(ask).verdicts()
        return [UNKNOWN if row is None else found[row] for row in map(self._table.index.get, names)]

    def scores(
        self, ask: Ask, names: Sequence[str], node_policy: str, gpu_policy: str, amounts: Amounts = NO_AMOUNTS
    ) -> Sequence[int]:
        """Return the score of one pod for each named node; 0 where no node has the name.

        Under the policy `fit`, with tables, it is that of `appraised.scores` among the named nodes; else
        `core.cluster.scoring.score`.

        Args:
            ask: the pod's demand.
            names: the nodes.
            node_policy: a name in `POLICIES`, where the pod does not say.
            gpu_policy: which GPU is preferred, where neither pod nor node says.
            amounts: the pod's requests.
        """
        pod = self._pod(ask)
        if self._appraised is not None and (ask.wishes.node_policy or node_policy) == FIT:
            rows = list(map(self._table.index.get, names, repeat(NO_ROW)))
            return scores_among(rows, pod.verdicts(), pod.gains(self._appraised.gains, amounts), ask, self._table)
        found = pod.scores(node_policy, gpu_policy)
        return [0 if row is None else found[row] for row in map(self._table.index.get, names)]

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        """Score by these tables, where the policy is `fit`, from the end of these steps on; None: as without any."""
        self.prepare()
        appraised = None
        if tables is not None:
            appraised = Appraised(self._table, tables)
            yield from appraised.appraise()
        self._appraised = appraised
        for pod in self._pods.values():
            pod.forget_gains()

    def shapes(self) -> Mapping[Shape, int]:
        """Return how many nodes with GPUs there are of each shape."""
        self.prepare()
        return self._table.rooms.counts()

    @property
    def outdated(self) -> bool:
        """Whether there is a node of a shape that the tables do not know; it scores 0."""
        return self._appraised is not None and not self._appraised.gains.complete

    def prepare(self) -> None:
        """Update the table, so that the next request need not wait for that."""
        self._table.update()
        if self._appraised is not None:
            self._appraised.update()

    def _pod(self, ask: Ask) -> _Pod:
        self.prepare()
        if self._begun != self._table.begun:
            self._begun = self._table.begun
            self._pods.clear()
        found = self._pods.pop(ask, None) or _Pod(ask, self._table)
        self._pods[ask] = found
        if len(self._pods) > _MOST_ASKS:
            self._pods.popitem(last=False)
        return found


class _Answers(Generic[V]):
    """One cached result for every row, recomputed when the row has changed."""

    def __init__(self, table: NodeTable, find: Find[V], effort: Effort) -> None:
        self._table = table
        self._find = find
        self._effort = effort
        self._mark = 0
        self._left_over: list[int] = []
        self.known: list[V] = []

    def now(self) -> list[V]:
        """Return the current results by row; valid until the next change."""
        self._mark, changed = self._table.changed_since(self._mark)
        self._effort.renew()
        left_over, self._left_over = self._left_over, []
        if changed is None or not self.known:
            self.known = self._find(range(len(self._table)), self._left_over)
        elif changed or left_over:
            rows = sorted({*changed, *left_over})
            found = self._find(rows, self._left_over)
            self.known += found[:1] * (len(self._table) - len(self.known))
            for row, answer in zip(rows, found, strict=True):
                self.known[row] = answer
        return self.known


class _Pod:
    """The cached results for pods with equal demands."""

    def __init__(self, ask: Ask, table: NodeTable) -> None:
        self._ask = ask
        self._table = table
        effort = Effort(_MOST_STEPS)
        self._verdicts = _Answers(table, verdicts(ask, table, effort), effort)
        self._policies = ("", "")
        self._scores: _Answers[int] | None = None
        self._gains: OrderedDict[Amounts, GainsOfPod] = OrderedDict()

    def verdicts(self) -> list[Unfit | None]:
        return self._verdicts.now()

    def gains(self, gains: Gains, amounts: Amounts) -> Floats:
        """Return what each row gains by a pod that requests these amounts."""
        found = self._gains.pop(amounts, None)
        if found is None or found.gains is not gains:
            found = GainsOfPod(self._table, gains, kinds_of(self._ask, amounts.cpu_milli, amounts.memory_mib))
        self._gains[amounts] = found
        if len(self._gains) > _MOST_AMOUNTS:
            self._gains.popitem(last=False)
        return found.now()

    def forget_gains(self) -> None:
        self._gains.clear()

    def scores(self, node_policy: str, gpu_policy: str) -> list[int]:
        self._verdicts.now()
        if self._scores is None or self._policies != (node_policy, gpu_policy):
            self._policies = node_policy, gpu_policy
            effort = Effort(_MOST_STEPS)
            find = self._where_it_fits(scores(self._ask, self._table, node_policy, gpu_policy, effort))
            self._scores = _Answers(self._table, find, effort)
        return self._scores.now()

    def _where_it_fits(self, scores: Find[int]) -> Find[int]:
        def find(rows: Sequence[int], left_over: list[int]) -> list[int]:
            verdicts = self._verdicts.known
            fitting = [row for row in rows if verdicts[row] is None]
            if len(fitting) == len(rows):
                return scores(fitting, left_over)
            left_over += [row for row in rows if verdicts[row] is UNTRIED]
            found = iter(scores(fitting, left_over))
            return [next(found) if verdicts[row] is None else 0 for row in rows]

        return find

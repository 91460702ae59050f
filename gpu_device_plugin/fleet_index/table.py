"""All nodes in columns, kept current, so that thousands of them can be judged for one pod at once.

Reading thousands of objects costs more than judging them: they are scattered in memory, and the processor waits for
each. A column is contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from gpu_device_plugin.core.cluster.candidate import Candidate
from gpu_device_plugin.core.cluster.scoring import fill_of
from gpu_device_plugin.core.worth.candidates import left_on, shape_of
from gpu_device_plugin.fleet_index.rooms import Rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized

    from gpu_device_plugin.core.cluster.scoring import Fill
    from gpu_device_plugin.core.model.gpus import Links

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
T = TypeVar("T")

Find: TypeAlias = "Callable[[Sequence[int], list[int]], list[V]]"
"""Computes a result for each given row, and appends to the given list the rows for which no steps were left."""

_MOST_CODES = 50_000
"""The most distinct values of one kind; the table is rebuilt when there are more."""
_MOST_COLUMNS = 16
"""The most columns of GPUs and MIG instances: a pod has at most as many parts. A node may have a hundred instances."""
_VACANT = Candidate("")


class Nodes(Protocol):
    """All nodes in their current state."""

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """By name. Values are immutable; a change replaces them."""

    def changed_since(self, mark: int) -> tuple[int, Iterable[str] | None]:
        """Return the current mark, and the names of the nodes added, removed or changed since `mark`.

        None instead of names: any node may have changed. The first mark is 0.
        """


class _Codes(Generic[K, V]):
    """A code for every distinct key, from 0, with an example of its objects."""

    def __init__(self) -> None:
        self._codes: dict[K, int] = {}
        self.examples: list[V] = []

    def __len__(self) -> int:
        return len(self._codes)

    def of(self, key: K, example: V) -> int:
        code = self._codes.setdefault(key, len(self._codes))
        if code == len(self.examples):
            self.examples.append(example)
        return code


class NodeTable:
    """The columns. A node keeps its row for as long as it exists; later another node may get the row."""

    def __init__(self, nodes: Nodes) -> None:
        """Start without rows; see `update`."""
        self._nodes = nodes
        self._mark = 0
        self.begun = 0
        """How often the table was rebuilt. A rebuild invalidates all results by row."""
        self._begin()

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<NodeTable: {len(self.index)} nodes, {len(self.kinds)} kinds>"

    def _begin(self) -> None:
        self.begun += 1
        self.index: dict[str, int] = {}
        """The row of each node by its name."""
        self.nodes: list[Candidate] = []
        self.frees: list[list[int]] = []
        """`Summary.frees` of the GPUs alone in columns: the most free shares of a GPU, the second most and so on.

        -1: no such GPU.
        """
        self.shared: list[list[int]] = []
        """`Summary.shared` of the GPUs alone in columns, in the same way."""
        self.frees_of_any = self.frees
        """The first columns of `frees` with MIG instances; the same as `frees` while no node has any."""
        self.shared_of_any = self.shared
        """The first column of `shared` with MIG instances, likewise."""
        self.unused: list[int] = []
        """The number of unused GPUs."""
        self.fill: list[int] = []
        """Code of what decides how full the node is."""
        self.fills: _Codes[Fill, Fill] = _Codes()
        self.policy: list[str | None] = []
        self.kind: list[int] = []
        """Code of `Candidate.like`, and of whether no GPU or MIG instance, and no GPU, gives shares."""
        self.kinds: _Codes[tuple[str, bool, bool], Candidate] = _Codes()
        self.model: list[int] = []
        """Code of the set of GPU models."""
        self.models: _Codes[frozenset[str], frozenset[str]] = _Codes()
        self.group: list[int] = []
        """Code of the unused GPUs and their links."""
        self.groups: _Codes[tuple[Links, tuple[int, ...]], tuple[Links, tuple[int, ...]]] = _Codes()
        self.claims: set[int] = set()
        """The rows whose nodes serve claims: kube-scheduler allocates their GPUs."""
        self._codes: Sequence[Sized] = (self.fills, self.kinds, self.models, self.groups)
        self._vacant: list[int] = []
        self.rooms = Rooms()
        """What each row has left; there may be more rows than nodes."""

    def update(self) -> None:
        """Apply the changes of the nodes."""
        self._mark, changed = self._nodes.changed_since(self._mark)
        candidates = self._nodes.candidates
        if changed is None or max(map(len, self._codes)) > _MOST_CODES:
            self._begin()
            changed = candidates
        for name in changed:
            row, node = self.index.get(name), candidates.get(name)
            if node is None:
                if row is not None:
                    self._write(self.index.pop(name), _VACANT)
                    self._vacant.append(row)
                continue
            if row is None:
                row = self.index[name] = self._vacant.pop() if self._vacant else self._append()
            self._write(row, node)

    def changed_since(self, mark: int) -> tuple[int, Sequence[int] | None]:
        """Return the current mark, and the rows that have changed since `mark`; None: any may have."""
        now, changed = self._nodes.changed_since(mark)
        if changed is None:
            return now, None
        names = list(changed)
        rows = [row for name in names if (row := self.index.get(name)) is not None]
        # The row of a removed node is no longer known: any vacant row may be it.
        return now, rows if len(rows) == len(names) else [*rows, *self._vacant]

    def _append(self) -> int:
        columns = (self.unused, self.fill, self.kind, self.model, self.group)
        for column in (*self.frees, *self.shared, *columns):
            column.append(-1)
        if self.frees_of_any is not self.frees:
            for column in (*self.frees_of_any, *self.shared_of_any):
                column.append(-1)
        self.nodes.append(_VACANT)
        self.policy.append(None)
        return len(self.nodes) - 1

    def _write(self, row: int, node: Candidate) -> None:
        numbers = node.summary
        self.nodes[row] = node
        (self.claims.add if node.gpus.claims else self.claims.discard)(row)
        self.rooms.write(row, shape_of(node), left_on(node))
        if numbers.of_gpus is not None and self.frees_of_any is self.frees:
            self.frees_of_any = list(map(list.copy, self.frees[:_MOST_COLUMNS]))
            self.shared_of_any = list(map(list.copy, self.shared[:1]))
        self._spread(self.frees, row, numbers.gpus.frees)
        self._spread(self.shared, row, numbers.gpus.shared)
        if self.frees_of_any is not self.frees:
            self._spread(self.frees_of_any, row, numbers.frees[:_MOST_COLUMNS])
            self._spread(self.shared_of_any, row, numbers.shared[:1])
        self.unused[row] = len(numbers.unused)
        fill = fill_of(numbers)
        self.fill[row] = self.fills.of(fill, fill)
        self.policy[row] = node.gpus.policy
        self.kind[row] = self.kinds.of((node.like, not numbers.frees, not numbers.gpus.frees), node)
        self.model[row] = self.models.of(node.gpus.models, node.gpus.models)
        group = node.gpus.links, numbers.unused
        self.group[row] = self.groups.of(group, group)

    def _spread(self, columns: list[list[int]], row: int, values: Sequence[int]) -> None:
        while len(columns) < len(values):
            columns.append([-1] * len(self.nodes))
        for at, column in enumerate(columns):
            column[row] = values[at] if at < len(values) else -1


def apart(table: NodeTable, find: Find[V], answer: Callable[[int], V]) -> Find[V]:
    """Return a function that asks `answer` about each row that serves claims, and `find` about all others."""

    def both(rows: Sequence[int], left_over: list[int]) -> list[V]:
        claims = table.claims
        if not claims:
            return find(rows, left_over)
        found = iter(find([row for row in rows if row not in claims], left_over))
        return [answer(row) if row in claims else next(found) for row in rows]

    return both


def column(columns: Sequence[list[int]], at: int, rows: Sequence[int]) -> Sequence[int]:
    """Return some rows of the n-th column, -1 for each if there is no such column."""
    return picked(columns[at], rows) if at < len(columns) else [-1] * len(rows)


def picked(column: list[T], rows: Sequence[int]) -> Sequence[T]:
    """Return some rows of a column, or all if there are as many."""
    return column if len(rows) == len(column) else [column[row] for row in rows]

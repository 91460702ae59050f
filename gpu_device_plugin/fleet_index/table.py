"""All nodes side by side in columns, kept current: what it takes to judge thousands of them for one pod.

To look into thousands of objects costs more than to judge them: they lie all over the memory, and the processor waits
for each. A column is one piece of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from gpu_device_plugin.core.cluster.candidate import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized

    from gpu_device_plugin.core.model.gpus import Links

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
T = TypeVar("T")

Find: TypeAlias = "Callable[[Sequence[int], list[int]], list[V]]"
"""Finds an answer for each of some rows, and adds to a list those for which there were no steps left."""

_MOST_CODES = 50_000
"""So many kinds of something are told apart; then all is read anew."""
_VACANT = Candidate("")


class Nodes(Protocol):
    """All nodes as they are now."""

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """By name. Values are replaced when they change, never changed."""

    def changed_since(self, mark: int) -> tuple[int, Iterable[str] | None]:
        """Return a mark for now, and the names of the nodes that came, went or changed since `mark`.

        None instead of names: any may have. 0 is the mark of the beginning.
        """


class _Codes(Generic[K, V]):
    """A number for every value that occurs, from 0, with an example of what has it."""

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
    """The columns. A row is a node's for as long as the node is there; later another one may get it."""

    def __init__(self, nodes: Nodes) -> None:
        """Begin without any row; see `update`."""
        self._nodes = nodes
        self._mark = 0
        self.begun = 0
        """How often all was read anew. What was known of rows before counts no more."""
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
        """`Summary.frees` in columns: the most that is free on a GPU, the second most and so on; -1 if there is none"""
        self.shared: list[list[int]] = []
        """`Summary.shared`, likewise."""
        self.unused: list[int] = []
        """How many GPUs are unused."""
        self.fill: list[int] = []
        """How many shares are used, how many there are, and how many GPUs are healthy."""
        self.fills: _Codes[tuple[int, int, int], tuple[int, int, int]] = _Codes()
        self.policy: list[str | None] = []
        self.kind: list[int] = []
        """Nodes of one kind are equal in `Candidate.like`, and in whether any GPU gives shares."""
        self.kinds: _Codes[tuple[str, bool], Candidate] = _Codes()
        self.model: list[int] = []
        """Which models its GPUs are."""
        self.models: _Codes[frozenset[str], frozenset[str]] = _Codes()
        self.group: list[int] = []
        """Which GPUs are unused, and how they are connected."""
        self.groups: _Codes[tuple[Links, tuple[int, ...]], tuple[Links, tuple[int, ...]]] = _Codes()
        self._codes: Sequence[Sized] = (self.fills, self.kinds, self.models, self.groups)
        self._vacant: list[int] = []

    def update(self) -> None:
        """Take over what has changed."""
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
        """Return a mark for now, and the rows that have changed since `mark`; None: any may have."""
        now, changed = self._nodes.changed_since(mark)
        if changed is None:
            return now, None
        names = list(changed)
        rows = [row for name in names if (row := self.index.get(name)) is not None]
        # Of a node that went it is not known any more which row it had.
        return now, rows if len(rows) == len(names) else [*rows, *self._vacant]

    def _append(self) -> int:
        columns = (self.unused, self.fill, self.kind, self.model, self.group)
        for column in (*self.frees, *self.shared, *columns):
            column.append(-1)
        self.nodes.append(_VACANT)
        self.policy.append(None)
        return len(self.nodes) - 1

    def _write(self, row: int, node: Candidate) -> None:
        numbers = node.summary
        self.nodes[row] = node
        self._spread(self.frees, row, numbers.frees)
        self._spread(self.shared, row, numbers.shared)
        self.unused[row] = len(numbers.unused)
        fill = numbers.used, numbers.total, len(numbers.sizes)
        self.fill[row] = self.fills.of(fill, fill)
        self.policy[row] = node.gpus.policy
        self.kind[row] = self.kinds.of((node.like, not numbers.frees), node)
        self.model[row] = self.models.of(node.gpus.models, node.gpus.models)
        group = node.gpus.links, numbers.unused
        self.group[row] = self.groups.of(group, group)

    def _spread(self, columns: list[list[int]], row: int, values: Sequence[int]) -> None:
        while len(columns) < len(values):
            columns.append([-1] * len(self.nodes))
        for at, column in enumerate(columns):
            column[row] = values[at] if at < len(values) else -1


def column(columns: Sequence[list[int]], at: int, rows: Sequence[int]) -> Sequence[int]:
    """Return some rows of the n-th column, of one that is not there -1."""
    return picked(columns[at], rows) if at < len(columns) else [-1] * len(rows)


def picked(column: list[T], rows: Sequence[int]) -> Sequence[T]:
    """Return some rows of a column, or all if there are as many."""
    return column if len(rows) == len(column) else [column[row] for row in rows]

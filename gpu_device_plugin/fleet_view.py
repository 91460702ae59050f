"""The nodes of a fleet as others read them, with what has changed since they looked last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.changes import ChangeLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate


@dataclass(eq=False, repr=False)
class View:
    """The candidates by name, with a log of their changes."""

    _current: Callable[[], None]
    """Called before every read."""

    def __post_init__(self) -> None:
        self._nodes: dict[str, Candidate] = {}
        self._changes: ChangeLog[str] = ChangeLog()
        self._latest = 0

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """The nodes, by name. Values are immutable; a change replaces them."""
        self._current()
        return self._nodes

    def changed_since(self, mark: int) -> tuple[int, Sequence[str] | None]:
        """Return the current mark, and the names of the nodes added, removed or changed since `mark`.

        None instead of names: `mark` is too old, and any node may have changed. The first mark is 0.
        """
        self._current()
        return self._latest, self._changes.since(mark)

    def put(self, name: str, node: Candidate | None) -> None:
        """Store the current state of a node; None removes it."""
        if node is not None:
            self._nodes[name] = node
        elif self._nodes.pop(name, None) is None:
            return
        self._latest += 1
        self._changes.add(name, self._latest)

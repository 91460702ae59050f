"""Logs of changes: readers ask which things have changed since they last asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from gpu_device_plugin.scheduler.rules.candidate import Candidate

K = TypeVar("K", bound="Hashable")


class ChangeLog(Generic[K]):
    """The number of each thing's last change. Changes are numbered from 1, and never backwards."""

    def __init__(self, most: int = 10_000) -> None:
        """Remember the last change of so many things. A reader that lags further behind reads everything again."""
        self._most = most
        self._numbers: OrderedDict[K, int] = OrderedDict()
        """The latest at the end."""
        self._forgotten = 0
        self.latest = 0
        """The number of the last change."""

    def add(self, what: K, number: int | None = None) -> None:
        """Note a change, by the writer's number or the next one."""
        self._numbers[what] = self.latest = self.latest + 1 if number is None else number
        self._numbers.move_to_end(what)
        if len(self._numbers) > self._most:
            _, self._forgotten = self._numbers.popitem(last=False)

    def since(self, number: int) -> list[K] | None:
        """Return what changed after the change of this number, 0 being before all; None: too long ago to be known."""
        if number == self.latest:
            return []  # several readers ask in each call of the scheduler
        if number < self._forgotten:
            return None
        latest_first = reversed(self._numbers.items())
        return [what for what, _ in takewhile(lambda change: change[1] > number, latest_first)]


@dataclass(eq=False, repr=False)
class View:
    """The candidates by name, with a log of their changes."""

    _current: Callable[[], None]
    """Called before every read."""

    def __post_init__(self) -> None:
        self._nodes: dict[str, Candidate] = {}
        self._changes: ChangeLog[str] = ChangeLog()

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
        return self._changes.latest, self._changes.since(mark)

    def put(self, name: str, node: Candidate | None) -> None:
        """Store the current state of a node; None removes it."""
        if node is not None:
            self._nodes[name] = node
        elif self._nodes.pop(name, None) is None:
            return
        self._changes.add(name)

"""A log of changes: readers ask which things have changed since they last asked."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")


class ChangeLog(Generic[K]):
    """The number of each thing's last change. Changes are numbered by the writer, from 1, and never backwards."""

    def __init__(self, most: int = 10_000) -> None:
        """Remember the last change of so many things. A reader that lags further behind reads everything again."""
        self._most = most
        self._numbers: OrderedDict[K, int] = OrderedDict()
        """The latest at the end."""
        self._forgotten = 0

    def add(self, what: K, number: int) -> None:
        """Note a change."""
        self._numbers[what] = number
        self._numbers.move_to_end(what)
        if len(self._numbers) > self._most:
            _, self._forgotten = self._numbers.popitem(last=False)

    def since(self, number: int) -> list[K] | None:
        """Return what changed after the change of this number, 0 being before all; None: too long ago to be known."""
        if number < self._forgotten:
            return None
        latest_first = reversed(self._numbers.items())
        return [what for what, _ in takewhile(lambda change: change[1] > number, latest_first)]

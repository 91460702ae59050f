"""How much one request may still try."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

V = TypeVar("V")

Find: TypeAlias = "Callable[[Sequence[int], list[int]], list[V]]"
"""Finds an answer for each of some rows, and adds to a list those for which there were no steps left."""

_MOST_STEPS = 1000
"""So many steps one request may take; a step takes some microseconds."""


class TooLongError(Exception):
    """This request has no more steps; of this row nothing may be remembered."""


class Effort:
    """The steps that one request has left."""

    def __init__(self) -> None:
        self._left = 0

    def __repr__(self) -> str:
        return f"<Effort: {self._left} steps left>"

    def renew(self) -> None:
        """Begin another request."""
        self._left = _MOST_STEPS

    def spend(self, steps: int) -> None:
        """Take note of steps that were taken."""
        self._left -= steps

    def check(self) -> None:
        """Raise TooLongError if no step is left."""
        if self._left <= 0:
            raise TooLongError

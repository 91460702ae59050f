"""How long a search may take, in steps: without a clock, so that the same question has the same answer everywhere."""

from __future__ import annotations


class TooLongError(Exception):
    """A search has no steps left; nothing may be remembered of what it was about to find out."""


class Effort:
    """The steps that a search has left. How long a step takes is for the search to say."""

    def __init__(self, steps: int) -> None:
        """Begin with so many."""
        self._steps = steps
        self._left = steps

    def __repr__(self) -> str:
        return f"<Effort: {self._left} of {self._steps} steps left>"

    @property
    def spent(self) -> int:
        """How many steps have been taken."""
        return self._steps - self._left

    def renew(self) -> None:
        """Begin another search with all steps."""
        self._left = self._steps

    def spend(self, steps: int) -> None:
        """Take note of steps that were taken."""
        self._left -= steps

    def take(self, steps: int) -> None:
        """Take note of steps that were taken. Raises TooLongError if no step is left."""
        self.spend(steps)
        self.check()

    def check(self) -> None:
        """Raise TooLongError if no step is left."""
        if self._left <= 0:
            raise TooLongError

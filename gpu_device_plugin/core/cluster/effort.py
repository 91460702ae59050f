"""A search's budget, counted in steps and not in seconds: the same request has the same answer on every machine."""

from __future__ import annotations


class TooLongError(Exception):
    """A search has no steps left. Its unfinished result must not be cached."""


class Effort:
    """The steps that a search has left. Each search defines how long its step takes."""

    def __init__(self, steps: int) -> None:
        """Start with `steps`."""
        self._steps = steps
        self._left = steps

    def __repr__(self) -> str:
        return f"<Effort: {self._left} of {self._steps} steps left>"

    @property
    def spent(self) -> int:
        """The number of steps taken."""
        return self._steps - self._left

    def renew(self) -> None:
        """Restore the whole budget for another search."""
        self._left = self._steps

    def spend(self, steps: int) -> None:
        """Count steps that were taken; never raises."""
        self._left -= steps

    def take(self, steps: int) -> None:
        """Count steps that were taken. Raises TooLongError if no step is left."""
        self.spend(steps)
        self.check()

    def check(self) -> None:
        """Raise TooLongError if no step is left."""
        if self._left <= 0:
            raise TooLongError

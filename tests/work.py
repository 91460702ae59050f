"""How much a piece of the program does, counted and not timed: a busy machine counts the same."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooMuchWorkError(AssertionError):
    """More was done than is allowed."""


class Work:
    """What was done so far: calls, returns and lines of Python. What C does at one go counts as one line."""

    def __init__(self, most: int) -> None:
        """Allow so much of it."""
        # mutmut puts its own lines around every function.
        self.most = 20 * most if "MUTANT_UNDER_TEST" in os.environ else most
        self.done = 0

    def __repr__(self) -> str:
        return f"<Work: {self.done} of {self.most}>"

    def trace(self, _frame: FrameType, _event: str, _arg: Any) -> Any:
        """As `sys.settrace` calls it; ends what goes on for too long, for it may be for ever."""
        self.done += 1
        if self.done > self.most:
            raise TooMuchWorkError(f"more than {self.most:,} lines were run")
        return self.trace


@contextmanager
def counted(most: int) -> Iterator[Work]:
    """Count what is done within the block, and raise TooMuchWorkError as soon as it is more than `most`."""
    work, before = Work(most), sys.gettrace()
    sys.settrace(work.trace)
    try:
        yield work
    finally:
        sys.settrace(before)

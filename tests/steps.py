"""Run what is done in small steps to its end."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found

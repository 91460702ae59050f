"""Exponential backoff with jitter, so that nodes do not retry in step."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first_s` to `most_s`, each shortened by up to half at random."""

    def __init__(self, first_s: float = 0.2, most_s: float = 30.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Count a failure and return the delay, at least the `at_least_s` that the server asked for."""
        ceiling = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return max(at_least_s, ceiling * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again from `first_s`, after a success."""
        self._failures = 0

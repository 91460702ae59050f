"""Say whose turn it is to be read, so that many are read in turn, none too often, and a silent one rarely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Pace:
    """How often one is read; times in seconds."""

    every_s: float = 10.0
    longest_s: float = 300.0
    """The longest time between two attempts at one that does not answer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last attempt at one."""

    at_s: float
    failures: int = 0
    """In a row."""


DEFAULT_PACE = Pace()
NEVER = Attempt(float("-inf"))


def due(wanted: Iterable[str], last: Mapping[str, Attempt], now_s: float, pace: Pace, most: int) -> list[str]:
    """Return whom to read now, at most `most`: those waiting longest first, then by name."""
    ripe = [
        (attempt.at_s, name)
        for name in wanted
        if now_s - (attempt := last.get(name, NEVER)).at_s >= _pause_s(attempt.failures, pace)
    ]
    return [name for _, name in sorted(ripe)[:most]]


def shared(first: Sequence[str], others: Sequence[str], kept: int, most: int) -> list[str]:
    """Divide `most` turns between two groups in the order of their need, all of one where the other needs less.

    Args:
        first: those who come first.
        others: all others.
        kept: so many turns are for the others, if they need them.
        most: the turns.
    """
    own = max(most - min(kept, len(others)), 0)
    return [*first[:own], *others[: most - min(own, len(first))]]


def _pause_s(failures: int, pace: Pace) -> float:
    return float(min(pace.longest_s, pace.every_s * 2 ** min(failures, 16)))

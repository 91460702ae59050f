"""When to learn, and when to learn again."""

from __future__ import annotations

FEWEST = 20
"""Before so many pods have come, a mix says too little; the policy `fit` is `binpack` until then."""
_GROWTH = 1.5
_LONGEST_S = 3600.0


def due(came: int, learned_from: int, age_s: float, *, outdated: bool) -> bool:
    """Return whether to learn now.

    The first pods teach most, so that the tables are learned again each time when half as many more have come. Later
    that becomes rare, and an hour is the longest that a changed mix goes unnoticed.

    Args:
        came: how many pods have come in all.
        learned_from: how many had come when the tables in force were learned; 0: there are none.
        age_s: of these tables, seconds.
        outdated: a node has a shape that these tables do not know.
    """
    if came < FEWEST:
        return False
    return outdated or came >= _GROWTH * learned_from or (came > learned_from and age_s >= _LONGEST_S)

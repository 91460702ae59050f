"""Which GPU is preferred among those that fit: rank functions in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

Rank = Callable[[int], int]
"""From the free shares of a GPU that fits to its rank; the lowest rank is chosen, ties go to the lower position."""

POLICIES: Mapping[str, Rank] = MappingProxyType(
    {
        "binpack": lambda free: free,
        "spread": lambda free: -free,
    }
)
"""`binpack` fills one GPU before the next and keeps others whole; `spread` takes the emptiest."""


def policy_in_force(label: str, setting: str) -> str:
    """Return the policy of a node: what its label names goes before the setting of its agent, if it names one."""
    return label if label in POLICIES else setting

"""The policies by which one of the fitting GPUs is chosen: rank functions in one table."""

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
"""`binpack` fills one GPU before the next and keeps the others unused; `spread` takes the emptiest."""


def policy_in_force(label: str, setting: str) -> str:
    """Return the policy of a node: its label if that names a policy, otherwise the setting of its agent."""
    return label if label in POLICIES else setting

"""Whom a GPU is closed to, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Why one GPU is closed, as a clause for each of those whom it may be closed to; empty: it is open to them.

    What holds for some of its shares, or follows from those who hold them, is the ledger's.
    """

    everyone: str = ""
    """It is out of service, with all that runs there."""
    new_pods: str = ""
    """What runs there stays as it is."""
    parts: str = ""
    """It is given whole only."""


OPEN = Block()

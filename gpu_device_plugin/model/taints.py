"""Taints of nodes, which keep pods away that do not tolerate them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        """Return the taint in kubectl's notation."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"

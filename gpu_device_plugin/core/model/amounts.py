"""Amounts of CPU and memory: of requests, and of the room that a node has for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPU and memory."""

    cpu_milli: int = 0
    """Thousandths of a CPU."""
    memory_mib: int = 0
    """MiB; requests are rounded up, and the room of a node down."""

    def without(self, taken: Iterable[Amounts]) -> Amounts:
        """Return the rest; less than 0 where more is taken than there is."""
        cpu, memory = self.cpu_milli, self.memory_mib
        for each in taken:
            cpu -= each.cpu_milli
            memory -= each.memory_mib
        return Amounts(cpu, memory)


NO_AMOUNTS = Amounts()

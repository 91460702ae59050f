"""The shape of a node: all of it, while it is empty, that decides which pods fit on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.wishes import NO_WISHES, Wishes

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.mix import PodKind

_BITS = 6
"""Amounts of CPU and memory are rounded to so many binary digits: machines of one type differ by some MiB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An empty node. Nodes of one shape are interchangeable."""

    sizes: tuple[int, ...]
    """Shares of each GPU, by position."""
    models: tuple[str, ...]
    """Of each GPU, likewise."""
    cpu_milli: int
    """Thousandths of a CPU that pods may request."""
    memory_mib: int

    def hosts(self, kind: PodKind) -> bool:
        """Return whether a pod fits on the empty node."""
        if kind.cpu_milli > self.cpu_milli or kind.memory_mib > self.memory_mib:
            return False
        wishes = wishes_of(kind)
        fitting = (model for size, model in zip(self.sizes, self.models, strict=True) if size >= kind.shares)
        return sum(map(wishes.allow_model, fitting)) >= kind.gpus


def wishes_of(kind: PodKind) -> Wishes:
    """Return the wishes of a kind for models."""
    use, avoid = kind.models
    return Wishes(use_models=use, avoid_models=avoid) if use or avoid else NO_WISHES


def rounded(amount: int) -> int:
    """Return an amount of CPU or memory as shapes have it: rounded to the nearest number of six binary digits."""
    finest = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + finest // 2) // finest * finest

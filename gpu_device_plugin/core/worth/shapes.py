"""The shape of a node: all of it, while it is empty, that decides which pods fit on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.core.contract.wishes import NO_WISHES, Wishes

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.mix import PodKind

_BITS = 6
"""Amounts of CPU and memory are rounded to so many binary digits: machines of one type differ by some MiB."""


class GpuKind(NamedTuple):
    """All of a GPU, or of a MIG instance, that decides which pods fit on it while it is empty."""

    size: int
    """Shares."""
    model: str
    instance: bool = False
    """It is a MIG instance, which serves pods that ask for memory of one GPU, and no others."""

    def serves(self, kind: PodKind) -> bool:
        """Return whether a pod may take it, as far as shares decide."""
        return self.size >= kind.shares and not (self.instance and needs_gpus(kind))


@dataclass(frozen=True, slots=True)
class Shape:
    """An empty node. Nodes of one shape are interchangeable."""

    sizes: tuple[int, ...]
    """Shares of each GPU, and of each MIG instance, in the order of positions."""
    models: tuple[str, ...]
    """Of each, likewise."""
    cpu_milli: int
    """Thousandths of a CPU that pods may request."""
    memory_mib: int
    cards: tuple[int | None, ...] = ()
    """Of each MIG instance the place in `sizes` of the first instance of its GPU, None of each whole GPU; empty: all
    are whole GPUs."""

    @property
    def gpus(self) -> tuple[GpuKind, ...]:
        """The kind of each GPU and instance."""
        cards = self.cards or (None,) * len(self.sizes)
        triples = zip(self.sizes, self.models, cards, strict=True)
        return tuple([GpuKind(size, model, card is not None) for size, model, card in triples])

    @property
    def whole(self) -> int:
        """The number of whole GPUs."""
        return self.cards.count(None) if self.cards else len(self.sizes)

    @property
    def whole_shares(self) -> int:
        """The shares of the whole GPUs."""
        return sum(size for size, _, instance in self.gpus if not instance) if self.cards else sum(self.sizes)

    def card(self, at: int) -> int | None:
        """Return the entry of `cards` for one GPU or instance."""
        return self.cards[at] if self.cards else None

    def hosts(self, kind: PodKind) -> bool:
        """Return whether a pod fits on the empty node."""
        if kind.cpu_milli > self.cpu_milli or kind.memory_mib > self.memory_mib:
            return False
        wishes = wishes_of(kind)
        fitting = (gpu.model for gpu in self.gpus if gpu.serves(kind))
        return sum(map(wishes.allow_model, fitting)) >= kind.gpus


def needs_gpus(kind: PodKind) -> bool:
    """Return whether no MIG instance can serve a pod: it asks for whole GPUs, or for memory of several."""
    return kind.gpus > 1 or (kind.gpus == 1 and not kind.shares)


def wishes_of(kind: PodKind) -> Wishes:
    """Return the wishes of a kind for models."""
    use, avoid = kind.models
    return Wishes(use_models=use, avoid_models=avoid) if use or avoid else NO_WISHES


def rounded(amount: int) -> int:
    """Return an amount of CPU or memory as shapes have it: rounded to the nearest number of six binary digits."""
    finest = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + finest // 2) // finest * finest

"""The shape of a node: all of it, while it is empty, that decides which pods fit on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.value.workload_mix import PodKind

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
class NodeType:
    """An empty node. Nodes of one shape are interchangeable."""

    sizes: tuple[int, ...]
    """Shares of each GPU, and of each MIG instance, in the order of positions."""
    models: tuple[str, ...]
    """Of each, likewise."""
    cpu_milli: int
    """Thousandths of a CPU that pods may request."""
    memory_mib: int
    cards: tuple[int | None, ...] = ()
    """Of each MIG instance the place in `sizes` of the first instance of its GPU, None of each whole GPU; left out: all
    are whole GPUs."""

    def __post_init__(self) -> None:
        if not self.cards:
            object.__setattr__(self, "cards", (None,) * len(self.sizes))

    @property
    def gpus(self) -> tuple[GpuKind, ...]:
        """The kind of each GPU and instance."""
        triples = zip(self.sizes, self.models, self.cards, strict=True)
        return tuple([GpuKind(size, model, card is not None) for size, model, card in triples])

    @property
    def whole(self) -> int:
        """The number of whole GPUs."""
        return self.cards.count(None)

    @property
    def whole_shares(self) -> int:
        """The shares of the whole GPUs."""
        return sum(size for size, card in zip(self.sizes, self.cards, strict=True) if card is None)

    def hosts(self, kind: PodKind) -> bool:
        """Return whether a pod fits on the empty node."""
        return self.hosts_on(Counter(self.gpus), kind)

    def hosts_on(self, gpus: Mapping[GpuKind, int], kind: PodKind) -> bool:
        """Return `hosts`, given how many GPUs of each kind the node has: of a thousand pods one after the other."""
        if kind.cpu_milli > self.cpu_milli or kind.memory_mib > self.memory_mib:
            return False
        allow = kind.wishes.allow_model
        return sum(there for gpu, there in gpus.items() if gpu.serves(kind) and allow(gpu.model)) >= kind.gpus


def needs_gpus(kind: PodKind) -> bool:
    """Return whether no MIG instance can serve a pod: it asks for whole GPUs, or for memory of several."""
    return kind.gpus > 1 or (kind.gpus == 1 and not kind.shares)


def rounded(amount: int) -> int:
    """Return an amount of CPU or memory as shapes have it: rounded to the nearest number of six binary digits."""
    finest = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + finest // 2) // finest * finest

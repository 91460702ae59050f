"""The kinds of pods and of empty nodes, which decide what fits where, and the mix of pods that come.

The last day counts most of how often each kind comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

HALF_LIFE_S = 6 * 3600.0
"""After this many seconds a pod counts half as much as one that comes now, if enough others came meanwhile."""
HALF_LIFE_PODS = 100
"""So many must have come. A mix of a day ago counts a sixteenth on a busy cluster, and a quiet one forgets nothing."""
MOST_KINDS = 512
"""The most kinds that are counted; beyond it the rarest ones are forgotten. Alibaba's traces have 136 to 457."""
MOST_WISHES = 64
"""The most different wishes for models among them, which may be 8 KiB each. Alibaba's traces have at most 17."""
_MOST_DOUBLINGS = 40
_LARGE = 0.02
"""A namespace that holds such a part of what is in use does not share its kinds with all others."""
_LEAST_HELD = 1e-6
"""A namespace that holds less, in shares, is forgotten."""
_BITS = 6
"""Amounts of CPU and memory are rounded to so many binary digits: machines of one type differ by some MiB."""


@dataclass(frozen=True, slots=True)
class PodKind:
    """All of a pod that decides where it fits."""

    shares: int = 0
    """Shares of each of its GPUs; 0: it takes them whole, or has none."""
    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    selector: GpuSelector = NO_PREFERENCES
    """Its wishes for models; it has no others."""


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
        allow = kind.selector.allow_model
        return sum(there for gpu, there in gpus.items() if gpu.serves(kind) and allow(gpu.model)) >= kind.gpus


def needs_gpus(kind: PodKind) -> bool:
    """Return whether no MIG instance can serve a pod: it asks for whole GPUs, or for memory of several."""
    return kind.gpus > 1 or (kind.gpus == 1 and not kind.shares)


def rounded(amount: int) -> int:
    """Return an amount of CPU or memory as shapes have it: rounded to the nearest number of six binary digits."""
    finest = 1 << max(0, amount.bit_length() - _BITS)
    return (amount + finest // 2) // finest * finest


@dataclass(slots=True)
class WorkloadMix:
    """Counts kinds of pods, by namespace. Weights are relative: only their ratios matter."""

    _weights: dict[str, dict[PodKind, float]] = field(default_factory=dict)
    _kinds: int = 0
    _wishes: dict[GpuSelector, GpuSelector] = field(default_factory=dict)
    """Those of the kinds, each once: it remembers the models that it was compared with."""
    _doublings: float = 0.0
    """Instead of all weights decaying, that of a new pod grows: 2 to the power of this."""
    _latest: float | None = None
    arrivals: int = 0
    """The number of pods that were counted."""
    held: Mapping[str, float] = field(default_factory=dict)
    """What each namespace has in use, in shares (`price_learning.Dominance`), as a mean in which the last hours count
    most; all pods without GPUs are as one, with an empty name. Empty: unknown."""
    _held_at: float | None = None

    def __len__(self) -> int:
        return self._kinds

    def add(self, kinds: Sequence[PodKind], now: float, namespace: str = "") -> None:
        """Count a pod that arrived at `now` (seconds by any clock); one before the latest counts like the latest.

        A pod of several kinds, one for each part, counts as one pod: each of its kinds by its part of it.
        """
        since = max(0.0, now - self._latest) if self._latest is not None else 0.0
        self._latest = now if self._latest is None else max(now, self._latest)
        self._doublings += min(since / HALF_LIFE_S, 1 / HALF_LIFE_PODS)
        if self._doublings > _MOST_DOUBLINGS:
            for weights in self._weights.values():
                weights.update({kind: old / 2**self._doublings for kind, old in weights.items()})
            self._doublings = 0.0
        there = self._weights.setdefault(namespace, {})
        before = len(there)
        for kind in kinds:
            known = self._wishes.setdefault(kind.selector, kind.selector)
            counted = kind if known is kind.selector else replace(kind, selector=known)
            there[counted] = there.get(counted, 0.0) + 2**self._doublings / len(kinds)
        self._kinds += len(there) - before
        self.arrivals += 1
        if self._kinds > 2 * MOST_KINDS or len(self._wishes) > 2 * MOST_WISHES:
            self._forget()

    def _forget(self) -> None:
        """Forget the rarest kinds: every namespace keeps its most frequent one before any keeps a second.

        Those that hold little of what is in use keep a quarter together: an owner may have any number of them.
        """
        ranked = [
            (rank, -weight, namespace, kind)
            for namespace, weights in self._weights.items()
            for rank, (kind, weight) in enumerate(sorted(weights.items(), key=lambda item: -item[1]))
        ]
        ranked.sort(key=lambda each: each[:3])
        least = _LARGE * sum(self.held.values())
        large = {name for name, held in self.held.items() if held >= least}
        self._weights, self._kinds, self._wishes = {}, 0, {}
        of_small: tuple[int, int] = 0, 0
        for _, weight, namespace, kind in ranked:
            known, small = kind.selector in self._wishes, bool(large) and namespace not in large
            room = self._kinds < MOST_KINDS and (known or len(self._wishes) < MOST_WISHES)
            if small:
                of_small = of_small[0] + 1, of_small[1] + (not known)
                room = room and of_small[0] <= MOST_KINDS // 4 and (known or of_small[1] <= MOST_WISHES // 4)
            if room:
                self._wishes[kind.selector] = kind.selector
                self._weights.setdefault(namespace, {})[kind] = -weight
                self._kinds += 1

    def hold(self, held: Mapping[str, float], now: float) -> None:
        """Take note of what each namespace has in use at `now` (seconds by any clock)."""
        kept = 0.0 if self._held_at is None else 2 ** -(max(0.0, now - self._held_at) / HALF_LIFE_S)
        self._held_at = now
        self.held = {
            name: mean
            for name in {**self.held, **held}
            if (mean := kept * self.held.get(name, 0.0) + (1 - kept) * held.get(name, 0.0)) > _LEAST_HELD
        }

    def by_namespace(self) -> Mapping[str, Mapping[PodKind, float]]:
        """Return how often each kind comes, by namespace; only ratios matter."""
        return {namespace: dict(weights) for namespace, weights in self._weights.items()}


def joined(mixes: Iterable[Mapping[PodKind, float]]) -> dict[PodKind, float]:
    """Return several mixes as one, whose sum is 1."""
    found: dict[PodKind, float] = {}
    for mix in mixes:
        for kind, weight in mix.items():
            found[kind] = found.get(kind, 0.0) + weight
    total = sum(found.values())
    return {kind: weight / total for kind, weight in found.items()} if total else {}


def kinds_of(ask: GpuRequest, amounts: Amounts) -> tuple[PodKind, ...]:
    """Return a pod as kinds: one for each part that is placed by itself, the first with all CPU and memory."""
    preferences = ask.selector.of_models
    kinds: list[PodKind] = []
    for part in ask.parts:
        demand, beside = part.demand, NO_AMOUNTS if kinds else amounts
        whole = demand.kind is Kind.COUNT
        shares, gpus = (0, demand.amount) if whole else (demand.amount // demand.gpus, demand.gpus)
        kinds.append(PodKind(shares, gpus, beside.cpu_milli, beside.memory_mib, preferences))
    return tuple(kinds) or (PodKind(cpu_milli=amounts.cpu_milli, memory_mib=amounts.memory_mib),)


def largest_kind(ask: GpuRequest, amounts: Amounts) -> PodKind:
    """Return the largest of a pod's parts as a kind, with all CPU and memory that the pod requests."""
    kinds = kinds_of(ask, amounts)
    largest = max(kinds, key=lambda kind: (kind.gpus > 0 and not kind.shares, kind.gpus * kind.shares, kind.gpus))
    return replace(largest, cpu_milli=amounts.cpu_milli, memory_mib=amounts.memory_mib)

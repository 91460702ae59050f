"""The mix of pods that come: how often each kind of pod does, with the last day counting most."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.resources import Kind as Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.asking import Ask

HALF_LIFE_S = 6 * 3600.0
"""After this many seconds a pod counts half as much as one that comes now, if enough others came meanwhile."""
HALF_LIFE_PODS = 100
"""So many must have come. A mix of a day ago counts a sixteenth on a busy cluster, and a quiet one forgets nothing."""
MOST_KINDS = 512
"""The most kinds that are counted; beyond it the rarest ones are forgotten. Alibaba's traces have 136 to 418."""
_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class PodKind:
    """All of a pod that decides where it fits."""

    shares: int = 0
    """Shares of each of its GPUs; 0: it takes them whole, or has none."""
    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The models that it wants and those that it refuses, as its annotations name them."""


@dataclass(slots=True)
class Mix:
    """Counts kinds of pods. Weights are relative: only their ratios matter."""

    _weights: dict[PodKind, float] = field(default_factory=dict)
    _doublings: float = 0.0
    """Instead of all weights decaying, that of a new pod grows: 2 to the power of this."""
    _latest: float | None = None
    came: int = 0
    """The number of pods that were counted."""

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, kind: PodKind, now: float) -> None:
        """Count a pod that came at `now` (seconds by any clock); one before the latest counts like the latest."""
        since = max(0.0, now - self._latest) if self._latest is not None else 0.0
        self._latest = now if self._latest is None else max(now, self._latest)
        self._doublings += min(since / HALF_LIFE_S, 1 / HALF_LIFE_PODS)
        if self._doublings > _MOST_DOUBLINGS:
            self._weights = {each: old / 2**self._doublings for each, old in self._weights.items()}
            self._doublings = 0.0
        self._weights[kind] = self._weights.get(kind, 0.0) + 2**self._doublings
        self.came += 1
        if len(self._weights) > 2 * MOST_KINDS:
            kept = sorted(self._weights.items(), key=lambda item: -item[1])[:MOST_KINDS]
            self._weights = dict(kept)

    def parts(self) -> Mapping[PodKind, float]:
        """Return each kind with its part of all pods, the sum of which is 1."""
        total = sum(self._weights.values())
        return {kind: weight / total for kind, weight in self._weights.items()} if total else {}


def kinds_of(ask: Ask, cpu_milli: int, memory_mib: int) -> tuple[PodKind, ...]:
    """Return a pod as kinds: one for each part that is placed by itself, the first with all CPU and memory."""
    wishes = ask.wishes
    models = wishes.use_models, wishes.avoid_models
    kinds: list[PodKind] = []
    for part in ask.parts:
        demand = part.demand
        whole = demand.kind is Resource.COUNT
        kinds.append(
            PodKind(
                0 if whole else demand.amount // demand.gpus,
                demand.amount if whole else demand.gpus,
                0 if kinds else cpu_milli,
                0 if kinds else memory_mib,
                models,
            )
        )
    return tuple(kinds) or (PodKind(cpu_milli=cpu_milli, memory_mib=memory_mib),)


def created_s(created: str) -> float:
    """Return a time of the API as seconds since the epoch; 0 if there is none, so that it counts like the latest."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0

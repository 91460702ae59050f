"""What a pod takes of its node's GPUs, by its own request and by what is written on it of the place.

An annotation alone is never believed: how much comes from the request, only where from the annotation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.annotations import MalformedAnnotationError, promises
from gpu_device_plugin.core.asking import parts_of
from gpu_device_plugin.core.pods import ContainerKind
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.annotations import Promise
    from gpu_device_plugin.core.asking import Part
    from gpu_device_plugin.core.pods import Pod
    from gpu_device_plugin.core.resources import Resource


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken, by GPU position where it is known."""

    shares: tuple[tuple[int, int], ...] = ()
    """(position, shares), by position."""
    whole: tuple[int, ...] = ()
    """Positions of GPUs taken whole."""
    unplaced_shares: int = 0
    """Shares on GPUs that nobody has told us yet: whoever bound the pod wrote no promise on it."""
    unplaced_gpus: int = 0

    @property
    def unplaced(self) -> bool:
        """Whether it is unknown where some of it lies."""
        return bool(self.unplaced_shares or self.unplaced_gpus)


NOTHING = Usage()


def usage_of(pod: Pod, resources: Iterable[Resource]) -> Usage:
    """Return what a pod takes while it is bound and has not ended; unplaced what cannot be understood of its place."""
    resources = tuple(resources)
    parts = parts_of(pod, resources)
    if not parts:
        return NOTHING
    try:
        promised = promises(pod, resources)
    except MalformedAnnotationError:
        promised = {}
    shares: Counter[int] = Counter()
    whole: set[int] = set()
    unplaced = {Kind.MEMORY: 0, Kind.COUNT: 0}
    for part in parts:
        placed = _placed(part, promised)
        if part.demand.kind is Kind.MEMORY:
            shares.update(placed)
            unplaced[Kind.MEMORY] += part.demand.amount - placed.total()
        else:
            whole.update(placed)
            unplaced[Kind.COUNT] += max(0, part.demand.amount - len(placed))
    return Usage(tuple(sorted(shares.items())), tuple(sorted(whole)), unplaced[Kind.MEMORY], unplaced[Kind.COUNT])


def _placed(part: Part, promised: Mapping[tuple[str, Kind], Promise]) -> Counter[int]:
    """Return the shares by position of which a part's place is known; never more than it asks."""
    placed: Counter[int] = Counter()
    first: Counter[int] = Counter()
    unknown = 0
    for container, amount in part.members:
        promise = promised.get((container.name, part.demand.kind))
        if container.kind is ContainerKind.INIT:
            first.update(dict(promise.shares) if promise is not None else {})
        elif promise is None:
            unknown += amount
        else:
            placed.update(dict(promise.shares))
    if part.demand.kind is Kind.COUNT:
        return placed + first
    # What only an init container had lies with what the others got of it.
    rest = part.demand.amount - placed.total() - unknown
    where = next(iter(sorted(first) or sorted(placed)), None)
    if rest > 0 and where is not None:
        placed[where] += rest
    return placed

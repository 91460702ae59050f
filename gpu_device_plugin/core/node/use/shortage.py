"""Derive whether a GPU has less free memory than is guaranteed there, and how much each container may use now.

What is unknown hurts nobody: a GPU whose use or size is not known is not short, and a container with unknown use counts
as using exactly what it is guaranteed. A container that starts uses nothing yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_LIMIT
from gpu_device_plugin.core.node.use.process_use import AttributedUse, by_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.core.node.use.process_use import Place, UseReading

_CHANGING = frozenset({MEMORY_LIMIT, MEMORY_GUARANTEE, MEMORY_HELD})
"""Annotations of a pod whose containers may use something else than they were granted when they started."""


def shortage_mib(uses: Iterable[AttributedUse], used_mib: int | None, capacity_mib: int | None) -> int:
    """Return how much more the containers with these uses of a GPU may take of their guarantees than is free there."""
    if capacity_mib is None or used_mib is None:
        return 0
    untaken = 0
    for of_pod in _by_pod(uses):
        taken = sum(use.granted_mib if use.used_mib is None else min(use.used_mib, use.granted_mib) for use in of_pod)
        untaken += max(0, _guaranteed_mib(of_pod) - taken)
    return max(0, untaken - (capacity_mib - used_mib))


def uses_now(
    reading: UseReading, holdings: Iterable[Holding], starting: Iterable[AttributedUse] = ()
) -> Mapping[str, tuple[AttributedUse, ...]]:
    """Return the containers that have a guarantee on each GPU (by UUID) now, with their use by an earlier reading.

    `starting` are those that the kubelet is about to start, with their guarantees: the kubelet's checkpoint, of which
    `holdings` are made, may not show them yet.
    """
    read = by_place(reading.containers)
    about_to_start = {use.place: use for use in starting}
    found: dict[Place, AttributedUse] = {}
    for holding in holdings:
        for uuid, granted in () if holding.whole else holding.granted.items():
            place = holding.pod_uid, holding.container, uuid
            use = read.get(place)
            used = 0 if use is None else use.used_mib
            if used is None and place in about_to_start:
                used = 0
            limit = holding.limits.get(uuid)
            found[place] = AttributedUse(*place, granted, used, None, holding, holding.pod, limit, holding.lent)
    by_gpu: dict[str, list[AttributedUse]] = {}
    for use in {**about_to_start, **found}.values():
        by_gpu.setdefault(use.uuid, []).append(use)
    return {uuid: tuple(uses) for uuid, uses in by_gpu.items()}


def limits_now(
    uses: Mapping[str, Iterable[AttributedUse]], capacity_mib: Mapping[str, int], held_back: Collection[Place]
) -> Mapping[Place, int]:
    """Return the MiB that each container may use now, for those that may use something else than when they started.

    That is the guarantee while what it borrows is needed, and otherwise no more than what nobody is guaranteed.

    Args:
        uses: the containers with a guarantee on each GPU, see `uses_now`.
        capacity_mib: the memory of each GPU without the driver's reservation.
        held_back: those that may not borrow now.
    """
    found: dict[Place, int] = {}
    for uuid, on_gpu in uses.items():
        on_gpu = tuple(on_gpu)  # noqa: PLW2901
        changing = [use for use in on_gpu if _changes(use)]
        if not changing:
            continue
        spare = max(0, capacity_mib.get(uuid, 0) - sum(map(_guaranteed_mib, _by_pod(on_gpu))))
        for use in changing:
            more = 0 if use.place in held_back else spare
            found[use.place] = min(use.allowed_mib, use.granted_mib + more)
    return found


def _changes(use: AttributedUse) -> bool:
    return (
        use.lent or use.limit_mib is not None or (use.pod is not None and not _CHANGING.isdisjoint(use.pod.annotations))
    )


def _by_pod(uses: Iterable[AttributedUse]) -> Iterable[list[AttributedUse]]:
    found: dict[str, list[AttributedUse]] = {}
    for use in uses:
        found.setdefault(use.pod_uid, []).append(use)
    return found.values()


def _guaranteed_mib(of_pod: Iterable[AttributedUse]) -> int:
    """Return what the containers of one pod are guaranteed of a GPU: what an init container hands on counts once."""
    of_pod = tuple(of_pod)
    together = [use.holding.pod_granted.get(use.uuid, 0) for use in of_pod if use.holding is not None]
    return max(together, default=0) or sum(use.granted_mib for use in of_pod)

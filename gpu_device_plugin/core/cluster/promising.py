"""Write a pod's placement as annotations, from which the node's agent allocates exactly these GPUs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import ASSIGNED, ASSUME_TIME, DEV, POD
from gpu_device_plugin.core.contract.promises import Allocation, write_allocation
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.fitting import Fit
    from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.model.placing import Placement
    from gpu_device_plugin.core.model.pods import Container


def promise(ask: Ask, found: Fit, gpus: NodeGpus, now_ns: int) -> Mapping[str, str]:
    """Return the annotations that promise a pod its GPUs of a node at `now_ns`; none for a pod without a GPU limit."""
    if not ask.parts:
        return {}
    used: dict[int, int] = defaultdict(int)
    places: list[tuple[Container, Mapping[int, int]]] = []
    for part, placement in zip(ask.parts, found.placements, strict=True):
        for position, shares in placement.shares:
            used[position] += shares
        places += zip((container for container, _ in part.members), _members(part, placement), strict=True)
    return {
        **write_allocation(Allocation.of(places, used)),
        POD: str(sum(used.values())),
        DEV: str(max(gpu.shares for gpu in gpus.gpus if gpu.position in used)),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }


def _members(part: Part, placement: Placement) -> list[dict[int, int]]:
    """Return the promise to each container of a part: shares by GPU position."""
    if part.demand.kind is Kind.MEMORY:
        if part.demand.gpus > 1:
            return [dict(placement.shares)]
        (position,) = placement.positions
        return [{position: amount} for _, amount in part.members]
    promised: list[dict[int, int]] = []
    first = 0
    for container, amount in part.members:
        # The containers after an init container reuse its GPUs; any other container keeps its own.
        start = first
        if not container.hands_on:
            first += amount
        promised.append(dict(placement.shares[start : start + amount]))
    return promised

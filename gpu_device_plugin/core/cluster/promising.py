"""What the scheduler writes on a pod for its place, so that the node's agent gives it exactly that."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    IDX,
    INIT_ALLOCATION,
    POD,
)
from gpu_device_plugin.core.model.pods import ContainerKind
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.asking import Ask, Part
    from gpu_device_plugin.core.cluster.fitting import Fit
    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.model.placing import Placement


def promise(ask: Ask, found: Fit, gpus: NodeGpus, now_ns: int) -> Mapping[str, str]:
    """Return the annotations that promise a pod its place; none for a pod that asks for nothing.

    Args:
        ask: what the pod asks, with its containers.
        found: its place.
        gpus: the GPUs of the node.
        now_ns: nanoseconds since the epoch.
    """
    if not ask.parts:
        return {}
    by_index: dict[str, dict[str, dict[str, int]]] = {ALLOCATION: {}, INIT_ALLOCATION: {}}
    used: dict[int, int] = defaultdict(int)
    for part, placement in zip(ask.parts, found.placements, strict=True):
        for position, shares in placement.shares:
            used[position] += shares
        for (container, _), promised in zip(part.members, _members(part, placement), strict=True):
            key = ALLOCATION if container.kind is ContainerKind.APP else INIT_ALLOCATION
            by_index[key][str(container.index)] = {str(position): shares for position, shares in promised.items()}
    return {
        **({IDX: str(next(iter(used)))} if len(used) == 1 else {}),
        POD: str(sum(used.values())),
        DEV: str(max(gpu.shares for gpu in gpus.gpus if gpu.position in used)),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
        **{key: json.dumps(value, separators=(",", ":")) for key, value in by_index.items() if value},
    }


def _members(part: Part, placement: Placement) -> list[dict[int, int]]:
    """Return what each container of a part is promised: shares by position."""
    if part.demand.kind is Kind.MEMORY:
        if part.demand.gpus > 1:
            return [dict(placement.shares)]
        (position,) = placement.positions
        return [{position: amount} for _, amount in part.members]
    promised: list[dict[int, int]] = []
    first = 0
    for container, amount in part.members:
        # An init container has its GPUs for a while, the others after it keep theirs.
        start = first
        if container.kind is not ContainerKind.INIT:
            first += amount
        promised.append(dict(placement.shares[start : start + amount]))
    return promised

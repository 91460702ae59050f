"""Decide what a node's annotation says about the use of its GPUs, and when it is written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodereport import NodeUse, UsedGpu, UsedPart
from gpu_device_plugin.core.model.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.limits import LimitState, Rung
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.over_use import Excess, Place
    from gpu_device_plugin.core.node.use import ContainerUse, UseReading

SOON_S = 5.0
"""Least seconds between two writings. Pods often start and end in groups, and each writing is two calls of the API."""
SELDOM_S = 60.0
"""Least seconds between two writings of which only figures differ."""
AGAIN_S = 300.0
"""Seconds after which the same is written again, so that readers can tell a node where nothing changes from one whose
agent has ended. A kubelet reports an unchanged node as often."""
_LEAST_MIB = 256
_LEAST_PART = 0.05
"""Figures that differ by less than both of these count as the same."""


def node_use(
    reading: UseReading,
    limits: Mapping[Place, LimitState],
    over: Mapping[Place, Excess],
    shares: Shares,
    *,
    epoch: float,
) -> NodeUse:
    """Return the use of a node's GPUs with the state of each container's limit.

    Args:
        reading: who uses what. GPUs that are not shared are left out: they have no position.
        limits: whether the limit of each container holds.
        over: the containers that use more than they were granted.
        shares: the node's GPUs.
        epoch: the time since the epoch at which monotonic time was 0, in seconds.
    """
    gpus = {
        shared.position: UsedGpu(used, reading.unattributed_mib.get(uuid))
        for uuid, used in reading.used_mib.items()
        if (shared := shares.by_uuid(uuid)) is not None
    }
    parts = []
    for use in reading.containers:
        shared = shares.by_uuid(use.uuid)
        if shared is not None:
            place = use.pod_uid, use.container, use.uuid
            excess = over.get(place)
            since = "" if excess is None else rfc3339(epoch + excess.since)
            parts.append(_part(use, shared.position, limits.get(place), since))
    parts.sort(key=_name)
    return NodeUse(rfc3339(epoch + reading.at), gpus, tuple(parts), reading.blind)


def _part(use: ContainerUse, position: int, limit: LimitState | None, over_since: str) -> UsedPart:
    return UsedPart(
        namespace="" if use.pod is None else use.pod.namespace,
        pod=use.pod_uid if use.pod is None else use.pod.name,
        container=use.container,
        gpu=position,
        granted_mib=use.granted_mib,
        used_mib=use.used_mib,
        sm_percent=use.sm_percent,
        rung=_rung(use) if limit is None else limit.rung,
        held=None if limit is None else limit.held,
        found_mib=None if limit is None else limit.found_mib,
        why="" if limit is None else limit.why,
        over_since=over_since,
    )


def _rung(use: ContainerUse) -> Rung | None:
    """Return by which means a container is limited of which no state is known: `advisory` has none to be known."""
    return None if use.holding is None or use.holding.whole else use.holding.rung


def due_in_s(
    written: NodeUse | None, now: NodeUse, age_s: float, soon_s: float = SOON_S, seldom_s: float = SELDOM_S
) -> float:
    """Return after how many seconds the annotation is to be written again.

    What holds, who is there and who uses too much is told at once; figures seldom, and only if they differ by much.
    The use of the multiprocessors alone is no reason: it changes with every reading.

    Args:
        written: the use that it tells; None: it was not written yet.
        now: the newest use.
        age_s: seconds since it was written.
        soon_s: least seconds between two writings.
        seldom_s: least seconds between two writings of which only figures differ.
    """
    if written is None:
        return 0.0
    if _states(written) != _states(now):
        return max(0.0, soon_s - age_s)
    before, after = _figures(written), _figures(now)
    if any(_differ(before[name], after[name]) for name in after) or _reasons(written) != _reasons(now):
        return max(0.0, seldom_s - age_s)
    return max(0.0, AGAIN_S - age_s)


def _name(part: UsedPart) -> tuple[int, str, str, str]:
    return part.gpu, part.namespace, part.pod, part.container


def _states(use: NodeUse) -> object:
    parts = {
        _name(part): (part.granted_mib, part.rung, part.held, part.found_mib, bool(part.over_since))
        for part in use.parts
    }
    return use.blind, use.gpus.keys(), parts


def _figures(use: NodeUse) -> Mapping[object, int | None]:
    figures: dict[object, int | None] = {_name(part): part.used_mib for part in use.parts}
    for position, gpu in use.gpus.items():
        figures[position, "used"] = gpu.used_mib
        figures[position, "unattributed"] = gpu.unattributed_mib
    return figures


def _reasons(use: NodeUse) -> object:
    return {_name(part): part.why for part in use.parts}


def _differ(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(_LEAST_MIB, _LEAST_PART * before)

"""Decide which GPUs have failed, and which pods should leave them.

A GPU that is not watched (the driver hangs, the agent is paused) has not failed: its grace begins anew when it is
watched again. So does that of a GPU that was reset and is on its way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.features.eviction.rules import Candidate
from gpu_device_plugin.node.rules.health.node_condition import failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
    from gpu_device_plugin.node.rules.health.gpu_health import GpuHealth


@dataclass(frozen=True, slots=True)
class Failed:
    """A GPU that fails."""

    since: float
    """Monotonic seconds."""
    why: str


def failures(
    before: Mapping[str, Failed], healths: Mapping[str, GpuHealth], *, watched: bool, now: float
) -> Mapping[str, Failed]:
    """Return the GPUs (by UUID) that fail, after a look at the healths of all; `watched`: the driver answers."""
    return {
        uuid: Failed(min(before[uuid].since, now) if uuid in before else now, why)
        for uuid, health in healths.items()
        if watched and (why := failure(health))
    }


def lasting(failing: Mapping[str, Failed], grace_s: float, now: float) -> Mapping[str, Failed]:
    """Return the GPUs that have failed for the grace."""
    return {uuid: failed for uuid, failed in failing.items() if now - failed.since >= grace_s}


def on_failed(lasting: Mapping[str, Failed], holders: Iterable[ContainerGpus]) -> tuple[Candidate, ...]:
    """Return the pods that hold GPUs that failed, with shares or whole; those that the API does not know are left out.

    Of two pods with one priority the one with more memory of the GPU goes first.
    """
    return tuple(
        Candidate(holder.pod, uuid, granted)
        for holder in holders
        if holder.pod is not None
        for uuid, granted in holder.granted.items()
        if uuid in lasting
    )

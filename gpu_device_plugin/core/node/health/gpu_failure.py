"""Decide which GPUs have failed: which pods should leave them, and what the node condition GPUHealthy says.

A GPU that is not watched (the driver hangs, the agent is paused) has not failed: its grace begins anew when it is
watched again. So does that of a GPU that was reset and is on its way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.health.gpu_health import Cause
from gpu_device_plugin.core.node.use.eviction_choice import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.node.health.gpu_health import GpuHealth
    from gpu_device_plugin.core.node.holdings import Holding

OWN_CAUSES = frozenset(Cause) - {Cause.UNWATCHED, Cause.RESET}
"""The causes that lie in the GPU itself and last."""


def failure(health: GpuHealth) -> str:
    """Return why a GPU has failed, as a clause; empty if it has not, or if that is not known."""
    if any(problem.cause is Cause.UNWATCHED for problem in health.problems):
        return ""
    return "; ".join(problem.what for problem in health.problems if problem.cause in OWN_CAUSES)


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


def on_failed(lasting: Mapping[str, Failed], holdings: Iterable[Holding]) -> tuple[Candidate, ...]:
    """Return the pods that hold GPUs that failed, with shares or whole; those that the API does not know are left out.

    Of two pods with one priority the one with more memory of the GPU goes first.
    """
    return tuple(
        Candidate(holding.pod, uuid, granted)
        for holding in holdings
        if holding.pod is not None
        for uuid, granted in holding.granted.items()
        if uuid in lasting
    )


# --- The condition, by which tools that repair nodes see failed GPUs --------------------------------------------------

MOST_MESSAGE = 1024
"""Characters of the message. The API has no limit of its own."""


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """The condition's value."""

    status: str
    """``True``, ``False``, or ``Unknown``, which no tool repairs a node for."""
    reason: str
    message: str


def gpu_condition(gpus: Iterable[tuple[int, GpuHealth]], *, watched: bool, sentence: str) -> GpuCondition:
    """Return the condition of a node with these shared GPUs, by position; `watched`: the driver answers.

    `sentence` is the message while no GPU is shared or watched.
    """
    gpus = tuple(gpus)
    if not watched:
        return _of("Unknown", "NotWatched", sentence)
    if not gpus:
        return _of("Unknown", "NoGPU", sentence)
    failed = [f"GPU {position}: {why}" for position, health in gpus if (why := failure(health))]
    if failed:
        return _of("False", "GPUUnhealthy", ". ".join(failed))
    unsure = [f"GPU {position}: {'; '.join(health.reasons)}" for position, health in gpus if not health.healthy]
    if unsure:
        return _of("Unknown", "NotWatched", ". ".join(unsure))
    return _of("True", "GPUsHealthy", f"{len(gpus)} of {len(gpus)} GPUs are healthy")


def _of(status: str, reason: str, message: str) -> GpuCondition:
    return GpuCondition(
        status, reason, message if len(message) <= MOST_MESSAGE else f"{message[: MOST_MESSAGE - 3]}..."
    )

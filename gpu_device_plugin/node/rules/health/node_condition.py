"""Derive the node condition GPUHealthy, by which tools that repair nodes see failed GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.node.rules.health.gpu_health import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.node.rules.health.gpu_health import GpuHealth

OWN_CAUSES = frozenset(Cause) - {Cause.UNWATCHED, Cause.RESET}
"""The causes that lie in the GPU itself and last."""


def failure(health: GpuHealth) -> str:
    """Return why a GPU has failed, as a clause; empty if it has not, or if that is not known."""
    if any(problem.cause is Cause.UNWATCHED for problem in health.problems):
        return ""
    return "; ".join(problem.what for problem in health.problems if problem.cause in OWN_CAUSES)


MOST_MESSAGE = 1024
"""Characters of the message. The API has no limit of its own."""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """The condition's value."""

    status: str
    """``True``, ``False``, or ``Unknown``, which no tool repairs a node for."""
    reason: str
    message: str


def gpu_condition(gpus: Iterable[tuple[int, GpuHealth]], *, watched: bool, sentence: str) -> NodeCondition:
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


def _of(status: str, reason: str, message: str) -> NodeCondition:
    return NodeCondition(
        status, reason, message if len(message) <= MOST_MESSAGE else f"{message[: MOST_MESSAGE - 3]}..."
    )

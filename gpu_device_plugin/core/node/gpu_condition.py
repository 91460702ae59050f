"""Decide the node condition GPUHealthy, by which tools that repair nodes see failed GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.gpu_failure import failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.node.health import Belief

MOST_MESSAGE = 1024
"""Characters of the message. The API has no limit of its own."""


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """The condition's value."""

    status: str
    """``True``, ``False``, or ``Unknown``, which no tool repairs a node for."""
    reason: str
    message: str


def gpu_condition(gpus: Iterable[tuple[int, Belief]], *, watched: bool, sentence: str) -> GpuCondition:
    """Return the condition of a node.

    Args:
        gpus: position of each shared GPU, and the belief about it.
        watched: the driver answers.
        sentence: why no GPU is shared or watched, for the message.
    """
    gpus = tuple(gpus)
    if not watched:
        return _of("Unknown", "NotWatched", sentence)
    if not gpus:
        return _of("Unknown", "NoGPU", sentence)
    failed = [f"GPU {position}: {why}" for position, belief in gpus if (why := failure(belief))]
    if failed:
        return _of("False", "GPUUnhealthy", ". ".join(failed))
    unsure = [f"GPU {position}: {'; '.join(belief.reasons)}" for position, belief in gpus if not belief.healthy]
    if unsure:
        return _of("Unknown", "NotWatched", ". ".join(unsure))
    return _of("True", "GPUsHealthy", f"{len(gpus)} of {len(gpus)} GPUs are healthy")


def _of(status: str, reason: str, message: str) -> GpuCondition:
    return GpuCondition(
        status, reason, message if len(message) <= MOST_MESSAGE else f"{message[: MOST_MESSAGE - 3]}..."
    )

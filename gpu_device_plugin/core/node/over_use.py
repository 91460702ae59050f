"""Decide which containers use more GPU memory than they were granted, since when, and which pod has to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpu_device_plugin.core.model.pods import Pod

Place: TypeAlias = tuple[str, str, str]
"""One container on one GPU: pod UID as the kubelet knows it, container name, UUID of the GPU."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A container that has used more than it was granted, beyond the slack, in every reading for the grace."""

    place: Place
    used_mib: int
    granted_mib: int
    """0: it was not given the GPU."""
    since: float
    """Monotonic seconds of the first reading that showed it."""
    pod: Pod | None = None
    """None: not known in the API."""

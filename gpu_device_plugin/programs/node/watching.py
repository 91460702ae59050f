"""What the settings say of watching the GPUs: the times, and the rules of health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.health import Rules
from gpu_device_plugin.hardware.monitor import Timings

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings


def timings(settings: NodeSettings) -> Timings:
    """Return the intervals and timeouts of the hardware's monitor."""
    return Timings(
        probe_every_s=settings.probe_interval_s,
        answer_within_s=settings.nvml_timeout_s,
        blind_after_s=settings.blind_after_s,
    )


def rules(settings: NodeSettings) -> Rules:
    """Return which observations make a GPU unhealthy."""
    return Rules(
        ignored_xids=frozenset(settings.ignored_xids),
        fatal_xids=frozenset(settings.fatal_xids),
        remap_pending_is_fatal=settings.row_remap_pending == "unhealthy",
    )

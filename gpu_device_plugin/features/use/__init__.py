"""Reads which container uses how much of which GPU, and reports it."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import duration
from gpu_device_plugin.settings.knobs import Settings, knob


class UseSettings(Settings):
    """How often the use of GPUs is read."""

    usage_interval_s: float = knob(
        "15s",
        duration(zero=True),
        "How often to read the memory that each container uses. 0s: never.",
        live=True,
    )

"""Remembers the last hour of GPUs and containers, and records incidents."""

from __future__ import annotations

from gpu_device_plugin.model.telemetry import TelemetryGroup
from gpu_device_plugin.settings.forms import some_of
from gpu_device_plugin.settings.knobs import Settings, knob


class HistorySettings(Settings):
    """What is read of the condition of GPUs."""

    condition: tuple[TelemetryGroup, ...] = knob(
        ",".join(TelemetryGroup),
        some_of(*TelemetryGroup, none="off"),
        "Readings of the GPUs' condition every 15 seconds, for metrics, history and `doctor`; off: none.",
        live=True,
    )

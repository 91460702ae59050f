"""Finds containers that use more GPU memory than they may, tells their owners, and chooses whom to evict."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import duration, one_of, size
from gpu_device_plugin.settings.knobs import Settings, knob


class OverUseSettings(Settings):
    """When a container exceeds its part, and what follows."""

    over_use: str = knob(
        "report",
        one_of("report", "evict", "evict-when-short"),
        "What happens to a pod that uses more GPU memory than it was granted: report (metric, Event, annotation), "
        "evict, or evict-when-short (evict only while its GPU has too little free memory for what others were "
        "granted).",
        live=True,
    )
    over_use_slack_mib: int = knob(
        "512MiB",
        size(0),
        "Memory that a container may use beyond its grant without being reported; at least 5 % of the grant. A CUDA "
        "context takes up to 800 MiB.",
        live=True,
    )
    over_use_grace_s: float = knob(
        "3m",
        duration(),
        "How long a container must exceed its grant, in every reading, before it is reported.",
        live=True,
    )

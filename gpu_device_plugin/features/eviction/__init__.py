"""Evicts pods from GPUs that have failed, and pods that exceed their part, one after the other."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import duration, one_of
from gpu_device_plugin.settings.knobs import Settings, knob


class GpuFailureSettings(Settings):
    """What becomes of pods on failed GPUs."""

    on_gpu_failure: str = knob(
        "report",
        one_of("report", "evict"),
        "What happens to pods on a failed GPU: report (Event on the node), or evict.",
        live=True,
    )
    gpu_failure_grace_s: float = knob(
        "1m", duration(), "How long a GPU must be unhealthy before its pods are evicted.", live=True
    )


class EvictionSettings(Settings):
    """How pods are evicted."""

    eviction_grace_s: float = knob(
        "60s",
        duration(),
        "The longest time for an evicted pod to end, whatever its terminationGracePeriodSeconds.",
        live=True,
    )

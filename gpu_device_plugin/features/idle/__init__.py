"""Finds pods that leave their GPUs idle, says since when, and decides what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_device_plugin.features.use import UseSettings
from gpu_device_plugin.settings.forms import duration, number
from gpu_device_plugin.settings.knobs import Settings, SettingsError, knob


class IdleSettings(UseSettings):
    """When a pod leaves its GPUs idle."""

    idle_after_s: float = knob(
        "0s",
        duration(zero=True),
        "How long every reading must find a pod's GPUs idle before that is reported (metric, Event, annotation). 0s: "
        "never.",
        live=True,
    )
    idle_below: int = knob(
        "1",
        number(0, 100),
        "The highest use of the multiprocessors, in percent of the time, at which a container counts as idle.",
        live=True,
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
        if self.idle_after_s and not self.usage_interval_s:
            yield SettingsError(
                "idle pods are found by their GPU use, which usage_interval=0s leaves unread; give an interval, or "
                "set idle_after to 0s",
                ("idle_after", "usage_interval"),
            )


class IdleActionSettings(Settings):
    """What is done with pods that leave their GPUs idle."""

    idle_warning_s: float = knob(
        "10m",
        duration(zero=True),
        "How long an idle pod is warned before the annotation gpu-device-plugin/when-idle, its own or its "
        "namespace's, has it evicted or its workload scaled to zero.",
        live=True,
    )

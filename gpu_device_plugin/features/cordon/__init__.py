"""Cordons GPUs: they get no new containers, and running ones stay."""

from __future__ import annotations

from gpu_device_plugin.model.telemetry import FAULTS
from gpu_device_plugin.settings.forms import one_of, several
from gpu_device_plugin.settings.knobs import Settings, knob


class CordonSettings(Settings):
    """For which faults the agent puts a GPU aside."""

    cordon_on: tuple[str, ...] = knob(
        "",
        several("|".join(FAULTS), one_of(*FAULTS).read),
        "Faults that, once they have lasted for 10 minutes, make the agent cordon a GPU, which gets no new pods until "
        "a person uncordons it. Empty: none.",
        live=True,
    )

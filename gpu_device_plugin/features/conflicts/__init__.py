"""Finds other plugins and drivers that offer the node's GPUs, and keeps the agent from registering beside them."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import SWITCH
from gpu_device_plugin.settings.knobs import Settings, knob


class ConflictSettings(Settings):
    """Whether other programs may hand out GPUs of the node."""

    allow_other_plugins: bool = knob(
        "false",
        SWITCH,
        "Share GPUs beside another device plugin or DRA driver of this node. Safe only if it hands out other GPUs: "
        "see exclude_gpus.",
        live=True,
    )

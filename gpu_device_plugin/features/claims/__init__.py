"""Gives GPUs to ResourceClaims, as a DRA driver."""

from __future__ import annotations

from pathlib import Path

from gpu_device_plugin.settings.forms import DIRECTORY
from gpu_device_plugin.settings.knobs import Settings, knob


class ClaimSettings(Settings):
    """Where the agent writes what ResourceClaims need."""

    cdi_dir: Path = knob(
        "/var/run/cdi",
        DIRECTORY,
        "Directory of the container runtime's CDI files, one for each ResourceClaim served.",
        in_profile=False,
    )

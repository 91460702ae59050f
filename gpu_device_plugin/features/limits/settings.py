"""The settings of the limit helper, with their defaults, forms and descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpu_device_plugin.settings.common import LogSettings
from gpu_device_plugin.settings.forms import DIRECTORY, GPU_SOURCE
from gpu_device_plugin.settings.knobs import knob

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class LimitHelperSettings(LogSettings):
    """The settings of a limit helper."""

    COMMAND: ClassVar[str] = "limits"

    memory_dir: Path = knob(
        "/run/gpushare/memory",
        DIRECTORY,
        "Directory in which the node's agent says which limits it wants, its setting memory_dir.",
    )
    gpus: str = knob(
        "nvml",
        GPU_SOURCE,
        "Source of the GPUs, the agent's setting gpus: nvml, or for tests a description of fake ones.",
    )

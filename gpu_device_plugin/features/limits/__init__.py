"""Verifies the memory limits of containers, and sets those of running ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.features.use import UseSettings
from gpu_device_plugin.model.limits import CHOOSABLE, Enforcement
from gpu_device_plugin.settings.common import LogSettings
from gpu_device_plugin.settings.forms import DIRECTORY, GPU_SOURCE, OPTIONAL_PATH, one_of
from gpu_device_plugin.settings.knobs import SettingsError, knob


class LimitSettings(UseSettings):
    """How containers are held to their parts of a GPU."""

    limits: str = knob(
        "auto",
        one_of("auto", *CHOOSABLE),
        "Who holds containers to their memory limits: driver (r615), dmem (the kernel's cgroup controller, not for "
        "NVIDIA's GPUs), mps (NVIDIA's MPS), custom (extra_grant), advisory (nobody; a variable names the limit), or "
        "auto (driver or dmem, else advisory). The node labels "
        "gpu-device-plugin/set-limits and ack.node.gpu.schedule override it.",
        live=True,
    )
    limits_fallback: str = knob(
        "refuse",
        one_of("refuse", "advisory"),
        "What happens to containers if the enforcement in `limits` is not available: refuse, or advisory.",
        live=True,
    )
    soft_limit: str = knob(
        "zero",
        one_of("zero", "share"),
        "Soft limit for the driver: zero, or the container's shares. The driver adds soft limits to the parent "
        "cgroups, and never subtracts those of ended containers.",
        live=True,
    )
    cu_mask: str = knob(
        "off",
        one_of("off", "by-share"),
        "Whether HSA_CU_MASK asks containers on AMD GPUs to keep to a part of the compute units: off, or by-share (as "
        "large as their part of the memory). Advisory: programs may ignore it.",
        live=True,
    )
    extra_grant: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "YAML file with variables and mounts for containers with shares if limits is custom, read when the agent "
        "starts. Among settings its suffix must not be .yaml: /etc/gpushare/extra.grant.",
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
        if self.limits == Enforcement.CUSTOM and self.extra_grant is None:
            yield SettingsError(
                "limits is custom, and no file says what containers get for that; name it in extra_grant, or choose "
                "another value of limits",
                ("limits", "extra_grant"),
            )


class LimitHelperSettings(LogSettings):
    """The settings of a limit helper."""

    COMMAND: ClassVar[str] = "limits"

    memory_dir: Path = knob(
        "/run/gpushare/memory",
        DIRECTORY,
        "Directory in which the agent requests limits; its setting memory_dir.",
    )
    gpus: str = knob(
        "auto",
        GPU_SOURCE,
        "Source of the GPUs, as the agent's setting gpus.",
    )

"""Decide whether the driver can enforce a container's memory limit on a GPU, or say why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.model.gpus import Gpu

_CGROUP = 2
"""The cgroup version for which NVIDIA's toolkit can limit GPU memory."""


def unlimited(gpu: Gpu, cgroup: int | None) -> str:
    """Return why the driver cannot enforce a container's memory limit on this GPU; empty if it can.

    If it cannot, the container must not request a limit from NVIDIA's toolkit: the hook of nvidia-container-toolkit
    after 1.20.0 would fail, and the container would not start. `cgroup` is the node's cgroup version; None if unknown.
    """
    if gpu.mig:
        return "it is in MIG mode"
    if not gpu.memory_limits:
        return "its driver has no memory limits, which come with r615"
    if cgroup is None:
        return "the node's cgroup version is unknown, and must be 2"
    return "" if cgroup == _CGROUP else f"the node's cgroup version is {cgroup}, and must be 2"


def enforcement(gpus: Iterable[Gpu], cgroup: int | None) -> str:
    """Return whether the driver enforces memory limits on these GPUs, or on which GPUs it does not, and why."""
    advisory: dict[str, list[str]] = {}
    enforced = False
    for gpu in gpus:
        if why := unlimited(gpu, cgroup):
            advisory.setdefault(why, []).append(str(gpu.index))
        else:
            enforced = True
    if not advisory:
        return "enforced by the driver with nvidia-container-toolkit 1.20.1 or newer" if enforced else "there is no GPU"
    if len(advisory) == 1 and not enforced:
        return f"advisory: {next(iter(advisory))}"
    return "advisory " + ", ".join(f"on GPU {', '.join(indexes)} ({why})" for why, indexes in advisory.items())

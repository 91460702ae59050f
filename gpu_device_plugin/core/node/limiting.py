"""Whether the driver can hold a container to its memory on a GPU, and if not, why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.model.gpus import Gpu

_CGROUP = 2
"""The version of control groups that NVIDIA's toolkit can limit GPU memory for."""


def unlimited(gpu: Gpu, cgroup: int | None) -> str:
    """Say why the driver cannot hold a container to its memory on this GPU; empty: it can.

    Where it cannot, nobody may ask NVIDIA's toolkit for it: the hook of nvidia-container-toolkit after 1.20.0 then
    fails, and the container does not start. `cgroup` is the version of control groups on its node; None: not known.
    """
    if gpu.mig:
        return "it is in MIG mode"
    if not gpu.memory_limits:
        return "its driver has no limits of memory, which come with r615"
    if cgroup is None:
        return "the version of control groups here is not known, and must be 2"
    return "" if cgroup == _CGROUP else f"the node has version {cgroup} of control groups, and it must be 2"


def enforcement(gpus: Iterable[Gpu], cgroup: int | None) -> str:
    """Say who holds containers to their memory on these GPUs: the driver, or on some or all of them nobody, and why."""
    advisory: dict[str, list[str]] = {}
    enforced = False
    for gpu in gpus:
        if why := unlimited(gpu, cgroup):
            advisory.setdefault(why, []).append(str(gpu.index))
        else:
            enforced = True
    if not advisory:
        return "the driver's, where nvidia-container-toolkit is 1.20.1 or newer" if enforced else "there is no GPU"
    if len(advisory) == 1 and not enforced:
        return f"advisory: {next(iter(advisory))}"
    return "advisory " + ", ".join(f"on GPU {', '.join(indexes)} ({why})" for why, indexes in advisory.items())

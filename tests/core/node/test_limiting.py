"""Whether the driver can enforce a container's memory limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.core.model.gpus import Gpu
from gpu_device_plugin.core.node.limiting import enforcement, unlimited

GPU = Gpu("GPU-a", 0, "NVIDIA H200", 143_771, memory_limits=True)
OLD = replace(GPU, uuid="GPU-b", index=1, memory_limits=False)
NONE = "its driver has no memory limits, which come with r615"
MIG = replace(GPU, uuid="GPU-c", index=2, mig=True)


@pytest.mark.parametrize(
    ("gpu", "cgroup", "why"),
    [
        (GPU, 2, ""),
        (GPU, 1, "the node's cgroup version is 1, and must be 2"),
        (GPU, None, "the node's cgroup version is unknown, and must be 2"),
        (OLD, 2, NONE),
        (MIG, 2, "it is in MIG mode"),
    ],
)
def test_the_driver_limits_memory_where_nvml_can_cgroup_is_2_and_there_is_no_mig(
    gpu: Gpu, cgroup: int | None, why: str
) -> None:
    """Where one of the three is missing, the hook of nvidia-container-toolkit 1.20.1 fails the container."""
    assert unlimited(gpu, cgroup) == why


@pytest.mark.parametrize(
    ("gpus", "cgroup", "sentence"),
    [
        ((GPU,), 2, "enforced by the driver with nvidia-container-toolkit 1.20.1 or newer"),
        ((GPU, replace(GPU, index=1)), 1, "advisory: the node's cgroup version is 1, and must be 2"),
        ((GPU, OLD, replace(OLD, index=3), MIG), 2, f"advisory on GPU 1, 3 ({NONE}), on GPU 2 (it is in MIG mode)"),
        ((OLD, MIG), 2, f"advisory on GPU 1 ({NONE}), on GPU 2 (it is in MIG mode)"),
        ((), 2, "there is no GPU"),
    ],
)
def test_a_node_says_whether_memory_limits_are_enforced(
    gpus: tuple[Gpu, ...], cgroup: int | None, sentence: str
) -> None:
    assert enforcement(gpus, cgroup) == sentence

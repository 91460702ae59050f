"""The keys of annotations and labels on pods and nodes, which other programs know."""

from __future__ import annotations

from gpu_device_plugin.core.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CGPU_DISABLE_LABEL,
    DEV,
    IDX,
    INIT_ALLOCATION,
    NODE_GPUS,
    NODE_LABELS,
    POD,
    POD_ANNOTATIONS,
)
from gpu_device_plugin.core.contract.nodegpus import NODE_GPUS_VERSION


def test_the_keys_are_those_of_gpushare() -> None:
    assert {IDX, POD, DEV, ASSIGNED, ASSUME_TIME} == {
        f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")
    }
    assert ALLOCATION == "scheduler.framework.gpushare.allocation"
    assert {IDX, POD, DEV, ASSIGNED, ASSUME_TIME, ALLOCATION, INIT_ALLOCATION} == POD_ANNOTATIONS
    assert CGPU_DISABLE_LABEL == "cgpu.disable.isolation"
    assert (NODE_GPUS, NODE_LABELS, NODE_GPUS_VERSION) == ("gpu-device-plugin/gpus", "gpu-device-plugin/", 1)

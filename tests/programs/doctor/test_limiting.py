"""What the doctor finds of memory limits in the files of a node."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.contract.mpsfiles import STATE_FILE, MpsGpu, MpsState, MpsStatus, write_state
from gpu_device_plugin.core.node.mps import NOT_THERE, SILENT
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.programs.doctor.limiting import mps_daemons, with_driver_limits
from gpu_device_plugin.testing.kubelet_files import Entry, write_checkpoint
from tests.names import COUNT, MEM

if TYPE_CHECKING:
    from pathlib import Path

READY = {"GPU-a": MpsGpu(MpsStatus.READY, pipe_directory="/run/x/a")}
ENDED = SILENT


@pytest.mark.parametrize(("age_s", "found"), [(0.0, READY), (3600.0, ENDED), (-3600.0, ENDED)])
def test_daemons_are_those_of_a_supervisor_that_still_writes(
    tmp_path: Path, age_s: float, found: dict[str, MpsGpu] | str
) -> None:
    """The time of another boot may be ahead."""
    beat_s = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
    (tmp_path / STATE_FILE).write_text(write_state(MpsState(READY, beat_s)))
    assert mps_daemons(tmp_path) == found


def test_a_node_without_a_supervisor_or_with_a_damaged_file_says_so(tmp_path: Path) -> None:
    assert mps_daemons(tmp_path / "missing") == mps_daemons(tmp_path) == NOT_THERE
    (tmp_path / STATE_FILE).write_bytes(b"\xff{")
    assert str(mps_daemons(tmp_path)).startswith("state.json cannot be parsed: ")
    (tmp_path / STATE_FILE).unlink()
    (tmp_path / STATE_FILE).mkdir()
    assert str(mps_daemons(tmp_path)).startswith(f"{tmp_path / STATE_FILE}: ")


def entry(pod: str, container: str, resource: str, **envs: str) -> Entry:
    return Entry(pod, container, resource, {-1: (f"{pod}-{container}",)}, ContainerAllocateResponse(envs=envs))


def test_containers_that_carry_the_pair_are_those_of_the_kubelets_record(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    pair = {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "4096"}
    entries = [
        entry("b", "main", MEM, **pair),
        entry("a", "side", MEM, **pair),
        entry("a", "main", MEM, OTHER="1"),
        entry("a", "other", COUNT, **pair),
    ]
    write_checkpoint(file, entries, {})
    assert with_driver_limits(file, MEM) == ("a/side", "b/main")


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", "{}", '{"Data": 1}', '{"Data": {"PodDeviceEntries": [1]}}']
    + [json.dumps({"Data": {"PodDeviceEntries": [{"ResourceName": MEM, "AllocResp": resp}]}}) for resp in ("/w==", 5)],
)
def test_of_an_unreadable_record_nothing_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_text(content)
    assert with_driver_limits(tmp_path / "checkpoint", MEM) == ()

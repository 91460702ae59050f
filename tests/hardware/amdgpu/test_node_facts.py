"""Tests for what people are told of a node's kernel: its version, and what may be read."""

from pathlib import Path

import pytest

from gpu_device_plugin.hardware.amdgpu.drm_driver import node_facts
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from tests.hardware.amdgpu.trees import write

BOUND = {
    "/sys/bus/pci/drivers/amdgpu/0000:C1:00.0@": "x",
    "/proc/sys/kernel/osrelease": "6.16.3-arch1-1",
    "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000080004",
}


def test_a_node_without_nvidias_gpus(tmp_path: Path) -> None:
    write(tmp_path, BOUND)
    assert node_facts(str(tmp_path)) == ("6.16.3-arch1-1", False, True, True)


def test_a_gpu_of_nvidias_beside_them_and_a_process_without_rights(tmp_path: Path) -> None:
    device = "/sys/bus/pci/devices/0000:01:00.0"
    beside = {f"{device}/vendor": "0x10de", f"{device}/class": "0x030200"}
    write(tmp_path, {**BOUND, **beside, "/proc/self/status": "CapEff:\t00000000a80425fb"})
    assert node_facts(str(tmp_path)) == ("6.16.3-arch1-1", False, False, False)


def test_a_topology_that_the_device_cgroup_forbids_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**BOUND, "/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 240"})
    assert not node_facts(str(tmp_path))[1]
    read = KernelFiles.content

    def forbidden(files: KernelFiles, path: str, most: int = 1 << 16) -> bytes:
        if path.endswith("properties"):
            raise PermissionError(1, "Operation not permitted")
        return read(files, path, most)

    monkeypatch.setattr(KernelFiles, "content", forbidden)
    assert node_facts(str(tmp_path))[1]


def test_this_machine_can_be_read() -> None:
    assert node_facts()[0]

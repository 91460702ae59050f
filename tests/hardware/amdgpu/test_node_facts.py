"""Tests for what people are told of a node's kernel: its version, its control groups, and what may be read."""

from pathlib import Path

import pytest

from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from gpu_device_plugin.hardware.amdgpu.node_facts import node_facts
from tests.hardware.amdgpu.trees import write

BOUND = {
    "/sys/bus/pci/drivers/amdgpu/0000:C1:00.0@": "x",
    "/proc/sys/kernel/osrelease": "6.16.3-arch1-1",
    "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000080000",
}


def test_a_kernel_that_limits_memory_names_the_gpus(tmp_path: Path) -> None:
    """A GPU of xe has a region for each tile, and some kernels name one twice."""
    regions = "drm/0000:C1:00.0/vram 17163091968\ndrm/0000:c1:00.0/vram 1\ndrm/0000:03:00.0/vram0 1\nother 3"
    write(tmp_path, {**BOUND, "/sys/fs/cgroup/dmem.capacity": regions})
    assert node_facts(str(tmp_path)) == (
        "6.16.3-arch1-1",
        frozenset({"0000:c1:00.0", "0000:03:00.0"}),
        False,
        False,
        True,
        True,
    )


def test_a_container_sees_its_own_control_groups(tmp_path: Path) -> None:
    beside = {
        "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
        "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
    }
    status = {"/proc/self/status": "CapEff:\t00000000a80425fb", "/sys/fs/cgroup/cgroup.type": "domain"}
    write(tmp_path, {**BOUND, **beside, **status})
    _, limited, own_cgroups, _, traces, alone = node_facts(str(tmp_path))
    assert (limited, own_cgroups, traces, alone) == (None, True, False, False)


def test_a_topology_that_the_device_cgroup_forbids_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**BOUND, "/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 240"})
    assert not node_facts(str(tmp_path))[3]
    read = KernelFiles.content

    def forbidden(files: KernelFiles, path: str) -> bytes:
        if path.endswith("properties"):
            raise PermissionError(1, "Operation not permitted")
        return read(files, path)

    monkeypatch.setattr(KernelFiles, "content", forbidden)
    assert node_facts(str(tmp_path))[3]


def test_this_machine_can_be_read() -> None:
    assert node_facts()[0]

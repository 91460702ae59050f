"""The condition of GPUs whose attributes others recorded, as a person reads them; see `test_recorded_trees`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_device_plugin.hardware.amdgpu.discovery import Board, ListedGpu
from gpu_device_plugin.hardware.amdgpu.health import Health, used_bytes
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from gpu_device_plugin.hardware.amdgpu.telemetry import TelemetryReader
from gpu_device_plugin.model.telemetry import TelemetryGroup

PCI = "0000:03:00.0"
SHOWN = ("temperature_c", "slowdown_c", "memory_temperature_c", "power_mw", "sm_clock_max_mhz", "throttle")
LINK = ("pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max")
# Of each GPU: driver, MiB in use, and the fields of SHOWN and of LINK.
RECORDED = {
    "amd/hd7870/card0": ("amdgpu", None, (27, 120, None, None, None, None), (3, 1, None, None)),
    "amd/r7-240/card1": ("amdgpu", 472, (52, 120, None, None, None, None), (2, 4, 3, 8)),
    "amd/r9-280/card0": ("amdgpu", None, (37, 120, None, None, None, None), (2, 8, None, None)),
    "amd/rx580/card0": ("amdgpu", 512, (44, 94, None, 41045, 1366, None), (3, 16, 3, 16)),
    "amd/vega56/card0": ("amdgpu", 15, (38, 105, 39, 8000, 1590, None), (3, 16, 3, 16)),
    "amd/rx5700xt/card1": ("amdgpu", None, (58, 108, 62, 29000, 1900, None), (3, 16, 3, 16)),
    "amd/rx6600/card1": ("amdgpu", None, (28, 110, 26, 3000, 2700, None), (3, 8, 3, 8)),
    "amd/rx6600xt/card0": ("amdgpu", None, (35, 110, 36, 3000, None, None), (3, 8, 3, 8)),
    "amd/rx6900xt/card0": ("amdgpu", 637, (59, 110, 54, 36000, 2660, 0), (4, 16, 4, 16)),
    "amd/rx7600s/card1": ("amdgpu", None, (54, 100, 60, 1000, 1841, 0x20), (4, 8, 4, 8)),
    "amd/rx7800xt/card1": ("amdgpu", None, (31, 110, 48, 32000, 2254, 0), (4, 16, 4, 16)),
    "amd/rx7900xtx/card0": ("amdgpu", None, (61, 110, 68, 68000, 2219, None), (4, 16, 4, 16)),
    "amd/rx9070/card1": ("amdgpu", None, (52, 110, 72, 49000, 2070, 0), (4, 16, 4, 16)),
    "amd/phoenix/card1": ("amdgpu", 1213, (25, None, None, 3103, 2700, None), (4, 16, 4, 16)),
    "intel/a380-xe/card0": ("xe", None, (56, None, 54, None, 2450, None), (1, 1, 1, 1)),
    "intel/b580/card1": ("xe", None, (54, 100, 56, None, 2850, None), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_gpu_tells_what_its_files_tell(name: str, tmp_path: Path) -> None:
    driver, used_mib, shown, link = RECORDED[name]
    recorded = Path(os.environ.get("AMD_TREES", "nowhere"), "LACT/tests/snapshots", name, "device")
    if not recorded.is_dir():
        pytest.skip("AMD_TREES names no folder with a checkout of LACT")
    for place in (tmp_path / "sys/bus/pci/devices", tmp_path / f"sys/bus/pci/drivers/{driver}"):
        place.mkdir(parents=True)
        (place / PCI).symlink_to(recorded.resolve())
    files = KernelFiles(str(tmp_path))
    gpu = ListedGpu(Board(PCI, driver, {}), {"uuid": name}, None, partition=False, hive=0)
    (told,) = TelemetryReader(files).read([gpu], [*TelemetryGroup])
    assert tuple(told.get(field) for field in SHOWN) == shown
    assert tuple(told.get(field) for field in LINK) == link
    used = used_bytes(files, gpu)
    assert (used and used >> 20) == used_mib
    assert Health(files).read([gpu])[0].get("error") is None

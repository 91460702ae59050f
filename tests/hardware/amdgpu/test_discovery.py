"""What is listed of AMD's and Intel's GPUs, from small trees in the shapes that the kernel's files have."""

import errno
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.amdgpu import discovery, topology
from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.messages import Listing
from gpu_device_plugin.model.gpus import MOST_GPUS, Closeness
from tests.hardware.amdgpu import trees

FIRST, SECOND = "GPU-5B1E6A0C2F3D4E00", "GPU-5B1E6A0C2F3D4E01"
MI300X = "/sys/bus/pci/devices/0000:0c:00.0"
RX = "/sys/bus/pci/devices/0000:03:00.0"


class Forbidding(KernelFiles):
    """The kernel's files, of which those that contain one of these texts cannot be read."""

    def __init__(self, root: Path, texts: Collection[str], code: int = errno.EPERM) -> None:
        super().__init__(str(root))
        self._texts = texts
        self._code = code

    def content(self, path: str, most: int = 1 << 16) -> bytes:
        if any(text in path for text in self._texts):
            raise OSError(self._code, os.strerror(self._code))
        return super().content(path, most)


def replace(root: Path, path: str, content: str | int | None) -> None:
    """Give a file another content; None: remove it."""
    (root / path.lstrip("/")).unlink(missing_ok=True)
    if content is not None:
        trees.write(root, {path: content})


def inventory(root: Path, *drivers: str) -> dict[str, Any]:
    return Drm([*drivers] or ["amdgpu"], str(root)).inventory()


def uuids(found: discovery.Found | dict[str, Any]) -> list[str]:
    records = found["gpus"] if isinstance(found, dict) else [gpu.record for gpu in found.gpus]
    return [record["uuid"] for record in records]


def only(root: Path, *drivers: str) -> dict[str, Any]:
    listed = inventory(root, *drivers)
    assert listed["troubles"] == []
    (gpu,) = listed["gpus"]
    assert isinstance(gpu, dict)
    return gpu


def test_a_whole_gpu_is_described_by_its_board_and_kfd(tmp_path: Path) -> None:
    trees.mi300x(tmp_path)
    assert only(tmp_path) == {
        "uuid": FIRST,
        "index": 0,
        "product": "AMD Instinct MI300X OAM",
        "total_mib": 196592,
        "reserved_mib": 0,
        "device_paths": ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card1"],
        "pci_bus_id": "0000:0c:00.0",
        "numa_node": 0,
        "mig": False,
        "memory_limits": True,
        "architecture": "gfx942",
        "instance": None,
        "driver": "amdgpu",
        "compute_units": 304,
        "unified": False,
    }


def test_the_agent_understands_the_listing_of_several_drivers(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, 2, 8)
    trees.rx7900xtx(tmp_path, 2)
    trees.b580(tmp_path)
    listing = msgspec.convert(inventory(tmp_path, "amdgpu", "xe"), Listing)
    assert [gpu.index for gpu in listing.gpus] == [*range(19)]
    assert [gpu.pci_bus_id for gpu in listing.gpus][:3] == ["0000:03:00.0", "0000:06:00.0", "0000:0c:00.0"]
    assert len(listing.links) == 19 * 18 // 2
    assert all(link.a < link.b for link in listing.links)
    assert listing.cgroup == 2


def test_the_partitions_of_a_board_are_gpus(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, gpus=2, partitions=8)
    listed = inventory(tmp_path)
    assert uuids(listed) == [f"{board}-p{number}" for board in (FIRST, SECOND) for number in range(8)]
    assert [gpu["device_paths"] for gpu in listed["gpus"]][8:10] == [
        ["/dev/kfd", "/dev/dri/renderD136", "/dev/dri/card9"],
        ["/dev/kfd", "/dev/dri/renderD137", "/dev/dri/card10"],
    ]
    # The controller dmem counts a board, not its partitions.
    expected = {(24574, 38, "0000:0c:00.0", False), (24574, 38, "0000:22:00.0", False)}
    keys = ("total_mib", "compute_units", "pci_bus_id", "memory_limits")
    assert {tuple(gpu[key] for key in keys) for gpu in listed["gpus"]} == expected
    found = discovery.find(KernelFiles(str(tmp_path)), ["amdgpu"])
    assert [(gpu.gpu_id, gpu.partition) for gpu in found.gpus][9] == (2001, True)


def test_partitions_are_closer_within_a_package_than_over_xgmi(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, gpus=2, partitions=2)
    links = {(link["a"], link["b"]): (link["closeness"], link["nvlinks"]) for link in inventory(tmp_path)["links"]}
    assert links == {
        (f"{FIRST}-p0", f"{FIRST}-p1"): (Closeness.NVLINK, 16),
        (f"{FIRST}-p0", f"{SECOND}-p0"): (Closeness.NVLINK, 1),
        (f"{FIRST}-p0", f"{SECOND}-p1"): (Closeness.NVLINK, 1),
        (f"{FIRST}-p1", f"{SECOND}-p0"): (Closeness.NVLINK, 1),
        (f"{FIRST}-p1", f"{SECOND}-p1"): (Closeness.NVLINK, 1),
        (f"{SECOND}-p0", f"{SECOND}-p1"): (Closeness.NVLINK, 16),
    }


def test_a_missing_partition_is_no_trouble(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=8)
    replace(tmp_path, f"{trees.NODES}/8/properties", None)
    listed = inventory(tmp_path)
    assert uuids(listed) == [f"{FIRST}-p{number}" for number in range(7)]
    assert listed["troubles"] == []


def test_the_number_of_a_partition_can_be_in_the_highest_bits_of_its_address(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=2)
    path = tmp_path / f"{trees.NODES}/2/properties".lstrip("/")
    text = path.read_text()
    path.write_text(text.replace(f"location_id {0xC01}", f"location_id {1 << 28 | 0xC00}"))
    assert text != path.read_text()
    assert uuids(inventory(tmp_path)) == [f"{FIRST}-p0", f"{FIRST}-p1"]


def test_a_virtual_function_is_a_gpu_at_its_own_address(tmp_path: Path) -> None:
    trees.pci_device(tmp_path, "0000:0c:02.3", "amdgpu", card=0, render=128, above="pci0000:0c", numa_node=0)
    trees.write(tmp_path, {"/sys/bus/pci/devices/0000:0c:02.3/device": "0x74b5"})
    number = trees.kfd_gpu(
        tmp_path, "0000:0c:02.0", function=3, render=128, gpu_id=7, size=1 << 37, gfx=90402, units=304
    )
    assert number == 1
    gpu = only(tmp_path)
    assert (gpu["uuid"], gpu["total_mib"], gpu["architecture"]) == ("PCI-0000:0c:02.3", 131072, "gfx942")


def test_partitions_have_no_more_memory_than_their_board(tmp_path: Path) -> None:
    """Whatever a kernel says of each in NPS1, where they have their memory in common."""
    trees.mi300x(tmp_path, partitions=2)
    for node in (1, 2):
        replace(tmp_path, f"{trees.NODES}/{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {196592 << 20}")
    assert [gpu["total_mib"] for gpu in inventory(tmp_path)["gpus"]] == [98296, 98296]


def test_memory_of_the_machine_is_not_counted(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=2)
    trees.write(tmp_path, {f"{trees.NODES}/1/mem_banks/1/properties": f"heap_type 2\nsize_in_bytes {1 << 20}"})
    trees.write(tmp_path, {f"{trees.NODES}/1/mem_banks/2/properties": f"heap_type 0\nsize_in_bytes {1 << 40}"})
    replace(tmp_path, f"{MI300X}/mem_info_vram_total", None)
    assert [gpu["total_mib"] for gpu in inventory(tmp_path)["gpus"]] == [98297, 98296]


# --- KFD may not be read, or is not there


def test_whole_gpus_are_listed_without_kfd(tmp_path: Path) -> None:
    trees.b580(tmp_path)
    trees.rx7900xtx(tmp_path)
    (tmp_path / "sys/class/kfd").rename(tmp_path / "gone")
    gpu = only(tmp_path)
    assert gpu["device_paths"] == ["/dev/dri/renderD200", "/dev/dri/card100"]
    assert (gpu["total_mib"], gpu["compute_units"], gpu["architecture"]) == (24560, None, None)


def test_a_gpu_whose_kfd_node_is_forbidden_is_listed_with_kfd(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, gpus=2)
    found = discovery.find(Forbidding(tmp_path, [f"{trees.NODES}/2/"]), ["amdgpu"])
    assert uuids(found) == [FIRST, SECOND]
    assert [gpu.record["device_paths"][0] for gpu in found.gpus] == ["/dev/kfd", "/dev/kfd"]
    assert [gpu.gpu_id for gpu in found.gpus] == [1000, None]
    assert found.unread == []
    assert "forbids 1 of KFD's nodes" in found.troubles[0]
    assert "privileged" in found.troubles[0]


@pytest.mark.parametrize("readable", [0, 1, 3])
def test_partitions_that_are_forbidden_are_unread(readable: int, tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=4)
    forbidden = [f"{trees.NODES}/{node}/" for node in range(1 + readable, 5)]
    found = discovery.find(Forbidding(tmp_path, forbidden), ["amdgpu"])
    assert uuids(found) == [f"{FIRST}-p{number}" for number in range(readable)]
    assert any("privileged" in sentence for sentence in found.unread)


def test_a_divided_board_is_unread_without_kfd(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=8)
    (tmp_path / "sys/class/kfd").rename(tmp_path / "gone")
    listed = inventory(tmp_path)
    assert (listed["gpus"], listed["left_out"]) == ([], 1)
    assert listed["troubles"] == [
        "the GPU at 0000:0c:00.0 is left out, KFD's topology does not show its partitions (mode CPX)"
    ]


def test_a_board_whose_mode_is_being_changed_is_unread(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=8)
    replace(tmp_path, f"{MI300X}/current_compute_partition", "SPX")
    assert (inventory(tmp_path)["gpus"], inventory(tmp_path)["left_out"]) == ([], 1)


# --- Identity


@pytest.mark.parametrize("unique_id", [None, "", "0000000000000000", "no number", "1" * 30])
def test_a_gpu_without_unique_id_is_known_by_its_address(unique_id: str | None, tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    replace(tmp_path, f"{RX}/unique_id", unique_id)
    assert only(tmp_path)["uuid"] == "PCI-0000:03:00.0"


def test_a_gpu_in_a_reset_keeps_its_identity_for_later(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path, gpus=2)
    for code in (errno.EPERM, errno.EIO):
        found = discovery.find(Forbidding(tmp_path, ["06:00.0/unique_id"], code), ["amdgpu"])
        assert uuids(found) == ["GPU-8D10AC5E00000000"]
        assert "0000:06:00.0 is left out, its unique_id cannot be read" in found.unread[0]
    replace(tmp_path, f"{RX}/unique_id", "f" * 16)
    assert uuids(inventory(tmp_path)) == ["GPU-8D10AC5E00000001"]
    assert inventory(tmp_path)["left_out"] == 1


def test_two_boards_with_one_unique_id_are_two_gpus(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, gpus=2, partitions=2)
    replace(tmp_path, "/sys/bus/pci/devices/0000:22:00.0/unique_id", "5b1e6a0c2f3d4e00")
    listed = inventory(tmp_path)
    assert uuids(listed) == [f"PCI-0000:{bus}:00.0-p{number}" for bus in ("0c", "22") for number in range(2)]
    assert listed["left_out"] == 0
    assert len(listed["troubles"]) == 2


# --- APUs


@pytest.mark.parametrize("device", ["0x15bf", "0x150e", "0x1114", "0x98e4", "0x74a0"])
def test_apus_are_left_out_by_their_models(device: str, tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    replace(tmp_path, f"{RX}/device", device)
    listed = inventory(tmp_path)
    assert (listed["gpus"], listed["left_out"]) == ([], 0)
    (trouble,) = listed["troubles"]
    assert trouble.startswith("the GPU at 0000:03:00.0 is left out, it is part of an APU")
    assert trouble.endswith(f" (AMD GPU 1002:{device[2:]}) and uses the memory of the machine")


@pytest.mark.parametrize(
    ("table", "apu"), [(b"\x78\0\2\1", True), (b"\x08\1\3\0", True), (b"\x78\0\1\3", False), (b"", False)]
)
def test_apus_are_left_out_by_the_format_of_their_metrics(table: bytes, *, apu: bool, tmp_path: Path) -> None:
    """Of a model that is not known; and whatever is its VRAM."""
    trees.rx7900xtx(tmp_path)
    (tmp_path / f"{RX}/gpu_metrics".lstrip("/")).write_bytes(table)
    assert uuids(inventory(tmp_path)) == ([] if apu else ["GPU-8D10AC5E00000000"])


# --- Models


@pytest.mark.parametrize(
    ("name", "models", "product"),
    [
        ("AMD Instinct MI300X OAM", "", "AMD Instinct MI300X OAM"),
        ("Instinct MI300X", "", "AMD Instinct MI300X"),
        ("", "1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT", "AMD Radeon RX 7900 XTX"),
        ("", "# device,\trevision,\tname\n744C,\tCC,\tAMD Radeon RX 7900 XT\n744C", "AMD GPU 1002:744c"),
        ("", "", "AMD GPU 1002:744c"),
        ("AMD \x1b[31mred\n\x00 " + "x" * 90, "", "AMD [31mred " + "x" * 52),
    ],
)
def test_the_model_is_told_by_the_board_then_by_libdrm(name: str, models: str, product: str, tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    trees.write(tmp_path, {f"{RX}/product_name": name, "/usr/share/libdrm/amdgpu.ids": models})
    assert only(tmp_path)["product"] == product


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (100303, "gfx1033"), (120001, "gfx1201"), (0, None), (10**9, None)],
)
def test_the_architecture_is_named_as_by_rocm(version: int, name: str | None, tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    path = tmp_path / f"{trees.NODES}/1/properties".lstrip("/")
    path.write_text(path.read_text().replace("gfx_target_version 110000", f"gfx_target_version {version}"))
    assert only(tmp_path)["architecture"] == name


# --- Intel


def test_the_tiles_of_a_gpu_of_xe_are_counted_together(tmp_path: Path) -> None:
    (pci,) = trees.b580(tmp_path)
    trees.region(tmp_path, f"drm/{pci}/vram1", 1 << 30)
    trees.region(tmp_path, f"drm/{pci}/vram1", 1 << 30)  # a kernel was seen to list a region twice
    trees.region(tmp_path, f"drm/{pci}/stolen", 1 << 30)
    gpu = only(tmp_path, "xe")
    assert (gpu["uuid"], gpu["product"], gpu["total_mib"]) == ("PCI-0000:43:00.0", "Intel GPU 8086:e20b", 12216 + 1024)
    assert (gpu["device_paths"], gpu["memory_limits"]) == (["/dev/dri/renderD220", "/dev/dri/card120"], True)


@pytest.mark.parametrize(
    ("capacity", "why"), [("drm/0000:99:00.0/vram0 1", "no memory of its own"), (None, "Linux 6.14")]
)
def test_without_a_region_a_gpu_of_xe_is_left_out(capacity: str | None, why: str, tmp_path: Path) -> None:
    trees.b580(tmp_path)
    replace(tmp_path, "/sys/fs/cgroup/dmem.capacity", capacity)
    listed = inventory(tmp_path, "xe")
    assert (listed["gpus"], listed["left_out"]) == ([], 0)
    assert why in listed["troubles"][0]


def test_the_regions_of_dmem_are_read_line_by_line(tmp_path: Path) -> None:
    lines = (
        "drm/0000:03:00.0/vram 1024\nmisc 3\ndrm/0000:03:00.0/vram max\ndrm/x/vram0 \n\ndrm/a/b/vram 1\ndrm/c/vram 0"
    )
    trees.write(tmp_path, {"/sys/fs/cgroup/dmem.capacity": lines})
    assert discovery.regions(KernelFiles(str(tmp_path))) == {"0000:03:00.0": {"drm/0000:03:00.0/vram": 1024}}


def test_without_dmem_there_are_no_memory_limits(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    replace(tmp_path, "/sys/fs/cgroup/dmem.capacity", None)
    assert only(tmp_path)["memory_limits"] is False


# --- What cannot be right


@pytest.mark.parametrize("total", ["0", "-5", "1023", str(1 << 63), "9" * 5000])
def test_a_gpu_with_an_impossible_size_is_left_out(total: str, tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    (tmp_path / "sys/class/kfd").rename(tmp_path / "gone")
    (tmp_path / "sys/fs/cgroup/dmem.capacity").unlink()
    replace(tmp_path, f"{RX}/mem_info_vram_total", total)
    listed = inventory(tmp_path)
    assert (listed["gpus"], listed["left_out"]) == ([], 1)


def test_a_gpu_without_render_node_is_left_out(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path, gpus=2)
    drm = (tmp_path / RX.lstrip("/") / "drm").resolve()
    drm.rename(drm.with_name("gone"))
    assert uuids(inventory(tmp_path)) == ["GPU-8D10AC5E00000001"]
    assert "it has no render node" in inventory(tmp_path)["troubles"][0]


def test_a_partition_that_cannot_be_listed_does_not_hide_the_others(tmp_path: Path) -> None:
    trees.mi300x(tmp_path, partitions=4)
    replace(tmp_path, f"{trees.NODES}/2/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 0")
    (tmp_path / "sys/class/drm/renderD131").unlink()
    listed = inventory(tmp_path)
    assert (uuids(listed), listed["left_out"]) == ([f"{FIRST}-p0", f"{FIRST}-p2"], 2)
    assert listed["troubles"] == [
        "partition 1 of the GPU at 0000:0c:00.0 is left out, the kernel says that it has 0 MiB of memory",
        "partition 3 of the GPU at 0000:0c:00.0 is left out, it has no render node",
    ]


@pytest.mark.parametrize("mode", ["UNKNOWN", "SPX", None])
def test_a_board_in_another_mode_is_one_gpu(mode: str | None, tmp_path: Path) -> None:
    trees.mi300x(tmp_path)
    replace(tmp_path, f"{MI300X}/current_compute_partition", mode)
    assert only(tmp_path)["uuid"] == FIRST


@pytest.mark.parametrize("numa_node", ["-1", "", "70000", "x"])
def test_a_gpu_may_be_near_no_numa_node(numa_node: str, tmp_path: Path) -> None:
    trees.mi300x(tmp_path)
    replace(tmp_path, f"{MI300X}/numa_node", numa_node)
    assert only(tmp_path)["numa_node"] is None


@pytest.mark.parametrize("boards", [17, 130])
def test_no_more_gpus_are_listed_than_a_node_may_have(boards: int, tmp_path: Path) -> None:
    assert discovery.MOST_GPUS == MOST_GPUS
    partitions = 8 if boards == 17 else 1
    for number in range(boards):
        pci = f"0000:{number:02x}:00.0"
        trees.pci_device(
            tmp_path, pci, "amdgpu", card=number, render=number, above=f"pci0000:{number:02x}", numa_node=0
        )
        trees.write(tmp_path, {f"/sys/bus/pci/devices/{pci}/mem_info_vram_total": 1 << 33})
        for function in range(partitions):
            trees.kfd_gpu(tmp_path, pci, function=function, render=number, gpu_id=1, size=1 << 30, gfx=90402, units=9)
    listed = inventory(tmp_path)
    assert len(listed["gpus"]) == MOST_GPUS
    assert listed["troubles"] == [f"{boards * partitions - MOST_GPUS} GPUs are left out, a node has 128 at most"]


# --- Links over PCIe


@pytest.mark.parametrize(
    ("first", "second", "closeness"),
    [
        ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0", Closeness.HOST_BRIDGE),
        (
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
            Closeness.SWITCH,
        ),
        (
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0",
            "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
            Closeness.SWITCHES,
        ),
        ("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0", Closeness.NODE),
        ("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0 1", Closeness.SYSTEM),
    ],
)
def test_pcie_bridges_tell_how_close_gpus_are(first: str, second: str, closeness: Closeness, tmp_path: Path) -> None:
    for number, above in enumerate((first, second)):
        path, _, numa = above.partition(" ")
        pci = f"0000:1{number}:00.0"
        trees.pci_device(tmp_path, pci, "amdgpu", card=number, render=number, above=path, numa_node=int(numa or 0))
        trees.write(tmp_path, {f"/sys/bus/pci/devices/{pci}/mem_info_vram_total": 1 << 33})
    (link,) = inventory(tmp_path)["links"]
    assert (link["closeness"], link["nvlinks"]) == (closeness, 0)


def test_without_bridges_nothing_is_known(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path, gpus=2)
    link = tmp_path / RX.lstrip("/")
    device = link.resolve()
    link.unlink()
    device.rename(link)
    (link / "drm/renderD200/device").unlink()
    (found,) = inventory(tmp_path)["links"]
    assert (found["closeness"], found["nvlinks"]) == (Closeness.UNKNOWN, 0)


def test_without_kfd_the_boards_tell_which_are_in_a_hive(tmp_path: Path) -> None:
    for pci in trees.mi300x(tmp_path, gpus=2):
        trees.write(tmp_path, {f"/sys/bus/pci/devices/{pci}/xgmi_hive_info/xgmi_hive_id": 0x1234})
    (tmp_path / "sys/class/kfd").rename(tmp_path / "gone")
    (link,) = inventory(tmp_path)["links"]
    assert (link["closeness"], link["nvlinks"]) == (Closeness.NVLINK, 1)


# --- The driver


@pytest.mark.parametrize("name", ["amdgpu", "xe"])
def test_a_driver_that_is_not_loaded_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=f"{name} is not loaded.*modprobe {name};") as failed:
        inventory(tmp_path, name)
    assert failed.value.kind == driver.NO_DRIVER
    assert "NVIDIA" not in str(failed.value)


def test_a_driver_without_gpus_lists_none(tmp_path: Path) -> None:
    trees.write(tmp_path, {"/sys/bus/pci/drivers/amdgpu/bind": ""})
    assert (inventory(tmp_path)["gpus"], inventory(tmp_path)["troubles"]) == ([], [])


def test_the_version_is_that_of_the_driver_or_the_kernel(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    assert inventory(tmp_path)["driver_version"] is None
    trees.write(tmp_path, {"/proc/sys/kernel/osrelease": "6.17.0-5-generic"})
    assert inventory(tmp_path)["driver_version"] == "6.17.0-5-generic"
    trees.write(tmp_path, {"/sys/module/amdgpu/version": "6.12.12"})
    assert inventory(tmp_path)["driver_version"] == "6.12.12"


def test_the_driver_process_loads_neither_dataclasses_nor_typing_nor_pathlib() -> None:
    """They cost memory, which counts as the agent's."""
    program = (
        "import sys; from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm; "
        "print(*{'dataclasses', 'typing', 'pathlib'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=True).stdout == b"\n"


def test_kfd_may_have_nodes_that_are_not_ours(tmp_path: Path) -> None:
    trees.rx7900xtx(tmp_path)
    trees.kfd_gpu(tmp_path, "0000:77:00.0", render=128, gpu_id=9, size=1 << 30, gfx=90402, units=9)
    trees.write(tmp_path, {f"{trees.NODES}/generation/properties": "simd_count 4", f"{trees.NODES}/99/name": ""})
    nodes, forbidden = topology.read(KernelFiles(str(tmp_path)))
    assert ([node.gpu_id for node in nodes], forbidden) == ([500, 9], 0)
    assert only(tmp_path)["uuid"] == "GPU-8D10AC5E00000000"

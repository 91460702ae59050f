"""Trees that others recorded on machines with GPUs, read as a person reads them.

AMD_TREES names a folder with checkouts of ROCm/k8s-device-plugin (its testdata has the topology of KFD on servers) and
of ilya-zlobintsev/LACT (its tests have the attributes of consumer GPUs and APUs). Neither recorded all that a machine
has, so the least that is missing is laid beside it: the PCI device of a node of KFD's, the device nodes, and the memory
size of a GPU whose recording has none.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.amdgpu import pci_devices
from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from tests.hardware.amdgpu import trees

GIB = 1024
XGMI = 11
COPIED_BY_HAND = 2
"""The node of the oldest recording that says it is at the place of the first."""


def recorded(path: str) -> Path:
    """Return a recording; without it the test is skipped."""
    if not (folder := os.environ.get("AMD_TREES")):
        pytest.skip("AMD_TREES names no folder with checkouts of k8s-device-plugin and LACT")
    found = Path(folder, path)
    if not found.is_dir():
        pytest.skip(f"{found} is not there")
    return found


def numbers(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in file.read_text(encoding="utf-8").strip("\0").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def server(root: Path, nodes: Path, bank_mib: int) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Lay a recorded topology below `root`; return by its files the render node of each UUID, and the pairs by xGMI.

    `bank_mib` is the memory of a node whose recording has none.
    """
    read = {int(node.name): numbers(node / "properties") for node in nodes.iterdir()}
    copies = {number for number, at in read.items() if number == COPIED_BY_HAND and "domain" not in at}
    gpus = {number: read[number] for number in sorted(read) if read[number]["simd_count"] and number not in copies}
    boards: dict[str, list[int]] = {}
    names: dict[int, str] = {}
    for number, at in gpus.items():
        location = at["location_id"]
        pci = f"{at.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.0"
        boards.setdefault(pci, []).append(number)
        place = root / trees.NODES.lstrip("/") / str(number)
        for kept in ("properties", "gpu_id"):
            if (nodes / str(number) / kept).exists():
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(nodes / str(number) / kept, place / kept)
        if (nodes / str(number) / "mem_banks").exists():
            shutil.copytree(nodes / str(number) / "mem_banks", place / "mem_banks")
        else:
            bank = f"heap_type 1\nsize_in_bytes {bank_mib << 20}"
            trees.write(root, {f"{trees.NODES}/{number}/mem_banks/0/properties": bank})
        names[number] = f"GPU-{at['unique_id']:016X}-p{location & 7}"
    for pci, numbered in boards.items():
        first = gpus[numbered[0]]
        render = first["drm_render_minor"]
        trees.pci_device(root, pci, "amdgpu", card=render, render=render, above=f"pci{pci[:7]}", numa_node=-1)
        for number in numbered[1:]:
            render = gpus[number]["drm_render_minor"]
            trees.drm_nodes(root, f"devices/platform/amdgpu_xcp_{number}", card=render, render=render)
        attributes = {
            "vendor": f"{first['vendor_id']:#06x}",
            "device": f"{first['device_id']:#06x}",
            "unique_id": f"{first['unique_id']:016x}",
        }
        trees.write(root, {f"/sys/bus/pci/devices/{pci}/{name}": text for name, text in attributes.items()})
    if len(boards) == len(names):
        names = {number: name.partition("-p")[0] for number, name in names.items()}
    renders = {name: f"/dev/dri/renderD{gpus[number]['drm_render_minor']}" for number, name in names.items()}
    links = [numbers(link) for number in gpus for link in nodes.glob(f"{number}/io_links/*/properties")]
    ends = [[names[link["node_from"]], names[link["node_to"]]] for link in links if link["type"] == XGMI]
    return renders, sorted({(min(pair), max(pair)) for pair in ends})


def found(root: Path) -> dict[str, Any]:
    return Drm(pci_devices.drivers_in_use(KernelFiles(str(root))), str(root)).inventory()


@pytest.mark.parametrize(
    ("tree", "bank_mib", "facts"),
    [
        ("topology-parsing/topology/nodes", 0, (1, 1, {16368}, {"1002:6860"}, {None}, {64}, 0)),
        ("topo-mi210-xgmi-pcie/nodes", 64 * GIB, (8, 8, {64 * GIB}, {"1002:740f"}, {"gfx90a"}, {104}, 12)),
        (
            "topology-parsing-mi308/topology/nodes",
            0,
            (8, 32, {48 * GIB, 48 * GIB - 16}, {"1002:74a2"}, {"gfx942"}, {20}, 32 * 31 // 2),
        ),
        (
            "topo-mi300-cpx/topology/nodes",
            24 * GIB,
            (8, 63, {24 * GIB}, {"1002:74a1"}, {"gfx942"}, {38}, 63 * 62 // 2),
        ),
    ],
)
def test_servers(tree: str, bank_mib: int, facts: tuple[Any, ...], tmp_path: Path) -> None:
    """Boards, GPUs, sizes, PCI IDs, architectures, compute units, and pairs that xGMI connects."""
    renders, pairs = server(tmp_path, recorded(f"k8s-device-plugin/testdata/{tree}"), bank_mib)
    inventory = found(tmp_path)
    gpus = inventory["gpus"]
    by_xgmi = sorted((link["a"], link["b"]) for link in inventory["links"] if link["nvlinks"])
    assert inventory["troubles"] == []
    assert facts == (
        len({gpu["pci_bus_id"] for gpu in gpus}),
        len(gpus),
        {gpu["total_mib"] for gpu in gpus},
        {gpu["product"].removeprefix("AMD GPU ") for gpu in gpus},
        {gpu["architecture"] for gpu in gpus},
        {gpu["compute_units"] for gpu in gpus},
        len(by_xgmi),
    )
    assert by_xgmi == pairs
    assert {gpu["uuid"]: gpu["device_paths"][1] for gpu in gpus} == renders
    assert all(gpu["device_paths"][0] == "/dev/kfd" for gpu in gpus)


def desktop(root: Path, tree: Path, dmem_mib: int = 0) -> str:
    """Lay a recorded card below `root`; return its PCI address."""
    card = next(tree.glob("card*")) / "device"
    told = dict(line.split("=", 1) for line in (card / "uevent").read_text().strip("\0\n").splitlines())
    pci, driver = told["PCI_SLOT_NAME"], told["DRIVER"]
    trees.pci_device(root, pci, driver, card=1, render=128, above="pci0000:00/0000:00:01.1", numa_node=-1)
    device = root / f"sys/bus/pci/devices/{pci}"
    for entry in card.iterdir():
        if not (device / entry.name).exists():
            (device / entry.name).symlink_to(entry)
    vendor, model = (f"0x{part.lower()}" for part in told["PCI_ID"].split(":"))
    laid = {"vendor": vendor, "device": model, "revision": "0x00"}
    if driver == "amdgpu":
        laid["mem_info_vram_total"] = str(1 << 30)
    lacking = {name: text for name, text in laid.items() if not (device / name).exists()}
    trees.write(root, {f"/sys/bus/pci/devices/{pci}/{name}": text for name, text in lacking.items()})
    if (tree / "kfd").exists():
        (root / "sys/class/kfd").mkdir(parents=True)
        (root / "sys/class/kfd/kfd").symlink_to(tree / "kfd")
    if dmem_mib:
        trees.region(root, f"drm/{pci}/vram0", dmem_mib << 20)
    return pci


CARDS = {
    "hd7870": None,  # by the driver radeon
    "r7-240": ("PCI-0000:01:00.0", 2048),
    "r9-280": ("PCI-0000:01:00.0", 0),
    "rx5500xt": ("PCI-0000:04:00.0", 0),
    "rx5700xt": ("PCI-0000:28:00.0", 0),
    "rx580": ("PCI-0000:09:00.0", 4096),
    "rx6600": ("PCI-0000:12:00.0", 0),
    "rx6600xt": ("PCI-0000:0b:00.0", 0),
    "rx6900xt": ("GPU-946D7E1EF9B172DD", 16368),
    "rx7600s": ("PCI-0000:03:00.0", 0),
    "rx7700s": ("PCI-0000:03:00.0", 0),
    "rx7800xt": ("PCI-0000:03:00.0", 0),
    "rx7900xtx": ("PCI-0000:03:00.0", 0),
    "rx9070": ("PCI-0000:03:00.0", 0),
    "rx9070xt": ("PCI-0000:0f:00.0", 0),
    "vega56": ("PCI-0000:0b:00.0", 8176),
}
"""The UUID and the MiB of each; 0: not recorded, so 1 GiB is laid."""


@pytest.mark.parametrize("name", CARDS)
def test_cards(name: str, tmp_path: Path) -> None:
    desktop(tmp_path, recorded(f"LACT/tests/snapshots/amd/{name}"))
    if (facts := CARDS[name]) is None:
        assert pci_devices.drivers_in_use(KernelFiles(str(tmp_path))) == []
        return
    inventory = found(tmp_path)
    (gpu,) = inventory["gpus"]
    assert (gpu["uuid"], gpu["total_mib"], gpu["driver"]) == (facts[0], facts[1] or GIB, "amdgpu")
    assert gpu["device_paths"] == ["/dev/dri/renderD128", "/dev/dri/card1"]
    assert inventory["troubles"] == []


@pytest.mark.parametrize("name", ["phoenix", "strixpoint", "vangogh"])
@pytest.mark.parametrize("by", ["device", "gpu_metrics"])
def test_apus_are_left_out_by_either_fact(name: str, by: str, tmp_path: Path) -> None:
    tree = recorded(f"LACT/tests/snapshots/amd/{name}")
    pci = desktop(tmp_path, tree)
    device = tmp_path / f"sys/bus/pci/devices/{pci}"
    if by == "device":
        (device / "gpu_metrics").unlink(missing_ok=True)
    elif not (device / "gpu_metrics").exists():
        pytest.skip("it is not in the recording")
    else:
        (device / "device").unlink()
        trees.write(tmp_path, {f"/sys/bus/pci/devices/{pci}/device": "0x7550"})
    inventory = found(tmp_path)
    assert (inventory["gpus"], inventory["left_out"]) == ([], 0)
    assert "it is part of an APU" in inventory["troubles"][0]


@pytest.mark.parametrize(("name", "mib"), [("b580", 12216), ("b580-6.16", 12216), ("a380-xe", 6064)])
def test_cards_of_xe_have_the_memory_that_dmem_tells(name: str, mib: int, tmp_path: Path) -> None:
    pci = desktop(tmp_path, recorded(f"LACT/tests/snapshots/intel/{name}"), mib)
    (gpu,) = found(tmp_path)["gpus"]
    assert (gpu["uuid"], gpu["total_mib"], gpu["driver"]) == (f"PCI-{pci}", mib, "xe")
    assert gpu["product"] == {"b": "Intel GPU 8086:e20b", "a": "Intel GPU 8086:56a5"}[name[0]]


@pytest.mark.parametrize("name", ["b580", "a380-xe", "tigerlake"])
def test_cards_of_xe_need_dmem(name: str, tmp_path: Path) -> None:
    desktop(tmp_path, recorded(f"LACT/tests/snapshots/intel/{name}"))
    inventory = found(tmp_path)
    assert (inventory["gpus"], inventory["left_out"]) == ([], 0)
    assert "only the cgroup controller dmem tells its memory" in inventory["troubles"][0]


@pytest.mark.parametrize("name", ["a380-i915", "cometlake"])
def test_cards_of_i915_are_not_ours(name: str, tmp_path: Path) -> None:
    desktop(tmp_path, recorded(f"LACT/tests/snapshots/intel/{name}"))
    assert pci_devices.drivers_in_use(KernelFiles(str(tmp_path))) == []

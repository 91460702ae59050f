"""Write small trees of the kernel's files for the driver to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MI300X = ("0c", "22", "38", "5c", "9f", "af", "bf", "df")
"""The PCI buses of the GPUs of a server with eight; the first four are near its first socket."""
NODES = "/sys/class/kfd/kfd/topology/nodes"
GIB = 1 << 30


def write(root: Path, files: Mapping[str, str | int]) -> None:
    """Write files below `root`, each by its absolute path; a path that ends in ``@`` becomes a link to its text."""
    for path, content in files.items():
        place = root / path.lstrip("/").removesuffix("@")
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("@"):
            place.symlink_to(str(content))
        else:
            place.write_text(f"{content}\n", encoding="utf-8")


def mi300x(root: Path, gpus: int = 1, partitions: int = 1) -> list[str]:
    """Add GPUs with 192 GiB, each whole or in so many partitions; return their PCI addresses.

    Those of partition p of GPU n are: render node 128 + 8n + p, and number 1000(n+1) + p in KFD's files.
    """
    pcis = [f"0000:{bus}:00.0" for bus in MI300X[:gpus]]
    size = 196592 << 20
    for n, pci in enumerate(pcis):
        above = f"pci0000:{int(MI300X[n], 16) - 4:02x}/0000:{int(MI300X[n], 16) - 4:02x}:01.1"
        pci_device(root, pci, "amdgpu", card=1 + 8 * n, render=128 + 8 * n, above=above, numa_node=n // 4)
        attributes: dict[str, str | int] = {
            "class": "0x120000",
            "vendor": "0x1002",
            "device": "0x74a1",
            "revision": "0x00",
            "unique_id": f"{0x5B1E6A0C2F3D4E00 + n:016x}",
            "product_name": "AMD Instinct MI300X OAM",
            "mem_info_vram_total": size,
            "mem_info_vram_used": 297 << 20,
            "mem_info_vis_vram_total": size,
            "mem_info_gtt_total": 1 << 40,
            "current_compute_partition": {1: "SPX", 2: "DPX", 4: "QPX", 8: "CPX"}[partitions],
            "current_memory_partition": "NPS1",
        }
        write(root, {f"/sys/bus/pci/devices/{pci}/{name}": value for name, value in attributes.items()})
        region(root, f"drm/{pci}/vram", size)
        for p in range(partitions):
            kfd_gpu(
                root,
                pci,
                function=p,
                render=128 + 8 * n + p,
                gpu_id=1000 * (n + 1) + p,
                size=size // partitions,
                gfx=90402,
                units=304 // partitions,
                unique_id=0x5B1E6A0C2F3D4E00 + n,
                hive_id=0x1234,
            )
            if p:
                at = f"devices/platform/amdgpu_xcp_{7 * n + p - 1}"
                drm_nodes(root, at, card=1 + 8 * n + p, render=128 + 8 * n + p)
    return pcis


def rx7900xtx(root: Path, gpus: int = 1) -> list[str]:
    """Add consumer GPUs with 24 GiB; return their PCI addresses.

    Those of GPU n are: render node 200 + n, and number 500 + n in KFD's files.
    """
    pcis = [f"0000:{3 + 3 * n:02x}:00.0" for n in range(gpus)]
    for n, pci in enumerate(pcis):
        bus = 3 + 3 * n
        above = f"pci0000:00/0000:00:01.{1 + n}/0000:{bus - 2:02x}:00.0/0000:{bus - 1:02x}:00.0"
        pci_device(root, pci, "amdgpu", card=100 + n, render=200 + n, above=above, numa_node=-1)
        attributes: dict[str, str | int] = {
            "class": "0x030000",
            "vendor": "0x1002",
            "device": "0x744c",
            "revision": "0xc8",
            "unique_id": f"{0x8D10AC5E00000000 + n:016x}",
            "mem_info_vram_total": 24560 << 20,
            "mem_info_vram_used": 26 << 20,
            "mem_info_vis_vram_total": 24560 << 20,
            "mem_info_gtt_total": 32 << 30,
        }
        write(root, {f"/sys/bus/pci/devices/{pci}/{name}": value for name, value in attributes.items()})
        region(root, f"drm/{pci}/vram", 24560 << 20)
        unique_id = 0x8D10AC5E00000000 + n
        kfd_gpu(
            root,
            pci,
            render=200 + n,
            gpu_id=500 + n,
            size=24560 << 20,
            gfx=110000,
            units=96,
            simd_per_cu=2,
            unique_id=unique_id,
        )
    return pcis


def b580(root: Path, gpus: int = 1) -> list[str]:
    """Add GPUs of Intel's with 12 GiB and the driver xe; return their PCI addresses. GPU n has render node 220 + n."""
    pcis = [f"0000:{0x43 + 4 * n:02x}:00.0" for n in range(gpus)]
    for n, pci in enumerate(pcis):
        above = f"pci0000:40/0000:40:01.{1 + n}/0000:{0x41 + 4 * n:02x}:00.0/0000:{0x42 + 4 * n:02x}:01.0"
        pci_device(root, pci, "xe", card=120 + n, render=220 + n, above=above, numa_node=-1)
        attributes = {"class": "0x030000", "vendor": "0x8086", "device": "0xe20b", "revision": "0x00"}
        write(root, {f"/sys/bus/pci/devices/{pci}/{name}": value for name, value in attributes.items()})
        region(root, f"drm/{pci}/vram0", 12216 << 20)
    return pcis


def pci_device(root: Path, pci: str, driver: str, *, card: int, render: int, above: str, numa_node: int) -> None:
    """Add a PCI device below a bridge, with its driver and its device nodes."""
    at = f"devices/{above}/{pci}"
    write(
        root,
        {
            f"/sys/{at}/numa_node": numa_node,
            f"/sys/{at}/driver@": f"/sys/bus/pci/drivers/{driver}",
            f"/sys/bus/pci/devices/{pci}@": f"../../../{at}",
            f"/sys/bus/pci/drivers/{driver}/{pci}@": f"../../../../{at}",
        },
    )
    drm_nodes(root, at, card=card, render=render)


def drm_nodes(root: Path, at: str, *, card: int, render: int) -> None:
    """Add the two device nodes of the device in this folder below /sys."""
    for name, number in ((f"card{card}", card), (f"renderD{render}", render)):
        write(
            root,
            {
                f"/sys/{at}/drm/{name}/dev": f"226:{number}",
                f"/sys/{at}/drm/{name}/device@": "../..",
                f"/sys/class/drm/{name}@": f"../../{at}/drm/{name}",
            },
        )


def kfd_gpu(
    root: Path,
    pci: str,
    *,
    render: int,
    gpu_id: int,
    size: int,
    gfx: int,
    units: int,
    unique_id: int = 0,
    hive_id: int = 0,
    simd_per_cu: int = 4,
    function: int = 0,
) -> int:
    """Add a GPU to KFD's topology, after a node of the CPUs; return the number of its node."""
    nodes = root / NODES.lstrip("/")
    if not nodes.exists():
        write(root, {f"{NODES}/0/gpu_id": 0, f"{NODES}/0/properties": "cpu_cores_count 64\nsimd_count 0"})
    number = len([*nodes.iterdir()])
    domain, bus, device = pci.removesuffix(".0").split(":")
    properties = {
        "cpu_cores_count": 0,
        "simd_count": simd_per_cu * units,
        "simd_per_cu": simd_per_cu,
        "mem_banks_count": 1,
        "gfx_target_version": gfx,
        "drm_render_minor": render,
        "domain": int(domain, 16),
        "location_id": int(bus, 16) << 8 | int(device, 16) << 3 | function,
        "unique_id": unique_id,
        "hive_id": hive_id,
        "local_mem_size": 0,
    }
    write(
        root,
        {
            f"{NODES}/{number}/gpu_id": gpu_id,
            f"{NODES}/{number}/properties": "\n".join(f"{key} {value}" for key, value in properties.items()),
            f"{NODES}/{number}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {size}\nflags 0",
        },
    )
    return number


def region(root: Path, name: str, size: int) -> None:
    """Add a region to those of the cgroup controller dmem."""
    place = root / "sys/fs/cgroup/dmem.capacity"
    place.parent.mkdir(parents=True, exist_ok=True)
    (place.parent / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids dmem\n", encoding="utf-8")
    with place.open("a", encoding="utf-8") as file:
        file.write(f"{name} {size}\n")

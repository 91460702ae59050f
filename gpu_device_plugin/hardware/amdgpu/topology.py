"""Read the topology of KFD, the part of amdgpu that ROCm uses: its GPUs and partitions; and how GPUs are connected."""

from __future__ import annotations

import errno
from itertools import takewhile

from gpu_device_plugin.hardware.amdgpu.pci_devices import DEVICES

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpu_device_plugin.hardware.amdgpu.discovery import ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_MOST_NODES = 1024
_MOST_BANKS = 16
_VRAM = (1, 2)
"""The heap types of a GPU's own memory: what the CPU reaches of it, and the rest."""
_MOST_UNITS = 1 << 16
# As model.gpus.Closeness, whose module imports dataclasses.
_SYSTEM, _NODE, _HOST_BRIDGE, _SWITCHES, _SWITCH, _XGMI = 1, 2, 3, 4, 5, 7
_WITHIN_A_PACKAGE = 16
"""How many xGMI links have the bandwidth that KFD states between two partitions of one package: 819 to 50 GB/s."""


class Node:
    """A node of the topology with compute units: a GPU, or a partition of one."""

    def __init__(self, files: KernelFiles, folder: str, properties: Mapping[str, int]) -> None:
        """Read the other files of the node in `folder`, which has these properties."""
        self.gpu_id = files.number(f"{folder}/gpu_id")
        """Its number in KFD's other files."""
        self.domain = properties.get("domain", 0)
        self.location = properties.get("location_id", 0)
        self.render = f"renderD{properties.get('drm_render_minor', 0)}"
        """The name of its render node."""
        self.hive = properties.get("hive_id", 0)
        """The group of GPUs that xGMI connects; 0: it has no xGMI."""
        units = properties["simd_count"] // max(1, properties.get("simd_per_cu", 4))
        self.compute_units = units if 0 < units < _MOST_UNITS else None
        version = properties.get("gfx_target_version", 0)
        major, minor, step = version // 10_000, version // 100 % 100, version % 100
        self.architecture = f"gfx{major}{minor:x}{step:x}" if 0 < major < 100 else None
        names = files.names(f"{folder}/mem_banks")[:_MOST_BANKS]
        banks = [files.pairs(f"{folder}/mem_banks/{name}/properties") for name in names]
        self.memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _VRAM)
        """Bytes. Not `local_mem_size`, which is 0 with newer drivers."""


def read(files: KernelFiles) -> tuple[list[Node], int]:
    """Return the nodes of GPUs, and the number of nodes that this process may not read.

    It may not read those of a GPU whose render node its device cgroup forbids. Without KFD there are none.
    """
    nodes, forbidden = [], 0
    for name in sorted((name for name in files.names(_NODES) if name.isdecimal()), key=int)[:_MOST_NODES]:
        properties = files.pairs(f"{_NODES}/{name}/properties")
        if properties.get("simd_count", 0) > 0:
            nodes.append(Node(files, f"{_NODES}/{name}", properties))
        elif not properties and files.problem(f"{_NODES}/{name}/properties") in {errno.EPERM, errno.EACCES}:
            forbidden += 1
    return nodes, forbidden


def by_board(nodes: Iterable[Node], boards: Iterable[str]) -> Mapping[str, dict[int, Node]]:
    """Return the nodes of each of these PCI devices, by the numbers of the partitions; that of a whole GPU is 0.

    Of a partition the address has the number in place of the PCI function, and with some kernels in its highest bits.
    """
    found: dict[str, dict[int, Node]] = {pci: {} for pci in boards}
    for node in nodes:
        address = f"{node.domain:04x}:{node.location >> 8 & 0xFF:02x}:{node.location >> 3 & 0x1F:02x}"
        function = node.location & 7
        exact = f"{address}.{function}"
        pci, partition = (exact, 0) if exact in found else (f"{address}.0", function)
        if pci in found:
            found[pci].setdefault(partition or node.location >> 28, node)
    return found


def links(files: KernelFiles, gpus: list[ListedGpu]) -> Iterator[Record]:
    """Yield the connection of each pair of GPUs.

    KFD lists an xGMI link (`io_links`, type 11) between all GPUs of a hive, so the hive tells the same as these files,
    of which 64 partitions have 4,000. Partitions of one package are closer to each other than to any other GPU.
    """
    places = [_Place(files, gpu) for gpu in gpus]
    for position, one in enumerate(places):
        for other in places[position + 1 :]:
            closeness, count = one.closeness(other)
            a, b = sorted((one.gpu.uuid, other.gpu.uuid))
            yield {"a": a, "b": b, "closeness": closeness, "nvlinks": count}


class _Place:
    """Where a GPU is: its hive, its NUMA node, and the PCI bridges above it."""

    def __init__(self, files: KernelFiles, gpu: ListedGpu) -> None:
        self.gpu = gpu
        self._numa = gpu.record["numa_node"]
        link = files.link(f"{DEVICES}/{gpu.board.pci}").partition("/pci")[2]
        self._bridges = link.split("/")[:-1]
        """The first is the host bridge."""

    def closeness(self, other: _Place) -> tuple[int, int]:
        """Return the value of `model.gpus.Closeness`, and the number of xGMI links."""
        if self.gpu.board.pci == other.gpu.board.pci:
            return _XGMI, _WITHIN_A_PACKAGE
        if self.gpu.hive and self.gpu.hive == other.gpu.hive:
            return _XGMI, 1
        pairs = zip(self._bridges, other._bridges, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not common:
            return (_NODE if self._numa == other._numa else _SYSTEM), 0
        if common == 1:
            return _HOST_BRIDGE, 0
        # A switch is a bridge towards the host with one bridge below it for each device.
        below = max(len(self._bridges), len(other._bridges)) - common
        return (_SWITCH if below <= 1 else _SWITCHES), 0

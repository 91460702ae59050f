"""Read the GPUs and partitions in the topology of KFD, the part of amdgpu that ROCm uses."""

from __future__ import annotations

import errno

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_MOST_NODES = 1024
_MOST_BANKS = 16
_VRAM = (1, 2)
"""The heap types of a GPU's own memory: what the CPU reaches of it, and the rest."""
_MOST_UNITS = 1 << 16


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
    by_pci: dict[str, dict[int, Node]] = {pci: {} for pci in boards}
    for node in nodes:
        address = f"{node.domain:04x}:{node.location >> 8 & 0xFF:02x}:{node.location >> 3 & 0x1F:02x}"
        function = node.location & 7
        exact = f"{address}.{function}"
        pci, partition = (exact, 0) if exact in by_pci else (f"{address}.0", function)
        if pci in by_pci:
            by_pci[pci].setdefault(partition or node.location >> 28, node)
    return by_pci

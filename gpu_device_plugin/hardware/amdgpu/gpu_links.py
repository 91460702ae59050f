"""Tell how the GPUs of a node are connected: by xGMI, or by PCIe."""

from __future__ import annotations

from itertools import takewhile

from gpu_device_plugin.hardware.amdgpu.pci_devices import DEVICES

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_device_plugin.hardware.amdgpu.discovery import ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

# As model.gpus.Closeness, whose module imports dataclasses.
_SYSTEM, _NODE, _HOST_BRIDGE, _SWITCHES, _SWITCH, _XGMI = 1, 2, 3, 4, 5, 7
_WITHIN_A_PACKAGE = 16
"""How many xGMI links have the bandwidth that KFD states between two partitions of one package: 819 to 50 GB/s."""


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
        if not self._bridges or not other._bridges:
            return 0, 0
        pairs = zip(self._bridges, other._bridges, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not common:
            return (_NODE if self._numa == other._numa else _SYSTEM), 0
        if common == 1:
            return _HOST_BRIDGE, 0
        # A switch is a bridge towards the host with one bridge below it for each device.
        below = max(len(self._bridges), len(other._bridges)) - common
        return (_SWITCH if below <= 1 else _SWITCHES), 0

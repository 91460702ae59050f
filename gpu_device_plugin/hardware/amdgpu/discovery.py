"""Find the GPUs of amdgpu and xe: their boards, partitions, identities, sizes and models."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record


class Board:
    """A graphics board: one PCI device, with what the kernel tells of it as a whole."""

    def __init__(self, pci: str, driver: str) -> None:
        """Take its PCI address, such as ``0000:c1:00.0``, and its driver, ``amdgpu`` or ``xe``."""
        self.pci = pci
        self.driver = driver
        self.folder = f"/sys/bus/pci/devices/{pci}"
        """The folder of its attributes, for `KernelFiles`."""
        self.regions: list[str] = []
        """Its regions of the cgroup controller dmem, such as ``drm/0000:c1:00.0/vram``; none: the kernel has none."""


class ListedGpu:
    """A GPU that is listed: all of a board, or a partition of one."""

    def __init__(self, board: Board, record: Record, render: str, gpu_id: int | None, *, partition: bool) -> None:
        """Take its board and how it is listed."""
        self.board = board
        self.record = record
        """Its `model.gpus.Gpu`."""
        self.render = render
        """The name of its render node, such as ``renderD128``; empty: it has none."""
        self.gpu_id = gpu_id
        """Its number in KFD's files; None: KFD does not know it, or may not be read."""
        self.partition = partition
        """It is one of several partitions of its board, which shares memory limits, temperatures and errors."""

    @property
    def uuid(self) -> str:
        """Its UUID, see `model.gpus.Gpu`."""
        uuid: str = self.record["uuid"]
        return uuid


class Found:
    """What one look at the kernel's files found."""

    def __init__(self, gpus: list[ListedGpu], links: list[Record], unread: list[str], troubles: list[str]) -> None:
        """Take the GPUs, their links, a sentence on each GPU that could not be read, and on each left out for good."""
        self.gpus = gpus
        self.links = links
        self.unread = unread
        self.troubles = troubles


def find(files: KernelFiles, drivers: list[str]) -> Found:
    """Look for the GPUs of these drivers."""
    raise NotImplementedError

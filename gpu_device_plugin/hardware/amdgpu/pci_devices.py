"""Find the GPUs on the PCI bus: which drivers the node needs, before any of them is opened."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

AMDGPU, XE = DRIVERS = ("amdgpu", "xe")
"""The kernel drivers that this folder reads."""
DEVICES = "/sys/bus/pci/devices"
DRIVERS_FOLDER = "/sys/bus/pci/drivers"
NVIDIA, AMD = "0x10de", "0x1002"
_GPUS = ("0x03", "0x12")
"""The PCI classes of display controllers, as which most GPUs without a display are listed too (0x0302, 0x0380), and of
accelerators, as AMD's for servers are."""
_LONGEST_MODE = 8


def drivers_in_use(files: KernelFiles) -> list[str]:
    """Return which of `DRIVERS` are bound to a device of this node."""
    return [driver for driver in DRIVERS if bound(files, driver)]


def bound(files: KernelFiles, driver: str) -> list[str]:
    """Return the addresses of the PCI devices that are bound to a driver, in their order."""
    return [name for name in files.names(f"{DRIVERS_FOLDER}/{driver}") if name.count(":") == 2]


def makers(files: KernelFiles) -> set[str]:
    """Return the PCI vendors of this node's GPUs, be their drivers loaded or not."""
    return {
        files.text(f"{DEVICES}/{name}/vendor")
        for name in files.names(DEVICES)
        if files.text(f"{DEVICES}/{name}/class").startswith(_GPUS)
    }


def mode(files: KernelFiles, pci: str) -> str:
    """Return how a board is divided into partitions, such as ``SPX`` or ``CPX``; empty: it cannot be, or not told."""
    return files.text(f"{DEVICES}/{pci}/current_compute_partition").upper()[:_LONGEST_MODE]

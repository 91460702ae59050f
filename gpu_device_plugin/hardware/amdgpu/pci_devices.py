"""Find the GPUs on the PCI bus: which drivers the node needs, before any of them is opened."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

AMDGPU, XE = DRIVERS = ("amdgpu", "xe")
"""The kernel drivers that this folder reads."""
DEVICES = "/sys/bus/pci/devices"
DRIVERS_FOLDER = "/sys/bus/pci/drivers"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""The PCI class of display controllers, as which GPUs without a display are listed too (0x0302, 0x0380)."""


def drivers_in_use(files: KernelFiles) -> list[str]:
    """Return which of `DRIVERS` are bound to a device of this node."""
    return [driver for driver in DRIVERS if bound(files, driver)]


def bound(files: KernelFiles, driver: str) -> list[str]:
    """Return the addresses of the PCI devices that are bound to a driver, in their order."""
    return [name for name in files.names(f"{DRIVERS_FOLDER}/{driver}") if name.count(":") == 2]


def has_nvidia(files: KernelFiles) -> bool:
    """Return whether this node has a GPU of NVIDIA's, be its driver loaded or not."""
    return any(
        files.text(f"{DEVICES}/{name}/vendor") == _NVIDIA and files.text(f"{DEVICES}/{name}/class").startswith(_DISPLAY)
        for name in files.names(DEVICES)
    )

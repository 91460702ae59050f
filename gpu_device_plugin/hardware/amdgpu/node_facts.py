"""Read what a node's kernel has for the GPUs that it drives, for people who look for a fault."""

from __future__ import annotations

import errno

from gpu_device_plugin.hardware.amdgpu import pci_devices
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_SYS_PTRACE = 19


def node_facts(root: str = "") -> tuple[str, bool, bool, bool]:
    """Return the fields of the doctor's `KernelSeen`, in their order, by the kernel's files below `root`."""
    files = KernelFiles(root)
    status = dict(line.split(":", 1) for line in files.text("/proc/self/status").splitlines() if ":" in line)
    hidden = any(files.problem(f"{_NODES}/{name}/properties") == errno.EPERM for name in files.names(_NODES))
    return (
        files.text("/proc/sys/kernel/osrelease")[:64],
        hidden,
        bool(int(status.get("CapEff", "0"), 16) >> _SYS_PTRACE & 1),
        bool(pci_devices.drivers_in_use(files)) and pci_devices.NVIDIA not in pci_devices.makers(files),
    )

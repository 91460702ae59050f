"""Read what a node's kernel has for the GPUs that it drives, for people who look for a fault."""

from __future__ import annotations

import errno
from typing import NamedTuple

from gpu_device_plugin.hardware.amdgpu import pci_devices
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

_CGROUPS = "/sys/fs/cgroup"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_SYS_PTRACE = 19


class NodeFacts(NamedTuple):
    """The kernel of a node, as a process here sees it."""

    release: str
    """Such as ``6.16.3-arch1-1``; empty: unknown."""
    limited: frozenset[str] | None
    """The PCI addresses of the GPUs whose memory its controller for device memory can limit; None: it is not seen."""
    own_cgroups: bool
    """The control groups that are seen are not the node's but those of a container, which leave this out."""
    topology_hidden: bool
    """The partitions of GPUs, and the links between them, may not be read here."""
    traces: bool
    """The use of GPUs by other processes may be read here."""
    alone: bool
    """It drives GPUs, and there is none of NVIDIA's beside them."""


def node_facts(root: str = "") -> NodeFacts:
    """Read the kernel's files below `root`."""
    files = KernelFiles(root)
    parts = [line.split("/") for line in files.text(f"{_CGROUPS}/dmem.capacity").splitlines()]
    addresses = frozenset(part[1].lower() for part in parts if len(part) == 3 and part[2].startswith("vram"))
    status = dict(line.split(":", 1) for line in files.text("/proc/self/status").splitlines() if ":" in line)
    return NodeFacts(
        release=files.text("/proc/sys/kernel/osrelease")[:64],
        limited=None if files.problem(f"{_CGROUPS}/dmem.capacity") else addresses,
        own_cgroups=not files.problem(f"{_CGROUPS}/cgroup.type"),  # which the root lacks
        topology_hidden=any(
            files.problem(f"{_NODES}/{name}/properties") == errno.EPERM for name in files.names(_NODES)
        ),
        traces=bool(int(status.get("CapEff", "0"), 16) >> _SYS_PTRACE & 1),
        alone=bool(pci_devices.drivers_in_use(files)) and not pci_devices.has_nvidia(files),
    )

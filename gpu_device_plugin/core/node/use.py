"""Attribute the processes on the node's GPUs to containers: who uses how much, and whose memory it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.node.cgroups import CgroupOwner
    from gpu_device_plugin.core.node.holdings import Holding


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one GPU, as the driver lists it: its compute, graphics and MPS entries merged."""

    pid: int
    """In the PID namespace of the reader."""
    used_mib: int | None
    """All memory of the process on this GPU; None: the driver does not know."""
    sm_percent: int | None = None
    """Its use of the GPU's multiprocessors in the last interval, 0 to 100; None: unknown."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The processes and the memory of one GPU at one moment."""

    uuid: str
    processes: tuple[GpuProcess, ...] | None
    """None: the driver does not list processes on this GPU (MIG, an old driver), or the GPU cannot be read."""
    used_mib: int | None = None
    """Memory in use by anybody, without the driver's own reservation; None: unknown."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The use of one GPU by one container."""

    pod_uid: str
    """As the kubelet knows the pod."""
    container: str
    """Its name; empty if only the pod is known."""
    uuid: str
    """The GPU's."""
    granted_mib: int
    """0: the pod was not given this GPU."""
    used_mib: int | None
    """None: not known, see `NodeUse.blind`."""
    sm_percent: int | None = None
    processes: int = 0
    holding: Holding | None = None
    """None for a pod that was given no GPU of this node."""

    @property
    def trespassing(self) -> bool:
        """Whether the container uses a GPU that it was not given."""
        return self.granted_mib == 0


@dataclass(frozen=True, slots=True)
class UseReading:
    """Who used what at one moment."""

    at: float = 0.0
    """Monotonic seconds."""
    containers: tuple[ContainerUse, ...] = ()
    used_mib: Mapping[str, int | None] = field(default_factory=dict)
    """Memory in use on each GPU, by UUID."""
    unattributed_mib: Mapping[str, int] = field(default_factory=dict)
    """The part of it that belongs to no pod, for GPUs where it is known."""
    blind: str = ""
    """Why the use by container is not known, as a sentence; empty if it is known. Blind is not zero: the agent sees no
    processes of other PID namespaces unless its pod has ``hostPID: true``."""


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process as the kernel shows it."""

    pid: int
    owner: CgroupOwner | None
    """The pod it runs in; None: no pod's."""

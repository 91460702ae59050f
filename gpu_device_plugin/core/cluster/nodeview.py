"""A node as people look at it: its GPUs, and which pods are on which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.usage import Usage
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.model.placing import Room


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod that counts on a node, and what it takes there."""

    namespace: str
    name: str
    usage: Usage
    uid: str = ""
    priority: int = 0
    deleting: bool = False

    def __str__(self) -> str:
        """Return the name by which people know it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod has of one GPU."""

    pod: PodUse
    shares: int
    """All of the GPU's where it is taken whole."""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU, and the pods on it."""

    gpu: ListedGpu
    room: Room
    """As a demand meets it; what is on an unknown GPU of the node is taken off every one."""
    held: tuple[Held, ...] = ()

    @property
    def used(self) -> int:
        """Shares that are known to be in use; more than there are where too much was given away."""
        shared = sum(held.shares for held in self.held if not held.whole)
        return max(shared, self.gpu.shares if any(held.whole for held in self.held) else 0)

    @property
    def free(self) -> int:
        """Shares that one demand could get."""
        return self.room.free if self.room.healthy and not self.room.whole else 0


@dataclass(frozen=True, slots=True)
class Loose:
    """What one pod has of unknown GPUs, or of GPUs that the node does not list."""

    pod: PodUse
    shares: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that shares its GPUs, or claims to."""

    candidate: Candidate
    pods: tuple[PodUse, ...] = ()
    """By namespace and name."""
    address: str = ""
    ready: bool = True
    unschedulable: bool = False
    """Cordoned."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of the resources that are managed; none of one that the kubelet does not know."""
    allocatable: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.candidate.name

    @property
    def total(self) -> int:
        """Shares of all GPUs, healthy or not."""
        return sum(gpu.shares for gpu in self.candidate.gpus.gpus)

    @property
    def used(self) -> int:
        """Shares in use, wherever they are."""
        return sum(view.used for view in self.gpus()) + self.unplaced

    @property
    def unplaced(self) -> int:
        """Shares in use on unknown GPUs."""
        return sum(self.size(loose) for loose in self.loose())

    def size(self, loose: Loose) -> int:
        """Return how many shares that may be: an unknown whole GPU counts as large as the largest."""
        largest = max((gpu.shares for gpu in self.candidate.gpus.gpus), default=0)
        return loose.shares + loose.gpus * largest

    def gpus(self) -> tuple[GpuView, ...]:
        """Return every GPU, by position."""
        listed = self.candidate.gpus.gpus
        held: dict[int, list[Held]] = {gpu.position: [] for gpu in listed}
        sizes = {gpu.position: gpu.shares for gpu in listed}
        for pod in self.pods:
            usage = pod.usage.as_listed(sizes)
            for position, shares in usage.shares:
                held[position].append(Held(pod, shares))
            for position in usage.whole:
                held[position].append(Held(pod, sizes[position], whole=True))
        rooms = {room.position: room for room in self.candidate.rooms}
        return tuple(GpuView(gpu, rooms[gpu.position], tuple(held[gpu.position])) for gpu in listed)

    def loose(self) -> tuple[Loose, ...]:
        """Return what is on unknown GPUs, by pod."""
        known = {gpu.position for gpu in self.candidate.gpus.gpus}
        found = ((pod, pod.usage.as_listed(known)) for pod in self.pods)
        return tuple(Loose(pod, usage.unplaced_shares, usage.unplaced_gpus) for pod, usage in found if usage.unplaced)

    def amount(self, shares: int) -> str:
        """Write shares of this node as memory, or as a bare number where their size is not known."""
        share_mib = self.candidate.gpus.share_mib
        return str(shares) if share_mib is None else format_mib(shares * share_mib)

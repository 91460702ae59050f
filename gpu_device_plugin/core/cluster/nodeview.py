"""A node as people look at it: its GPUs, and which pods are on which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.model.placing import Room


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod has of one GPU."""

    pod: Occupant
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
class NodeView:
    """One node that shares its GPUs, or claims to."""

    candidate: Candidate
    pods: tuple[Occupant, ...] = ()
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
        sizes = self.candidate.gpus.sizes
        return sum(usage.size(sizes) for usage in self.loose().values())

    def gpus(self) -> tuple[GpuView, ...]:
        """Return every GPU, by position."""
        listed = self.candidate.gpus.gpus
        sizes = self.candidate.gpus.sizes
        held: dict[int, list[Held]] = {position: [] for position in sizes}
        for pod in self.pods:
            usage = pod.usage.as_listed(sizes)
            for position, shares in usage.shares:
                held[position].append(Held(pod, shares))
            for position in usage.whole:
                held[position].append(Held(pod, sizes[position], whole=True))
        rooms = {room.position: room for room in self.candidate.rooms}
        return tuple(GpuView(gpu, rooms[gpu.position], tuple(held[gpu.position])) for gpu in listed)

    def loose(self) -> Mapping[Occupant, Usage]:
        """Return what pods have of unknown GPUs, or of GPUs that the node does not list, and nothing else of them."""
        sizes = self.candidate.gpus.sizes
        found = ((pod, pod.usage.as_listed(sizes)) for pod in self.pods)
        return {
            pod: Usage(unplaced_shares=usage.unplaced_shares, unplaced_gpus=usage.unplaced_gpus)
            for pod, usage in found
            if usage.unplaced
        }

    def amount(self, shares: int) -> str:
        """Write shares of this node as memory, or as a bare number where their size is not known."""
        share_mib = self.candidate.gpus.share_mib
        return str(shares) if share_mib is None else format_mib(shares * share_mib)

    def amounts(self, usage: Usage) -> list[str]:
        """Write what a pod takes of this node: its shares, its whole GPUs, or both."""
        shares = [self.amount(usage.all_shares)] if usage.all_shares else []
        return [*shares, *([f"{usage.all_gpus} whole"] if usage.all_gpus else [])]

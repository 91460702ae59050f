"""A node for display: its GPUs, and the pods on each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.instances import whole_instances
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.nodereport import NO_REPORT
from gpu_device_plugin.core.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.instances import InstancePod, Instances
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.contract.nodereport import NodeReport
    from gpu_device_plugin.core.model.placing import Room


@dataclass(frozen=True, slots=True)
class Held:
    """The part of one GPU that one pod holds."""

    pod: Occupant
    shares: int
    """All shares of the GPU where the pod holds it whole."""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU, and the pods on it."""

    gpu: ListedGpu
    room: Room
    """The room for another pod; usage of an unknown GPU of the node is subtracted from every GPU."""
    held: tuple[Held, ...] = ()

    @property
    def used(self) -> int:
        """Shares known to be in use; more than the GPU has where it is overcommitted."""
        shared = sum(held.shares for held in self.held if not held.whole)
        return max(shared, self.gpu.shares if any(held.whole for held in self.held) else 0)

    @property
    def free(self) -> int:
        """Shares that one demand could take."""
        return self.room.free if self.room.healthy and not self.room.whole else 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that shares its GPUs, or advertises that it does."""

    candidate: Candidate
    pods: tuple[Occupant, ...] = ()
    """By namespace and name."""
    address: str = ""
    ready: bool = True
    unschedulable: bool = False
    """Cordoned."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """By name of each managed resource that the kubelet knows."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    report: NodeReport = NO_REPORT
    """What its agent reports of limits and of real use."""
    instance_pods: tuple[InstancePod, ...] = ()
    """The pods on it that ask for whole MIG instances, by namespace and name."""

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
        """Shares in use, on known and unknown GPUs."""
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
            usage = pod.usage.as_listed(sizes, self.candidate.gpus.elsewhere)
            for position, shares in usage.shares:
                held[position].append(Held(pod, shares))
            for position in usage.whole:
                held[position].append(Held(pod, sizes[position], whole=True))
        rooms = {room.position: room for room in self.candidate.rooms}
        return tuple(GpuView(gpu, rooms[gpu.position], tuple(held[gpu.position])) for gpu in listed)

    def instances(self) -> tuple[Instances, ...]:
        """Return the MIG instances that are handed out whole, by resource, with the pods that have them."""
        return whole_instances(self.candidate.gpus.instances, self.instance_pods)

    def loose(self) -> Mapping[Occupant, Usage]:
        """Return by pod only its usage of unknown GPUs, or of GPUs that the node does not list."""
        sizes = self.candidate.gpus.sizes
        elsewhere = self.candidate.gpus.elsewhere
        found = ((pod, pod.usage.as_listed(sizes, elsewhere)) for pod in self.pods)
        return {
            pod: Usage(unplaced_shares=usage.unplaced_shares, unplaced_gpus=usage.unplaced_gpus)
            for pod, usage in found
            if usage.unplaced
        }

    def amount(self, shares: int) -> str:
        """Format shares of this node as memory, or as a bare number where their size is unknown."""
        share_mib = self.candidate.gpus.share_mib
        return str(shares) if share_mib is None else format_mib(shares * share_mib)

    def amounts(self, usage: Usage) -> list[str]:
        """Format a pod's usage of this node: its shares, its whole GPUs, or both."""
        shares = [self.amount(usage.all_shares)] if usage.all_shares else []
        return [*shares, *([f"{usage.all_gpus} whole"] if usage.all_gpus else [])]

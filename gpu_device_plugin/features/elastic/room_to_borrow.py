"""A pod that may use more memory than it is guaranteed gets, of equal GPUs, the one with the least memory in use."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_device_plugin.features.elastic.contract import read_wish
from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT, NODE_USE
from gpu_device_plugin.model.contract.node_use import used_mib
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, allowed, likeness
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest


class RoomToBorrow(SchedulerFeature):
    """Knows the memory in use on each GPU of the cluster, where agents tell it."""

    def __init__(self) -> None:
        self._use: dict[str, str] = {}
        """By node, as its agent tells it; read for a pod that may borrow, as few may and nodes change all the time."""

    def keys_of_nodes(self) -> frozenset[str] | None:  # noqa: D102
        return frozenset({NODE_USE})

    def put_node(self, node: NodeRecord) -> None:  # noqa: D102
        self._use.pop(node.name, None)
        if NODE_USE in node.annotations:
            self._use[node.name] = node.annotations[NODE_USE]

    def remove_node(self, name: str) -> None:  # noqa: D102
        self._use.pop(name, None)

    def prefer(self, fit: Fit, asked: GpuRequest, node: Candidate, pod: Pod) -> Fit:
        """Return where a pod that may borrow memory has most of it to borrow."""
        if MEMORY_LIMIT not in pod.annotations:
            return fit
        wish = read_wish(pod.annotations, MEMORY_LIMIT)
        members = [member for part in asked.parts if part.demand.kind is Kind.MEMORY for member in part.members]
        borrows = any((wish.of(container.name) or 0) > amount for container, amount in members)
        return with_room_to_borrow(fit, asked, node, used_mib(self._use.get(node.name, ""))[0]) if borrows else fit


def with_room_to_borrow(found: Fit, ask: GpuRequest, node: Candidate, used_mib: Mapping[int, int]) -> Fit:
    """Return the same place, on that of the equal GPUs on which the least memory is in use.

    For a pod that may use more than it is guaranteed. `used_mib` is the memory in use by position; a GPU of which it is
    not known is neither left nor taken. A pod of several parts stays where it is: these may have to fit together.
    """
    if len(found.placements) != 1 or found.placements[0].demand.kind is not Kind.MEMORY:
        return found
    demand, (at, *others) = found.placements[0].demand, found.placements[0].positions
    listed = {gpu.position: gpu for gpu in node.gpus.gpus}
    kinds = {
        room.position: (likeness(room), gpu.model, gpu.memory_mib, gpu.reserved_mib)
        for room in allowed(ask, node)
        if room.position in used_mib and (gpu := listed[room.position]).instance is None
    }
    if others or at not in kinds:
        return found
    equal = [position for position, kind in kinds.items() if kind == kinds[at]]
    best = min(equal, key=lambda position: (used_mib[position], position != at, position))
    return Fit((Placement(demand, ((best, demand.amount),)),))

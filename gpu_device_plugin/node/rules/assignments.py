"""What held devices come to: shares of GPUs, and GPUs that other resources gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.preferred_allocation import spread_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.model.allocations import Allocation
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.model.shares import SharedGpu, Shares
    from gpu_device_plugin.node.rules.node import Node

Slot: TypeAlias = tuple[str, str, Kind]
"""One container's use of one resource: pod UID as in the kubelet's records, container name, kind."""


def assigned_shares(
    pod: Pod, records: Mapping[Slot, frozenset[str]], node: Node, resources: Sequence[Resource]
) -> Mapping[tuple[str, Kind], Mapping[int, int]]:
    """Return the shares by GPU position of each container and kind of a pod; empty unless all of them are known.

    `records` are the device IDs in the kubelet's checkpoint.
    """
    found = {}
    for container in pod.containers:
        for resource in resources:
            if container.limits.get(resource.name, 0) > 0:
                ids = records.get((pod.kubelet_uid, container.name, resource.kind), frozenset())
                places = spread_over(node, ids)
                if not ids or sum(places.values()) < len(ids):
                    return {}
                whole = resource.kind is Kind.COUNT
                found[container.name, resource.kind] = {
                    position: len(node.shares.gpus[position].shares) if whole else count
                    for position, count in places.items()
                }
    return found


def held_through_others(allocations: Iterable[Allocation], shares: Shares) -> dict[str, str]:
    """Return the GPUs (by UUID) that containers hold through resources that are not ours, or not theirs any more.

    Each with the name of the resource. The driver may give a MIG instance of another profile the UUID of an earlier
    one, which a container may still hold: the kubelet counts the ID in each resource for itself.
    """
    held = (
        (shares.by_uuid(parse_id(name)[0]), allocation)
        for allocation in allocations
        for name in (*allocation.device_ids, *sorted(allocation.gpus or ()))
    )
    return {
        shared.gpu.uuid: allocation.through
        for shared, allocation in held
        if shared is not None and (allocation.kind is None or _is_of_another_profile(shared, allocation))
    }


def _is_of_another_profile(shared: SharedGpu, allocation: Allocation) -> bool:
    instance = shared.gpu.instance
    if instance is None or shared.gone or not is_mig_resource(allocation.through):
        return False
    return allocation.through.partition("/")[2] != resource_name(instance.profile)

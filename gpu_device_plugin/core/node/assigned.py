"""The GPUs of a pod's containers, by the kubelet's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.preferring import spread_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.node import Node

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

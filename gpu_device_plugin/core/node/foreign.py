"""Find the GPUs that containers hold through resources that are not ours, or not theirs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.core.model.shares import parse_id

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from gpu_device_plugin.core.model.shares import SharedGpu, Shares


def held_through_others(held: Iterable[tuple[str, str]], shares: Shares, ours: Container[str]) -> dict[str, str]:
    """Return those GPUs by UUID, each with the name of the resource.

    The driver may give a MIG instance of another profile the UUID of an earlier one, which a container may still hold:
    the kubelet counts the ID in each resource for itself.

    Args:
        held: the device IDs in the kubelet's checkpoint, each with the name of its resource.
        shares: the node's GPUs.
        ours: the names of our resources.
    """
    found = ((shares.by_uuid(parse_id(device)[0]), resource) for device, resource in held)
    return {
        shared.gpu.uuid: resource
        for shared, resource in found
        if shared is not None and (resource not in ours or _is_of_another_profile(shared, resource))
    }


def _is_of_another_profile(shared: SharedGpu, resource: str) -> bool:
    instance = shared.gpu.instance
    if instance is None or shared.gone or not is_mig_resource(resource):
        return False
    return resource.partition("/")[2] != resource_name(instance.profile)

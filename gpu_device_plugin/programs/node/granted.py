"""Which parts of GPUs the containers of this node hold at this moment, by the kubelet's checkpoint and the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.holdings import Allocated, holdings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.kubelet.checkpoint import Entry


def present_holdings(
    entries: Iterable[Entry], pods: Iterable[Pod], shares: Shares, offered: Iterable[Resource]
) -> tuple[Holding, ...]:
    """Return the GPUs of each container that holds some, see `core.node.holdings.holdings`.

    Args:
        entries: the entries of the checkpoint that was read last, of all resources.
        pods: the pods of this node in the API; none without the API.
        shares: the node's GPUs.
        offered: our resources.
    """
    kinds = {resource.name: resource.kind for resource in offered}
    allocated = (
        Allocated(
            entry.pod_uid,
            entry.container,
            kinds[entry.resource],
            entry.device_ids,
            Rung(entry.rung) if entry.rung else None,
        )
        for entry in entries
        if entry.resource in kinds
    )
    return holdings(allocated, pods, shares)

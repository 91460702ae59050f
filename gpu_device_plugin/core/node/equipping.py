"""Derive from a node's GPUs the share size in force, the GPUs out of service, and remarks for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.shares import unknown_exclusions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.shares import Shares

GONE = "the MIG instance exists no more"
IN_MIG_MODE = "it is in MIG mode now"


def share_size(wanted: int, before: int | None, holders: Collection[str] | None, ended: Collection[str]) -> int:
    """Return the share size in MiB: that of the previous agent as long as a container holds shares of that size.

    Under another size the held shares would mean another amount of memory, part of which could be allocated twice.

    Args:
        wanted: the share size in the settings.
        before: the share size of the previous agent; None if unknown.
        holders: UIDs of the pods for which the kubelet's checkpoint shows shares; None if it cannot be read.
        ended: UIDs of the pods that the previous agent saw end, see `ended_pods`.
    """
    held = holders is None or not set(holders) <= set(ended)
    return before if held and before is not None else wanted


def mig_mode(setting: str, label: str) -> MigMode:
    """Return how pods get MIG instances: by the node's label if its value is a mode, otherwise by the setting."""
    return MigMode(label if label in list(MigMode) else setting)


def out_of_service(reasons: Mapping[str, Sequence[str]], shares: Shares) -> Mapping[str, str]:
    """Return the reason for each GPU (by UUID) out of service, see `Node.unhealthy`; `reasons` are those of health.

    What is wrong with a GPU is wrong with its MIG instances.
    """
    failed = {uuid: "; ".join(why) for uuid, why in reasons.items() if why}
    unhealthy = dict(failed)
    for shared in shares.gpus:
        gpu = shared.gpu
        if shared.gone:
            unhealthy[gpu.uuid] = IN_MIG_MODE if gpu.instance is None else GONE
        elif gpu.mig:
            unhealthy.setdefault(gpu.uuid, IN_MIG_MODE)
        elif gpu.card in failed and gpu.instance is not None:
            own, of_card = failed.get(gpu.uuid), failed[gpu.card]
            why = f"its GPU is out of service: {of_card}"
            unhealthy[gpu.uuid] = f"{own}; {why}" if own and own != of_card else why
    return unhealthy


def remarks(shares: Shares, inventory: Inventory, excluded: Collection[str]) -> tuple[str, ...]:
    """Return remarks on a node's GPUs on which a person should act, in sentences."""
    return tuple(filter(None, (unknown_exclusions(excluded, inventory), shares.why_none)))

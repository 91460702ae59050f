"""What follows from a node's GPUs: the share size that they are cut by, which serve nobody, and what is to be known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.shares import unknown_exclusions
from gpu_device_plugin.core.node.limiting import enforcement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.model.gpus import Gpu, Inventory
    from gpu_device_plugin.core.model.shares import Shares


def share_size(wanted: int, before: int | None, holders: Collection[str] | None, ended: Collection[str]) -> int:
    """Return the share size in MiB: the one of the agent before as long as a container holds shares of it.

    They would be another amount of memory in shares of another size, and some of it might be given out again.

    Args:
        wanted: what the settings say.
        before: the share size of the agent before; None: it is not known.
        holders: UIDs of the pods for which the kubelet's checkpoint shows shares; None: it cannot be read.
        ended: UIDs of the pods that the agent before saw end, see `ended_pods`.
    """
    held = holders is None or not set(holders) <= set(ended)
    return before if held and before is not None else wanted


def out_of_service(reasons: Mapping[str, Sequence[str]], gpus: Iterable[Gpu]) -> Mapping[str, str]:
    """Return for each GPU (by UUID) that serves nobody why, see `Node.unhealthy`; `reasons` are those of its health."""
    mig = {gpu.uuid: "it is in MIG mode now, whose instances are not shared yet" for gpu in gpus if gpu.mig}
    return mig | {uuid: "; ".join(why) for uuid, why in reasons.items() if why}


def remarks(shares: Shares, inventory: Inventory, excluded: Collection[str]) -> Mapping[str, bool]:
    """Return sentences on what is to be known beside the GPUs, each with whether a person should do something."""
    gpus = [shared.gpu for shared in shares.gpus]
    found = {
        f"memory limits: {enforcement(gpus, inventory.cgroup)}" if gpus else "": False,
        unknown_exclusions(excluded, inventory): True,
        shares.why_none: True,
    }
    return {sentence: urgent for sentence, urgent in found.items() if sentence}

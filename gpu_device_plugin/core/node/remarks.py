"""What is to be known of a node beside its GPUs, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.shares import unknown_exclusions
from gpu_device_plugin.core.node.limiting import enforcement

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.shares import Shares


def remarks(shares: Shares, inventory: Inventory, excluded: Collection[str]) -> Mapping[str, bool]:
    """Return the sentences in the order in which they are told, each with whether a person should do something.

    Args:
        shares: the GPUs that are shared.
        inventory: what the driver shows.
        excluded: UUIDs or indexes of GPUs that the settings keep out.
    """
    gpus = [shared.gpu for shared in shares.gpus]
    found = {
        f"memory limits: {enforcement(gpus, inventory.cgroup)}" if gpus else "": False,
        unknown_exclusions(excluded, inventory): True,
        shares.why_none: True,
    }
    return {sentence: urgent for sentence, urgent in found.items() if sentence}

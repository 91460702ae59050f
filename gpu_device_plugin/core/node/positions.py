"""Give each GPU a position in the node's list of GPUs: its previous one, as long as that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import MalformedAnnotationError
from gpu_device_plugin.core.contract.nodegpus import read_node_gpus
from gpu_device_plugin.core.model.gpus import Gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNLISTED = -1
"""The index of a GPU that NVML has not listed. No setting can name it."""


def listed_before(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that the annotation `NODE_GPUS` of our own node lists, by position; none if it cannot be read."""
    try:
        listed = read_node_gpus(text).gpus
    except MalformedAnnotationError:
        return ()
    gpus = tuple(
        Gpu(each.uuid, _UNLISTED, each.model, each.memory_mib, each.reserved_mib, None, each.pci or None, each.numa)
        for each in listed
        if each.uuid and each.memory_mib is not None and each.reserved_mib is not None
    )
    return gpus if len(gpus) == len(listed) else ()


def in_order(before: Sequence[Gpu], found: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node in the order of their positions.

    Each known GPU keeps its position, whether it is found now or not; a new GPU takes the position of the GPU whose PCI
    slot it occupies, or the last one. If no known GPU is found, the machine is another, and all of them are forgotten.

    Args:
        before: the previous GPUs of the node, by position.
        found: its present GPUs, not empty.
    """
    here, known = {gpu.uuid: gpu for gpu in found}, {gpu.uuid for gpu in before}
    if known.isdisjoint(here):
        return tuple(found)
    new = {gpu.pci_bus_id: gpu for gpu in found if gpu.uuid not in known and gpu.pci_bus_id is not None}
    # Two known GPUs may have been in one slot, one after the other. The GPU that is in it now takes one position.
    kept = [here.get(gpu.uuid) or new.pop(gpu.pci_bus_id or "", None) or gpu for gpu in before]
    return tuple({gpu.uuid: gpu for gpu in (*kept, *found)}.values())

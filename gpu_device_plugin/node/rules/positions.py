"""Give each GPU of a node a position, which it keeps across restarts and changes of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_device_plugin.model.contract.keys import MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import read_node_gpus
from gpu_device_plugin.model.gpus import Gpu, MigInstance

_UNLISTED = -1
"""The index of a GPU that NVML has not listed. No setting can name it."""


def listed_before(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that the annotation `NODE_GPUS` of our own node lists, by position; none if it cannot be read.

    MIG instances are among them, those that were gone already included.
    """
    try:
        node = read_node_gpus(text)
    except MalformedAnnotationError:
        return ()
    listed = sorted((*node.all, *node.gone), key=lambda each: each.position)
    gpus = tuple(
        Gpu(
            each.uuid,
            _UNLISTED,
            each.model,
            each.memory_mib,
            each.reserved_mib,
            pci_bus_id=each.pci or None,
            numa_node=each.numa,
            instance=None
            if each.instance is None
            else MigInstance(each.instance.parent, _UNLISTED, each.instance.profile, each.instance.gi, 0),
        )
        for each in listed
        if each.uuid and each.memory_mib is not None and each.reserved_mib is not None
    )
    return gpus if len(gpus) == len(listed) else ()


def in_order(before: Sequence[Gpu], found: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node in the order of their positions.

    Each known GPU keeps its position, whether it is found now or not; a new GPU takes the position of the GPU whose PCI
    slot it occupies, or the last one. A MIG instance that exists no more leaves its position to a new one of its GPU,
    or to the GPU itself, and a GPU in MIG mode to one of its instances. If no known GPU is found, the machine is
    another, and all of them are forgotten. `before` are the previous GPUs by position, `found` the present ones, at
    least one.
    """
    here, known = {gpu.uuid: gpu for gpu in found}, {gpu.uuid for gpu in before}
    if {gpu.card for gpu in before}.isdisjoint(gpu.card for gpu in found):
        return tuple(found)
    new = [gpu for gpu in found if gpu.uuid not in known and not gpu.mig]
    # Two known GPUs may have been in one slot, one after the other. The GPU that is in it now takes one position.
    slots: dict[str | None, Gpu] = {
        gpu.pci_bus_id: gpu for gpu in new if gpu.pci_bus_id is not None and gpu.instance is None
    }
    on_card: dict[str, list[Gpu]] = {}
    for gpu in new:
        on_card.setdefault(gpu.card, []).append(gpu)
    kept = [_successor(gpu, here, on_card, slots) for gpu in before]
    return tuple({gpu.uuid: gpu for gpu in (*kept, *found)}.values())


def _successor(
    before: Gpu, here: Mapping[str, Gpu], on_card: Mapping[str, list[Gpu]], slots: dict[str | None, Gpu]
) -> Gpu:
    """Return the GPU that has the position of `before` now; it is taken out of `on_card` or `slots`."""
    found = here.get(before.uuid)
    if found is not None and not found.mig:
        return found
    if new := on_card.get(before.card):
        return new.pop(0)
    return found or slots.pop(before.pci_bus_id, None) or before

"""Nodes with MIG instances in one line: GPU-0 has the instances MIG-0-0, MIG-0-1 and so on, one GiB to the share."""

from collections.abc import Iterable, Mapping, Sequence

from gpu_device_plugin.model.gpus import Gpu, Inventory, MigInstance
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node

CARD_GIB = 80


def profile(gib: int) -> str:
    """Return the profile of an instance of so many GiB: one slice for each ten."""
    return f"{max(1, gib // 10)}g.{gib}gb"


def instance(card: int, number: int, gib: int = 10, *, alone: bool = True) -> Gpu:
    """Return an instance of the GPU with this index."""
    name = profile(gib) if alone else f"1c.{profile(gib)}"
    return Gpu(
        f"MIG-{card}-{number}",
        card,
        f"NVIDIA H100 MIG {name}",
        gib * MIB_PER_GIB,
        device_paths=(f"/dev/nvidia{card}",),
        instance=MigInstance(f"GPU-{card}", number, name, 7 + number, 0, alone, (10 * card + number, 100 + card)),
    )


def gpus(index: int, card: int | Sequence[int]) -> tuple[Gpu, ...]:
    """Return a GPU: a whole one of so many GiB, or one in MIG mode with instances of these sizes."""
    if isinstance(card, int):
        return (Gpu(f"GPU-{index}", index, "Tesla T4", card * MIB_PER_GIB, device_paths=(f"/dev/nvidia{index}",)),)
    parent = Gpu(
        f"GPU-{index}", index, "NVIDIA H100", CARD_GIB * MIB_PER_GIB, device_paths=(f"/dev/nvidia{index}",), mig=True
    )
    return parent, *(instance(index, number, gib) for number, gib in enumerate(card))


def inventory(*cards: int | Sequence[int]) -> Inventory:
    """Return the GPUs of a node, see `gpus`."""
    return Inventory(tuple(gpu for index, card in enumerate(cards) for gpu in gpus(index, card)))


def mig_node(
    *cards: int | Sequence[int],
    mode: MigMode = MigMode.SHARE,
    used: Mapping[str, Iterable[int]] | None = None,
    whole: Iterable[str] = (),
    unhealthy: Mapping[str, str] | None = None,
) -> Node:
    """Return a node with these GPUs, see `gpus`; the others are by UUID."""
    held = [share_id(uuid, number) for uuid, numbers in (used or {}).items() for number in numbers]
    return Node(
        Shares(MIB_PER_GIB).with_inventory(inventory(*cards), mig=mode),
        Ledger().seen([*held, *whole]),
        {uuid: Block(why) for uuid, why in (unhealthy or {}).items()},
    )

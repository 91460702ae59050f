"""Nodes in one line: values of the model whose GPUs are called GPU-0, GPU-1 and so on, one GiB to the share."""

from collections.abc import Iterable, Mapping

from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Links
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.node.rules.ledger import Ledger, Reservation
from gpu_device_plugin.node.rules.node import Block, Node


def uuid(position: int) -> str:
    """Return the UUID, and so the gpu-count ID, of the GPU at `position`."""
    return f"GPU-{position}"


def ids(position: int, numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the gpu-mem IDs of these shares of the GPU at `position`."""
    return tuple(share_id(uuid(position), number) for number in numbers)


def inventory(*gib: int) -> Inventory:
    """Return GPUs of so many GiB each."""
    return Inventory(tuple(Gpu(uuid(n), n, "Tesla T4", size * MIB_PER_GIB) for n, size in enumerate(gib)))


def node(
    *gib: int,
    used: Mapping[int, Iterable[int]] | None = None,
    reserved: Mapping[int, int] | None = None,
    whole: Iterable[int] = (),
    unhealthy: Mapping[int, str] | None = None,
    closeness: Mapping[tuple[int, int], int] | None = None,
    certain: bool = True,
) -> Node:
    """Return a node.

    Args:
        gib: the sizes of its GPUs, GiB.
        used: numbers of the shares in use, by position.
        reserved: shares that a container with all of the used ones of a GPU is guaranteed beyond these, by position.
        whole: positions in whole use.
        unhealthy: reasons of GPUs out of service, by position.
        closeness: how many links two GPUs have between them.
        certain: whether the ledger is complete.
    """
    held = [name for position, numbers in (used or {}).items() for name in ids(position, numbers)]
    held += [uuid(position) for position in whole]
    reservations = {
        (f"pod-{position}", "main"): Reservation(
            uuid(position), shares, frozenset(ids(position, (used or {})[position]))
        )
        for position, shares in (reserved or {}).items()
    }
    return Node(
        Shares(MIB_PER_GIB).with_inventory(inventory(*gib)),
        Ledger().seen(held, certain=certain).with_reservations(reservations),
        {uuid(position): Block(why) for position, why in (unhealthy or {}).items()},
        Links(
            tuple((a, b, Closeness.UNKNOWN, placement_value) for (a, b), placement_value in (closeness or {}).items())
        ),
    )

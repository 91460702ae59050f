"""Nodes and ResourceClaims for tests of the DRA driver, whose GPUs have UUIDs as NVML writes them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.claims.contract import (
    API_VERSION,
    CONFIG_KIND,
    DRIVER,
    Claim,
    Consumer,
    Device,
    Parameters,
    device_name,
)
from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Links, MigInstance
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node

NODE = "gpu-1"


def uuid(position: int) -> str:
    """Return the UUID of the GPU at `position`."""
    return f"GPU-00000000-aaaa-bbbb-cccc-{position:012d}"


def ids(position: int, numbers: Iterable[int]) -> frozenset[str]:
    """Return the IDs of these shares of the GPU at `position`."""
    return frozenset(share_id(uuid(position), number) for number in numbers)


def node(
    *gib: int,
    used: Mapping[int, Iterable[int]] | None = None,
    whole: Iterable[int] = (),
    unhealthy: Mapping[int, str] | None = None,
    nvlinks: Iterable[tuple[int, int]] = (),
) -> Node:
    """Return a node with GPUs of so many GiB; for the rest see `tests.nodes.node`."""
    gpus = tuple(
        Gpu(uuid(n), n, "NVIDIA H200", size * MIB_PER_GIB, numa_node=n % 2, pci_bus_id=f"0000:{n + 10:02X}:00.0")
        for n, size in enumerate(gib)
    )
    held = [name for position, numbers in (used or {}).items() for name in ids(position, numbers)]
    return Node(
        Shares(MIB_PER_GIB).with_inventory(Inventory(gpus)),
        Ledger().seen([*held, *(uuid(position) for position in whole)]),
        {uuid(position): Block(why) for position, why in (unhealthy or {}).items()},
        Links(tuple((a, b, Closeness.NVLINK, 18) for a, b in nvlinks)),
    )


def mig_uuid(card: int, number: int) -> str:
    """Return the UUID of an instance of the GPU `card`."""
    return f"MIG-0000000{card}-aaaa-bbbb-cccc-{number:012d}"


def mig_inventory(*cards: int | Sequence[int]) -> Inventory:
    """Return GPUs of so many GiB; those with several sizes are in MIG mode and have instances of these sizes."""
    gpus: list[Gpu] = []
    for card, sizes in enumerate(cards):
        size = sizes if isinstance(sizes, int) else 80
        product, slot = "NVIDIA H100", f"0000:{card + 10:02X}:00.0"
        whole = Gpu(
            uuid(card),
            card,
            product,
            size * MIB_PER_GIB,
            device_paths=(f"/dev/nvidia{card}",),
            pci_bus_id=slot,
            numa_node=card % 2,
        )
        if isinstance(sizes, int):
            gpus.append(whole)
            continue
        gpus.append(replace(whole, mig=True))
        for number, gib in enumerate(sizes):
            profile = f"{max(1, gib // 10)}g.{gib}gb"
            caps = (card * 100 + number * 2 + 1, card * 100 + number * 2 + 2)
            place = MigInstance(uuid(card), number, profile, 7 + number, 0, caps=caps)
            name = f"{product} MIG {profile}"
            there = replace(whole, uuid=mig_uuid(card, number), product=name, total_mib=gib * MIB_PER_GIB)
            gpus.append(replace(there, instance=place))
    return Inventory(tuple(gpus))


def mig_node(
    *cards: int | Sequence[int],
    mode: MigMode = MigMode.SHARE,
    used: Mapping[tuple[int, int], Iterable[int]] | None = None,
    whole: Iterable[tuple[int, int]] = (),
    unhealthy: Mapping[str, str] | None = None,
    share_mib: int = MIB_PER_GIB,
) -> Node:
    """Return a node with these GPUs, see `mig_inventory`; instances are given by their GPU and their number on it."""
    held = [share_id(mig_uuid(*each), number) for each, numbers in (used or {}).items() for number in numbers]
    shares = Shares(share_mib).with_inventory(mig_inventory(*cards), mig=mode)
    blocks = {uuid: Block(why) for uuid, why in (unhealthy or {}).items()}
    return Node(shares, Ledger().seen([*held, *(mig_uuid(*each) for each in whole)]), blocks)


def instance(card: int, number: int, gib: float | None = 4, *, whole: bool = False, **rest: Any) -> Device:
    """Return an allocated device: so many GiB of a MIG instance, or all of it."""
    return replace(device(0, gib, whole=whole), name=device_name(mig_uuid(card, number)), **rest)


def device(position: int = 0, gib: float | None = 4, *, whole: bool = False, **rest: Any) -> Device:
    """Return an allocated device: so many GiB of the GPU at `position`, or all of it."""
    found = Device("gpu", DRIVER, NODE, device_name(uuid(position)), "" if whole else f"share-{position}")
    mib = None if whole or gib is None else int(gib * MIB_PER_GIB)
    return replace(found, memory_mib=mib, **rest)


def claim(*devices: Device, name: str = "c1", pods: Iterable[str] = ("p1",), **rest: Any) -> Claim:
    """Return an allocated claim of these devices, reserved for pods of these names."""
    consumers = tuple(Consumer(f"uid-of-{pod}", pod) for pod in pods)
    return Claim(f"uid-of-{name}", "default", name, allocated=True, devices=devices, consumers=consumers, **rest)


def config(*requests: str, of_class: bool = False, **fields: Any) -> Parameters:
    """Return parameters of our kind with these fields."""
    values = {"apiVersion": API_VERSION, "kind": CONFIG_KIND, **fields}
    return Parameters(values, frozenset(requests), of_class)

"""Nodes and ResourceClaims for tests of the DRA driver, whose GPUs have UUIDs as NVML writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.dra import API_VERSION, CONFIG_KIND, DRIVER, device_name
from gpu_device_plugin.core.model.claims import Claim, Consumer, Device, Parameters
from gpu_device_plugin.core.model.gpus import Closeness, Gpu, Inventory, Links
from gpu_device_plugin.core.model.memory import MIB_PER_GIB
from gpu_device_plugin.core.model.shares import Shares, share_id
from gpu_device_plugin.core.node.ledger import Ledger
from gpu_device_plugin.core.node.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
        {uuid(position): why for position, why in (unhealthy or {}).items()},
        Links(tuple((a, b, Closeness.NVLINK, 18) for a, b in nvlinks)),
    )


def device(position: int = 0, gib: float | None = 4, *, whole: bool = False, **rest: Any) -> Device:
    """Return an allocated device: so many GiB of the GPU at `position`, or all of it."""
    found = Device("gpu", DRIVER, NODE, device_name(uuid(position), whole=whole), "" if whole else f"share-{position}")
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

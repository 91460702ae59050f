"""GPUs and the links between them: the facts about the hardware on which decisions rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

NVIDIA = "nvidia"
"""The kernel driver whose GPUs NVIDIA's container toolkit gives to containers. Those of every other driver reach them
by device nodes alone."""
MOST_GPUS = 128
"""Most GPUs of one node, MIG instances included. The largest machines have 16, each of which has up to 7 instances."""
MOST_SHARES = 1 << 20
"""No GPU has more, however small its shares."""
MOST_POSITIONS = 512
"""Most positions of one node before an agent that starts anew has to give those of former MIG instances to others."""


class Closeness(IntEnum):
    """How two GPUs of one node are connected, the closest last, so that greater is closer.

    The levels are those of NVML's ``nvmlGpuTopologyLevel_t`` with NVLink on top; NVML calls the farthest ``SYSTEM``.
    """

    UNKNOWN = 0
    SYSTEM = 1
    """Across CPU sockets (NUMA nodes)."""
    NODE = 2
    """Within one NUMA node, across PCIe host bridges."""
    HOST_BRIDGE = 3
    SWITCHES = 4
    """Through several PCIe switches, without crossing a host bridge."""
    SWITCH = 5
    """Through a single PCIe switch."""
    BOARD = 6
    """On one board."""
    NVLINK = 7


def short_model(product: str) -> str:
    """Return the product name of a GPU as tables show it: without the maker, which is most often the same."""
    return product.removeprefix("NVIDIA ").removeprefix("AMD ")


@dataclass(frozen=True, slots=True)
class MigInstance:
    """The place of a MIG instance on its GPU: a compute instance within a GPU instance, as NVML names them."""

    parent: str
    """The UUID of its GPU."""
    number: int
    """NVML's index among the instances of its GPU. For display only: it shifts when an instance is destroyed."""
    profile: str
    """For example ``1g.10gb``, see `model.mig`."""
    gi: int
    """ID of the GPU instance, which has the memory."""
    ci: int
    """ID of the compute instance."""
    alone: bool = True
    """It has all of its GPU instance; otherwise other compute instances use the same memory."""
    caps: tuple[int, ...] = ()
    """The N of each /dev/nvidia-caps/nvidia-capN that gives access to it: that of the GPU instance, then that of the
    compute instance. Empty: unknown."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance of one, as the driver describes it. Not all platforms know more than UUID and memory."""

    uuid: str
    """``GPU-`` or ``MIG-`` and 36 characters; that of a GPU is stable over reboots, driver upgrades and slots. The only
    name used for a decision."""
    index: int
    """NVML's index, in PCI order; of a MIG instance that of its GPU. For display only: it shifts when a GPU
    disappears."""
    product: str
    """The product name as NVML prints it, for example ``Tesla T4``, or ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    total_mib: int
    """Memory on the card, or of the instance, MiB, rounded down; of a `unified` GPU that of the machine."""
    reserved_mib: int = 0
    """The part of `total_mib` that the driver keeps for itself (NVML's second memory call), MiB, rounded up."""
    device_paths: tuple[str, ...] = ()
    """The device nodes that give access to it and to no other GPU, or that each program on it needs, such as
    ``/dev/nvidia0``, whose number is not always the index. Empty where the platform has none (WSL, Tegra)."""
    pci_bus_id: str | None = None
    numa_node: int | None = None
    mig: bool = False
    """A GPU in MIG mode: only its instances can be used."""
    memory_limits: bool = False
    """Its driver, or for it the kernel, can limit the GPU memory of a cgroup's processes (NVML's
    nvmlDeviceGetMemoryLimits_v1; a region of the cgroup controller dmem)."""
    architecture: str | None = None
    """NVIDIA's name of its generation, for example ``Ada Lovelace``. None: the driver does not tell, or is too new."""
    instance: MigInstance | None = None
    """None: it is a whole GPU."""
    driver: str = NVIDIA
    """The kernel driver that it is bound to."""
    compute_units: int | None = None
    """Compute units, as the driver counts what can be reserved for a program by a mask; None: it does not tell."""
    unified: bool = False
    """It has no memory of its own, but that of the machine (GB10, Jetson), of which the driver tells nothing."""

    @property
    def capacity_mib(self) -> int:
        """What containers can use of its memory."""
        return self.total_mib - self.reserved_mib

    @property
    def card(self) -> str:
        """The UUID of the GPU that it is, or is an instance of."""
        return self.uuid if self.instance is None else self.instance.parent

    @property
    def label(self) -> str:
        """Its number for people, as nvidia-smi counts: ``0``, or ``0:3`` for an instance."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance.number}"


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs are connected. `a` sorts before `b`, so that every pair is written once."""

    a: str
    b: str
    closeness: Closeness
    nvlinks: int = 0
    """Number of active NVLinks between the two; 0 where `closeness` is not `NVLINK`."""


@dataclass(frozen=True, slots=True)
class Links:
    """The connections between the shared GPUs of a node. Nodes of one kind can share one value, hashed once."""

    pairs: tuple[tuple[int, int, Closeness, int], ...] = ()
    """For each pair: two positions, the lower one first, their closeness, and the number of NVLinks."""
    _values: Mapping[tuple[int, int], int] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {(a, b): level * 100 + nvlinks for a, b, level, nvlinks in self.pairs}
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_hash", hash(tuple(values.items())))

    def __hash__(self) -> int:
        return self._hash

    def connection(self, a: int, b: int) -> int:
        """Return how well two GPUs are connected; more is better. The number of NVLinks decides between equals."""
        return self._values.get((a, b) if a < b else (b, a), 0)


NO_LINKS = Links()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a node in NVML order, with the links that NVML reports between them."""

    gpus: tuple[Gpu, ...] = ()
    """Each GPU in MIG mode is followed by its instances."""
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cgroup: int | None = None
    """The node's cgroup version; None if unknown."""
    order: tuple[Gpu, ...] = ()
    """The GPUs by their positions when the agent started, MIG instances that existed before and are gone included."""
    unread: tuple[str, ...] = ()
    """A sentence on each GPU or MIG instance that the driver counts and that could not be listed."""

    def with_unified(self, mib: int) -> Inventory:
        """Return it with so much memory of the machine for each GPU that has none of its own; 0: it is as it was."""
        if not mib or not any(gpu.unified for gpu in (*self.gpus, *self.order)):
            return self
        gpus, order = (
            tuple(replace(gpu, total_mib=mib, unified=False) if gpu.unified else gpu for gpu in each)
            for each in (self.gpus, self.order)
        )
        return replace(self, gpus=gpus, order=order)

    @property
    def cards_mib(self) -> Mapping[str, int]:
        """The memory of the GPUs in MIG mode, by UUID."""
        return {gpu.uuid: gpu.total_mib for gpu in self.gpus if gpu.mig}

"""The models of GPUs that fakes can be: what each usually has, its partitions, and its MIG instances."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.model.gpus import NVIDIA, Closeness
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.mig import profile_name

if TYPE_CHECKING:
    from gpu_device_plugin.hardware.fake.value_forms import Fields

    Profile: TypeAlias = tuple[int, int, int, tuple[int, ...]]
    """Memory of an instance in MiB; its slices of the memory; how many of it a GPU can have; the slices of the memory
    at which one can begin."""

# Product, total MiB, MiB reserved by the driver, NVLinks to each other GPU of its kind, architecture; the first two as
# nvidia-smi prints them with drivers from r510 on. The reserved size depends on the driver; these are of r550.
MODELS: Mapping[str, tuple[str, int, int, int, str | None]] = {
    "P4": ("Tesla P4", 7680, 89, 0, "Pascal"),
    "P40": ("Tesla P40", 24576, 130, 0, "Pascal"),
    "P100": ("Tesla P100-PCIE-16GB", 16384, 108, 0, "Pascal"),
    "V100": ("Tesla V100-SXM2-16GB", 16384, 232, 1, "Volta"),
    "T4": ("Tesla T4", 15360, 449, 0, "Turing"),
    "A2": ("NVIDIA A2", 15356, 440, 0, "Ampere"),
    "A10": ("NVIDIA A10", 23028, 512, 0, "Ampere"),
    "A10G": ("NVIDIA A10G", 23028, 512, 0, "Ampere"),
    "A16": ("NVIDIA A16", 15356, 440, 0, "Ampere"),
    "A30": ("NVIDIA A30", 24576, 508, 0, "Ampere"),
    "A40": ("NVIDIA A40", 46068, 666, 0, "Ampere"),
    "A6000": ("NVIDIA RTX A6000", 49140, 666, 0, "Ampere"),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, 618, 12, "Ampere"),
    "L4": ("NVIDIA L4", 23034, 469, 0, "Ada Lovelace"),
    "L40": ("NVIDIA L40", 46068, 594, 0, "Ada Lovelace"),
    "L40S": ("NVIDIA L40S", 46068, 594, 0, "Ada Lovelace"),
    "H100": ("NVIDIA H100 80GB HBM3", 81559, 572, 18, "Hopper"),
    "H200": ("NVIDIA H200", 143771, 615, 18, "Hopper"),
    "B200": ("NVIDIA B200", 183359, 719, 18, "Blackwell"),
    "GB200": ("NVIDIA GB200", 189471, 719, 18, "Blackwell"),
    "B300": ("NVIDIA B300 SXM6 AC", 275040, 719, 18, "Blackwell"),
    "GB300": ("NVIDIA GB300", 284208, 719, 18, "Blackwell"),
    "GH200": ("NVIDIA GH200 480GB", 97871, 572, 0, "Hopper"),
    "RTXPRO6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 636, 0, "Blackwell"),
    # The driver tells no memory; this is MemTotal of a DGX Spark.
    "GB10": ("NVIDIA GB10", 124610, 0, 0, "Blackwell"),
    "RTX3090": ("NVIDIA GeForce RTX 3090", 24576, 317, 0, "Ampere"),
    "RTX4090": ("NVIDIA GeForce RTX 4090", 24564, 402, 0, "Ada Lovelace"),
    "RTX5090": ("NVIDIA GeForce RTX 5090", 32607, 516, 0, "Blackwell"),
    # mem_info_vram_total of amdgpu, which was seen on each. The kernel tells of no memory that it keeps.
    "MI210": ("AMD Instinct MI210", 65520, 0, 0, "gfx90a"),
    "MI300X": ("AMD Instinct MI300X", 196592, 0, 1, "gfx942"),
    "MI308X": ("AMD Instinct MI308X", 196592, 0, 1, "gfx942"),
    "MI355X": ("AMD Instinct MI355X", 294896, 0, 1, "gfx950"),
    "RX7900XTX": ("AMD Radeon RX 7900 XTX", 24560, 0, 0, "gfx1100"),
    "W7900": ("AMD Radeon PRO W7900", 49136, 0, 0, "gfx1100"),
    "RX9070XT": ("AMD Radeon RX 9070 XT", 16304, 0, 0, "gfx1201"),
    # The same of xe: what it can use of 12 GiB. The kernel has no name for it.
    "B580": ("Intel GPU 8086:e20b", 12216, 0, 0, None),
}
OTHERS: Mapping[str, tuple[str, int | None, int, int]] = {
    "MI210": ("amdgpu", 104, 300, 1),
    "MI300X": ("amdgpu", 304, 750, 8),
    "MI308X": ("amdgpu", 80, 650, 4),
    "MI355X": ("amdgpu", 256, 1400, 8),
    "RX7900XTX": ("amdgpu", 96, 339, 1),
    "W7900": ("amdgpu", 96, 241, 1),
    "RX9070XT": ("amdgpu", 64, 304, 1),
    "B580": ("xe", None, 190, 1),
}
"""The models that another driver than NVIDIA's has: it, their compute units, watts, and dies."""
PARTITIONS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
"""How many GPUs a board becomes, by the kernel's name of the mode; of a board with fewer dies `cpx` makes as many."""
_DRIVER_VERSIONS = {NVIDIA: "580.65.06", "amdgpu": "6.14.14", "xe": "6.17.0"}
_WITHIN_A_BOARD = 16
"""What stands for the number of links between partitions of one board: more than boards have."""
UNIFIED = frozenset({"GB10"})
"""The models with the memory of the machine."""


# Slices of compute, attributes, slices of the memory, most instances, and beginnings, as `nvidia-smi mig -lgip` and
# `-lgipp` print them, in the order of the sizes below. GPUs with seven slices of compute have eight of memory; the last
# cannot be a small instance.
_EIGHTHS = (
    (1, "", 1, 7, (0, 1, 2, 3, 4, 5, 6)),
    (1, "+me", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, "", 2, 4, (0, 2, 4, 6)),
    (2, "", 2, 3, (0, 2, 4)),
    (3, "", 4, 2, (0, 4)),
    (4, "", 4, 1, (0,)),
    (7, "", 8, 1, (0,)),
)
_QUARTERS = (
    (1, "", 1, 4, (0, 1, 2, 3)),
    (1, "+me", 1, 1, (0, 1, 2, 3)),
    (2, "", 2, 2, (0, 2)),
    (2, "+me", 2, 1, (0, 2)),
    (4, "", 4, 1, (0,)),
)

# Memory of each profile in MiB, by model and by the memory of the whole GPU. `nvidia-smi mig -lgip` was seen to print
# them on A30, A100 40GB, H100 80GB and H200, and the first four on B200 and GB200, whose other sizes follow from these
# as they do on H200. Of the A100 80GB only that of 2g.20gb was seen. They vary with the driver: a 1g.23gb of a B200 has
# 20992 or 22528 MiB, a 7g.40gb 40320 or 40448.
_MEMORY: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("A30", 24576): (5952, 5952, 11968, 11968, 24000),
    ("A100", 40960): (4864, 4864, 9984, 9984, 20096, 20096, 40320),
    ("A100", 81920): (9728, 9728, 19968, 19968, 40192, 40192, 80640),
    ("H100", 81559): (9984, 9984, 20096, 20096, 40448, 40448, 81152),
    ("H200", 143771): (16384, 16384, 33024, 33024, 71168, 71168, 143104),
    ("B200", 183359): (22528, 22528, 45312, 45312, 90880, 90880, 182016),
    ("GB200", 189471): (22528, 22528, 46592, 46592, 93440, 93440, 187136),
}
SIZES: tuple[tuple[str, int], ...] = tuple(_MEMORY)
"""The models with MIG, each with the memory in MiB that its profiles are known for."""


def memory_slices(model: str) -> int:
    """Return the number of slices that the memory of a GPU of a model with MIG has."""
    return 4 if model == "A30" else 8


def profiles_of(model: str, total_mib: int) -> dict[str, Profile]:
    """Return the profiles of a GPU by their names; none if they are not known for this model and size."""
    shapes = _QUARTERS if memory_slices(model) == 4 else _EIGHTHS
    return {
        profile_name(compute, memory, total_mib, attributes=attributes): (memory, slices, most, starts)
        for memory, (compute, attributes, slices, most, starts) in zip(
            _MEMORY.get((model, total_mib), ()), shapes, strict=False
        )
    }


def gpu_instance(size: int, start: int, slices: int) -> int:
    """Return the ID of the GPU instance with `size` of the `slices` of a GPU's memory, from slice `start` on.

    The driver numbers the whole memory, then its halves, its quarters, and so on: 0, 1 to 2, 3 to 6, 7 to 14.
    """
    return slices // size - 1 + start // size


def partitions(model: str | None, mode: str) -> int:
    """Return how many GPUs a board of a model is in a mode of `PARTITIONS`.

    Raises:
        ValueError: it has no such mode; the message says which it has.
    """
    *_, dies = OTHERS.get(model or "", (1,))
    if dies == 1:
        models = _or([each for each, (*_, most) in OTHERS.items() if most > 1])
        raise ValueError(f"{model or 'a GPU without a model'} cannot be partitioned; {models} can")
    modes = {each: parts for each, parts in PARTITIONS.items() if parts < dies} | {"cpx": dies}
    if mode not in modes:
        raise ValueError(f"{mode!r} is no mode of this model; it has {', '.join(modes)}")
    return modes[mode]


def usual(model: str | None, place: int) -> Fields:
    """Return what a board of a model usually is, in one of the places of a node."""
    product, memory, reserved, nvlinks, architecture = ("Fake GPU", 0, 0, 0, None) if model is None else MODELS[model]
    driver, units, watts, _ = OTHERS.get(model or "", (NVIDIA, None, 0, 1))
    domain, slot = divmod(place, 30)
    return {
        "model": model,
        "driver": driver,
        "compute_units": units,
        "watts": watts,
        "product": product,
        "memory": memory,
        "reserved": reserved,
        "nvlinks": nvlinks,
        "pci": f"{domain:04x}:{8 * (slot + 1):02x}:00.0",
        "unified": model in UNIFIED,
        "architecture": architecture,
    }


def usual_uuid(board: Fields, place: int) -> str:
    """Return the UUID that a driver gives a board: the kernel's are shorter, and of some the kernel knows none."""
    uuid = _uuid("GPU", f"{board['model']} {place}")
    if board["driver"] == NVIDIA:
        return uuid
    if board["driver"] == "xe" and board["pci"]:
        return f"PCI-{board['pci']}"
    return f"GPU-{uuid.replace('-', '')[3:19].upper()}"


def _uuid(prefix: str, seed: str) -> str:
    """Return the same UUID for the same seed, on every machine."""
    value = 0x6C62272E07BB014262B821756295C58D  # the 128-bit FNV-1a hash; hashlib would load OpenSSL, 5 MB
    for byte in seed.encode() * 3:  # one pass does not mix the last byte into all digits
        value = (value ^ byte) * 0x0000000001000000000000000000013B % (1 << 128)
    digits = f"{value:032x}"
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def usual_link(one: Fields, other: Fields) -> tuple[int, int]:
    """Return how close two GPUs usually are, and the number of links between them."""
    if one["product"] == other["product"] and one["nvlinks"]:
        return Closeness.NVLINK, _WITHIN_A_BOARD if one["pci"] and one["pci"] == other["pci"] else one["nvlinks"]
    return Closeness.NODE if one["numa"] == other["numa"] else Closeness.SYSTEM, 0


def driver_version(gpus: Iterable[Fields]) -> str:
    """Return the usual version of the driver of these GPUs: of several drivers that of NVIDIA's, as without GPUs."""
    drivers = {gpu["driver"] for gpu in gpus} or {NVIDIA}
    return next(version for driver, version in _DRIVER_VERSIONS.items() if driver in drivers)


# --- Dividing a GPU ---------------------------------------------------------------------------------------------------

_PART = re.compile(r"(?P<compute>[1-9])c\.(?P<profile>.+)", re.ASCII)
# /proc/driver/nvidia-caps/mig-minors lists all that a GPU can ever have: 15 GPU instances of 8 compute instances each.
# The first two capabilities are those to configure and to monitor.
_FIRST_CAP, _CAPS_OF_GI, _CAPS_OF_GPU = 3, 9, 135


@dataclass(slots=True)
class _GpuInstance:
    """A GPU instance that is to be placed, with its compute instances."""

    name: str
    memory_mib: int
    size: int
    """Its slices of the memory."""
    fixed: int | None
    """The ID that it must have; None: any."""
    starts: tuple[int, ...]
    """The slices of the memory at which it can begin."""
    free: int
    """Its slices of compute that no compute instance has."""
    parts: list[tuple[str, Fields]] = field(default_factory=list)
    """The profile of each compute instance, and what is described of it."""

    def add(self, name: str, compute: int, entry: Fields) -> None:
        self.free -= compute
        self.parts.append((name, entry))


def divided(gpu: Fields, wanted: Sequence[Fields]) -> list[Fields]:
    """Return the instances of a GPU, in the order in which NVML counts them.

    A profile like ``1c.3g.40gb`` is a compute instance: it becomes a part of the GPU instance before it, if that is of
    the same profile and has room.

    Of the GPU, `model`, `memory`, `uuid` and `minor` count. Those `wanted` have `profile`, `count` and possibly `gi`,
    `uuid`, `memory` and further fields.

    Raises:
        ValueError: the hardware cannot be divided like that; the message says why not.
    """
    if not wanted:
        return []
    table = _table(gpu)
    slices = memory_slices(gpu["model"])
    parts = _gpu_instances(wanted, table, slices)
    parts.sort(key=lambda part: -part.size)
    starts: Sequence[int] | None = ()
    for n, part in enumerate(parts):
        starts = _starts(parts[: n + 1])
        if starts is None:
            beside = ", ".join(each.name for each in parts[:n])
            raise ValueError(f"{part.name} does not fit beside {beside}; the hardware has no place for it")
    found = []
    for part, start in zip(parts, starts or (), strict=True):
        gi = gpu_instance(part.size, start, slices)
        found += [_instance(gpu, part, gi, ci) for ci in range(len(part.parts))]
    found.sort(key=lambda instance: (instance["gi"], instance["ci"]))
    return [{**instance, "number": number} for number, instance in enumerate(found)]


def _table(gpu: Fields) -> Mapping[str, Profile]:
    model, memory = gpu["model"], gpu["memory"]
    if table := profiles_of(model, memory):
        return table
    if sizes := [format_mib(size) for each, size in SIZES if each == model]:
        raise ValueError(
            f"the profiles of {model} with {format_mib(memory)} are not known; those with {_or(sizes)} are"
        )
    models = _or(list(dict.fromkeys(each for each, _ in SIZES)))
    raise ValueError(f"{model or 'a GPU without a model'} cannot be divided into instances; {models} can")


def _gpu_instances(wanted: Sequence[Fields], table: Mapping[str, Profile], slices: int) -> list[_GpuInstance]:
    made: list[_GpuInstance] = []
    for entry in wanted:
        part = _PART.fullmatch(entry["profile"])
        name = entry["profile"] if part is None else part["profile"]
        if name not in table:
            raise ValueError(f"{entry['profile']!r} is no profile of this model; it has {', '.join(table)}")
        if entry["count"] > 1 and "uuid" in entry:
            raise ValueError("several instances cannot share one uuid; omit uuid, or list the instances one by one")
        whole, fixed = int(name[0]), entry.get("gi")
        compute = whole if part is None else int(part["compute"])
        if part is not None and compute >= whole:
            raise ValueError(f"{entry['profile']!r} is no part of a {name}, which has {whole} slices")
        for _ in range(entry["count"]):
            into = made[-1] if made else None
            if part is None or into is None or (into.name, into.fixed) != (name, fixed) or into.free < compute:
                memory_mib, size, _, _ = table[name]
                starts = _beginnings(name, table[name], fixed, slices)
                into = _GpuInstance(name, memory_mib, size, fixed, starts, free=whole)
                made.append(into)
            into.add(entry["profile"], compute, entry)
    for name, (_, _, most, _) in table.items():
        if sum(each.name == name for each in made) > most:
            raise ValueError(f"a GPU of this model has at most {most} of {name}")
    return made


def _beginnings(name: str, profile: Profile, fixed: int | None, slices: int) -> tuple[int, ...]:
    _, size, _, starts = profile
    if fixed is None:
        return starts
    ids = [gpu_instance(size, start, slices) for start in starts]
    if fixed not in ids:
        raise ValueError(f"{name} cannot be the GPU instance {fixed}; it can be {_or(list(map(str, ids)))}")
    return (starts[ids.index(fixed)],)


def _starts(parts: Sequence[_GpuInstance], taken: int = 0, before: tuple[str, int] = ("", -1)) -> list[int] | None:
    """Return where each part begins, None if they do not fit; `taken` has a bit for each slice of the memory.

    `before` is the part that was placed last, with its beginning: equal parts need be tried in one order only.
    """
    if not parts:
        return []
    part = parts[0]
    for start in part.starts:
        own = ((1 << part.size) - 1) << start
        if own & taken or (part.fixed is None and part.name == before[0] and start < before[1]):
            continue
        rest = _starts(parts[1:], taken | own, (part.name if part.fixed is None else "", start))
        if rest is not None:
            return [start, *rest]
    return None


def _instance(gpu: Fields, part: _GpuInstance, gi: int, ci: int) -> Fields:
    profile, described = part.parts[ci]
    cap = _FIRST_CAP + (gpu["minor"] or 0) * _CAPS_OF_GPU + gi * _CAPS_OF_GI
    given = {key: value for key, value in described.items() if key not in {"count", "profile", "gi"}}
    return {
        # As on real hardware, an instance that is made again in its old place has its old UUID.
        "uuid": _uuid("MIG", f"{gpu['uuid']} {gi} {ci} {profile}"),
        "profile": profile,
        "gi": gi,
        "ci": ci,
        "alone": profile == part.name,
        "caps": [] if gpu["minor"] is None else [cap, cap + 1 + ci],
        "memory": part.memory_mib,
        "processes": 0,
        "used": 0,
        "error": None,
        **given,
    }


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))

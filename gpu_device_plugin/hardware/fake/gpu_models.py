"""The models of GPUs that fakes can be: memory, links, and the MIG instances that each can be divided into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.model.mig import profile_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Profile: TypeAlias = tuple[int, int, int, tuple[int, ...]]
    """Memory of an instance in MiB; its slices of the memory; how many of it a GPU can have; the slices of the memory
    at which one can begin."""

# Product, total MiB, MiB reserved by the driver, NVLinks to each other GPU of its kind, architecture; the first two as
# nvidia-smi prints them with drivers from r510 on. The reserved size depends on the driver; these are of r550.
MODELS: Mapping[str, tuple[str, int, int, int, str]] = {
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
}
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

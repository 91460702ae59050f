"""The models of GPUs that fakes can be: memory, links, and the MIG instances that each can be divided into."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
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
    "RTX3090": ("NVIDIA GeForce RTX 3090", 24576, 317, 0, "Ampere"),
    "RTX4090": ("NVIDIA GeForce RTX 4090", 24564, 402, 0, "Ada Lovelace"),
    "RTX5090": ("NVIDIA GeForce RTX 5090", 32607, 516, 0, "Blackwell"),
}


# Slices of the memory, most instances, and beginnings, as `nvidia-smi mig -lgip` and `-lgipp` print them, in the order
# of the profiles below. GPUs with seven slices of compute have eight of memory; the last cannot be a small instance.
_EIGHTHS = (
    (1, 7, (0, 1, 2, 3, 4, 5, 6)),
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (2, 4, (0, 2, 4, 6)),
    (2, 3, (0, 2, 4)),
    (4, 2, (0, 4)),
    (4, 1, (0,)),
    (8, 1, (0,)),
)
_QUARTERS = (
    (1, 4, (0, 1, 2, 3)),
    (1, 1, (0, 1, 2, 3)),
    (2, 2, (0, 2)),
    (2, 1, (0, 2)),
    (4, 1, (0,)),
)

# Memory in MiB, by model and by the memory of the whole GPU. The names are NVIDIA's, in which GB are rounded (see
# `core.model.mig.profile_name`). `nvidia-smi mig -lgip` was seen to print them on A30, A100 40GB, H100 80GB and H200,
# and the first four on B200 and GB200, whose other sizes follow from these as they do on H200. Of the A100 80GB only
# that of 2g.20gb was seen. They vary with the driver: a 1g.23gb of a B200 has 20992 or 22528 MiB, a 7g.40gb 40320 or
# 40448.
_MEMORY: Mapping[tuple[str, int], Mapping[str, int]] = {
    ("A30", 24576): {"1g.6gb": 5952, "1g.6gb+me": 5952, "2g.12gb": 11968, "2g.12gb+me": 11968, "4g.24gb": 24000},
    ("A100", 40960): {
        "1g.5gb": 4864,
        "1g.5gb+me": 4864,
        "1g.10gb": 9984,
        "2g.10gb": 9984,
        "3g.20gb": 20096,
        "4g.20gb": 20096,
        "7g.40gb": 40320,
    },
    ("A100", 81920): {
        "1g.10gb": 9728,
        "1g.10gb+me": 9728,
        "1g.20gb": 19968,
        "2g.20gb": 19968,
        "3g.40gb": 40192,
        "4g.40gb": 40192,
        "7g.80gb": 80640,
    },
    ("H100", 81559): {
        "1g.10gb": 9984,
        "1g.10gb+me": 9984,
        "1g.20gb": 20096,
        "2g.20gb": 20096,
        "3g.40gb": 40448,
        "4g.40gb": 40448,
        "7g.80gb": 81152,
    },
    ("H200", 143771): {
        "1g.18gb": 16384,
        "1g.18gb+me": 16384,
        "1g.35gb": 33024,
        "2g.35gb": 33024,
        "3g.71gb": 71168,
        "4g.71gb": 71168,
        "7g.141gb": 143104,
    },
    ("B200", 183359): {
        "1g.23gb": 22528,
        "1g.23gb+me": 22528,
        "1g.45gb": 45312,
        "2g.45gb": 45312,
        "3g.90gb": 90880,
        "4g.90gb": 90880,
        "7g.180gb": 182016,
    },
    ("GB200", 189471): {
        "1g.23gb": 22528,
        "1g.23gb+me": 22528,
        "1g.47gb": 46592,
        "2g.47gb": 46592,
        "3g.93gb": 93440,
        "4g.93gb": 93440,
        "7g.186gb": 187136,
    },
}
SIZES: tuple[tuple[str, int], ...] = tuple(_MEMORY)
"""The models with MIG, each with the memory in MiB that its profiles are known for."""


def memory_slices(model: str) -> int:
    """Return the number of slices that the memory of a GPU of a model with MIG has."""
    return 4 if model == "A30" else 8


def profiles_of(model: str, total_mib: int) -> dict[str, Profile]:
    """Return the profiles of a GPU by their names; none if they are not known for this model and size."""
    shapes = _QUARTERS if memory_slices(model) == 4 else _EIGHTHS
    known = _MEMORY.get((model, total_mib), {})
    return {name: (memory, *shape) for (name, memory), shape in zip(known.items(), shapes, strict=False)}


def gpu_instance(size: int, start: int, slices: int) -> int:
    """Return the ID of the GPU instance with `size` of the `slices` of a GPU's memory, from slice `start` on.

    The driver numbers the whole memory, then its halves, its quarters, and so on: 0, 1 to 2, 3 to 6, 7 to 14.
    """
    return slices // size - 1 + start // size

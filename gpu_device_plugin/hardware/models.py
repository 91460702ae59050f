"""The models of GPUs that fakes can be."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping

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

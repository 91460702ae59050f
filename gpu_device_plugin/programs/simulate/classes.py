"""Pods by the size of their demand, so that no policy looks good by turning large ones away."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.mix import PodKind

_TENTHS = 10


def class_of(kind: PodKind, unit: float) -> str:
    """Return the class of a kind: ``no GPU``, ``0.3 GPU`` (rounded up to tenths of a mean GPU), ``1 GPU``, ``8 GPUs``.

    Args:
        kind: the kind.
        unit: shares of the mean GPU.
    """
    if not kind.gpus:
        return "no GPU"
    if not kind.shares:
        return "1 GPU" if kind.gpus == 1 else f"{kind.gpus} GPUs"
    part = f"{ceil(min(1.0, kind.shares / unit) * _TENTHS) / _TENTHS:.1f} GPU"
    return part if kind.gpus == 1 else f"{kind.gpus} x {part}"


def order(name: str) -> tuple[float, str]:
    """Return the place of a class in a table: by the size of the demand."""
    words = name.split()
    if words[0] == "no":
        return 0.0, name
    times = float(words[0]) * (float(words[2]) if len(words) > 2 else 1.0)
    return times, name

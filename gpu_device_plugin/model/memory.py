"""Amounts of memory in MiB: parse and format them, and cut GPUs into shares of one size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_device_plugin.model.gpus import Gpu

MIB_PER_GIB = 1024

MAX_DEVICE_IDS = 4000
"""Most device IDs advertised for one resource. With more, the kubelet's bookkeeping grows with the square of their
number (0.6 s under its lock at 10,000), and past about 60,000 the list exceeds the 4 MiB that it accepts and the node
silently advertises nothing. Measured on kubelet 1.36.2."""

_SIZE = re.compile(r"(?P<number>[0-9]{1,12})\s*(?P<unit>MiB|Mi|GiB|Gi)", re.ASCII)
_ALMOST = re.compile(r"(?P<number>[0-9]{1,12})\s*(?:(?P<unit>[MG])i?)?B?", re.ASCII | re.IGNORECASE)
# The sizes that messages propose. Others are allowed.
_ROUND_SIZES_MIB = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *(MIB_PER_GIB * n for n in (1, 2, 4, 8, 16, 32, 64)))


def parse_mib(text: str) -> int:
    """Parse ``256MiB``, ``1GiB``, ``256Mi`` or ``1Gi`` as a number of MiB.

    Raises:
        ValueError: the text is none of these; the message names the accepted forms.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; {_meant(text)}")
    return int(match["number"]) * (MIB_PER_GIB if match["unit"].startswith("G") else 1)


def _meant(text: str) -> str:
    """Return a hint: the amount that a text with another unit, or none, probably means, or else two examples."""
    match = _ALMOST.fullmatch(text.strip())
    if match is None:
        return "write it like 256MiB or 1GiB"
    number, unit = match["number"], (match["unit"] or "").upper()
    return f"did you mean {number}{unit}iB?" if unit else f"write its unit too: {number}MiB or {number}GiB"


def format_mib(mib: int) -> str:
    """Format MiB for people: ``8 GiB``, ``7.5 GiB``, ``300 MiB``. Never rounded."""
    if mib % (MIB_PER_GIB // 4) == 0 and abs(mib) >= MIB_PER_GIB:
        return f"{mib / MIB_PER_GIB:.2f}".rstrip("0").removesuffix(".") + " GiB"
    return f"{mib} MiB"


def shares_of(gpu: Gpu, share_mib: int, reserve_mib: int = 0) -> int:
    """Return the number of shares of `share_mib` MiB that a GPU is cut into.

    The memory that the driver reserves and `reserve_mib` (kept back on every GPU by configuration) are not shared. A
    GPU in MIG mode has no shares, and one with the machine's memory is one share: nobody can have a part of it.
    """
    if gpu.mig:
        return 0
    if gpu.unified:
        return 1
    return max(0, gpu.capacity_mib - reserve_mib) // share_mib


def smallest_share_mib(gpus: Iterable[Gpu], reserve_mib: int = 0, limit: int = MAX_DEVICE_IDS) -> int:
    """Return the smallest round share size, MiB, at which all `gpus` together give at most `limit` shares."""
    gpus = tuple(gpus)
    for size in _ROUND_SIZES_MIB:
        if sum(shares_of(gpu, size, reserve_mib) for gpu in gpus) <= limit:
            return size
    return max(gpu.total_mib for gpu in gpus)

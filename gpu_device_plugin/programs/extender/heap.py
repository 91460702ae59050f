"""Keep the memory of a process with many objects small, and its garbage collector out of the way of requests."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""


def return_large_blocks() -> None:
    """Have malloc return blocks of 1 MiB and more to the system as soon as they are free, as pages of lists are.

    Otherwise it keeps those of the largest size so far, between objects that stay: 25 MiB with 5,000 nodes.
    """
    with suppress(OSError, AttributeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def collect_rarely() -> Callable[[], None]:
    """Have the garbage collector skip old objects while the cluster is read; return a function that ends this."""
    usual = gc.get_threshold()
    # A full collection for every quarter of growth took a sixth of the time until ready.
    gc.set_threshold(100_000, 50, 1000)

    def as_usual() -> None:
        freeze_objects()
        gc.set_threshold(*usual)

    return as_usual


def freeze_objects() -> None:
    """Exempt all present objects from garbage collection: they stay, and no scheduler should wait for their scan."""
    gc.collect()
    gc.freeze()

"""The lock of a node, held by the test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_device_plugin.kubelet.sockets import NodeLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def held(directory: Path) -> Iterator[NodeLock]:
    lock = NodeLock(directory)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()

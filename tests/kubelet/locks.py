"""The lock of a node, held by the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_device_plugin.kubelet.sockets import NodeLock


@contextmanager
def held(directory: Path) -> Iterator[NodeLock]:
    lock = NodeLock(directory)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()

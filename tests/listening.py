"""A socket on which a process listens: the sign of another device plugin or driver."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """Listen on a socket of this name."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield

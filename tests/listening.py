"""A socket on which a process listens: the sign of another device plugin or driver."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """Listen on a socket of this name."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield

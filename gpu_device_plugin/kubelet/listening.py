"""Find the sockets with a listener in a directory of the kubelet."""

from __future__ import annotations

import socket
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def listened_to(directory: Path, patterns: Collection[str]) -> tuple[str, ...]:
    """Return the names of sockets in `directory` that match one of the shell `patterns` and have a listener.

    A killed plugin leaves its socket file behind, so only a connection attempt shows a listener. No attempt waits, and
    each connection is closed at once.
    """
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return ()
    wanted = (name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
    return tuple(name for name in wanted if is_listened_to(directory / name))


def is_listened_to(path: Path) -> bool:
    """Return whether a process listens on the socket; True also where we lack the permission to connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # BlockingIOError: its queue is full; PermissionError: see above
            return True
    return True

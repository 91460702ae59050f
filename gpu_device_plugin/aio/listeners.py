"""Find the program that listens on a port, as far as /proc shows it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


def who_listens(port: int, proc: Path = Path("/proc")) -> str:
    """Return the program that listens on a TCP port of this network namespace, as in ``nginx (process 12)``.

    Empty if none is visible: the program is in another PID namespace, or belongs to another user and we are not root.
    """
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    for folder in sorted(proc.glob("[0-9]*"), key=lambda each: int(each.name)):
        if any(_target(each) in sockets for each in _files(folder)):
            name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
            return f"{''.join(each if each.isprintable() else '?' for each in name)} (process {folder.name})"
    return ""


def _files(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:  # the process has ended, or we may not read its files
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the file was closed
        return ""


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError), (proc / table).open(encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]

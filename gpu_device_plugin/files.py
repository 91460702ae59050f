"""Small files are read and replaced so that nothing put in their place blocks us, misleads us or fills our memory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK = 1 << 20
# Otherwise opening a pipe waits for its other end, and a terminal could become ours.
_FILE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_REGULAR = {
    errno.ELOOP: "it is a symbolic link, which is not followed",
    errno.ENOTDIR: "what leads to it is a symbolic link, which is not followed, or no directory",
    errno.ENXIO: "it is no regular file",  # a socket
}


class IrregularFileError(OSError):
    """In the place of a regular file there is something else; ``strerror`` says what, after the path."""


def read(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """Return what a regular file says, and what it was then. Links are followed.

    Args:
        path: the file.
        most: more bytes than this are not read.

    Raises:
        OSError: it cannot be read.
    """
    return _content(_regular(os.open(path, os.O_RDONLY | _FILE), path), path, most)


def read_below(root: Path, name: str, most: int) -> tuple[bytes, os.stat_result]:
    """Return the same of the file `name` below the directory `root`, where no link is followed.

    Raises:
        OSError: it cannot be read.
    """
    return _content(open_below(root, name, os.O_RDONLY), root / name, most)


def replace_below(root: Path, name: str, content: bytes) -> None:
    """Have the file `name` below the directory `root` say `content`, or what it said before, whenever the power goes.

    No link below `root` is followed, and what stands at `name` is not written to. Only one process at a time may
    replace a file.

    Raises:
        OSError: it is as it was before.
    """
    *_, last = name.split("/")
    new = f".{last}.new"
    with _folder(root, name) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)  # what a process left that was killed here
        made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _FILE, 0o600, dir_fd=folder)
        with os.fdopen(made, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, last, src_dir_fd=folder, dst_dir_fd=folder)


def open_below(root: Path, name: str, flags: int) -> int:
    """Open the regular file `name` below the directory `root`, where no link is followed; return its descriptor.

    Args:
        root: a directory; links on the way to it are followed.
        name: a relative path, without ``..``.
        flags: as of `os.open`. A file that is made is ours alone (mode 0600), and one to write to has no other name.

    Raises:
        OSError: it cannot be opened.
    """
    *_, last = name.split("/")
    with _folder(root, name) as folder, _named(root / name):
        opened = os.open(last, flags | os.O_NOFOLLOW | _FILE, 0o600, dir_fd=folder)
    return _regular(opened, root / name, alone=flags & os.O_ACCMODE != os.O_RDONLY)


@contextlib.contextmanager
def _folder(root: Path, name: str) -> Iterator[int]:
    """Open the directory in which `name` lies, from `root` on without following a link."""
    here = os.open(root, _FOLDER)
    try:
        for part in name.split("/")[:-1]:
            with _named(root / name):
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the whole path in errors, and say in words what the kernel says of a link that was not to be followed."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise IrregularFileError(error.errno, _NOT_REGULAR[error.errno], str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _regular(opened: int, path: Path, *, alone: bool = False) -> int:
    """Return what was opened, if it is a regular file, and where `alone` says so one without another name."""
    found = os.fstat(opened)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "it is no regular file"
    elif alone and found.st_nlink > 1:
        problem = "it is another file too, by a hard link"
    if problem:
        os.close(opened)
        raise IrregularFileError(errno.EINVAL, problem, str(path))
    return opened


def _content(opened: int, path: Path, most: int) -> tuple[bytes, os.stat_result]:
    with os.fdopen(opened, "rb", buffering=0) as file:
        found = os.fstat(opened)
        # Its size is not to be relied on: it may grow, and of a file in /proc it is 0.
        chunks: list[bytes] = []
        left = most + 1
        while left and (chunk := file.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes, as none of its kind has", str(path))
    return b"".join(chunks), found

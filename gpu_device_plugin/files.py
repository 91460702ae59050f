"""Read and replace small files safely: no file put in their place blocks us, misleads us or fills our memory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int]
"""One version of a file: inode, modification time in ns, size."""
_CHUNK = 1 << 20
# Without these flags opening a pipe waits for its other end, and a terminal could become our controlling one.
_FILE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_REGULAR = {
    errno.ELOOP: "it is a symbolic link, which is not followed",
    errno.ENOTDIR: "a part of its path is a symbolic link, which is not followed, or no directory",
    errno.ENXIO: "it is no regular file",  # a socket
}


class IrregularFileError(OSError):
    """The path names no regular file of its own; ``strerror`` says why, as a sentence after the path."""


def read(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and its status. Links are followed.

    Args:
        path: the file.
        most: the most bytes that it may have.

    Raises:
        OSError: it cannot be read, or has more bytes.
    """
    return _content(_regular(os.open(path, os.O_RDONLY | _FILE), path), path, most)


def stamp(found: os.stat_result) -> Stamp:
    """Return the version of the file with this status."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def stamp_of(path: Path) -> Stamp | None:
    """Return the present version of a file; None without one that can be looked at."""
    try:
        return stamp(path.stat())
    except OSError:
        return None


def read_below(root: Path, name: str, most: int) -> tuple[bytes, os.stat_result]:
    """Return content and status of the file `name` below the directory `root`, where no link is followed.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes.
    """
    return _content(open_below(root, name, os.O_RDONLY), root / name, most)


def replace_below(root: Path, name: str, content: bytes, *, lasting: bool = True, mode: int = 0o600) -> None:
    """Replace the content of the file `name` below the directory `root`; a power cut leaves the old or the new one.

    With `lasting` False a power cut may leave an empty file. The file gets the `mode`, whatever the umask.

    No link below `root` is followed, and an existing file is replaced, never written to. Only one process at a time
    may replace a file.

    Raises:
        OSError: the file is unchanged.
    """
    *_, last = name.split("/")
    new = f".{last}.new"
    with _folder(root, name) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)  # left by a process that was killed here
        made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _FILE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(made, "wb") as file:
                os.fchmod(made, mode)
                file.write(content)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(new, last, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):  # what is half written would take the room that is missing
                os.unlink(new, dir_fd=folder)
            raise


def make_folder_below(root: Path, name: str) -> None:
    """Make the directory `name` below the directory `root`, where no link is followed, for its owner alone.

    Raises:
        OSError: it is not there, and cannot be made.
    """
    *_, last = name.split("/")
    with _folder(root, name) as folder, contextlib.suppress(FileExistsError):
        os.mkdir(last, 0o700, dir_fd=folder)


def names_below(root: Path, name: str) -> list[str]:
    """Return the names in the directory `name` below the directory `root`, where no link is followed.

    Raises:
        OSError: it cannot be read.
    """
    with _folder(root, f"{name}/.") as folder:
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return os.listdir(opened)  # noqa: PTH208 - no path of it may be followed again
        finally:
            os.close(opened)


def remove_below(root: Path, name: str) -> None:
    """Remove the file `name` below the directory `root`; of a link, the link.

    Raises:
        OSError: it is still there.
    """
    *_, last = name.split("/")
    with _folder(root, name) as folder, contextlib.suppress(FileNotFoundError):
        os.unlink(last, dir_fd=folder)


def open_below(root: Path, name: str, flags: int) -> int:
    """Open the regular file `name` below the directory `root`, where no link is followed; return its descriptor.

    Args:
        root: a directory; links on the way to it are followed.
        name: a relative path, without ``..``.
        flags: as of `os.open`. A new file has mode 0600, and a file opened for writing must have no other hard link.

    Raises:
        OSError: it cannot be opened.
    """
    *_, last = name.split("/")
    with _folder(root, name) as folder, _named(root / name):
        opened = os.open(last, flags | os.O_NOFOLLOW | _FILE, 0o600, dir_fd=folder)
    return _regular(opened, root / name, alone=flags & os.O_ACCMODE != os.O_RDONLY)


@contextlib.contextmanager
def _folder(root: Path, name: str) -> Iterator[int]:
    """Open the directory of the file `name` below `root`, without following a link below `root`."""
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
    """Put the whole path into errors, and replace the kernel's message about links and special files by a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise IrregularFileError(error.errno, _NOT_REGULAR[error.errno], str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _regular(opened: int, path: Path, *, alone: bool = False) -> int:
    """Return the descriptor `opened` if it is of a regular file and, with `alone`, of one without another hard link."""
    found = os.fstat(opened)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "it is no regular file"
    elif alone and found.st_nlink > 1:
        problem = "it has another name, a hard link"
    if problem:
        os.close(opened)
        raise IrregularFileError(errno.EINVAL, problem, str(path))
    return opened


def _content(opened: int, path: Path, most: int) -> tuple[bytes, os.stat_result]:
    with os.fdopen(opened, "rb", buffering=0) as file:
        found = os.fstat(opened)
        # Its size in the status is not reliable: the file may grow, and in /proc the size is 0.
        chunks: list[bytes] = []
        left = most + 1
        while left and (chunk := file.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes, the limit for such a file", str(path))
    return b"".join(chunks), found

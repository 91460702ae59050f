"""The directories of the kubelet's sockets: their checks, the node's lock, our sockets, and those with a listener."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from gpu_device_plugin import files

KUBELET_SOCKET = "kubelet.sock"
OURS = "gpushare"
"""Our folder in it. Kubelets up to 1.20 remove every file beside their sockets, but no folder."""

_PREFIX = "gpushare-"
LONGEST_PATH = 107  # sockaddr_un.sun_path without its final NUL

Identity: TypeAlias = tuple[int, int]
"""Distinguishes files at the same path: inode and change time in ns."""


class DirectoryError(Exception):
    """The device-plugin directory cannot be used; the message gives the reason and the remedy."""


class DirectoryGoneError(Exception):
    """A directory of the kubelet was deleted and recreated; only a restarted container sees the new one."""


def check_directory(directory: Path) -> None:
    """Check that sockets can be created in `directory`.

    Raises:
        DirectoryError: it is missing, not a directory or not writable, or its path is too long for a socket.
    """
    try:
        there = directory.is_dir()
    except OSError as error:
        raise DirectoryError(f"looking at {directory}: {error.strerror}{advice(error)}") from error
    if not there:
        raise DirectoryError(
            f"{directory} is not a directory; it has to be the kubelet's device-plugin directory: start a kubelet on "
            "this node first, or give the right path with --device-plugin-dir (every kubelet uses "
            "/var/lib/kubelet/device-plugins, regardless of its --root-dir)"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DirectoryError(
            f"{directory} is on a file system that is mounted read-only; the agent needs to create sockets there"
            if os.statvfs(directory).f_flag & os.ST_RDONLY
            else f"{directory} is not writable for uid {os.geteuid()}; the agent has to run as root (uid 0)"
        )
    longest = str(new_socket(directory, "memory"))
    if len(os.fsencode(longest)) > LONGEST_PATH:
        raise DirectoryError(
            f"{directory} is too long a path: a socket in it would have {len(os.fsencode(longest))} bytes, and "
            f"{LONGEST_PATH} is the maximum; give a shorter one with --device-plugin-dir"
        )


def advice(error: OSError) -> str:
    """Return the remedy for `error`, as the end of a sentence; empty if none is known."""
    if isinstance(error, files.IrregularFileError):
        return "; remove it"
    return "; the agent has to run as root (uid 0)" if error.errno in {errno.EACCES, errno.EPERM} else ""


def new_socket(directory: Path, name: str) -> Path:
    """Return a path that no instance has used before.

    grpcio replaces a socket on which another server still listens, and a stopping server removes any file at its path:
    with a fixed name, an old instance that ends late would cut off the new one.
    """
    return directory / f"{_PREFIX}{name}-{os.getpid()}-{os.urandom(3).hex()}.sock"


def remove_stale_sockets(directory: Path) -> None:
    """Remove the sockets of earlier instances; only for the holder of the lock.

    Raises:
        DirectoryError: a socket cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        for path in directory.glob(f"{_PREFIX}*.sock"):
            try:
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
            except FileNotFoundError:
                pass
            except OSError as error:
                raise DirectoryError(f"removing {path}: {error.strerror}{advice(error)}") from error


def identity(path: Path) -> Identity | None:
    """Return the identity of the file at `path`; None if there is none, or it cannot be accessed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def is_there(directory: Path) -> bool:
    """Return whether a directory exists.

    Raises:
        DirectoryGoneError: it was deleted on the host, and this container keeps seeing the old one.
    """
    try:
        links = directory.stat().st_nlink
    except OSError:
        return False
    if not links:
        raise DirectoryGoneError(
            f"{directory} was deleted on the host, and this container sees only the old one; it restarts"
        )
    return True


class NodeLock:
    """Ensures that one instance serves a node: a file lock that ends with its process.

    If the path of the lock file is a link, it is not followed; if it is another kind of file, it is not written to.
    """

    def __init__(self, directory: Path) -> None:
        """Name the lock of the device-plugin directory `directory`, without taking it."""
        self._directory = directory
        self._path = directory / OURS / "lock"
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock, or keep it; if the directory was recreated, lock the new file.

        Raises:
            DirectoryError: another process holds the lock, which the message names, or the file cannot be created.
        """
        if self._fd is not None:
            here = identity(self._path)
            if here is not None and here[0] == os.fstat(self._fd).st_ino:
                return
            self.release()
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = files.open_below(self._directory, f"{OURS}/lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise DirectoryError(f"creating the lock {self._path}: {error.strerror}{advice(error)}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(fd)
            raise DirectoryError(
                f"{holder} serves this node already and holds {self._path}; stop it first "
                "(a DaemonSet needs maxSurge: 0)"
            ) from error
        os.ftruncate(fd, 0)
        # A container's process ID means nothing outside of it; the host name is the pod's name.
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


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

"""The device-plugin directory: whose it is, and what our sockets in it are called."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin import files

if TYPE_CHECKING:
    from pathlib import Path

KUBELET_SOCKET = "kubelet.sock"
OURS = "gpushare"
"""The folder in it that is ours. Kubelets up to 1.20 remove every file beside their sockets, and no folder."""

_PREFIX = "gpushare-"
_LONGEST_PATH = 107  # sockaddr_un.sun_path without its final NUL

Identity: TypeAlias = tuple[int, int]
"""What tells a file from another of the same name: inode and change time in ns."""


class DirectoryError(Exception):
    """The device-plugin directory cannot be used; the message says why and what to do."""


class AlreadyRunningError(DirectoryError):
    """Another instance serves this node."""


def check_directory(directory: Path) -> None:
    """Make sure that sockets can be made in `directory`.

    Raises:
        DirectoryError: it is missing, no directory, not writable, or its path is too long for a socket.
    """
    try:
        there = directory.is_dir()
    except OSError as error:
        raise DirectoryError(f"looking at {directory}: {error.strerror}{advice(error)}") from error
    if not there:
        raise DirectoryError(
            f"{directory} is not a directory; it has to be the kubelet's device-plugin directory: start a kubelet on "
            "this node first, or name the right place with --device-plugin-dir (every kubelet uses "
            "/var/lib/kubelet/device-plugins, whatever its --root-dir is)"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DirectoryError(
            f"{directory} is on a file system that is mounted read-only; the agent makes its sockets there"
            if os.statvfs(directory).f_flag & os.ST_RDONLY
            else f"{directory} is not writable for uid {os.geteuid()}; the agent has to run as root (uid 0)"
        )
    longest = str(new_socket(directory, "memory"))
    if len(os.fsencode(longest)) > _LONGEST_PATH:
        raise DirectoryError(
            f"{directory} is too long a path: a socket in it would have {len(os.fsencode(longest))} bytes, and "
            f"{_LONGEST_PATH} is the most; name a shorter one with --device-plugin-dir"
        )


def advice(error: OSError) -> str:
    """Return what to do about `error`, to be added to a sentence; nothing where nothing is known."""
    if isinstance(error, files.IrregularFileError):
        return "; remove it"
    return "; the agent has to run as root (uid 0)" if error.errno in {errno.EACCES, errno.EPERM} else ""


def new_socket(directory: Path, name: str) -> Path:
    """Return a path that no instance used before.

    grpcio replaces a socket that a live server listens on, and a server that stops removes whatever stands at its path:
    with one fixed name, an old instance that ends late would cut off the new one.
    """
    return directory / f"{_PREFIX}{name}-{os.getpid()}-{os.urandom(3).hex()}.sock"


def remove_stale_sockets(directory: Path) -> None:
    """Remove sockets that earlier instances left; only for the holder of the lock.

    Raises:
        DirectoryError: one cannot be removed.
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
    """Return what tells this file from a later one at the same path, None if there is none (or none to be seen)."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def links(directory: Path) -> int | None:
    """Return the number of names a directory has, None if there is none.

    0 means that it was deleted: a container keeps seeing the old one when the host makes it anew.
    """
    try:
        return directory.stat().st_nlink
    except OSError:
        return None


class NodeLock:
    """One instance serves a node: a lock that its process holds, whatever becomes of the process.

    What stands in the place of the lock file is not followed if it is a link, and not written to if it is another file.
    """

    def __init__(self, directory: Path) -> None:
        """Name the lock of the device-plugin directory `directory`; nothing is taken yet."""
        self._directory = directory
        self._path = directory / OURS / "lock"
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock, or keep it: if the directory was made anew, there is a new file to lock.

        Raises:
            AlreadyRunningError: another process holds it; the message names it.
            DirectoryError: the file cannot be made.
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
            raise DirectoryError(f"making the lock {self._path}: {error.strerror}{advice(error)}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(fd)
            raise AlreadyRunningError(
                f"{holder} serves this node already and holds {self._path}; stop it first "
                "(a DaemonSet needs maxSurge: 0)"
            ) from error
        os.ftruncate(fd, 0)
        # Process IDs of containers mean nothing outside; the host name is the pod's.
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back if it is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

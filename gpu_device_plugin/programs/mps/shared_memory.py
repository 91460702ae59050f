"""Mount the /dev/shm that the servers of MPS share with their clients."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

from gpu_device_plugin.programs.mps.places import open_directory

_log = logging.getLogger(__name__)

# <sys/mount.h>
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _SLAVE = 2, 4, 8, 4096, 1 << 14, 1 << 19
_NEWNS = 0x20000  # <sched.h>
_EVERYBODY = 0o1777
_DEV_SHM = Path("/dev/shm")  # noqa: S108 - it is the subject


def share(directory: Path, size_mib: int) -> None:
    """Make `directory` a tmpfs of its own for clients, and our /dev/shm, which the servers inherit.

    It stays mounted when this program ends: containers have it.

    Args:
        directory: for all clients of the node.
        size_mib: 0: nothing is mounted.

    Raises:
        OSError: it cannot be mounted: the container is not privileged.
    """
    open_directory(directory)
    if size_mib:
        if not os.path.ismount(directory):
            flags = _NOSUID | _NODEV | _NOEXEC
            _mount("tmpfs", directory, "tmpfs", flags, f"size={size_mib}m,mode=1777")
        if directory.stat().st_dev != _DEV_SHM.stat().st_dev:
            # In a mount namespace of our own: tried in a shell of a node, no other program gets another /dev/shm.
            _call("unshare", _NEWNS, target=_DEV_SHM)
            _mount("none", Path("/"), "", _REC | _SLAVE, "")
            _mount(str(directory), _DEV_SHM, "", _BIND, "")
    open_directory(directory, _EVERYBODY)


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    words = source.encode(), os.fsencode(target), kind.encode() or None, flags, options.encode() or None
    _call("mount", *words, target=target)
    if not flags & _SLAVE:
        _log.info("mounted shared memory", extra={"path": str(target), "options": options or "bind"})


def _call(function: str, *arguments: object, target: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))

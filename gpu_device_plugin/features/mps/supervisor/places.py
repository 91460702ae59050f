"""The files below `mps_dir` that outlive the supervisor: a directory for each GPU, and memory shared with clients."""

from __future__ import annotations

import ctypes
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin import files
from gpu_device_plugin.features.mps.contract import is_uuid
from gpu_device_plugin.features.mps.rules.mps_daemon import MODES, short_name

_log = logging.getLogger(__name__)

_MEMORY = "gpu.json"
_LARGEST = 4096
"""Bytes of `_MEMORY`."""
_LONGEST_SOCKET = 107
"""Bytes of a socket's path, sun_path of unix(7) without its end. A longer one fails as if there were no daemon."""


@dataclass(frozen=True, slots=True)
class GpuDirectory:
    """The directory of one GPU."""

    uuid: str
    directory: Path

    @property
    def pipe(self) -> Path:
        """The directory of the daemon's sockets, the only one that containers see."""
        return self.directory / "p"

    @property
    def log(self) -> Path:
        """The directory of the logs of the daemon and its server."""
        return self.directory / "log"

    def prepare(self) -> None:
        """Make the directories, and remove the sockets of a daemon that is no more. Raises OSError."""
        longest = self.pipe / "control_privileged"
        if len(os.fsencode(longest)) > _LONGEST_SOCKET:
            raise OSError(f"the path {longest} is too long for a socket: choose a shorter mps_dir")
        for each in (self.directory, self.pipe, self.log):
            open_directory(each)
        for name in ("control", "control_privileged"):
            (self.pipe / name).unlink(missing_ok=True)

    def remember(self, before: str) -> None:
        """Write down the compute mode to set back (empty: none), for the next supervisor.

        OSError: the old one is still there.
        """
        open_directory(self.directory)
        files.replace_below(self.directory, _MEMORY, json.dumps({"uuid": self.uuid, "before": before}).encode())


def open_directory(path: Path, mode: int = 0o755) -> None:
    """Make a directory with its parents, which everybody may pass: clients are of any user."""
    for each in reversed((path, *path.parents)):
        if not each.exists():
            each.mkdir(exist_ok=True)
            each.chmod(0o755)  # whatever the umask is
    if path.stat().st_mode & 0o7777 != mode:
        path.chmod(mode)


class Places:
    """Gives each GPU a directory, the same one after a restart."""

    def __init__(self, root: Path) -> None:
        """Read what an earlier supervisor left below `root`; `before` has the compute modes to set back."""
        self._root = root
        self._known: dict[str, GpuDirectory] = {}
        self.before: dict[str, str] = {}
        for directory in sorted(root.iterdir()) if root.is_dir() else ():
            if directory.is_dir() and (directory / _MEMORY).exists():
                self._restore(directory)

    def _restore(self, directory: Path) -> None:
        try:
            fields = json.loads(files.read_below(directory, _MEMORY, _LARGEST)[0])
            uuid, before = str(fields["uuid"]), str(fields["before"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("ignoring what is known of a GPU", extra={"path": str(directory / _MEMORY), "why": str(error)})
            return
        # Of a mode that is none only the GPU is believed, whose mode becomes DEFAULT.
        if is_uuid(uuid):
            self._known[uuid] = GpuDirectory(uuid, directory)
            self.before[uuid] = before if before in MODES else ""

    def of(self, uuid: str) -> GpuDirectory:
        """Return the place of a GPU; nothing is made on disk."""
        if uuid not in self._known:
            taken = {place.directory.name for place in self._known.values()}
            self._known[uuid] = GpuDirectory(uuid, self._root / short_name(uuid, taken))
        return self._known[uuid]


# --- The memory that servers share with their clients ---------------------------------------------------------------

# <sys/mount.h>
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _SLAVE = 2, 4, 8, 4096, 1 << 14, 1 << 19
_NEWNS = 0x20000  # <sched.h>
_EVERYBODY = 0o1777
_DEV_SHM = Path("/dev/shm")  # noqa: S108 - it is the subject


def share(directory: Path, size_mib: int) -> None:
    """Make `directory` a tmpfs of its own for clients, and our /dev/shm, which the servers inherit.

    It stays mounted when this program ends: containers have it. With a size of 0 nothing is mounted. OSError: it cannot
    be mounted: the container is not privileged.
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

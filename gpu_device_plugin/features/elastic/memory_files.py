"""Maintain on the node the memory file of each container that has shares of one GPU."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin import files
from gpu_device_plugin.features.elastic.contract import MEMORY_DIRECTORY, MEMORY_FILE, MemoryFile, write_memory_file
from gpu_device_plugin.node.rules.container_grants import Mount

_log = logging.getLogger(__name__)

_SLOT = re.compile(r"[0-9a-f]{16}")


def slot(device_ids: Iterable[str]) -> str:
    """Return the name of the node's directory that a container with these devices sees as `MEMORY_DIRECTORY`.

    Before a container starts the kubelet tells its devices, and nothing else of it.
    """
    # It loads OpenSSL: 4 MiB that an agent without the API, which has no such containers, does not pay.
    import hashlib  # noqa: PLC0415

    return hashlib.sha256("\n".join(sorted(device_ids)).encode()).hexdigest()[:16]


@dataclass(eq=False, repr=False)
class MemoryFiles:
    """The files, each in a directory that its container alone mounts. The programs need not be root."""

    _directory: Path

    def __post_init__(self) -> None:
        self._made: dict[str, frozenset[str]] = {}
        """The devices of each directory that this agent made."""
        self._written: dict[str, MemoryFile] = {}
        """What the file in each directory says. Hundreds of containers are looked at with each reading of their use."""

    def make(self, device_ids: Iterable[str], memory: MemoryFile) -> tuple[Mount, ...]:
        """Make the directory of a container with its file, and return the mount; none if that fails.

        Without the file a program still has its variables: no reason to refuse a pod for good.
        """
        ids = frozenset(device_ids)
        name = slot(ids)
        folder = self._directory / name
        try:
            for path in (self._directory, folder):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o755)
            self._written.pop(name, None)
            self._replace(name, memory)
        except OSError as error:
            _log.warning("a container gets no file that tells it its memory: %s", error, extra={"once_per_s": 600})
            return ()
        self._made[name] = ids
        return (Mount(str(folder), MEMORY_DIRECTORY),)

    def update(self, device_ids: Iterable[str], memory: MemoryFile) -> None:
        """Replace the file of a container that has one, if it says something else."""
        name = slot(device_ids)
        try:
            if memory != self._written.get(name) and (self._directory / name).is_dir():
                self._replace(name, memory)
        except OSError as error:
            _log.warning("a container is not told how much memory it may use: %s", error, extra={"once_per_s": 600})

    def keep(self, held: Iterable[frozenset[str]], granted: Collection[str]) -> None:
        """Remove the directories of containers that have ended.

        `held` are the devices of each container by the kubelet's records, `granted` all that the ledger has: a
        container that was just given some is not recorded yet.
        """
        try:
            found = list(self._directory.iterdir())
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # there is none before the first file
                _log.warning("the files of ended containers are left: %s", error, extra={"once_per_s": 600})
            return
        kept = {slot(ids) for ids in held} | {name for name, ids in self._made.items() if not ids.isdisjoint(granted)}
        for folder in found:
            # An administrator may name a directory with something else in it.
            if folder.name not in kept and _SLOT.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                self._made.pop(folder.name, None)
                self._written.pop(folder.name, None)

    def _replace(self, name: str, memory: MemoryFile) -> None:
        text = write_memory_file(memory)
        # Not lasting: the directory is one of /run, which is empty after a boot.
        files.replace_below(self._directory, f"{name}/{MEMORY_FILE}", text.encode(), lasting=False, mode=0o644)
        self._written[name] = memory

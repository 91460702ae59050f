"""Store the claims prepared on this node across restarts: one state file and one CDI file for each."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from gpu_device_plugin import files
from gpu_device_plugin.features.claims.rules.prepared import (
    PreparedClaim,
    PreparedFileError,
    file_name,
    overlapping,
    read_prepared,
    write_prepared,
)
from gpu_device_plugin.kubelet.sockets import advice

_log = logging.getLogger(__name__)

_LARGEST = 1 << 20
"""Bytes of one file. A claim with 32 devices takes 12 kB."""
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}", re.ASCII)
"""A UID becomes part of the name of a file."""


class ClaimStoreError(Exception):
    """A file could not be written or removed; the message says which, why, and what to do."""


class ClaimStore:
    """The files. One agent at a time writes them: the holder of the node's lock."""

    def __init__(self, directory: Path, cdi_directory: Path) -> None:
        """Keep our files in `directory`, and CDI files in `cdi_directory`; nothing is opened yet."""
        self._directory = directory
        self._cdi_directory = cdi_directory

    def load(self) -> tuple[Mapping[str, PreparedClaim], frozenset[str]]:
        """Return the claims of the last agent by UID, and the UIDs of those whose files are damaged.

        Files of two claims with the same devices count as damaged: no file says which of the two has them.

        Raises:
            ClaimStoreError: the directory cannot be read, so nobody knows what is in use.
        """
        found: dict[str, PreparedClaim] = {}
        damaged: dict[str, str] = {}
        try:
            names = sorted(path.name for path in self._directory.glob("*.json"))
        except OSError as error:
            raise ClaimStoreError(f"reading {self._directory}: {error.strerror}{advice(error)}") from error
        for name in names:
            uid = name.removesuffix(".json")
            if not _UID.fullmatch(uid):
                _log.warning("%r is no file of a prepared claim, and ignored", str(self._directory / name))
                continue
            try:
                content, _ = files.read_below(self._directory, name, _LARGEST)
                found[uid] = read_prepared(content, uid)
            except OSError as error:
                damaged[uid] = f"{error.strerror}{advice(error)}"
            except PreparedFileError as error:
                damaged[uid] = str(error)
        damaged |= dict.fromkeys(sorted(overlapping(found.values())), "another file has the same devices")
        for uid, why in damaged.items():
            path = self._directory / f"{uid}.json"
            _log.error("what a prepared claim holds has to be read from the API: %s: %s", path, why)
            found.pop(uid, None)
        return found, frozenset(damaged)

    def write(self, claim: PreparedClaim) -> None:
        """Write both files of a claim: first ours, so that whatever a container may get is known.

        Raises:
            ClaimStoreError: the claim must not be used.
        """
        if not _UID.fullmatch(claim.uid):
            raise ClaimStoreError("the UID of the claim is none of Kubernetes")
        self._replace(self._directory, f"{claim.uid}.json", write_prepared(claim))
        self._expose(claim)

    def remove(self, uid: str) -> None:
        """Remove both files of a claim, ours last; it may have none.

        Raises:
            ClaimStoreError: one of them is still there.
        """
        if not _UID.fullmatch(uid):
            return  # it never had files
        for path in (self._cdi_directory / file_name(uid), self._directory / f"{uid}.json"):
            try:
                with contextlib.suppress(NotADirectoryError):  # nothing can be below it
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise ClaimStoreError(f"removing {path}: {error.strerror}{_remedy(error)}") from error

    def sweep(self, known: Mapping[str, PreparedClaim]) -> None:
        """Bring the CDI files in line with the known claims: write those that are missing, remove those of others.

        A file that cannot be written is logged: its containers run on, and the next ones are told when they start.
        """
        ours = set(map(file_name, known))
        with contextlib.suppress(OSError):
            for path in self._cdi_directory.glob(file_name("?*")):
                if path.name not in ours:
                    _log.info("the CDI file of a claim that is not prepared here is removed", extra={"path": str(path)})
                    path.unlink(missing_ok=True)
        for claim in known.values():
            try:
                self._expose(claim)
            except ClaimStoreError as error:
                _log.error("new containers of claim %s cannot start: %s", claim, error, extra={"once_per_s": 60})

    def _expose(self, claim: PreparedClaim) -> None:
        """Write the CDI file of a claim, which is lost at a reboot."""
        self._replace(self._cdi_directory, file_name(claim.uid), json.dumps(claim.cdi), lasting=False)

    def _replace(self, directory: Path, name: str, content: str, *, lasting: bool = True) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files.replace_below(directory, name, content.encode(), lasting=lasting)
        except OSError as error:
            remedy = _remedy(error) or (
                "; see that the agent's pod has this directory of the host mounted writable, and that the disk is not "
                "full"
            )
            raise ClaimStoreError(f"writing {directory / name}: {error.strerror}{remedy}") from error


def _remedy(error: OSError) -> str:
    """Return the remedy for `error`, as the end of a sentence; empty if none is known."""
    if error.errno == errno.EISDIR:
        return "; remove the directory that has the name of a file of ours"
    return advice(error)

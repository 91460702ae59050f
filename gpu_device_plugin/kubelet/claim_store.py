"""Keep the claims that were prepared on this node, over restarts: a file of ours and a CDI file for each."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import TYPE_CHECKING

from gpu_device_plugin import files
from gpu_device_plugin.core.dra.cdi import file_name, uid_of
from gpu_device_plugin.core.dra.prepared import PreparedClaim, PreparedFileError, read_prepared, write_prepared
from gpu_device_plugin.kubelet.sockets import advice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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

    def __repr__(self) -> str:
        return f"<ClaimStore {self._directory} and {self._cdi_directory}>"

    def load(self) -> tuple[Mapping[str, PreparedClaim], frozenset[str]]:
        """Return the claims of the last agent by UID, and the UIDs of those whose files are damaged.

        Raises:
            ClaimStoreError: the directory cannot be read, so nobody knows what is in use.
        """
        found: dict[str, PreparedClaim] = {}
        damaged: set[str] = set()
        try:
            names = sorted(path.name for path in self._directory.glob("*.json"))
        except OSError as error:
            raise ClaimStoreError(f"reading {self._directory}: {error.strerror}{advice(error)}") from error
        for name in names:
            path = self._directory / name
            try:
                content, _ = files.read_below(self._directory, name, _LARGEST)
                claim = read_prepared(content.decode(errors="replace"), name.removesuffix(".json"))
            except (OSError, PreparedFileError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                _log.error("what a prepared claim holds has to be read from the API: %s: %s", path, why)
                damaged.add(name.removesuffix(".json"))
            else:
                found[claim.uid] = claim
        return found, frozenset(damaged)

    def write(self, claim: PreparedClaim) -> None:
        """Write both files of a claim: first ours, so that whatever a container may get is known.

        Raises:
            ClaimStoreError: the claim must not be used.
        """
        if not _UID.fullmatch(claim.uid):
            raise ClaimStoreError("the UID of the claim is none of Kubernetes")
        self._replace(self._directory, f"{claim.uid}.json", write_prepared(claim))
        self.expose(claim)

    def expose(self, claim: PreparedClaim) -> None:
        """Write the CDI file of a claim, which is lost at a reboot.

        Raises:
            ClaimStoreError: containers of the claim cannot start.
        """
        self._replace(self._cdi_directory, file_name(claim.uid), json.dumps(claim.cdi), lasting=False)

    def remove(self, uid: str) -> None:
        """Remove both files of a claim, ours last; it may have none.

        Raises:
            ClaimStoreError: one of them is still there.
        """
        if not _UID.fullmatch(uid):
            return  # it never had files
        for path in (self._cdi_directory / file_name(uid), self._directory / f"{uid}.json"):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ClaimStoreError(f"removing {path}: {error.strerror}{advice(error)}") from error

    def sweep(self, known: Mapping[str, PreparedClaim]) -> None:
        """Bring the CDI files in line with the known claims: write those that are missing, remove those of others.

        Raises:
            ClaimStoreError: a file cannot be written.
        """
        with contextlib.suppress(OSError):
            for path in self._cdi_directory.iterdir():
                uid = uid_of(path.name)
                if uid and uid not in known:
                    _log.info("the CDI file of a claim that is not prepared here is removed", extra={"path": str(path)})
                    path.unlink(missing_ok=True)
        for claim in known.values():
            self.expose(claim)

    def _replace(self, directory: Path, name: str, content: str, *, lasting: bool = True) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files.replace_below(directory, name, content.encode(), lasting=lasting)
        except OSError as error:
            raise ClaimStoreError(
                f"writing {directory / name}: {error.strerror}{advice(error)}; see that the agent's pod has this "
                "directory of the host mounted writable, and that the disk is not full"
            ) from error

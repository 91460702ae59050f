"""Words that an agent leaves on its node for the next one, one a file."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from gpu_device_plugin import files
from gpu_device_plugin.kubelet.sockets import OURS

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

PROFILE = "profile"
"""The profile of settings that the node has; empty for none."""
SHARE_SIZE = "share-size"
"""The size of one share of its GPUs, in MiB."""
ENDED_PODS = "ended-pods"
"""UIDs, with blanks between them, of pods that have ended though the kubelet's checkpoint shows their devices."""

_LONGEST = 1000
"""Bytes; the value of a label has 63."""


class StateFile:
    """A file beside the lock. Only the lock's holder writes it."""

    def __init__(self, directory: Path, name: str) -> None:
        """Name the file `name` of the device-plugin directory `directory`."""
        self._directory = directory
        self._name = f"{OURS}/{name}"

    def __repr__(self) -> str:
        return f"<StateFile {self._name}: {self.read()!r}>"

    def read(self) -> str | None:
        """Return the word, which may be empty; None if nobody knows."""
        try:
            content, _ = files.read_below(self._directory, self._name, _LONGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("what the last agent of this node knew is not known", error)
            return None
        # After a power cut a file may be empty, or full of zeros, and must not be taken for an empty word.
        word, end, more = content.decode(errors="surrogateescape").partition("\n")
        return word if end and not more and word.isprintable() else None

    def number(self) -> int | None:
        """Return the word as a whole number above 0; None if nobody knows, or it is none."""
        word = self.read() or ""
        return int(word) or None if re.fullmatch(r"[0-9]{1,12}", word, re.ASCII) else None

    def write(self, word: str) -> None:
        """Keep `word` for later. Where that fails it is logged: an agent shares its GPUs without it."""
        if self.read() == word:
            return
        try:
            files.replace_below(self._directory, self._name, f"{word}\n".encode())
        except OSError as error:
            self._warn("what the next agent of this node has to know is not written down", error)

    def _warn(self, what: str, error: OSError) -> None:
        extra = {"path": str(self._directory / self._name), "why": str(error.strerror), "once_per_s": 3600}
        _log.warning("%s", what, extra=extra)

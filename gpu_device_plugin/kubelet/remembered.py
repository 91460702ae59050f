"""What an agent leaves on its node for the next one: one word a file."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

PROFILE = "profile"
"""The profile of settings that the node has; empty for none."""
SHARE_SIZE = "share-size"
"""What one share of its GPUs is, in MiB."""


class Remembered:
    """A file beside the lock. Only the lock's holder writes it."""

    def __init__(self, directory: Path, name: str) -> None:
        """Name the file `name` of the device-plugin directory `directory`."""
        self._path = directory / "gpushare" / name

    def __repr__(self) -> str:
        return f"<Remembered {self.read()!r}>"

    def read(self) -> str | None:
        """Return the word, which may be empty; None if nobody knows."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            # After a power cut a file may be empty, or full of zeros, and must not be taken for an empty word.
            word, end, more = self._path.read_text(encoding="utf-8").partition("\n")
            if end and not more:
                return word
        return None

    def number(self) -> int | None:
        """Return the word as a whole number above 0; None if nobody knows, or it is none."""
        word = self.read() or ""
        return int(word) or None if word.isdecimal() else None

    def write(self, word: str) -> None:
        """Keep `word` for later. Where that fails it is logged: an agent shares its GPUs without it."""
        if self.read() == word:
            return
        new = self._path.with_suffix(".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(f"{word}\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            extra = {"path": str(self._path), "why": str(error.strerror), "once_per_s": 3600}
            _log.warning("what the next agent of this node has to know is not written down", extra=extra)

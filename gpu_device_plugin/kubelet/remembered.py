"""What an agent leaves on its node for the next one: the name of the profile of settings that the node has."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)


class Remembered:
    """A file beside the lock. Only the lock's holder writes it."""

    def __init__(self, directory: Path) -> None:
        """Name the file of the device-plugin directory `directory`."""
        self._path = directory / "gpushare" / "profile"

    def __repr__(self) -> str:
        return f"<Remembered {self.read()!r}>"

    def read(self) -> str | None:
        """Return the profile, empty for none; None if nobody knows."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._path.read_text(encoding="utf-8").strip()
        return None

    def write(self, profile: str) -> None:
        """Keep `profile` for later. Where that fails it is logged: an agent shares its GPUs without it."""
        if self.read() == profile:
            return
        new = self._path.with_suffix(".new")
        try:
            new.write_text(f"{profile}\n", encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            extra = {"path": str(self._path), "why": str(error.strerror), "once_per_s": 3600}
            _log.warning("the profile of this node is not written down for the next agent", extra=extra)

"""Values that an agent keeps on its node for the next agent, one value per file."""

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
"""The name of the node's settings profile; empty for none."""
SHARE_SIZE = "share-size"
"""The size of one share of the node's GPUs, in MiB."""
ENDED_PODS = "ended-pods"
"""UIDs, separated by spaces, of ended pods whose devices the kubelet's checkpoint still shows."""

WAY = "serve"
"""The way in which pods got the node's GPUs, a `core.node.serving.Way`."""

ALLOCATIONS = "allocations"
"""The kubelet's record of allocated devices as last read, see `kubelet.saved_allocations`."""

_LONGEST = 1000
"""Bytes; the value of a label has at most 63."""


class StateFile:
    """A file beside the lock. Only the lock's holder writes it."""

    def __init__(self, directory: Path, name: str, *, longest: int = _LONGEST, lasting: bool = True) -> None:
        """Name the file `name` of the device-plugin directory `directory`.

        A file of more than `longest` bytes is unreadable. With `lasting` False it may be empty after a power cut.
        """
        self._directory = directory
        self._name = f"{OURS}/{name}"
        self._longest = longest
        self._lasting = lasting

    def __repr__(self) -> str:
        return f"<StateFile {self._name}>"

    def read(self) -> str | None:
        """Return the value, which may be empty; None if the file is missing or unreadable."""
        try:
            content, _ = files.read_below(self._directory, self._name, self._longest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("the state that the previous agent of this node left cannot be read", error)
            return None
        # After a power cut a file may be empty, or full of zeros, and must not count as an empty value.
        value, end, more = content.decode(errors="surrogateescape").partition("\n")
        return value if end and not more and value.isprintable() else None

    def number(self) -> int | None:
        """Return the value as a whole number above 0; None if it is unknown or not such a number."""
        value = self.read() or ""
        return int(value) or None if re.fullmatch(r"[0-9]{1,12}", value, re.ASCII) else None

    def write(self, value: str) -> None:
        """Write `value` for the next agent. A failure is only logged: the agent can share its GPUs without the file."""
        if self.read() == value:
            return
        try:
            files.replace_below(self._directory, self._name, f"{value}\n".encode(), lasting=self._lasting)
        except OSError as error:
            self._warn("the state for the next agent of this node cannot be written", error)

    def _warn(self, sentence: str, error: OSError) -> None:
        extra = {"path": str(self._directory / self._name), "why": str(error.strerror), "once_per_s": 3600}
        _log.warning("%s", sentence, extra=extra)

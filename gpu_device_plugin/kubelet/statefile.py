"""Values that an agent keeps on its node for the next agent, one value per file."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from gpu_device_plugin import files
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.kubelet.sockets import OURS

_log = logging.getLogger(__name__)

T = TypeVar("T")

PROFILE = "profile"
"""The name of the node's settings profile; empty for none."""
SHARE_SIZE = "share-size"
"""The size of one share of the node's GPUs, in MiB."""

_LONGEST = 1000
"""Bytes; the value of a label has at most 63."""
LONGEST_DOCUMENT = 4 << 20
"""Bytes. 8,000 devices, each in use by another container, take 1.2 MB."""


class StateFile:
    """A file beside the lock. Only the lock's holder writes it, and knows what it says from then on."""

    def __init__(
        self, directory: Path, name: str, *, longest: int = _LONGEST, lasting: bool = True, nothing: str | None = None
    ) -> None:
        """Name the file `name` of the device-plugin directory `directory`.

        A file of more than `longest` bytes is unreadable. With `lasting` False it may be empty after a power cut. No
        file is made for the value `nothing`.
        """
        self._directory = directory
        self._name = f"{OURS}/{name}"
        self._longest = longest
        self._lasting = lasting
        self._nothing = nothing
        self._known: str | None = None
        """The value as last read or written; None: not known."""

    def read(self) -> str | None:
        """Return the value, which may be empty; None if the file is missing or unreadable."""
        self._known = None
        try:
            content, _ = files.read_below(self._directory, self._name, self._longest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("the state that the previous agent of this node left cannot be read", error)
            return None
        # After a power cut a file may be empty, or full of zeros, and must not count as an empty value.
        value, end, more = content.decode(errors="surrogateescape").partition("\n")
        self._known = value if end and not more and value.isprintable() else None
        return self._known

    def number(self) -> int | None:
        """Return the value as a whole number above 0; None if it is unknown or not such a number."""
        value = self.read() or ""
        return int(value) or None if re.fullmatch(r"[0-9]{1,12}", value, re.ASCII) else None

    def write(self, value: str) -> bool:
        """Write `value` for the next agent; return whether the file has it. May wait for the disk.

        A failure is only logged: the agent can share its GPUs without the file.
        """
        if value == (self._known if (self._directory / self._name).exists() else self._nothing):
            return True
        self._known = None
        try:
            files.replace_below(self._directory, self._name, f"{value}\n".encode(), lasting=self._lasting)
        except OSError as error:
            self._warn("the state for the next agent of this node cannot be written", error)
            return False
        self._known = value
        return True

    async def keep(self, values: Observable[str | None]) -> NoReturn:
        """Write each value that is set, the newest at last, while others run; None is no value.

        Ends only by cancellation.
        """
        await values.follow(lambda value: None if value is None else in_thread(self.write, value), initial=True)

    def read_document(self, kind: type[T], otherwise: T) -> T:
        """Return the JSON document in the file; `otherwise` if there is none of this kind."""
        try:
            text = self.read()
            return otherwise if text is None else msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            self._warn("the state that the previous agent of this node left is damaged", error)
            return otherwise

    def write_document(self, document: object) -> bool:
        """Write a JSON document, as `write` does."""
        return self.write(msgspec.json.encode(document, order="deterministic").decode())

    def _warn(self, sentence: str, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else str(error)
        extra = {"path": str(self._directory / self._name), "why": str(why), "once_per_s": 3600}
        _log.warning("%s", sentence, extra=extra)

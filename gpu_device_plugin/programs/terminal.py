"""Terminal output that stays safe whatever text nodes and pods contain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.printing import printable

if TYPE_CHECKING:
    from typing import TextIO


def say(stream: TextIO, line: str) -> None:
    """Write a line. Control characters are escaped; characters that the stream cannot encode become question marks."""
    encoding = stream.encoding or "utf-8"
    stream.write(printable(line).encode(encoding, "replace").decode(encoding) + "\n")


def discard_output(stream: TextIO) -> None:
    """Discard the rest of the output after its reader closed the pipe; the interpreter must not flush it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

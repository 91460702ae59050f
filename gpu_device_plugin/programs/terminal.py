"""Lines for people on a terminal, whatever nodes and pods are called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.printing import printable

if TYPE_CHECKING:
    from typing import TextIO


def say(stream: TextIO, line: str) -> None:
    """Write a line. Strangers' text steers no terminal; characters that the stream cannot show are question marks."""
    encoding = stream.encoding or "utf-8"
    stream.write(printable(line).encode(encoding, "replace").decode(encoding) + "\n")


def leave_unwritten(stream: TextIO) -> None:
    """Give up a pipe whose reader has read enough: the interpreter must not write what is left at its end either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

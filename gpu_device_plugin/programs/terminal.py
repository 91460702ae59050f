"""Lines for people on a terminal, whatever nodes and pods are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.printing import printable

if TYPE_CHECKING:
    from typing import TextIO


def say(stream: TextIO, line: str) -> None:
    """Write a line. What others wrote in it steers no terminal, and what that cannot show is a question mark."""
    encoding = stream.encoding or "utf-8"
    stream.write(printable(line).encode(encoding, "replace").decode(encoding) + "\n")

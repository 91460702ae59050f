"""Terminal output that stays safe whatever text nodes and pods contain."""

from __future__ import annotations

import os
import shutil
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.text.columns import Line, Tone
from gpu_device_plugin.core.report.text.printing import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

_CODES: Mapping[Tone, str] = MappingProxyType(
    {Tone.HEADING: "1", Tone.GOOD: "32", Tone.WARNING: "33", Tone.BAD: "31", Tone.FAINT: "2"}
)
"""Of ECMA-48's Select Graphic Rendition."""
UNBOUNDED = 10_000
"""Columns, where the output goes to no terminal."""


def coloured(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")


def painted(line: Line, stream: TextIO, *, colour: bool) -> str:
    """Return a line for a stream, with control characters escaped, and in the colour of its tone."""
    encoding = stream.encoding or "utf-8"
    text = printable(line.text).encode(encoding, "replace").decode(encoding)
    code = _CODES.get(line.tone) if colour and text else None
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


def say(stream: TextIO, line: str) -> None:
    """Write a line. Control characters are escaped; characters that the stream cannot encode become question marks."""
    stream.write(painted(Line(line), stream, colour=False) + "\n")


def show(lines: Iterable[Line], environ: Mapping[str, str]) -> None:
    """Write lines to the standard output, in colours on a terminal whose user wants them."""
    colour = coloured(sys.stdout, environ)
    for line in lines:
        sys.stdout.write(painted(line, sys.stdout, colour=colour) + "\n")


def discard_output(stream: TextIO) -> None:
    """Discard the rest of the output after its reader closed the pipe; the interpreter must not flush it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def width(otherwise: int = UNBOUNDED) -> int:
    """Return the columns of the terminal that shows the standard output; `otherwise` where it goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def encodes(stream: TextIO, text: str) -> bool:
    """Return whether a stream can show these characters."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

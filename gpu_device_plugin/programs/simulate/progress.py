"""A progress bar on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_CELLS = 30


class Bar:
    """Draws how much is done; nothing on a stream that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`."""
        self._stream = stream
        self._live = stream.isatty()
        self._drawn = ""

    def show(self, what: str, part: float) -> None:
        """Show that a part of everything is done, 1.0 being all, and what is under way."""
        full = round(_CELLS * part)
        text = f"[{'#' * full}{'.' * (_CELLS - full)}] {100 * part:3.0f} % {what}"
        if self._live and text != self._drawn:
            # Erases the rest of the line (ECMA-48, EL), which may be longer.
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._drawn = text

    def clear(self) -> None:
        """Remove the bar."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = ""

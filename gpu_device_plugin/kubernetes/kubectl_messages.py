"""Pass on what kubectl's login plugins ask on stderr, and keep kubectl's own errors for one message of ours."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

_LOGGED = (b"E0000 00:00:00", b"F0000 00:00:00")
"""How klog's lines about errors begin, with 0 for each digit."""
_HELD = (
    *_LOGGED,
    b"error: ",
    b"Error from server",
    b"The connection to the server ",
    b"Unable to connect to the server: ",
)
"""How lines begin that are held back: those of klog, and those with which kubectl ends."""
_LONGEST = max(map(len, _HELD))
_LOG_LINE = re.compile(r"""[EF][^]]*\] ?(?:"[^"]*" .*?err="((?:[^"\\]|\\.)*)".*|(.*))""")
_PROXYING = "Error while proxying request: "
_STDERR = 2


class Messages:
    """What is written to stderr: passed on at once, but for kubectl's own words on an error.

    A login plugin may ask there for something, in the middle of a line, too.
    """

    def __init__(self, descriptor: int = _STDERR) -> None:
        """Pass on to this file."""
        self._descriptor = descriptor
        self._line = b""
        self._passing = False
        self._logged = ""
        self._said: dict[str, None] = {}

    @property
    def problem(self) -> str:
        """The errors with which kubectl ended, else the last one in its log; empty: it told of none."""
        return "; ".join(self._said) or self._logged

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        for piece in data.splitlines(keepends=True):
            self._line += piece
            whole = piece.endswith((b"\n", b"\r"))
            if self._passing or not any(map(_begins(self._line).startswith, _starts(self._line))):
                self._pass_on()
                self._passing = not whole
            elif whole:
                self._hold()

    def end(self) -> None:
        """Decide about a line without an end."""
        if _begins(self._line).startswith(_HELD):
            self._hold()
        self._pass_on()

    def _hold(self) -> None:
        text = self._line.decode(errors="replace").strip()
        if not _begins(self._line).startswith(_LOGGED):
            self._said[text.removeprefix("error: ")] = None
        elif found := _LOG_LINE.fullmatch(text):
            said = found[2] if found[1] is None else re.sub(r"\\(.)", r"\1", found[1])
            self._logged = said.removeprefix(_PROXYING)
        self._line = b""

    def _pass_on(self) -> None:
        with contextlib.suppress(OSError):  # nobody reads them
            os.write(self._descriptor, self._line)
        self._line = b""


def _begins(line: bytes) -> bytes:
    return re.sub(rb"\d", b"0", line[:_LONGEST])


def _starts(line: bytes) -> Iterator[bytes]:
    """Yield how held lines begin, as far as this one goes."""
    return (held[: len(line)] for held in _HELD)


@contextlib.contextmanager
def heard() -> Iterator[tuple[int, int, Messages]]:
    """Yield both ends of a pipe for kubectl's stderr, and what is to be fed from it; the rest is fed at the end.

    It is no pipe of asyncio's: what a process leaves behind, such as the browser of a login, may keep it open.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    messages = Messages()
    try:
        yield reader, writer, messages
    finally:
        os.close(writer)
        feed(reader, messages)
        messages.end()
        os.close(reader)


def feed(reader: int, messages: Messages) -> None:
    """Feed all that has been written."""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reader, 1 << 16):
            messages.feed(data)

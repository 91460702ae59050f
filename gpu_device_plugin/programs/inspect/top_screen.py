"""`kubectl inspect gpushare top`: draw the cluster's GPUs and pods again and again, until q or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.commandline import coloured, painted
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.decoding import UnreadableObjectError
from gpu_device_plugin.report.reading import unread
from gpu_device_plugin.report.rules.terminal_tables import Picture, frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from typing import TextIO

    from gpu_device_plugin.report.rules.columns import Line

_NARROWEST = 40
_ENDS = frozenset("qQ\x03\x04")
"""Keys that end it: q, and what Ctrl-C and Ctrl-D send where the terminal makes no signal of them."""


async def top(
    read: Callable[[], Awaitable[Picture]], *, interval_s: float, environ: Mapping[str, str]
) -> signal.Signals | None:
    """Draw until the user ends it; without a terminal print one picture after the other.

    `interval_s` is the time between the end of a reading and the begin of the next.

    Returns:
        The signal that ended it, by which the program is to end, too; None: a person has ended it.

    Raises:
        ClusterUnreadableError, ApiError, UnreadableObjectError: the first reading failed.
    """
    picture = await read()  # here, so that a login plugin may ask, and a fault ends the command
    if not sys.stdout.isatty():
        await _print(picture, read, interval_s)
        return None
    with _screen(sys.stdout, environ) as screen:
        await _draw_on(screen, picture, read, interval_s)
    return screen.ended_by


async def _reread(read: Callable[[], Awaitable[Picture]], picture: Picture) -> tuple[Picture, str]:
    """Read again; a fault becomes a sentence beside the picture of before."""
    try:
        return await read(), ""
    except (ClusterUnreadableError, ApiError, UnreadableObjectError) as error:
        return picture, str(unread(error))


async def _print(picture: Picture, read: Callable[[], Awaitable[Picture]], interval_s: float) -> None:
    problem = ""
    width = shutil.get_terminal_size((120, 24)).columns
    with contextlib.suppress(asyncio.CancelledError):  # by Ctrl-C
        while True:
            for line in frame(picture, width, None, problem):
                sys.stdout.write(f"{painted(line, sys.stdout, colour=False)}\n")
            sys.stdout.write("\n")
            sys.stdout.flush()
            await asyncio.sleep(interval_s)
            picture, problem = await _reread(read, picture)


# --- On a terminal ----------------------------------------------------------------------------------------------------


class _Screen:
    """A terminal in the hands of the program: its second screen, without a cursor, and keys as they are pressed."""

    def __init__(self, output: TextIO, *, colour: bool) -> None:
        """Draw on `output`."""
        self._output = output
        self._colour = colour
        self.woken = asyncio.Event()
        """Something has happened: a key, a signal, a new size or a reading."""
        self.ended = False
        self.ended_by: signal.Signals | None = None

    def draw(self, lines: Iterable[Line]) -> None:
        text = "\x1b[K\n".join(painted(line, self._output, colour=self._colour) for line in lines)
        self._output.write(f"\x1b[H{text}\x1b[J")
        self._output.flush()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        # Not shutil's: the variables COLUMNS and LINES do not change with the terminal.
        found = os.get_terminal_size(self._output.fileno())
        return max(_NARROWEST, found.columns), max(1, found.lines)

    def typed(self) -> None:
        """Take the keys that were pressed; their end is that of the terminal."""
        keys = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
        if not keys or _ENDS & {*keys}:
            self.end()

    def end(self, by: signal.Signals | None = None) -> None:
        self.ended, self.ended_by = True, by
        self.woken.set()


@contextlib.contextmanager
def _screen(output: TextIO, environ: Mapping[str, str]) -> Iterator[_Screen]:
    """Take the terminal, and give it back as it was, whatever happens."""
    import termios  # noqa: PLC0415 - there is none on Windows
    import tty  # noqa: PLC0415

    loop, screen = asyncio.get_running_loop(), _Screen(output, colour=coloured(output, environ))
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None

    def take() -> None:
        if before is not None:
            tty.setcbreak(sys.stdin)
        output.write("\x1b[?1049h\x1b[?25l")
        screen.woken.set()

    def give_back() -> None:
        output.write("\x1b[?25h\x1b[?1049l")
        output.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def pause() -> None:
        """Stop, as after Ctrl-Z, with the terminal as it was; go on where the shell continues us."""
        give_back()
        signal.raise_signal(signal.SIGSTOP)
        take()

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGWINCH: screen.woken.set,
        signal.SIGTSTP: pause,
        signal.SIGINT: screen.end,
        signal.SIGTERM: lambda: screen.end(signal.SIGTERM),
        signal.SIGHUP: lambda: screen.end(signal.SIGHUP),
    }
    # A signal that is ignored stays so: nohup ignores SIGHUP, and a shell without job control SIGTSTP.
    taken = {number: handler for number, handler in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
    for number, handler in taken.items():
        loop.add_signal_handler(number, handler)
    try:
        take()
        if before is not None:
            loop.add_reader(sys.stdin.fileno(), screen.typed)
        yield screen
    finally:
        if before is not None:
            loop.remove_reader(sys.stdin.fileno())
        with contextlib.suppress(OSError):  # the terminal may be gone
            give_back()
        for number in taken:
            loop.remove_signal_handler(number)


async def _draw_on(
    screen: _Screen, picture: Picture, read: Callable[[], Awaitable[Picture]], interval_s: float
) -> None:
    problem = ""
    reading: asyncio.Task[tuple[Picture, str]] | None = None
    next_at = time.monotonic() + interval_s
    while not screen.ended:
        columns, lines = screen.size
        screen.draw(frame(picture, columns, lines, problem)[:lines])
        screen.woken.clear()
        left_s = max(0.0, min(next_at - time.monotonic(), 1.0))
        await wait_within(1.0 if reading is not None else left_s, screen.woken.wait())
        if reading is not None and reading.done():
            picture, problem = reading.result()
            reading = None
            next_at = time.monotonic() + interval_s
        if reading is None and time.monotonic() >= next_at:
            reading = asyncio.create_task(_reread(read, picture), name="read the cluster")
            reading.add_done_callback(lambda _: screen.woken.set())
    if reading is not None:
        reading.cancel()

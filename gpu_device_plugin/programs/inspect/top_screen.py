"""`kubectl inspect gpushare top`: draw the cluster's GPUs and pods again and again, until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import UnreadableObjectError
from gpu_device_plugin.core.report.tables.terminal_tables import Picture, frame
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError
from gpu_device_plugin.programs.terminal import coloured, painted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType
    from typing import TextIO

    from gpu_device_plugin.core.report.text.columns import Line

    _Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None

_NARROWEST = 40
_ENDS = frozenset("qQ\x03\x04")
"""Keys that end it: q, and what Ctrl-C and Ctrl-D send where the terminal makes no signal of them."""


def top(read: Callable[[], Picture], *, interval_s: float, environ: Mapping[str, str]) -> None:
    """Draw until the user ends it; without a terminal print one picture after the other.

    `interval_s` is the time between the end of a reading and the begin of the next.

    Raises:
        ClusterUnreadableError: the first reading failed.
        UnreadableObjectError: the same.
    """
    picture = read()  # here, so that a login plugin may ask, and a fault ends the command
    if not sys.stdout.isatty():
        _print(picture, read, interval_s)
        return
    with _until_interrupted(), _screen(sys.stdout, environ) as screen:
        _draw_on(screen, picture, read, interval_s)


def _reread(read: Callable[[], Picture], picture: Picture) -> tuple[Picture, str]:
    """Read again; a fault becomes a sentence beside the picture of before."""
    try:
        return read(), ""
    except (ClusterUnreadableError, UnreadableObjectError) as error:
        return picture, str(error)


def _print(picture: Picture, read: Callable[[], Picture], interval_s: float) -> None:
    problem = ""
    width = shutil.get_terminal_size((120, 24)).columns
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for line in frame(picture, width, None, problem):
                sys.stdout.write(f"{painted(line, sys.stdout, colour=False)}\n")
            sys.stdout.write("\n")
            sys.stdout.flush()
            time.sleep(interval_s)
            picture, problem = _reread(read, picture)


# --- On a terminal ----------------------------------------------------------------------------------------------------


class _Screen:
    """A terminal in the hands of the program: its second screen, without a cursor, and keys as they are pressed."""

    def __init__(self, output: TextIO, *, colour: bool, wake: int) -> None:
        """Draw on `output`; `wake` is a file descriptor that becomes readable when something happens."""
        self._output = output
        self._colour = colour
        self._wake = wake

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

    def key_within(self, seconds: float | None) -> str:
        """Wait for a key, a new size or a reading; return the keys, or nothing."""
        keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        ready, _, _ = select.select([self._wake, *([] if keys is None else [keys])], [], [], seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        return os.read(keys, 64).decode(errors="replace") if keys is not None and keys in ready else ""


@contextlib.contextmanager
def _screen(output: TextIO, environ: Mapping[str, str]) -> Iterator[_Screen]:
    """Take the terminal, and give it back as it was, whatever happens."""
    import termios  # noqa: PLC0415 - there is none on Windows, where the other commands run
    import tty  # noqa: PLC0415

    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    wakeup = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def take() -> None:
        if before is not None:
            tty.setcbreak(sys.stdin)
        output.write("\x1b[?1049h\x1b[?25l")

    def give_back() -> None:
        output.write("\x1b[?25h\x1b[?1049l")
        output.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def pause(*_: object) -> None:
        """Stop, as after Ctrl-Z, with the terminal as it was; go on where the shell continues us."""
        give_back()
        signal.raise_signal(signal.SIGSTOP)
        take()

    # Of a new size its number on the pipe is enough.
    handlers = _handling({signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: pause})
    try:
        take()
        yield _Screen(output, colour=coloured(output, environ), wake=wake)
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            give_back()
        signal.set_wakeup_fd(wakeup)
        _handling(handlers)
        os.close(wake)
        os.close(waker)


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Suppress Ctrl-C, by which a person ends it; SIGTERM and SIGHUP end the program once the body has been left."""
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    handlers = _handling({signal.SIGTERM: interrupt, signal.SIGHUP: interrupt})
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        _handling(handlers)
    for number in received:
        signal.raise_signal(number)


def _handling(handlers: Mapping[int, _Handler]) -> Mapping[int, _Handler]:
    """Install handlers of signals, by number, and return the ones before.

    A signal that is ignored stays so: nohup ignores SIGHUP, and a shell without job control SIGTSTP.
    """
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }


def _draw_on(screen: _Screen, picture: Picture, read: Callable[[], Picture], interval_s: float) -> None:
    results: SimpleQueue[tuple[Picture, str]] = SimpleQueue()
    problem, reading = "", False
    next_at = time.monotonic() + interval_s
    while True:
        columns, lines = screen.size
        screen.draw(frame(picture, columns, lines, problem)[:lines])
        left_s = next_at - time.monotonic()
        # A reading in progress is looked after now and then, since a thread cannot be waited for beside keys.
        if _ENDS & {*screen.key_within(0.1 if reading else max(0.0, min(left_s, 1.0)))}:
            return
        with contextlib.suppress(Empty):
            picture, problem = results.get_nowait()
            reading = False
            next_at = time.monotonic() + interval_s
        if not reading and time.monotonic() >= next_at:
            reading = True
            again = partial(_reread, read, picture)
            threading.Thread(
                target=lambda reread=again: results.put(reread()), daemon=True, name="read the cluster"
            ).start()

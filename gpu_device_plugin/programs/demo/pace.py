"""The pace of the scenes: pauses for a reader, who stops and steps them with two keys of a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from gpu_device_plugin.aio.waiting import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_STOP, _STEP = frozenset(" "), frozenset("\r\n")
_LONG_S = 1.0
"""Shorter pauses only let the reader see one change after the other; a step goes on to the next longer one."""


class Pace:
    """Pauses, which the keys Space and Enter end or prolong."""

    def __init__(self, *, on: bool = True) -> None:
        """Pause only if `on`."""
        self._on = on
        self.stopped = False
        """The reader has stopped the scenes."""
        self._stepping = False
        self._pressed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Pace: {'stopped' if self.stopped else 'going'}>"

    def press(self, key: str) -> None:
        """Take a key: Space stops the scenes or lets them go on, Enter goes on to the next longer pause."""
        if key in _STOP:
            self.stopped = not self.stopped
            self._stepping = False
        elif key in _STEP:
            self._stepping = True
        else:
            return
        self._pressed.set()

    async def pause(self, seconds: float) -> None:
        """Pause for so long; as long as the scenes are stopped, until the next key."""
        if not self._on:
            return
        loop = asyncio.get_running_loop()
        until, was_stopped, long = loop.time() + seconds, self.stopped, seconds >= _LONG_S
        if long:
            self._stepping = False  # this is where the step was to end
        while not self._stepping:
            left_s = until - loop.time()
            if not self.stopped and (was_stopped or left_s <= 0):
                return
            was_stopped = self.stopped
            self._pressed.clear()
            await within(None if self.stopped else left_s, self._pressed.wait())
        if long:
            self._stepping = False

    async def unless_stepped(self, awaitable: Awaitable[object]) -> None:
        """Wait for `awaitable`, or for Enter."""
        waiting = asyncio.ensure_future(awaitable)
        try:
            self._stepping = False
            while not self._stepping and not waiting.done():
                self._pressed.clear()
                pressed = asyncio.ensure_future(self._pressed.wait())
                await asyncio.wait({waiting, pressed}, return_when=asyncio.FIRST_COMPLETED)
                pressed.cancel()
            self._stepping = False
        finally:
            waiting.cancel()


@contextmanager
def keys(stream: TextIO, press: Callable[[str], None]) -> Iterator[bool]:
    """Call `press` with every key at a terminal while the block runs; they are not echoed, and need no Enter.

    Yields:
        Whether `stream` is a terminal whose keys are for this program.
    """
    if not stream.isatty() or _in_background(stream.fileno()):
        yield False
        return
    terminal, loop = stream.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        text = os.read(terminal, 64)
        if not text:
            loop.remove_reader(terminal)
        for key in text.decode(errors="replace"):
            press(key)

    def take() -> None:
        tty.setcbreak(terminal, termios.TCSANOW)

    def leave() -> None:
        termios.tcsetattr(terminal, termios.TCSANOW, before)

    def stop() -> None:
        leave()
        signal.raise_signal(signal.SIGSTOP)

    take()
    loop.add_reader(terminal, read)
    # While another program has the terminal, it is as that one expects it.
    loop.add_signal_handler(signal.SIGTSTP, stop)
    loop.add_signal_handler(signal.SIGCONT, take)
    try:
        yield True
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)
        loop.remove_signal_handler(signal.SIGCONT)
        loop.remove_reader(terminal)
        leave()


def _in_background(terminal: int) -> bool:
    """Return whether the kernel would stop this program for changing its terminal."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # it is not the one that controls this program

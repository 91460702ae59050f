"""Watch a directory for changes, with inotify."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

NAMES = frozenset({"created", "deleted", "moved"})
"""A file was created, deleted or renamed."""
CONTENTS = NAMES | {"modified"}
"""The same, or a file was written to."""


class _Waker(FileSystemEventHandler):
    """Only notifies the event loop: an exception in a handler would end watchdog's thread silently."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: asyncio.Event, kinds: Collection[str] = NAMES) -> None:
        self._loop = loop
        self._changed = changed
        self._kinds = kinds

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in self._kinds:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)


@contextlib.contextmanager
def watching(directory: Path, changed: asyncio.Event, kinds: Collection[str] = NAMES) -> Iterator[bool]:
    """Set `changed` on every event of `kinds` in `directory`, while inside the block.

    An accelerator, not a guarantee: inotify can be exhausted, and reports nothing after the directory is recreated. The
    caller must also poll.

    Yields:
        Whether the watch was established.
    """
    observer = _observe(directory, _Waker(asyncio.get_running_loop(), changed, kinds))
    try:
        yield observer is not None
    finally:
        if observer is not None:
            observer.stop()
            observer.join(timeout=1)


def _observe(directory: Path, waker: _Waker) -> BaseObserver | None:
    try:
        observer = Observer()  # since watchdog 7 exhausted inotify already fails here
    except OSError:
        return None
    try:
        # Without follow_symlink a watch on a linked directory (k0s, some kubelet installers) sees nothing.
        observer.schedule(waker, str(directory), follow_symlink=True)
        observer.start()
    except OSError:
        observer.stop()
        return None
    return observer

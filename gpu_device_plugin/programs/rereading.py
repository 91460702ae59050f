"""Reload settings when their files change, and report each content of the files once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.settings.knobs import Settings, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gpu_device_plugin.settings.sources import Sources, Texts

S = TypeVar("S", bound=Settings)

_log = logging.getLogger(__name__)


class Rereading(Generic[S]):
    """Watches the files of settings, and passes each change on."""

    def __init__(
        self,
        sources: Sources[S],
        seen: Texts,
        *,
        take: Callable[[S], None],
        refuse: Callable[[str], None],
        read: Callable[[Texts], S] | None = None,
    ) -> None:
        """Prepare; no file is read before `run` or `look`.

        Args:
            sources: the sources of the settings.
            seen: the content of the files when the program started.
            take: called with changed settings.
            refuse: called with a sentence that says why the files are unusable.
            read: parses the content of the files, or raises UsageError; None: parse it without a profile.
        """
        self._sources = sources
        self._folder = Path(seen.folder) if seen.folder else Path(sources.config).parent
        self.seen: Texts | str = seen
        """The last content of the files, or why they could not be read."""
        self._take = take
        self._refuse = refuse
        self._read = read or (lambda texts: sources.read(texts=texts))
        self.look_s = 10.0
        """Seconds between two looks without a notification."""
        self.settle_s = 0.2
        """Seconds from a notification to the look: a writer takes a moment to finish."""

    def look(self, *, anyway: bool = False) -> None:
        """Read the files now; if they changed, or `anyway`, pass their settings to `take` or the error to `refuse`."""
        try:
            found = self._sources.texts()
        except UsageError as error:
            if str(error) != self.seen or anyway:
                self.seen = str(error)
                self._refuse(self.seen)
            return
        if found == self.seen and not anyway:
            return
        self.seen = found
        try:
            wanted = self._read(found)
        except UsageError as error:
            self._refuse(str(error))
        else:
            for warning in self._sources.renamed(found):
                _log.warning("%s", warning)
            self._take(wanted)

    async def run(self) -> NoReturn:
        """Look at each change notification, and at least every `look_s` seconds. Ends only by cancellation."""
        changed = asyncio.Event()
        if not self._sources.config:
            await changed.wait()
        from gpu_device_plugin.aio.directory_watch import CONTENTS, watching  # noqa: PLC0415 - only needed with a file

        # A mounted ConfigMap is a directory of links through one link, ..data; an update renames a new one over it.
        with watching(self._folder, changed, CONTENTS):
            while True:
                self.look()
                if await within(self.look_s, changed.wait()):
                    await asyncio.sleep(self.settle_s)
                changed.clear()

    async def beside(self, work: Coroutine[None, None, NoReturn]) -> NoReturn:
        """Run together with `work`, until it fails or this task is cancelled. Raises its error, in a group."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work, name="the program itself")
            tasks.create_task(self.run(), name="follow the settings")
        raise AssertionError  # pragma: no cover (the tasks never return)

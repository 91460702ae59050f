"""Reload settings when their files change, and report each content of the files once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.settings.knobs import Settings, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gpu_device_plugin.settings.sources import Sources, Texts

S = TypeVar("S", bound=Settings)

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Rereading(Generic[S]):
    """Watches the files of settings, and passes each change on."""

    _sources: Sources[S]
    seen: Texts | str
    """The last content of the files, at first that when the program started; or why they could not be read."""
    _: KW_ONLY
    take: Callable[[S], None]
    """Called with changed settings."""
    refuse: Callable[[str], None]
    """Called with a sentence that says why the files are unusable."""
    read: Callable[[Texts], S] | None = None
    """Parses the content of the files, or raises UsageError; None: they are parsed without a profile."""
    look_s: float = 10.0
    """Seconds between two looks without a notification."""
    settle_s: float = 0.2
    """Seconds from a notification to the look: a writer takes a moment to finish."""

    @property
    def _folder(self) -> Path:
        path = Path(self._sources.config)
        return path if path.is_dir() else path.parent

    def look(self, *, anyway: bool = False) -> None:
        """Read the files now; if they changed, or `anyway`, pass their settings to `take` or the error to `refuse`."""
        try:
            found = self._sources.texts()
        except UsageError as error:
            if str(error) != self.seen or anyway:
                self.seen = str(error)
                self.refuse(self.seen)
            return
        if found == self.seen and not anyway:
            return
        self.seen = found
        try:
            settings = self._sources.read(texts=found) if self.read is None else self.read(found)
        except UsageError as error:
            self.refuse(str(error))
        else:
            for warning in self._sources.renamed(found):
                _log.warning("%s", warning)
            self.take(settings)

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

"""Settings follow their files, and the same text is reported once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.within import within
from gpu_device_plugin.settings.knobs import Settings, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gpu_device_plugin.settings.sources import Sources, Texts

S = TypeVar("S", bound=Settings)

_log = logging.getLogger(__name__)


class Rereading(Generic[S]):
    """Looks at the files of settings, and has what changed there taken over."""

    def __init__(
        self,
        sources: Sources[S],
        seen: Texts,
        *,
        take: Callable[[S], None],
        refuse: Callable[[str], None],
        read: Callable[[Texts], S] | None = None,
    ) -> None:
        """Prepare; nothing is looked at before `run` or `look`.

        Args:
            sources: where settings come from.
            seen: what the files said when the program began.
            take: called with the settings that are wanted from now on.
            refuse: called with a sentence that says why the files cannot be used.
            read: makes settings of what the files say, or raises UsageError; None: without any profile.
        """
        self._sources = sources
        self._folder = Path(seen.folder) if seen.folder else Path(sources.config).parent
        self.seen: Texts | str = seen
        """What the files say, or why they cannot be read."""
        self._take = take
        self._refuse = refuse
        self._read = read or (lambda texts: sources.read(texts=texts))
        self.look_s = 10.0
        """Seconds between two looks, where nothing changes."""
        self.settle_s = 0.2
        """How long the writing of a file may take."""

    def look(self, *, anyway: bool = False) -> None:
        """Look at the files now; where they differ from before, or `anyway`, have them taken over or refused."""
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
        """Look when something changes, and now and then in any case. Ends only by cancellation."""
        changed = asyncio.Event()
        if not self._sources.config:
            await changed.wait()
        from gpu_device_plugin.aio.watching import CONTENTS, watching  # noqa: PLC0415 - for those who have a file

        # A ConfigMap is mounted as a directory of links by way of one, ..data, which is replaced: a change of names.
        with watching(self._folder, changed, CONTENTS):
            while True:
                self.look()
                if await within(self.look_s, changed.wait()):
                    await asyncio.sleep(self.settle_s)
                changed.clear()

    async def beside(self, work: Coroutine[None, None, NoReturn]) -> NoReturn:
        """Run until `work` ends or we are cancelled, and with it. Raises what ended it, in a group."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work, name="the program itself")
            tasks.create_task(self.run(), name="follow the settings")
        raise AssertionError  # pragma: no cover (the tasks never return)

"""Run a program until it fails or a signal stops it, reload its settings, and keep the memory of a large one small."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.settings.common import LogSettings
from gpu_device_plugin.settings.knobs import Settings, UsageError, reload
from gpu_device_plugin.settings.sources import Sources, Texts

if TYPE_CHECKING:
    import ssl


S = TypeVar("S", bound=Settings)
P = TypeVar("P", bound=LogSettings)

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

    def reread(self, *, anyway: bool = False) -> None:
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
                self.reread()
                if await wait_within(self.look_s, changed.wait()):
                    await asyncio.sleep(self.settle_s)
                changed.clear()


# --- A program --------------------------------------------------------------------------------------------------------


async def _nothing() -> None:
    pass


class ReloadingProgram(Generic[P]):
    """A program that runs permanently, with settings that can change meanwhile."""

    def __init__(self, settings: P) -> None:
        self.settings = settings

    def reload(self, wanted: P) -> None:
        """Apply the settings that can change at run time."""
        outcome = reload(self.settings, wanted)
        self.settings = outcome.settings
        logging.getLogger("gpu_device_plugin").setLevel(outcome.settings.log_level.upper())
        _log.info("%s", outcome.sentence, extra=outcome.changes)

    def keep_settings(self, why: str) -> None:
        """Log that new settings are invalid, and that the present ones stay in force."""
        _log.error("the configuration stays as it was", extra={"why": why})

    async def follow_settings(
        self,
        sources: Sources[P],
        texts: Texts,
        work: Coroutine[None, None, NoReturn],
        name: str,
        *,
        announce_shutdown: Callable[[], Awaitable[None]] = _nothing,
        cleanup: Callable[[], Awaitable[None]] = _nothing,
        restart_after: tuple[type[Exception], ...] = (),
    ) -> int:
        """Run `work` as `until_stopped` does, and apply changed settings meanwhile.

        `texts` are the contents of the files among `sources` from which the present settings were read.
        """
        rereading = Rereading(sources, texts, take=self.reload, refuse=self.keep_settings)
        return await until_stopped(
            together(work, rereading.run()),
            name,
            {signal.SIGHUP: partial(rereading.reread, anyway=True)},
            announce_shutdown=announce_shutdown,
            cleanup=cleanup,
            restart_after=restart_after,
        )


def tls_of(cert: Path | None, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext | None:
    """Return the context of a TLS server, None without certificate and key.

    Raises:
        UsageError: a file cannot be used.
    """
    if cert is None or key is None:
        return None
    from gpu_device_plugin.aio.tls import server_tls  # noqa: PLC0415 - 5 MB of OpenSSL that not every agent needs

    try:
        return server_tls(cert, key, client_ca)
    except OSError as error:
        raise UsageError(str(error)) from error


async def until_stopped(
    work: Coroutine[None, None, NoReturn],
    name: str,
    handlers: Mapping[signal.Signals, Callable[[], None]],
    *,
    announce_shutdown: Callable[[], Awaitable[None]] = _nothing,
    cleanup: Callable[[], Awaitable[None]] = _nothing,
    restart_after: tuple[type[Exception], ...] = (),
) -> int:
    """Run `work` as a task until SIGTERM, SIGINT or its own failure, and return the exit code once it has ended.

    After SIGTERM or SIGINT `announce_shutdown` is awaited while `work` still runs, and `cleanup` once it has ended.
    `restart_after` are the errors that a new process or container may resolve, besides OSError.

    Returns:
        0 if a signal stopped the program, 1 if it needs a restart. A UsageError is raised, and leads to 2.

    Raises:
        Exception: any other error that ended `work`; of a group of errors the first.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for each, act in {signal.SIGTERM: stop.set, signal.SIGINT: stop.set, **handlers}.items():
        loop.add_signal_handler(each, act)
    running = asyncio.create_task(work, name=name)
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopped = stopping.done()
    if stopped:
        _log.info("stopping")
        await announce_shutdown()
    stopping.cancel()
    running.cancel()
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    if stopped:
        await cleanup()
    error = outcome
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, asyncio.CancelledError):
        return 0
    if isinstance(error, (OSError, *restart_after)):
        trace = error if isinstance(error, OSError) else None
        _log.critical("exits for a restart", extra={"why": str(error)}, exc_info=trace)
        return 1
    raise error


# --- Memory -----------------------------------------------------------------------------------------------------------

_M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""


def return_large_blocks() -> None:
    """Have malloc return blocks of 1 MiB and more to the system as soon as they are free, as pages of lists are.

    Otherwise it keeps those of the largest size so far, between objects that stay: 25 MiB with 5,000 nodes.
    """
    with suppress(OSError, AttributeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def collect_rarely() -> Callable[[], None]:
    """Have the garbage collector skip old objects while the cluster is read; return a function that ends this.

    All objects that there are then stay, and are exempt from garbage collection from then on.
    """
    young, middle, _ = gc.get_threshold()
    # A full collection for every quarter of growth took a sixth of the time until ready. 5,000 nodes and their pods are
    # 250,000 objects, without a cycle among them.
    gc.set_threshold(500_000, 50, 1000)

    def as_usual() -> None:
        gc.freeze()  # a full collection first would find nothing, and keep the first requests waiting for 150 ms
        # A full collection takes 53 ms with 5,000 nodes, and came 7 times in 250 requests. It frees some 150 objects.
        gc.set_threshold(young, middle, 1000)

    return as_usual

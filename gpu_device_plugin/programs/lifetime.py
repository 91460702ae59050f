"""Run a program until it fails or a signal stops it; its exit code says whether it needs a restart."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

_log = logging.getLogger(__name__)


async def _nothing() -> None:
    pass


async def until_stopped(
    work: Coroutine[None, None, NoReturn],
    name: str,
    handlers: Mapping[signal.Signals, Callable[[], None]],
    *,
    announce_shutdown: Callable[[], Awaitable[None]] = _nothing,
    cleanup: Callable[[], Awaitable[None]] = _nothing,
    restart_after: tuple[type[Exception], ...] = (),
) -> int:
    """Run `work` until SIGTERM, SIGINT or its own failure, and return the exit code once `work` has ended.

    Args:
        work: the program.
        name: the name of its task.
        handlers: the callbacks of further signals.
        announce_shutdown: awaited after SIGTERM or SIGINT, while `work` still runs.
        cleanup: awaited after SIGTERM or SIGINT, once `work` has ended.
        restart_after: errors that a new process or container may resolve, besides OSError.

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

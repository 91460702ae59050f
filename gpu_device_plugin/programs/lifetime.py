"""Run a program until it ends or is told to stop, and say by its exit code whether it is to be started anew."""

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
    """Run `work` until SIGTERM or SIGINT or until it fails, and return the exit code when it has ended.

    Args:
        work: what the program does.
        name: of its task.
        handlers: what to call at which further signal.
        announce_shutdown: awaited when the program is told to stop, while `work` still runs.
        cleanup: awaited after that, when `work` has ended.
        restart_after: errors that a new process or container may mend, besides those of the operating system.

    Returns:
        0 if the program was stopped, 1 if it is to be started anew. A UsageError, which is raised, ends in 2.

    Raises:
        Whatever else ended the work by itself; of a group of errors the first.
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
        _log.critical("ends, to be started anew", extra={"why": str(error)}, exc_info=trace)
        return 1
    raise error

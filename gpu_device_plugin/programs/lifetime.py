"""Run a program until it ends or is told to."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger(__name__)


async def until_told(work: Coroutine[None, None, NoReturn], name: str, reload: Callable[[], None]) -> None:
    """Run `work` until SIGTERM or SIGINT, and return when it has cleaned up; call `reload` at every SIGHUP.

    Raises:
        Whatever ended the work by itself; of a group of errors the first.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    running = asyncio.create_task(work, name=name)
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        _log.info("stopping")
    stopping.cancel()
    running.cancel()
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    error = outcome
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, asyncio.CancelledError):
        raise error

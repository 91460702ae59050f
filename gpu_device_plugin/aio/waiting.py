"""Wait for awaitables: one with a timeout or whatever becomes of it, several side by side, items ahead, a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def wait_within(seconds: float | None, awaitable: Awaitable[object]) -> bool:
    """Await for at most `seconds` (None: without limit), then cancel; return whether `awaitable` ended in time."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True


async def in_thread(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `act`, which may wait for a disk, while others run.

    A cancellation takes effect when `act` has ended: whoever comes next must not meet half of it.
    """
    work = asyncio.create_task(asyncio.to_thread(act, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


async def any_of(seconds: float | None, *works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these has ended, for at most `seconds` (None: without limit), then cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def ahead(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Yield these items, none of which is None; each is awaited already while the one before is used."""
    coming = asyncio.ensure_future(anext(items, None))
    try:
        while (item := await coming) is not None:
            coming = asyncio.ensure_future(anext(items, None))
            yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def for_ever() -> NoReturn:
    """Wait until cancelled."""
    while True:
        await asyncio.Event().wait()


async def together(*works: Coroutine[Any, Any, object]) -> NoReturn:
    """Run these side by side until cancelled, or until one fails, which cancels the others. None of them returns."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work)
    raise AssertionError  # pragma: no cover (the tasks never return)


@dataclass(eq=False, repr=False)
class Attempts:
    """Makes attempts at something for people, of which no failure may stop what programs rely on."""

    _log: logging.Logger
    _message: str
    """Of a failure: logged with its traceback, and for debugging only until an attempt has succeeded again."""
    _failing: bool = field(default=False, init=False)

    async def make(self, work: Awaitable[T], otherwise: T) -> T:
        """Return the result of `work`; `otherwise` if it fails."""
        try:
            result = await work
        except Exception:  # noqa: BLE001 - see above
            log = self._log.debug if self._failing else self._log.exception
            log(self._message)
            self._failing = True
            return otherwise
        self._failing = False
        return result


async def last_of(steps: Generator[None, None, T]) -> T:
    """Return the result of what is done in small steps; others run between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)

"""How long a test waits for what must come true, and the ways to wait for it.

A test says what happens, not how quickly. Its deadlines only end what will never end, so they come from here and grow
with the machine's load. A test that fails at one is told what it waited for.
"""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

T = TypeVar("T")

QUIET_S = 30.0
"""How long a test waits on a machine that has nothing else to do: many times what anything needs there."""
REAL_S = 120.0
"""The same for real Kubernetes."""


def stretched(seconds: float = QUIET_S) -> float:
    """Return a time that is enough on a quiet machine, stretched by the number of runnable processes for each CPU."""
    return seconds * max(1.0, load() / (os.cpu_count() or 1))


def load() -> float:
    """Return how many processes want a CPU: in the last minute, or at this moment if they are more."""
    try:
        now = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except OSError:  # not on Linux
        now = 0
    return max(os.getloadavg()[0], now)


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    what: str = "",
    *,
    quiet_s: float = QUIET_S,
    pause_s: float = 0.01,
    running: Callable[[], Iterable[asyncio.Task[Any]]] = tuple,
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T],
    what: str = "",
    *,
    quiet_s: float = QUIET_S,
    pause_s: float = 0.01,
    running: Callable[[], Iterable[asyncio.Task[Any]]] = tuple,
) -> T: ...
async def eventually(
    condition: Callable[[], Any],
    what: str = "",
    *,
    quiet_s: float = QUIET_S,
    pause_s: float = 0.01,
    running: Callable[[], Iterable[asyncio.Task[Any]]] = tuple,
) -> Any:
    """Return what `condition` returns once that is true; look every `pause_s`. What it returns may be awaited.

    Args:
        condition: what has to come true.
        what: the same in words; by default its source, and the values of the names in it.
        quiet_s: how long it may take on a quiet machine.
        pause_s: between two looks.
        running: tasks whose failure is the reason if it does not come true.

    Raises:
        AssertionError: it did not come true. The first error of `running`: one of them failed.
    """
    began = time.monotonic()
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        for task in running():
            if task.done():
                task.result()
        _go_on(began, quiet_s, condition, what)
        await asyncio.sleep(pause_s)


def until(condition: Callable[[], T], what: str = "", *, quiet_s: float = QUIET_S, pause_s: float = 0.01) -> T:
    """Wait as `eventually` does, where nothing has to go on in this thread meanwhile."""
    began = time.monotonic()
    while not (found := condition()):
        _go_on(began, quiet_s, condition, what)
        time.sleep(pause_s)
    return found


@asynccontextmanager
async def patience(*watched: object, quiet_s: float = QUIET_S) -> AsyncIterator[None]:
    """End a block that never ends by itself. AssertionError: it was ended; the message shows what was watched."""
    limit_s = stretched(quiet_s)
    try:
        async with asyncio.timeout(limit_s) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise AssertionError(f"not within {limit_s:.0f} s: {', '.join(map(repr, watched))}") from None


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, NoReturn]) -> AsyncIterator[None]:
    """Let work that never ends by itself go on beside the block, at whose end it is still at it, and is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def rounds(count: int, every_s: float) -> None:
    """Let what works in this event loop every `every_s` do so `count` times more, however late the loop is."""
    for _ in range(count + 1):  # the first may end one that had begun
        await asyncio.sleep(every_s)


def _go_on(began: float, quiet_s: float, condition: Callable[[], object], what: str) -> None:
    """Raise if it takes longer than even a machine with the present load needs."""
    waited_s = time.monotonic() - began
    if waited_s > quiet_s and waited_s > stretched(quiet_s):
        raise AssertionError(f"it never came true, in {waited_s:.0f} s, that {what or _told(condition)}")


def _told(condition: Callable[[], object]) -> str:
    """Return the source of a condition, and the values of what it looks at."""
    function = inspect.unwrap(getattr(condition, "__func__", condition))
    try:
        source = " ".join(inspect.getsource(function).split())
        seen = dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, OSError):  # no function in Python, or no source of it
        source, seen = repr(condition), {}
    if hasattr(condition, "__self__"):
        seen["self"] = condition.__self__
    given = inspect.signature(condition).parameters.values()
    seen |= {each.name: each.default for each in given if each.default is not each.empty}
    return "; ".join([source, *(f"{name} = {value!r}" for name, value in seen.items())])

"""Do a piece of work again and again: after a while, as soon as something happens, or later and later if it fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin.aio.waiting import together, wait_within

if TYPE_CHECKING:
    from gpu_device_plugin.aio.observable import Observable


class Worker:
    """Runs one step after another.

    Belongs to one event loop: `wake` must be called from it, not from another thread.
    """

    def __init__(self, step: Callable[[], Awaitable[float | None] | float | None], *, settle_s: float = 0.0) -> None:
        """Run `step`, which returns the seconds until the next one; None: there is none until `wake`.

        An error of a step ends the worker. With `settle_s` a step begins so many seconds after `wake`: one for much
        that happens in that time.
        """
        self._step = step
        self._settle_s = settle_s
        self._woken = asyncio.Event()

    def wake(self, _new: object = None) -> None:
        """Run the next step soon, or after the present one. Also a follower of an `Observable`."""
        self._woken.set()

    async def run(self, *sources: Observable[Any]) -> NoReturn:
        """Run the first step now, and the next ones until cancelled; each change of one of the sources wakes."""
        if sources:
            await together(self.run(), *(source.follow(self.wake) for source in sources))
        while True:
            self._woken.clear()
            pause_s = self._step()
            if pause_s is not None and not isinstance(pause_s, float | int):
                pause_s = await pause_s
            if await wait_within(pause_s, self._woken.wait()) and self._settle_s:
                await asyncio.sleep(self._settle_s)


class Backoff:
    """Delays that double from `first_s` to `most_s`, shortened by up to half at random: nodes do not retry in step."""

    def __init__(self, first_s: float = 0.2, most_s: float = 30.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Count a failure and return the delay, at least the `at_least_s` that the server asked for."""
        ceiling = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return max(at_least_s, ceiling * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again from `first_s`, after a success."""
        self._failures = 0

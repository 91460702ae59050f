"""Do a piece of work again and again: after a while, or as soon as something happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin.aio.waiting import together, wait_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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

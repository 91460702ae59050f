"""Catch up with the bindings of other extenders before binding after a pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE_S = 2.0
"""An extender that bound a pod less than this long ago has been the leader since: candidates try to acquire the lease
every 2 s (kube-scheduler's default), and another one would have had to acquire it, bind a pod and release it."""


class Freshness:
    """Catches up before the first of a series of bindings; the later ones proceed at once."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]], clock: Callable[[], float]) -> None:
        """Catch up with `catch_up`, which raises if it cannot; `clock` returns monotonic seconds."""
        self._catch_up = catch_up
        self._clock = clock
        self._fresh_at: float | None = None
        self._losses = 0
        self._one_at_a_time = asyncio.Lock()
        self.catches = 0
        """The number of times that catching up was necessary."""

    def __repr__(self) -> str:
        return f"<Freshness: caught up {self.catches} times>"

    def lost(self) -> None:
        """Record that others may have bound pods until now: any earlier catch-up is out of date."""
        self._fresh_at = None
        self._losses += 1

    async def __call__(self) -> None:
        """Return once the bindings of others are known; to be called before every binding.

        Raises:
            The errors of `catch_up`; the next call then retries.
        """
        if not self._is_fresh():
            # The lock spans an await on purpose: all callers wait for the same catch-up.
            async with self._one_at_a_time:
                if not self._is_fresh():
                    await self._until_nothing_is_lost()
        self._fresh_at = self._clock()

    async def _until_nothing_is_lost(self) -> None:
        losses = None
        while losses != self._losses:
            losses = self._losses
            await self._catch_up()
            self.catches += 1

    def _is_fresh(self) -> bool:
        return self._fresh_at is not None and self._clock() - self._fresh_at < PAUSE_S

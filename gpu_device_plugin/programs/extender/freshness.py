"""Know what others did, before acting after a pause in which others may have acted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE_S = 2.0
"""An extender that bound a pod this short a time ago has been the leader since: candidates try to take a lease every
2 s (kube-scheduler's default), and another one would have had to take it, bind a pod and give it back in between."""


class Freshness:
    """Catches up before the first of a series of actions; the others go on at once."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]], clock: Callable[[], float]) -> None:
        """Catch up with `catch_up`, which raises if it cannot; `clock` is in monotonic seconds."""
        self._catch_up = catch_up
        self._clock = clock
        self._fresh_at: float | None = None
        self._losses = 0
        self._one_at_a_time = asyncio.Lock()
        self.catches = 0
        """How often there was catching up to do."""

    def __repr__(self) -> str:
        return f"<Freshness: caught up {self.catches} times>"

    def lost(self) -> None:
        """Take note that others acted until now: what was asked before says nothing of it."""
        self._fresh_at = None
        self._losses += 1

    async def __call__(self) -> None:
        """Return when what others did is known; to be called before every action.

        Raises:
            Whatever catching up raises; the next call then tries again.
        """
        if not self._is_fresh():
            # The lock is held over an await on purpose: all that wait for it wait for the same answer.
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

"""Stream the newest value to the kubelet for as long as it listens."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from gpu_device_plugin.aio.observable import Observable

T = TypeVar("T")


class Streams:
    """The open streams of a servicer."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self.open = 0
        """How many there are."""
        self.expected = False
        """The kubelet should listen to one."""
        self.changed: Callable[[int], None] = lambda _open: None
        """Called with the number of open streams whenever it changes."""

    @property
    def deserted(self) -> bool:
        """Whether a kubelet that should listen does not: it is not there, or does not know us (yet)."""
        return self.expected and not self.open

    def close(self) -> None:
        """End every stream: a stopping server otherwise waits for open streams for its whole grace period."""
        self._closing.set()

    @asynccontextmanager
    async def of(self, values: Observable[T], repeat_s: float | None = None) -> AsyncIterator[AsyncGenerator[T]]:
        """Open a stream, for the time of the block; it yields as `Observable.until` does, until `close`."""
        self._count(1)
        try:
            async with aclosing(values.until(self._closing, repeat_s)) as newest:
                yield newest
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.open += change
        self.changed(self.open)

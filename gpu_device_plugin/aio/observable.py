"""Publish the newest value to any number of readers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Generic, NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import any_of

T = TypeVar("T")


class Observable(Generic[T]):
    """One writer sets values, many readers follow them; a slow reader skips values, but never misses the newest.

    Belongs to one event loop: `set` must be called from it, not from another thread.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Observable #{self._version}: {self._value!r}>"

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """The number of calls of `set` so far."""
        return self._version

    def set(self, value: T) -> None:
        """Make `value` the newest, even if it equals the previous one, and wake every reader."""
        self._value = value
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def change(self, value: T) -> None:
        """Set `value` unless it equals the newest."""
        if value != self._value:
            self.set(value)

    async def after(self, version: int) -> tuple[int, T]:
        """Wait for a value newer than `version`; return the newest version and its value."""
        while self._version <= version:
            await self._changed.wait()
        return self._version, self._value

    async def wait_until(self, met: Callable[[T], bool]) -> None:
        """Wait until the newest value meets a condition; it is looked at now, and after every change."""
        version = self._version
        while not met(self._value):
            version, _ = await self.after(version)

    async def values(self) -> AsyncIterator[T]:
        """Yield the current value, then each newer one, skipping values that were replaced meanwhile. Never ends."""
        version, value = self._version, self._value
        while True:
            yield value
            version, value = await self.after(version)

    async def until(self, over: asyncio.Event, repeat_s: float | None = None) -> AsyncGenerator[T]:
        """Yield values like `values` until `over` is set, and the last one again after `repeat_s` seconds without one.

        For streams of a server, which have to end before it can stop.
        """
        version, value = self._version, self._value
        while True:
            yield value
            await any_of(repeat_s, over.wait(), self.after(version))
            if over.is_set():
                return
            version, value = self._version, self._value

    async def follow(
        self, act: Callable[[T], Awaitable[object] | None], *, settle_s: float = 0.0, initial: bool = False
    ) -> NoReturn:
        """Call `act` with the newest value that was set, then with each newer one, like `values`.

        What it returns is awaited, and values that were replaced meanwhile are skipped. With `settle_s`, `act` gets the
        newest value of that time after a change: one call for many changes. With `initial`, it gets the first value
        too, which is not a change.
        """
        version = -1 if initial else 0
        while True:
            version, value = await self.after(version)
            if settle_s:
                await asyncio.sleep(settle_s)
                version, value = self._version, self._value
            done = act(value)
            if done is not None:
                await done

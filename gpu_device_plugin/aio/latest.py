"""The newest value of something, for any number of readers, each at its own pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")


class Latest(Generic[T]):
    """One writer sets, many readers follow; a slow reader skips values, and never misses the newest.

    Belongs to one event loop: `set` is called from it, not from another thread.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Latest #{self._version}: {self._value!r}>"

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value was set after it was made; grows by one for every `set`."""
        return self._version

    def set(self, value: T) -> None:
        """Make `value` the newest, equal to the one before or not, and wake every reader."""
        self._value = value
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, version: int) -> tuple[int, T]:
        """Wait until there is a value newer than `version`; return its version and the value itself."""
        while self._version <= version:
            await self._changed.wait()
        return self._version, self._value

    async def values(self) -> AsyncIterator[T]:
        """Yield the value there is now, then every newer one, skipping those overtaken meanwhile. Never ends."""
        version, value = self._version, self._value
        while True:
            yield value
            version, value = await self.after(version)

    async def follow(self, act: Callable[[T], None]) -> NoReturn:
        """Call `act` with the newest value that was set, then with every newer one, as `values` yields them."""
        version = 0  # what stood there from the beginning is nobody's news
        while True:
            version, value = await self.after(version)
            act(value)

"""Wait for something, and not for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def within(seconds: float | None, happens: Awaitable[object]) -> bool:
    """Return whether `happens` ended in time; what has not is cancelled. None: however long it takes."""
    try:
        async with asyncio.timeout(seconds):
            await happens
    except TimeoutError:
        return False
    return True

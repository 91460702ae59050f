"""Wait for an awaitable, with a timeout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def within(seconds: float | None, awaitable: Awaitable[object]) -> bool:
    """Await for at most `seconds` (None: without limit), then cancel; return whether `awaitable` ended in time."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True

"""Waiting ends with what is waited for, or with the time."""

from __future__ import annotations

import asyncio

from gpu_device_plugin.aio.waiting import within


async def test_what_happens_in_time_is_told_from_what_does_not() -> None:
    event = asyncio.Event()
    assert not await within(0, event.wait())
    event.set()
    assert await within(None, event.wait())


async def test_what_does_not_happen_in_time_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    assert not await within(0.001, task)
    assert task.cancelled()

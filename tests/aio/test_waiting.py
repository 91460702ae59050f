"""Waiting ends with what is waited for, or with the time."""

import asyncio
import threading

import pytest

from gpu_device_plugin.aio.waiting import in_thread, wait_within
from tests.patience import eventually, stretched


async def test_what_happens_in_time_is_told_from_what_does_not() -> None:
    event = asyncio.Event()
    assert not await wait_within(0, event.wait())
    event.set()
    assert await wait_within(None, event.wait())


async def test_what_does_not_happen_in_time_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    assert not await wait_within(0.001, task)
    assert task.cancelled()


async def test_what_runs_in_a_thread_is_done_before_a_cancellation_takes_effect() -> None:
    """Whoever comes next must not meet half of a file."""
    begun, goes_on, done = threading.Event(), threading.Event(), []

    def write(text: str) -> str:
        begun.set()
        goes_on.wait(stretched())
        done.append(text)
        return text

    task = asyncio.create_task(in_thread(write, "whole"))
    await eventually(begun.is_set)
    task.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["whole"]
    assert await in_thread(write, "again") == "again"

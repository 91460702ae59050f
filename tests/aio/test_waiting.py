"""Waiting ends with what is waited for, or with the time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from gpu_device_plugin.aio.waiting import ahead, in_thread, wait_within
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


async def pages(asked: list[int], last: int) -> AsyncIterator[int]:
    for page in range(1, last + 1):
        asked.append(page)
        await asyncio.sleep(0)
        yield page
    raise OSError("no more")


async def test_the_next_page_is_on_its_way_while_one_is_read() -> None:
    """The error of the third is raised once the second has been read."""
    asked, read = list[int](), list[tuple[int, int]]()

    async def read_all() -> None:
        async for page in ahead(pages(asked, 2)):
            await asyncio.sleep(0)
            read.append((page, asked[-1]))

    with pytest.raises(OSError, match="no more"):
        await read_all()
    assert read == [(1, 2), (2, 2)]


async def test_the_next_page_is_not_waited_for_once_none_is_wanted() -> None:
    before = asyncio.all_tasks()
    async with aclosing(ahead(pages([], 2))) as coming:
        assert await anext(coming) == 1
    assert asyncio.all_tasks() <= before


async def test_what_ends_ends_ahead_too() -> None:
    async def two() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    assert [each async for each in ahead(two())] == ["a", "b"]

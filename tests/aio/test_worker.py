"""A piece of work that is done again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.worker import Worker
from tests.patience import eventually


@asynccontextmanager
async def running(worker: Worker, *sources: Observable[int]) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run(*sources))
    await settle()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_step_runs_at_once_and_the_next_ones_when_the_worker_is_woken() -> None:
    steps = list[int]()
    worker = Worker(lambda: steps.append(len(steps)))
    async with running(worker):
        assert steps == [0]
        worker.wake()
        worker.wake("a value that is followed")
        await settle()
        assert steps == [0, 1], "however often it was woken before"


async def test_a_step_is_repeated_after_the_seconds_that_it_returned() -> None:
    steps, pauses = list[float | None](), iter([0.001, 0, 0.001, None])

    async def step() -> float | None:
        await asyncio.sleep(0)
        steps.append(pause := next(pauses))
        return pause

    async with running(Worker(step)):
        await eventually(lambda: len(steps) == 4)
        await asyncio.sleep(0.01)
    assert steps == [0.001, 0, 0.001, None]


async def test_a_worker_that_is_woken_during_a_step_runs_another_one() -> None:
    steps, goes_on = list[int](), asyncio.Event()

    async def step() -> None:
        steps.append(len(steps))
        await goes_on.wait()

    worker = Worker(step)
    async with running(worker):
        worker.wake()
        await settle()
        assert steps == [0]
        goes_on.set()
        await settle()
        assert steps == [0, 1]


async def test_each_change_of_a_source_wakes_and_changes_may_settle() -> None:
    steps, one, two = list[tuple[int, int]](), Observable(0), Observable(0)
    async with running(Worker(lambda: steps.append((one.value, two.value)), settle_s=0.01), one, two):
        one.set(1)
        await settle()
        two.set(2)
        assert steps == [(0, 0)]
        await eventually(lambda: len(steps) > 1)
        await asyncio.sleep(0.03)
        assert steps == [(0, 0), (1, 2)]


async def test_an_error_of_a_step_ends_the_worker() -> None:
    def step() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - there is no more to it
        await Worker(step).run()

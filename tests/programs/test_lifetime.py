"""A program runs until it ends or is told to, and says why it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, NoReturn

import pytest

from gpu_device_plugin.programs.lifetime import until_told

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the signals of the test run as they were."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in signals}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class Work:
    """Runs for ever, and notes how it ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cleaned_up = False

    async def run(self) -> NoReturn:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned_up = True
        raise AssertionError


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_end_it_cleans_up_first(told: signal.Signals) -> None:
    work = Work()
    ending = asyncio.create_task(until_told(work.run(), "work", lambda: None))
    await work.begun.wait()
    os.kill(os.getpid(), told)
    await ending
    assert work.cleaned_up


async def test_sighup_is_passed_on_each_time() -> None:
    work, times = Work(), 0
    again = asyncio.Event()

    def reload() -> None:
        nonlocal times
        times += 1
        again.set()

    ending = asyncio.create_task(until_told(work.run(), "work", reload))
    await work.begun.wait()
    for _ in range(2):
        again.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        await again.wait()
    assert (times, work.cleaned_up) == (2, False)
    os.kill(os.getpid(), signal.SIGTERM)
    await ending


async def fails(error: BaseException) -> NoReturn:
    raise error


async def test_what_ends_the_work_is_raised_the_first_of_a_group() -> None:
    first = OSError("the address is taken")
    for error in (first, ExceptionGroup("many", [ExceptionGroup("inner", [first]), ValueError("later")])):
        with pytest.raises(OSError, match="the address is taken"):
            await until_told(fails(error), "work", lambda: None)


async def test_work_that_fails_while_it_is_being_stopped_is_not_silent() -> None:
    begun = asyncio.Event()

    async def work() -> NoReturn:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the lease is not given back") from None
        raise AssertionError

    ending = asyncio.create_task(until_told(work(), "work", lambda: None))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(OSError, match="not given back"):
        await ending

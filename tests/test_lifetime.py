"""A program runs until it ends or is told to stop, and its exit code says whether to start it anew."""

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

import pytest

from gpu_device_plugin.lifetime import collect_rarely, until_stopped


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
async def test_told_to_stop_it_says_so_first_and_cleans_up_last(told: signal.Signals) -> None:
    work, order = Work(), list[tuple[str, bool]]()

    async def note(what: str) -> None:
        order.append((what, work.cleaned_up))

    announce, cleanup = partial(note, "announced"), partial(note, "cleaned")
    ending = asyncio.create_task(until_stopped(work.run(), "work", {}, announce_shutdown=announce, cleanup=cleanup))
    await work.begun.wait()
    os.kill(os.getpid(), told)
    assert await ending == 0
    assert order == [("announced", False), ("cleaned", True)]


async def test_sighup_is_passed_on_each_time() -> None:
    work, times = Work(), 0
    again = asyncio.Event()

    def reload() -> None:
        nonlocal times
        times += 1
        again.set()

    ending = asyncio.create_task(until_stopped(work.run(), "work", {signal.SIGHUP: reload}))
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


def inside(error: Exception) -> ExceptionGroup:
    return ExceptionGroup("many", [ExceptionGroup("inner", [error]), ValueError("later")])


async def test_an_error_of_the_system_ends_in_1_and_its_cause_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for error in (first := OSError("the address is taken"), inside(first)):
        caplog.clear()
        assert await until_stopped(fails(error), "work", {}) == 1
        (record,) = caplog.records
        assert (record.getMessage(), record.exc_info is not None) == ("exits for a restart", True)
        assert record.why == "the address is taken"  # type: ignore[attr-defined]


async def test_other_errors_that_a_new_process_may_mend_are_named_and_the_rest_is_raised() -> None:
    for error in (KeyError("gone"), inside(KeyError("gone"))):
        assert await until_stopped(fails(error), "work", {}, restart_after=(KeyError,)) == 1
        with pytest.raises(KeyError, match="gone"):
            await until_stopped(fails(error), "work", {})


async def test_a_program_that_ends_by_itself_announces_and_cleans_up_nothing() -> None:
    async def never() -> None:
        raise AssertionError

    assert await until_stopped(fails(OSError()), "work", {}, announce_shutdown=never, cleanup=never) == 1


async def test_work_that_fails_while_it_is_being_stopped_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    begun = asyncio.Event()

    async def work() -> NoReturn:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the lease is not given back") from None
        raise AssertionError

    ending = asyncio.create_task(until_stopped(work(), "work", {}))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ending == 1
    assert [getattr(record, "why", "") for record in caplog.records][-1] == "the lease is not given back"


def test_a_full_garbage_collection_is_rare_once_the_cluster_has_been_read() -> None:
    usual = gc.get_threshold()
    try:
        collect_rarely()()
        young, middle, old = gc.get_threshold()
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
    assert (young, middle) == usual[:2]
    assert old == 1000

"""The newest value, for any number of readers."""

import asyncio
from collections.abc import Coroutine

import pytest

from gpu_device_plugin.aio.observable import Observable
from tests.patience import eventually


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def start(waiting: Coroutine[None, None, object]) -> asyncio.Task[object]:
    return asyncio.create_task(waiting, name="reader")


def test_every_value_has_a_version_equal_values_too() -> None:
    latest = Observable("a")
    assert (latest.value, latest.version) == ("a", 0)
    latest.set("b")
    latest.set("b")
    assert repr(latest) == "<Observable #2: 'b'>"


async def test_what_is_newer_already_is_not_waited_for() -> None:
    latest = Observable("a")
    latest.set("b")
    assert await latest.after(0) == (1, "b")
    assert await latest.after(-1) == (1, "b")


async def test_readers_go_at_their_own_pace() -> None:
    latest = Observable(0)
    quick, slow = latest.values(), latest.values()
    assert (await anext(quick), await anext(slow)) == (0, 0)
    latest.set(1)
    assert await anext(quick) == 1
    latest.set(2)
    assert (await anext(quick), await anext(slow)) == (2, 2)


async def test_a_value_set_while_the_last_one_is_being_used_is_not_missed() -> None:
    latest, seen = Observable(0), []

    async def follow() -> None:
        async for value in latest.values():
            seen.append(value)
            if value < 3:
                latest.set(value + 1)

    reader = start(follow())
    await settle()
    assert seen == [0, 1, 2, 3]
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_a_reader_that_gives_up_disturbs_nobody() -> None:
    latest = Observable(0)
    one, two = start(latest.after(0)), start(latest.after(0))
    await settle()
    one.cancel()
    latest.set(1)
    assert await two == (1, 1)
    assert one.cancelled()


async def test_a_follower_is_called_with_what_was_set_and_not_with_what_stood_there() -> None:
    latest, seen = Observable("a"), list[str]()
    unset = start(Observable("z").follow(seen.append))
    latest.set("b")
    following = start(latest.follow(seen.append))
    await settle()
    latest.set("c")
    latest.set("d")
    await settle()
    assert seen == ["b", "d"]
    for task in (unset, following):
        task.cancel()


async def test_a_follower_may_take_its_time_and_begin_with_the_initial_value() -> None:
    """It skips what was replaced meanwhile, and never misses the newest."""
    latest, seen, goes_on = Observable(0), list[int](), asyncio.Event()

    async def act(value: int) -> None:
        seen.append(value)
        await goes_on.wait()

    following = start(latest.follow(act, initial=True))
    await settle()
    assert seen == [0]
    latest.set(1)
    latest.set(2)
    await settle()
    assert seen == [0]
    goes_on.set()
    await settle()
    assert seen == [0, 2]
    following.cancel()


async def test_a_follower_that_lets_changes_settle_is_called_once_for_many_and_never_misses_the_newest() -> None:
    latest, seen = Observable(0), list[int]()
    following = start(latest.follow(seen.append, settle_s=0.1))
    for value in (1, 2, 3):
        latest.set(value)
        await settle()
        assert seen == []
    await eventually(lambda: seen == [3])
    latest.set(4)
    await eventually(lambda: seen == [3, 4])
    await asyncio.sleep(0.03)
    assert seen == [3, 4]
    following.cancel()


async def test_a_stream_of_values_repeats_the_last_one_and_ends_when_it_is_over() -> None:
    latest, over = Observable(0), asyncio.Event()
    seen = []
    async for value in latest.until(over, repeat_s=0.001):
        seen.append(value)
        if len(seen) == 2:
            latest.set(1)
        if len(seen) == 4:
            over.set()
    assert seen == [0, 0, 1, 1]

"""Who acts after a pause catches up first, once for all that wait."""

import asyncio
from dataclasses import dataclass, field

import pytest

from gpu_device_plugin.scheduler.binding import PAUSE_S, Freshness


@dataclass
class World:
    now: float = 1000.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    fails: bool = False
    fails_at: int = 0
    term: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self.fresh = Freshness(self.catch_up, lambda: self.now, lambda: self.term)

    async def catch_up(self) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.fails or self.asked == self.fails_at:
            raise TimeoutError("the API server is slow")


async def test_the_first_action_catches_up_and_those_soon_after_do_not() -> None:
    world = World()
    for _ in range(5):
        await world.fresh()
        world.now += PAUSE_S - 1
    assert world.asked == 1


async def test_after_a_pause_another_may_have_acted() -> None:
    world = World()
    await world.fresh()
    world.now += PAUSE_S
    await world.fresh()
    assert world.asked == 2


async def test_many_at_once_wait_for_one_answer() -> None:
    world = World()
    world.gate.clear()
    calls = [asyncio.create_task(world.fresh()) for _ in range(20)]
    await asyncio.sleep(0)
    world.gate.set()
    await asyncio.gather(*calls)
    assert world.asked == 1


async def test_a_failure_is_told_and_the_next_call_tries_again() -> None:
    world = World(fails=True)
    with pytest.raises(TimeoutError):
        await world.fresh()
    world.fails = False
    await world.fresh()
    assert world.asked == 2


async def test_what_was_known_before_a_slow_answer_is_as_old_as_the_question() -> None:
    """The answer came when the question was older than a pause: what it told may be outdated, the next asks again."""
    world = World()
    world.gate.clear()
    call = asyncio.create_task(world.fresh())
    await asyncio.sleep(0)
    world.now += PAUSE_S
    world.gate.set()
    await call
    assert world.asked == 1
    world.term += 1
    await world.fresh()
    assert world.asked == 2


async def test_what_is_lost_while_catching_up_is_caught_up_with_too() -> None:
    """The answer that is on its way tells nothing of what happened after its question; nobody acts by it."""
    world = World()
    world.gate.clear()
    calls = [asyncio.create_task(world.fresh()) for _ in range(2)]
    await asyncio.sleep(0)
    world.term += 1
    world.gate.set()
    await asyncio.gather(*calls)
    assert world.asked == 2


async def test_an_answer_from_before_a_loss_makes_nobody_fresh_if_the_next_one_fails() -> None:
    world = World()
    world.gate.clear()
    call = asyncio.create_task(world.fresh())
    await asyncio.sleep(0)
    world.term += 1
    world.gate.set()
    world.fails_at = 2
    with pytest.raises(TimeoutError):
        await call
    await world.fresh()
    assert world.asked == 3

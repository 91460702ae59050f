"""Turns: only so many at a time, party by party."""

import asyncio

import pytest

from gpu_device_plugin.aio.turns import Turns, in_turns


class Line:
    """Those that want a turn, and the order in which they got it."""

    def __init__(self, at_once: int = 1) -> None:
        self.turns = Turns(at_once)
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def want(self, *names: str, urgent: bool = False) -> None:
        """Let these want a turn, in this order. The first letter is the party."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take(name, urgent=urgent))
            await asyncio.sleep(0)

    async def _take(self, name: str, *, urgent: bool) -> None:
        async with self.turns.turn(name[0], urgent=urgent):
            self.got.append(name)
            await asyncio.sleep(0)

    async def end(self) -> list[str]:
        """Return the order."""
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.got


async def test_parties_take_turns_however_much_one_wants() -> None:
    line = Line()
    async with line.turns.turn("z"):
        await line.want("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    assert await line.end() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_the_urgent_of_all_parties_come_first() -> None:
    line = Line()
    async with line.turns.turn("z"):
        await line.want("a1", "b1")
        await line.want("b2", "b3", "c1", urgent=True)
    assert await line.end() == ["b2", "c1", "b3", "a1", "b1"]


async def test_no_more_than_a_number_go_on_at_a_time() -> None:
    line = Line(2)
    async with line.turns.turn("y"), line.turns.turn("z"):
        await line.want("a1")
        assert line.got == []
        assert line.turns.waiting("a") == 1
    assert await line.end() == ["a1"]
    assert repr(line.turns) == "<Turns: 2 free, 0 waiting>"


async def test_who_leaves_the_line_takes_no_turn() -> None:
    line = Line()
    async with line.turns.turn("z"):
        await line.want("a1", "a2", "b1")
        line.tasks["a1"].cancel()
        line.tasks["b1"].cancel()
        await asyncio.sleep(0)
        assert (line.turns.waiting("a"), line.turns.waiting("b")) == (1, 0)
    assert await line.end() == ["a2"]
    assert repr(line.turns) == "<Turns: 1 free, 0 waiting>"


async def test_who_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    line = Line()
    async with line.turns.turn("z"):
        await line.want("a1", "b1")
    line.tasks["a1"].cancel()
    assert await line.end() == ["b1"]
    assert repr(line.turns) == "<Turns: 1 free, 0 waiting>"


async def test_a_turn_goes_to_nobody_who_leaves_at_the_same_moment() -> None:
    line = Line()
    async with line.turns.turn("z"):
        await line.want("a1", "a2", "b1", "c1")
        for name in ("a1", "a2", "b1"):
            line.tasks[name].cancel()
    assert await line.end() == ["c1"]
    assert repr(line.turns) == "<Turns: 1 free, 0 waiting>"


async def test_a_turn_ends_with_an_error_too() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="oops"):
        async with turns.turn("a"):
            raise ValueError("oops")
    assert repr(turns) == "<Turns: 1 free, 0 waiting>"


def test_every_namespace_has_its_turn_before_one_has_another() -> None:
    assert in_turns(["a1", "a2", "a3", "b1", "c1", "c2"], lambda name: name[0]) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert in_turns([], str) == []

"""A reader stops the scenes, takes steps, and lets them go on."""

from __future__ import annotations

import asyncio
import os
import pty
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.programs.demo.pace import Pace, keys
from tests.patience import eventually, patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NEVER = 10_000.0
"""Seconds; a pause that only a key ends."""
SHORT = 0.01
TURNS = 20


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def pausing(pace: Pace, *seconds: float) -> AsyncIterator[list[float]]:
    """Pause again and again; yields the pauses that have ended."""
    ended: list[float] = []

    async def play() -> None:
        for each in seconds:
            await pace.pause(each)
            ended.append(each)

    playing = asyncio.create_task(play())
    try:
        await turns()
        yield ended
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def test_a_pause_ends_by_itself_and_where_nobody_reads_there_is_none() -> None:
    off = Pace(on=False)
    off.press(" ")
    async with patience("both end"):
        await Pace().pause(SHORT)
        await off.pause(NEVER)


@pytest.mark.parametrize("key", ["\n", "\r"])
async def test_enter_ends_a_pause(key: str) -> None:
    pace = Pace()
    async with pausing(pace, NEVER, NEVER) as ended:
        for other in "qx\x1b":
            pace.press(other)
        await turns()
        assert (ended, pace.stopped) == ([], False), "other keys do nothing"
        pace.press(key)
        await turns()
        assert ended == [NEVER], "the next one is another step"


async def test_stopped_scenes_go_on_only_by_a_key() -> None:
    pace = Pace()
    pace.press(" ")
    assert pace.stopped
    async with pausing(pace, 0.0, 0.0, NEVER) as ended:
        assert ended == []
        pace.press(" ")
        await turns()
        assert (ended, pace.stopped) == ([0.0, 0.0], False)


async def test_a_pause_that_was_stopped_ends_when_the_scenes_go_on() -> None:
    pace = Pace()
    async with pausing(pace, NEVER) as ended:
        pace.press(" ")
        await turns()
        pace.press(" ")
        await turns()
        assert ended == [NEVER]


async def test_a_step_goes_on_to_the_next_longer_pause() -> None:
    """Short pauses only show one change after the other."""
    pace = Pace()
    pace.press(" ")
    async with pausing(pace, 0.1, 0.4, 3.0, 0.4, 3.0) as ended:
        pace.press("\n")
        await turns()
        assert ended == [0.1, 0.4]
        pace.press("\n")
        await turns()
        assert (ended, pace.stopped) == ([0.1, 0.4, 3.0], True)
        pace.press("\n")
        await turns()
        assert ended == [0.1, 0.4, 3.0, 0.4]


async def test_waiting_for_something_ends_with_it_or_with_enter() -> None:
    pace, happened = Pace(), asyncio.Event()
    waiting = asyncio.create_task(pace.unless_stepped(happened.wait()))
    await turns()
    pace.press(" ")
    await turns()
    assert not waiting.done(), "Space is no step"
    pace.press("\n")
    async with patience("Enter ends it"):
        await waiting
    happened.set()
    async with patience("it ends with what it waits for"):
        await pace.unless_stepped(happened.wait())


async def test_keys_come_one_by_one_and_the_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    """Of a file there are none."""
    (tmp_path / "input").write_text(" ")
    with (tmp_path / "input").open() as stream, keys(stream, lambda _: None) as there:
        assert not there
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    pressed: list[str] = []
    with os.fdopen(theirs, closefd=False) as stream:
        with keys(stream, pressed.append) as there:
            assert there
            os.write(ours, b" \n")
            await eventually(lambda: pressed == [" ", "\n"])
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)

"""A test that waits in vain says for what."""

import asyncio
import os

import pytest

from tests import patience as patience_module
from tests.patience import eventually, patience, stretched, until


class Door:
    def __repr__(self) -> str:
        return "<Door: locked>"

    def opens(self) -> bool:
        return False


def test_a_condition_that_never_holds_is_shown_with_all_that_it_looks_at() -> None:
    door = Door()
    with pytest.raises(AssertionError, match=r"that .*lambda: door\.opens\(\).*; door = <Door: locked>$"):
        until(lambda: door.opens(), quiet_s=0)  # noqa: PLW0108 - its source is what this is about
    with pytest.raises(AssertionError, match=r"return False; self = <Door: locked>$"):
        until(door.opens, quiet_s=0)
    with pytest.raises(AssertionError, match=r"in 0 s, that the door opens$"):
        until(door.opens, "the door opens", quiet_s=0)


async def test_the_failure_of_what_was_to_bring_it_is_the_reason() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    task = asyncio.create_task(fails())
    with pytest.raises(ZeroDivisionError):
        await eventually(Door().opens, running=lambda: [task])


async def test_a_block_that_does_not_end_is_ended_and_its_own_deadlines_stay_its_own() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: <Door: locked>"):
        async with patience(Door(), quiet_s=0):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError, match="its own"):
        async with patience():
            raise TimeoutError("its own")


def test_a_deadline_grows_with_the_load_of_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for busy, longer in ((0.0, 1), (2.0, 1), (8.0, 4)):
        monkeypatch.setattr(patience_module, "load", lambda now=busy: now)
        assert stretched(30) == 30 * longer

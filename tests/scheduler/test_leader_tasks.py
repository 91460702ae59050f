"""What only the active extender does: after it knows what others have done, and whatever a single step meets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.errors import Call, ForbiddenError, UnavailableError
from gpu_device_plugin.logs import OncePer
from gpu_device_plugin.scheduler.leader_tasks import LeaderStep, LeaderTasks
from tests.patience import eventually


class Terms:
    """Whether this extender is active, and what it takes to learn what others have done."""

    def __init__(self, story: list[str]) -> None:
        self.term: str | None = None
        self.story = story
        self.fails: Exception | None = None
        self.asked = 0

    async def active_term(self) -> str | None:
        self.asked += 1
        return self.term

    async def catch_up(self) -> None:
        self.story.append("catch up")
        if self.fails is not None:
            raise self.fails


class World:
    """Two steps of one pace, and one of another."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.terms = Terms(self.story)
        self.meets: dict[str, Exception] = {}

    def step(self, name: str, pause_s: float) -> LeaderStep:
        async def run() -> None:
            self.story.append(name)
            if name in self.meets:
                raise self.meets[name]

        def forget(term: object) -> None:
            self.story.append(f"{name} forgets before {term}")

        return LeaderStep(name, run, forget, pause_s=pause_s, waits=f"{name} waits", manifest="rights.yaml")

    async def some_rounds(self) -> None:
        before = self.terms.asked
        await eventually(lambda: self.terms.asked > before + 4)

    @asynccontextmanager
    async def running(self, **pauses: float) -> AsyncIterator[None]:
        steps = [self.step(name, pause_s) for name, pause_s in pauses.items()]
        task = asyncio.create_task(LeaderTasks(self.terms.active_term, self.terms.catch_up, steps).run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_in_a_new_term_it_is_known_what_others_did_then_all_forget_then_they_act() -> None:
    w = World()
    async with w.running(a=0.001, b=0.001):
        await w.some_rounds()
        assert w.story == [], "another extender is active"
        w.terms.term = "first"
        await eventually(lambda: w.story.count("b") > 1)
        beginning = ["catch up", "a forgets before first", "b forgets before first", "a", "b", "a", "b"]
        assert w.story[: len(beginning)] == beginning
        w.terms.term = None
        await w.some_rounds()
        w.story.clear()
        await w.some_rounds()
        assert w.story == []
        w.terms.term = "first"  # it was not active for a while
        await eventually(lambda: "b" in w.story)
        assert w.story[:3] == beginning[:3]


async def test_paces_do_not_wait_for_each_other_and_catch_up_once() -> None:
    w = World()
    w.terms.term = "first"
    async with w.running(slow=3600.0, quick=0.001):
        await eventually(lambda: w.story.count("quick") > 9)
    assert (w.story.count("catch up"), w.story.count("slow")) == (1, 1)


async def test_nobody_acts_before_it_is_known_what_others_did(caplog: pytest.LogCaptureFixture) -> None:
    w = World()
    w.terms.term, w.terms.fails = "first", TimeoutError("not all pods are known")
    async with w.running(a=0.001):
        await eventually(lambda: w.story.count("catch up") > 2)
        assert set(w.story) == {"catch up"}
        assert ("a waits", "not all pods are known") in told(caplog)
        w.terms.fails = None
        await eventually(lambda: "a" in w.story)


async def test_a_term_that_cannot_be_entered_is_told_in_one_line_until_the_reason_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of all paces together, and again after ten minutes."""
    now_s = 0.0
    filtering = OncePer(lambda: now_s)
    caplog.handler.addFilter(filtering)
    w = World()
    w.terms.term, w.terms.fails = "first", TimeoutError("not all pods are known")
    try:
        async with w.running(a=0.001, b=0.002, c=0.003):
            await w.some_rounds()
            now_s = 599.0
            await w.some_rounds()
            assert [*told(caplog)] == [("a waits; b waits; c waits", "not all pods are known")]
            assert len(caplog.records) == 1
            w.terms.fails = TimeoutError("no answer")
            await w.some_rounds()
            assert [vars(each)["why"] for each in caplog.records] == ["not all pods are known", "no answer"]
            now_s = 1300.0
            await w.some_rounds()
            assert len(caplog.records) == 3
    finally:
        caplog.handler.removeFilter(filtering)


async def test_an_api_server_in_trouble_is_asked_no_more_often_than_the_slowest_pace_says() -> None:
    w = World()
    w.terms.term, w.terms.fails = "first", TimeoutError("not all pods are known")
    async with w.running(quick=0.001, slow=0.05):
        await asyncio.sleep(0.5)
    assert w.terms.asked <= 2 + 0.5 / 0.05


async def test_an_error_of_a_step_keeps_none_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    w = World()
    w.terms.term = "first"
    call = Call("patch", "nodes")
    w.meets = {
        "a": ForbiddenError(call, "no"),
        "b": UnavailableError(call, "no answer"),
        "c": ZeroDivisionError("a mistake"),
    }
    async with w.running(a=0.001, b=0.001, c=0.001, d=0.001):
        await eventually(lambda: w.story.count("d") > 1)
    assert ("a waits", f"{w.meets['a']}; apply rights.yaml") in told(caplog)
    assert ("b waits", str(w.meets["b"])) in told(caplog)
    assert "a step of the c failed" in caplog.messages


def told(caplog: pytest.LogCaptureFixture) -> set[tuple[str, Any]]:
    why: Callable[[object], Any] = lambda record: getattr(record, "why", None)  # noqa: E731 - a field of the log line
    return {(record.message, why(record)) for record in caplog.records}

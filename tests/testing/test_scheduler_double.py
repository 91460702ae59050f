"""What our scheduler adds to a real one: it can be stepped, and what a real one draws lots for is always the same."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests import builders
from tests.builders import GPU_MEM, container
from tests.cluster_double.api_server import ApiServer
from tests.patience import eventually
from tests.scheduler_double.scheduler import ExtenderConfig, Outcome, Scheduler
from tests.testing.conftest import ScriptedExtender, passing, scripted


def test_there_is_a_real_scheduler_to_compare_with() -> None:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-scheduler, kube-apiserver and etcd to compare with a real one")


@asynccontextmanager
async def stepping(*nodes: str) -> AsyncIterator[tuple[ApiServer, ScriptedExtender, Scheduler]]:
    """Yield nodes with 8 shares each, an extender that lets everything pass, and who binds what it is asked to."""
    async with ApiServer() as api, scripted() as extender:
        for name in nodes:
            api.add(builders.node(name, mem=8, count=1))

        def bind(body: builders.Json) -> builders.Json:
            api.bind(body["PodName"], body["Node"])
            return {"Error": ""}

        extender.answers |= {"filter": passing(), "bind": bind}
        async with Scheduler(api, ExtenderConfig(extender.url)) as scheduler:
            yield api, extender, scheduler


async def test_every_pod_that_waits_is_tried_once_the_most_important_and_then_the_oldest_first() -> None:
    async with stepping("a") as (api, extender, scheduler):
        for name, created, priority in (("young", 3, 0), ("old", 1, 0), ("important", 2, 5), ("large", 0, 0)):
            made = builders.pod(
                name, container(mem=9 if name == "large" else 2), created=f"2026-01-01T00:00:0{created}Z"
            )
            made["spec"]["priority"] = priority
            api.add(made)
        found = await scheduler.schedule()
        assert [body["PodName"] for body in extender.bodies("bind")] == ["important", "old", "young"]
        assert {name: each.node for name, each in found.items()} == {
            "important": "a",
            "large": "",
            "old": "a",
            "young": "a",
        }
        assert scheduler.calls == {"filter": 3, "bind": 3}
        assert list(await scheduler.schedule()) == ["large"]


async def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    async with stepping("b", "c", "a") as (api, extender, scheduler):
        extender.said("prioritize", [{"Host": name, "Score": 7} for name in "cab"])
        for n in range(3):
            api.add(builders.pod(f"p{n}", container(mem=1)))
        assert {each.node for each in (await scheduler.schedule()).values()} == {"a"}


async def test_pods_that_nobody_may_schedule_are_left_alone() -> None:
    async with stepping("a") as (api, extender, scheduler):
        gated, ended = builders.pod("gated", container(mem=1)), builders.pod("ended", container(mem=1), phase="Failed")
        gated["spec"]["schedulingGates"] = [{"name": "not yet"}]
        theirs = builders.pod("theirs", container(mem=1))
        theirs["spec"]["schedulerName"] = "another"
        for made in (gated, ended, theirs):
            api.add(made)
        assert await scheduler.schedule() == {}
        assert extender.calls == []


async def test_without_nodes_there_is_nothing_to_ask() -> None:
    async with stepping() as (api, _, scheduler):
        api.add(builders.pod("p", container(mem=1)))
        assert await scheduler.schedule() == {
            "p": Outcome(reason="Unschedulable", message="no nodes available to schedule pods")
        }


async def test_an_extender_that_is_not_there_is_an_error_that_says_so() -> None:
    async with ApiServer() as api:
        api.add(builders.node("a", mem=8))
        api.add(builders.pod("p", container(mem=1)))
        async with Scheduler(api, ExtenderConfig("http://127.0.0.1:1/ext")) as scheduler:
            found = (await scheduler.schedule())["p"]
            message = 'Post "http://127.0.0.1:1/ext/filter": dial tcp 127.0.0.1:1: connect: connection refused'
            assert found == Outcome(reason="SchedulerError", message=message)
            assert repr(scheduler) == "<Scheduler default-scheduler: 1 waiting, 0 assumed>"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("[1]", "json: cannot unmarshal list into a Go value"),
        ("<html>", "invalid character '<'"),
        ("", "EOF"),
        ('{"NodeNames": [', "unexpected EOF"),
    ],
    ids=["another type", "no JSON", "nothing", "half of it"],
)
async def test_an_answer_that_is_none_is_an_error(answer: str, message: str) -> None:
    async with stepping("a") as (api, extender, scheduler):
        extender.said("filter", answer.encode())
        api.add(builders.pod("p", container(mem=1)))
        assert (await scheduler.schedule())["p"] == Outcome(reason="SchedulerError", message=message)


async def test_who_was_bound_though_the_answer_was_bad_is_told_nothing() -> None:
    async with stepping("a") as (api, extender, scheduler):

        def bind(body: builders.Json) -> int:
            api.bind(body["PodName"], body["Node"])
            return 500

        extender.answers["bind"] = bind
        api.add(builders.pod("p", container(mem=1)))
        await scheduler.schedule()
        conditions = api.get("pods", "p")["status"]["conditions"]
        assert [(one["type"], one["status"]) for one in conditions] == [("PodScheduled", "True")]
        assert await scheduler.schedule() == {}


async def test_the_sum_is_that_of_pods_that_have_not_ended() -> None:
    """Of 8 shares 5 are taken by one that runs, and 5 were by one that has ended: 3 are left."""
    async with stepping("a") as (api, _, scheduler):
        api.add(builders.pod("runs", container(mem=5), node="a", phase="Running"))
        api.add(builders.pod("ended", container(mem=5), node="a", phase="Succeeded"))
        api.add(builders.pod("four", container(mem=4)))
        api.add(builders.pod("three", container(mem=3)))
        found = await scheduler.schedule()
        assert found["three"].node == "a"
        assert found["four"].message.startswith(f"0/1 nodes are available: 1 Insufficient {GPU_MEM}.")


# --- The queue --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def waiting(mem: int = 4, *, flush_s: float = 300.0) -> AsyncIterator[tuple[ApiServer, Callable[[], int]]]:
    """A pod of so much waits for a node of 8, whose extender lets nothing pass; yield how often it was refused."""
    async with ApiServer() as api, scripted() as extender:
        api.add(builders.node("a", mem=8, count=1))
        api.add(builders.pod("p", container(mem=mem)))
        extender.answers["filter"] = passing("nowhere")
        config = ExtenderConfig(extender.url)
        async with Scheduler(api, config, backoff_s=(0.01, 0.02), flush_s=flush_s) as scheduler, running(scheduler):
            yield api, lambda: scheduler.calls["filter"]


async def test_a_pod_that_fitted_nowhere_is_tried_after_a_long_time_though_nothing_happened() -> None:
    async with waiting(flush_s=0.1) as (_, asked):
        await eventually(lambda: asked() >= 4)


async def test_a_cordon_is_no_reason_to_try_a_pod_again_and_its_end_is() -> None:
    async with waiting() as (api, asked):
        await eventually(lambda: asked() == 2)
        api.patch("nodes", "a", {"spec": {"unschedulable": True}})
        api.add(builders.pod("other", container(mem=9)))
        await eventually(lambda: bool(api.get("pods", "other")["status"].get("conditions")))
        assert asked() == 2
        api.patch("nodes", "a", {"spec": {"unschedulable": None}})
        await eventually(lambda: asked() == 3)


async def test_a_pod_that_is_too_large_for_every_node_waits_for_more_to_be_offered() -> None:
    """No extender was asked about it: of all events, one concerns the plugin that refused it."""
    async with waiting(mem=9) as (api, asked):
        await eventually(lambda: bool(api.get("pods", "p")["status"].get("conditions")))
        api.patch("nodes", "a", {"metadata": {"annotations": {"some": "note"}}})
        api.patch("nodes", "a", {"status": {"allocatable": {GPU_MEM: "9"}}}, subresource="status")
        await eventually(lambda: asked() >= 1)


async def test_a_binding_that_fails_lets_the_others_go_on() -> None:
    """What the scheduler assumed to be taken is not."""
    async with ApiServer() as api, scripted() as extender:
        api.add(builders.node("a", mem=8, count=1))
        extender.held["bind"] = asyncio.Event()
        extender.said("bind", {"Error": "not now"})
        extender.answers["filter"] = passing()
        async with Scheduler(api, ExtenderConfig(extender.url), backoff_s=(0.01, 60)) as scheduler, running(scheduler):
            api.add(builders.pod("first", container(mem=8)))
            await eventually(lambda: scheduler.calls["bind"] == 1)
            # The older one goes first when both may be tried again: neither finds the other assumed each time.
            api.add(builders.pod("second", container(mem=8), created="2020-01-01T00:00:00Z"))
            await eventually(lambda: bool(api.get("pods", "second")["status"].get("conditions")))
            extender.held.pop("bind").set()
            await eventually(lambda: {body["PodName"] for body in extender.bodies("bind")} == {"first", "second"})

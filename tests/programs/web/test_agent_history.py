"""What agents remember, as the page's server passes it on: to whom, how often it asks, and what it says without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.features.history.contract import IncidentList, NodeHistory
from gpu_device_plugin.kubernetes.agent_reader import AgentReader, AgentUnreadableError
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.programs.web.figures import KEPT_S, AgentFigures, AgentHistory
from tests.cluster_double.troubles import Answer
from tests.histories import hour, summary, used_by
from tests.patience import eventually
from tests.programs.web.harness import Page, served_by
from tests.programs.web.test_page_server import Users, WithoutNodes, bearer
from tests.remembering import Remembering, remembering

XID = summary().name
GPU_0 = "api/v1/history/t4-1?gpu=0"


@pytest.fixture
async def world() -> AsyncIterator[Remembering]:
    async with remembering() as made:
        yield made


@asynccontextmanager
async def page(world: Remembering, callers: Any = None) -> AsyncIterator[Page]:
    async with Client(ClusterConfig(world.api.url)) as client:
        figures = AgentFigures(client)
        async with served_by(client, callers=callers, figures=figures) as shown:
            await eventually(lambda: shown.server.page_state.complete)
            yield shown


async def test_a_gpu_has_its_last_hour_and_condition(world: Remembering) -> None:
    async with page(world) as shown:
        status, told = await shown.get(GPU_0)
    assert (status, told["step_s"], len(told["gpus"][0]["used_mib"])) == (200, 15.0, 240)
    assert told["gpus"][0]["condition"]["slowdown_c"] == 93
    assert [each["pod"] for each in told["containers"]] == ["web-0", "train-0"]


async def test_many_viewers_cost_an_agent_one_reading(world: Remembering) -> None:
    async with page(world) as shown:
        answers = await asyncio.gather(*(shown.get(GPU_0) for _ in range(20)))
    assert {status for status, _ in answers} == {200}
    assert world.asked.count("t4-1/history/gpus/0") == 1


async def test_a_pod_and_a_namespace_have_theirs(world: Remembering) -> None:
    world.answers["t4-1/history/namespaces/default"] = hour(used_by("default/web-0"), used_by("default/web-1"))
    async with page(world) as shown:
        _, pod = await shown.get("api/v1/history/t4-1?pod=default/web-1")
        _, namespace = await shown.get("api/v1/history/t4-1?namespace=default")
    assert [each["pod"] for each in pod["containers"]] == ["web-1"]
    assert [each["pod"] for each in namespace["containers"]] == ["web-0", "web-1"]


async def test_containers_of_other_namespaces_are_left_out_and_sums_stay(world: Remembering) -> None:
    async with page(world, Users(ann={"default"})) as shown:
        ann = bearer("ann")
        _, gpu = await shown.get(GPU_0, Authorization=ann)
        assert [each["pod"] for each in gpu["containers"]] == ["web-0"]
        assert gpu["gpus"][0]["used_mib"][-1] == 13_824
        status, told = await shown.get("api/v1/history/t4-1?namespace=ml", Authorization=ann)
        assert (status, told["error"]) == (403, "You have no right to get pods in the namespace ml.")
        _, listed = await shown.get("api/v1/incidents/t4-1", Authorization=ann)
        assert [(each["sentence"], each["pod"]) for each in listed["incidents"]] == [(summary().sentence, ""), ("", "")]
        status, told = await shown.get(f"api/v1/incidents/t4-1/{XID}", Authorization=ann)
        assert (status, told["error"].partition(":")[0]) == (403, "A record concerns all pods of a GPU")
        assert (await shown.get(GPU_0, Authorization=bearer("eve")))[0] == 401


async def test_who_may_not_see_nodes_sees_containers_only(world: Remembering) -> None:
    async with page(world, WithoutNodes(ann={"default"})) as shown:
        ann = bearer("ann")
        _, pod = await shown.get("api/v1/history/t4-1?pod=default/web-0", Authorization=ann)
        assert ([each["pod"] for each in pod["containers"]], pod["gpus"]) == (["web-0"], [])
        for path in (GPU_0, "api/v1/incidents/t4-1"):
            status, told = await shown.get(path, Authorization=ann)
            assert (status, told["error"].partition(":")[0]) == (403, "Nodes are not shown")


async def test_incidents_are_listed_and_read(world: Remembering) -> None:
    async with page(world) as shown:
        _, listed = await shown.get("api/v1/incidents/t4-1")
        _, whole = await shown.get(f"api/v1/incidents/t4-1/{XID}")
        assert [each["name"] for each in listed["incidents"]] == [XID, "x-ml"]
        assert (whole["node"], whole["processes"][0]["pid"]) == ("t4-1", 4711)
        assert (await shown.get("api/v1/incidents/t4-1/..%2Fuse"))[0] == 400


@pytest.mark.parametrize("query", ["", "?gpu=-1", "?gpu=99999", "?gpu=x", "?pod=/a", "?namespace=A_b", "?other=1"])
async def test_a_request_that_names_nothing_says_how_to_ask(world: Remembering, query: str) -> None:
    async with page(world) as shown:
        status, told = await shown.get(f"api/v1/history/t4-1{query}")
    assert (status, told["error"].partition(" with")[0]) == (400, "Write history/NODE")
    assert not any("history" in each for each in world.asked)


async def test_what_cannot_be_read_is_said(world: Remembering) -> None:
    world.answers |= {"t4-1/history/gpus/0": b"{}", "t4-1/incidents/": b"[" * 4000}
    agent = "The agent of node t4-1"
    async with page(world) as shown:
        for path, status, sentence in (
            (GPU_0, 502, "What the agent of node t4-1 remembers cannot be understood"),
            ("api/v1/incidents/t4-1", 502, "What the agent of node t4-1 remembers cannot be understood"),
            ("api/v1/history/t4-1?gpu=7", 404, f"{agent} has nothing of it: it is older than this page"),
            ("api/v1/history/gone?gpu=0", 404, "The agent of node gone cannot be asked: no agent that serves HTTP"),
        ):
            found = await shown.get(path)
            assert (found[0], found[1]["error"].startswith(sentence)) == (status, True), found
        world.api.fail(Answer(403), resources=["pods/proxy"])
        found = await shown.get("api/v1/history/t4-1?gpu=1")
        assert (found[0], "pods/proxy" in found[1]["error"]) == (403, True)
        world.api.heal()
        world.api.fail(Answer(503), resources=["pods/proxy"])
        found = await shown.get("api/v1/history/t4-1?gpu=2")
        assert (found[0], found[1]["error"].startswith(f"{agent} does not answer: ")) == (502, True)


async def test_a_page_that_reads_no_agents_says_so(world: Remembering) -> None:
    async with Client(ClusterConfig(world.api.url)) as client, served_by(client) as shown:
        await eventually(lambda: shown.server.page_state.complete)
        assert (await shown.get(GPU_0))[0] == 404


async def test_an_answer_is_read_again_after_a_while_and_the_oldest_ones_give_way(
    world: Remembering, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    async with Client(ClusterConfig(world.api.url)) as client:
        history = AgentHistory(AgentReader(client), lambda: clock[0])

        async def read(path: str, kind: Any = NodeHistory) -> Any:
            return await history.read("t4-1", path, kind, "ann")

        await read("/history/")
        clock[0] = KEPT_S - 1
        await read("/history/")
        assert world.asked == ["t4-1/history/"]
        clock[0] = KEPT_S
        world.answers.pop("t4-1/history/")
        for _ in range(2):
            with pytest.raises(AgentUnreadableError):
                await read("/history/")
        assert world.asked == ["t4-1/history/"] * 2, "that there is nothing is remembered too"
        monkeypatch.setattr("gpu_device_plugin.programs.web.figures._MOST_KEPT_BYTES", 10)
        await read("/incidents/", IncidentList)
        await read("/incidents/", IncidentList)
        assert world.asked.count("t4-1/incidents/") == 2

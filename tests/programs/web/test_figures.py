"""The use of nodes from their agents' own pages, and what is shown where it cannot be read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.model.contract.node_use import SERVED, GpuUse, NodeUse, write_node_use
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.report.rules.finding import Finding
from tests.builders import node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Hang
from tests.patience import eventually
from tests.programs.web.harness import served_by
from tests.programs.web.test_page_server import Users, WithoutNodes, bearer, bound
from tests.reports import SINCE, part, written

LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}


class QuickFigures(AgentFigures):
    """Read as often as a test wants."""

    every_s, longest_s, round_s, lasts_s = 0.01, 0.05, 0.01, 0.3
    pods_s, refused_s, idle_s = 0.05, 0.05, 0.01


def page(used: int | None = 3000, name: str = "a", **more: Any) -> str:
    """Return what an agent with one GPU says, whose pod was granted 5 GiB, memory in MiB. Its clock is wrong."""
    gpus = {} if used is None else {0: GpuUse(used + 100)}
    return write_node_use(NodeUse(SINCE, gpus, (part(name, granted=5120, used=used, **more),)), SERVED)


@dataclass
class World:
    """An API server with agents whose pages can be changed."""

    api: ApiServer
    port: int = 0
    pages: dict[str, str] = field(default_factory=dict)
    """By node."""
    asked: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    delivered: dict[str, list[NodeUse | None]] = field(default_factory=dict)

    def agent(self, at: str, text: str, namespace: str = "gpushare", **meta: Any) -> None:
        """Add a running agent that shows this page."""
        address = f"10.0.0.{len(self.api.network) + 1}"
        body = pod(f"agent-{at}", node=at, namespace=namespace, labels=LABELS, phase="Running")
        body["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 9445}]
        body["status"]["podIP"] = address
        body["metadata"] |= meta
        self.api.add(body)
        self.api.network[f"{address}:9445"] = f"http://127.0.0.1:{self.port}/{at}"
        self.pages[at] = text

    async def answer(self, http: web.Request) -> web.Response:
        """Answer for an agent."""
        name = http.match_info["node"]
        self.asked.append(name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            return web.Response(text=self.pages[name], status=200 if self.pages[name] else 404)
        finally:
            self.at_once -= 1

    def take(self, name: str, use: NodeUse | None) -> None:
        self.delivered.setdefault(name, []).append(use)

    @asynccontextmanager
    async def following(
        self,
        nodes: Callable[[], Iterable[str]],
        namespace: str = "gpushare",
        in_view: Callable[[], Iterable[str]] = tuple,
        **times: Any,
    ) -> AsyncIterator[AgentFigures]:
        async with Client(ClusterConfig(self.api.url)) as client:
            figures = QuickFigures(client, namespace=namespace)
            for name, value in times.items():
                assert hasattr(figures, name)
                setattr(figures, name, value)
            following = asyncio.create_task(figures.follow(lambda: list(nodes()), self.take, lambda: list(in_view())))
            try:
                yield figures
            finally:
                following.cancel()
                await asyncio.wait([following])
                assert following.cancelled(), following.exception()

    def latest(self, name: str) -> NodeUse | None:
        return self.delivered.get(name, [None])[-1]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ApiServer() as api:
        made = World(api)
        app = web.Application()
        app.router.add_get("/{node}/use", made.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
        await runner.cleanup()


def words(said: Finding | None) -> str:
    """Return the words of a finding."""
    return "" if said is None else str(said)


async def test_the_page_shows_what_agents_say_and_else_the_annotation(world: World) -> None:
    annotations = written(part("a", granted=5120, used=6000, over_since=SINCE), age_s=100)
    world.api.add(node("gpu-1", mem=30, count=2, annotations=annotations))
    world.api.add(bound("a", 5))
    world.agent("gpu-1", page(6500, over_since=SINCE))
    async with (
        Client(ClusterConfig(world.api.url)) as client,
        served_by(client, figures=QuickFigures(client)) as shown,
        shown.live() as stream,
    ):
        now = await stream.until(lambda known: known["nodes"]["gpu-1"].get("use", {}).get("live"))
        (seen,) = now["nodes"]["gpu-1"]["gpus"][0]["pods"]
        assert (seen["usedMiB"], seen["overSince"]) == (6500, SINCE)
        assert now["nodes"]["gpu-1"]["gpus"][0]["usedMiB"] == 6600
        assert (await stream.until(lambda known: known["figures"]["source"] == "agents"))["figures"] == {
            "source": "agents"
        }
        world.pages["gpu-1"] = page(4000)
        now = await stream.until(lambda known: known["nodes"]["gpu-1"]["gpus"][0]["pods"][0].get("usedMiB") == 4000)
        assert "overSince" not in now["nodes"]["gpu-1"]["gpus"][0]["pods"][0]
        world.pages["gpu-1"] = "<html>"
        now = await stream.until(lambda known: not known["nodes"]["gpu-1"]["use"].get("live"))
        assert now["nodes"]["gpu-1"]["gpus"][0]["pods"][0]["usedMiB"] == 6000


async def test_an_agent_that_does_not_read_says_why(world: World) -> None:
    world.agent("gpu-1", write_node_use(NodeUse(SINCE, blind="the use is not read"), SERVED))
    async with world.following(lambda: ["gpu-1"]) as figures:
        await eventually(lambda: (use := world.latest("gpu-1")) is not None and use.blind == "the use is not read")
        assert words(figures.state.why) == ""
        use = world.latest("gpu-1")
        assert use is not None
        assert use.at != SINCE, "when it was read by our clock"


async def test_nothing_is_asked_while_nobody_looks_and_old_figures_are_given_up(world: World) -> None:
    world.agent("gpu-1", page())
    wanted: list[str] = []
    async with world.following(lambda: wanted):
        await asyncio.sleep(5 * QuickFigures.idle_s)
        assert world.asked == []
        assert world.api.requests == []
        wanted.append("gpu-1")
        await eventually(lambda: world.latest("gpu-1") is not None)
        wanted.clear()
        await eventually(lambda: world.delivered["gpu-1"][-1] is None)


async def test_only_agents_of_wanted_nodes_are_asked_and_few_at_a_time(world: World) -> None:
    names = [f"gpu-{number:02}" for number in range(30)]
    for name in (*names, "unwanted"):
        world.agent(name, page())
    async with world.following(lambda: names, lasts_s=60.0):
        await eventually(lambda: len([name for name in names if world.latest(name)]) == 30)
    assert "unwanted" not in world.asked
    assert 1 <= world.most_at_once <= QuickFigures.at_once


async def test_a_cluster_that_is_too_large_has_the_nodes_in_view_read_and_says_so(world: World) -> None:
    names = [f"gpu-{number}" for number in range(9)]
    for name in names:
        world.agent(name, page())
    view = ["gpu-7", "nowhere", "gpu-5"]
    async with world.following(lambda: names, in_view=lambda: view, at_once=2, round_s=0.02, lasts_s=0.06) as figures:
        await eventually(lambda: min(map(world.asked.count, ("gpu-7", "gpu-5", "gpu-0"))) > 3)
        assert words(figures.state.why) == "9 nodes are too many to read all; 3 are read, those in view first"
        assert set(world.asked) == {"gpu-7", "gpu-5", "gpu-0"}
        view[:] = ["gpu-2", "gpu-3", "gpu-4", "gpu-5"]
        await eventually(lambda: world.latest("gpu-7") is None)
        await eventually(lambda: min(map(world.asked.count, view[:3])) > 3)
    assert set(world.asked) == {"gpu-7", "gpu-5", "gpu-0", "gpu-2", "gpu-3", "gpu-4"}


async def test_without_the_right_the_figures_are_the_nodes_own_until_it_is_given(world: World) -> None:
    world.agent("gpu-1", page())
    world.api.allowed = frozenset({("list", "pods")})
    async with world.following(lambda: ["gpu-1"]) as figures:
        await eventually(lambda: words(figures.state.why))
        assert figures.state.source == "nodes"
        assert words(figures.state.why).startswith(
            "the right to get pods/proxy in the namespace gpushare is missing; the figures are those of the nodes'"
        )
        assert world.asked == []
        world.api.allowed = None
        await eventually(lambda: figures.state.source == "agents")
        world.api.allowed = frozenset({("list", "pods")})
        await eventually(lambda: figures.state.source == "nodes")
        assert world.latest("gpu-1") is None, "what was read with the right is not shown without it"


async def test_a_refusal_is_not_asked_for_again_and_again(world: World) -> None:
    world.agent("gpu-1", page())
    world.api.allowed = frozenset({("list", "pods")})
    async with world.following(lambda: ["gpu-1"], refused_s=3600.0) as figures:
        await eventually(lambda: words(figures.state.why))
        await asyncio.sleep(10 * QuickFigures.round_s)
        assert world.api.count("get", "pods/proxy") == 1


async def test_agents_are_listed_in_their_namespace_alone(world: World) -> None:
    """More rights than those to pods there are not needed."""
    world.agent("gpu-1", page())
    async with world.following(lambda: ["gpu-1"]):
        await eventually(lambda: world.latest("gpu-1") is not None)
    assert {request.namespace for request in world.api.requests if request.verb == "list"} == {"gpushare"}


async def test_pods_that_pretend_to_be_agents_elsewhere_are_not_asked(world: World) -> None:
    world.agent("gpu-1", page(3000))
    world.agent("gpu-2", page(1), namespace="a-tenant")
    async with world.following(lambda: ["gpu-1", "gpu-2"]):
        await eventually(lambda: world.asked.count("gpu-1") > 3)
    assert "gpu-2" not in world.asked


async def test_pods_that_pretend_to_be_agents_are_not_asked_even_if_there_are_no_others(world: World) -> None:
    world.agent("gpu-2", page(1), namespace="a-tenant")
    async with world.following(lambda: ["gpu-2"]) as figures:
        await eventually(lambda: "no node agent that serves HTTP runs" in words(figures.state.why))
    assert world.asked == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html>", "what its agent says at /use cannot be read"),
        ("[" * (1 << 20), "what its agent says at /use cannot be read"),
        ("", "its agent has no /use: it is older than this program, or has just ended"),
        (page(None), "its agent does not know at present who uses what"),
        (" " * (5 << 20), "the answer is longer than 2048 KiB"),
    ],
    ids=["no JSON", "too deep", "an older agent", "unknown use", "too long"],
)
async def test_nonsense_of_one_agent_concerns_its_node_alone(world: World, text: str, why: str) -> None:
    world.agent("gpu-1", text)
    world.agent("gpu-2", page())
    async with world.following(lambda: ["gpu-1", "gpu-2"]) as figures:
        await eventually(lambda: world.latest("gpu-2") is not None and "1 of 2" in words(figures.state.why))
        assert figures.state.source == "agents"
        assert why in words(figures.state.detail)
        assert "gpu-1" not in words(figures.state.why)
        assert world.latest("gpu-1") is None


async def test_an_agent_that_hangs_holds_up_nobody_for_long_and_is_asked_rarely(world: World) -> None:
    world.agent("gpu-1", page())
    world.agent("gpu-2", page())
    world.api.fail(Hang(), resources=["pods/proxy"], times=1)
    async with world.following(lambda: ["gpu-1", "gpu-2"], answer_s=0.2, lasts_s=60.0) as figures:
        await eventually(lambda: words(figures.state.why) or world.latest("gpu-1"))
        await eventually(lambda: world.latest("gpu-1") and world.latest("gpu-2"))
        await eventually(lambda: words(figures.state.why) == "")


async def test_an_agent_that_was_replaced_is_found(world: World) -> None:
    world.agent("gpu-1", page())
    async with world.following(lambda: ["gpu-1"], lasts_s=60.0):
        await eventually(lambda: world.latest("gpu-1") is not None)
        world.api.delete("pods", "agent-gpu-1", "gpushare")
        world.agent("gpu-1", page(77))
        await eventually(lambda: (use := world.latest("gpu-1")) is not None and use.parts[0].used_mib == 77)


async def test_an_api_server_that_is_away_ends_nothing(world: World) -> None:
    world.agent("gpu-1", page())
    async with world.following(lambda: ["gpu-1"]) as figures:
        await eventually(lambda: world.latest("gpu-1") is not None)
        await world.api.stop()
        await eventually(lambda: world.latest("gpu-1") is None)
        await eventually(lambda: figures.state.source == "nodes")
        assert words(figures.state.why).startswith("no node agent can be read; the figures are those of the nodes'")
        assert words(figures.state.detail).startswith("node gpu-1: get pods/proxy gpushare/agent-gpu-1: ")
        await world.api.start()
        await eventually(lambda: figures.state.source == "agents")


async def test_a_list_that_fails_is_asked_for_again(world: World) -> None:
    world.agent("gpu-1", page())
    world.api.fail(Answer(503), verbs=["list"])
    async with world.following(lambda: ["gpu-1"]) as figures:
        await eventually(lambda: "the pods of the node agents cannot be listed" in words(figures.state.why))
        world.api.heal()
        await eventually(lambda: world.latest("gpu-1") is not None)


async def test_who_does_not_see_everything_is_told_no_name_of_an_agent(world: World) -> None:
    world.api.add(node("gpu-1", mem=30, count=2))
    world.agent("gpu-1", "<html>")
    callers = Users(all={""}, some={"default"})
    async with (
        Client(ClusterConfig(world.api.url)) as client,
        served_by(client, callers=callers, figures=QuickFigures(client)) as shown,
    ):
        async with shown.live(Authorization=bearer("all")) as stream:
            known = await stream.until(lambda known: "why" in known["figures"])
            assert "; node gpu-1: what its agent says at /use cannot be read" in known["figures"]["why"]
        async with shown.live(Authorization=bearer("some")) as stream:
            known = await stream.until(lambda known: "why" in known["figures"])
            assert known["figures"]["why"].startswith("no node agent can be read; the figures are those of the nodes'")
            assert "gpu-1" not in known["figures"]["why"]


async def test_who_sees_no_nodes_is_told_nothing_of_agents(world: World) -> None:
    world.api.add(node("gpu-1", mem=30, count=2))
    world.agent("gpu-1", page())

    async with (
        Client(ClusterConfig(world.api.url)) as client,
        served_by(client, callers=WithoutNodes(some={"default"}), figures=QuickFigures(client)) as shown,
        shown.live(Authorization=bearer("some")) as stream,
    ):
        known = await stream.until(lambda known: known)
        assert known["figures"] == {"source": "none"}

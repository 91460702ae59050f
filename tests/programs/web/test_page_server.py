"""The page's server over HTTP: what a browser is told, and what nobody is told."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError
from gpu_device_plugin.model.contract.keys import ALLOCATION, NODE_GPUS
from gpu_device_plugin.model.contract.node_use import GpuUse, NodeUse
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus, write_node_gpus
from gpu_device_plugin.programs.web.callers import Caller, LocalCallers, ReviewedCallers
from gpu_device_plugin.programs.web.figures import AgentFigures, FiguresState
from gpu_device_plugin.programs.web.page_state import MOST_WAITING
from gpu_device_plugin.programs.web.streams import Streams
from gpu_device_plugin.programs.web.web_program import CONNECTIONS
from gpu_device_plugin.programs.web.web_routes import HEADERS
from gpu_device_plugin.report.rules.finding import note
from gpu_device_plugin.report.rules.overview_document import redacted
from tests.builders import GPU_MEM, container, node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.reviews import Account
from tests.cluster_double.troubles import Answer, Hang
from tests.patience import eventually, stretched
from tests.programs.web.harness import Page, Stream, served, served_by
from tests.reports import part, written

READABLE = {("list", "pods"), ("watch", "pods"), ("get", "pods"), ("list", "events")}


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


def bound(name: str, shares: int, at: str = "gpu-1", position: int = 0, **more: Any) -> Any:
    annotations = {ALLOCATION: json.dumps({"0": {str(position): shares}})}
    return pod(name, container(mem=shares), node=at, phase="Running", annotations=annotations, **more)


class Users(LocalCallers):
    """Callers by token, with the namespaces that each may see."""

    def __init__(self, **namespaces: set[str]) -> None:
        super().__init__("")
        self.namespaces = namespaces
        self.broken = False

    async def caller(self, token: str) -> User | None:
        if self.broken:
            raise UnavailableError(Call("create", "tokenreviews"), "no answer in time")
        return User(token, namespaces=self.namespaces) if token in self.namespaces else None


@dataclass(frozen=True)
class User(Caller):
    namespaces: dict[str, set[str]] = field(default_factory=dict)

    async def may_see(self, namespace: str) -> bool:
        return namespace in self.namespaces[self.user]


class NoNodes(User):
    async def may(self, _verb: str, resource: str, _namespace: str) -> bool:
        return resource != "nodes"


class WithoutNodes(Users):
    """Callers none of whom may see nodes."""

    async def caller(self, token: str) -> User | None:
        return NoNodes(token, namespaces=self.namespaces) if await super().caller(token) else None


def bearer(name: str) -> str:
    return f"Bearer {name}"


class SlowUser(User):
    """A user about whose namespaces the API server says nothing before it is told to."""

    answers: asyncio.Event
    fails = False

    async def may_see(self, namespace: str) -> bool:
        if namespace:
            await self.answers.wait()
        if namespace and SlowUser.fails:
            raise UnavailableError(Call("create", "subjectaccessreviews"), "no answer in time")
        return await super().may_see(namespace)


class SlowUsers(Users):
    async def caller(self, token: str) -> User | None:
        return SlowUser(token, namespaces=self.namespaces) if await super().caller(token) else None


# --- The stream -------------------------------------------------------------------------------------------------------


async def test_the_first_event_is_the_whole_cluster(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=30, count=2))
    api.add(node("cpu-1"))
    api.add(bound("a", 5))
    async with served(api) as page, page.live() as stream:
        name, event = await stream.next()
    assert name == "cluster"
    assert event["version"] == 1
    assert [each["name"] for each in event["nodes"]] == ["gpu-1"]
    assert event["nodes"][0]["gpus"][0]["pods"] == [{"namespace": "default", "name": "a", "shares": 5}]
    assert (event["waiting"], event["alone"], event["notes"]) == ([], [], [])
    assert event["figures"] == {"source": "nodes"}
    assert event["read"]["live"] is True
    assert event["read"]["now"].endswith("Z")


async def test_only_nodes_that_changed_are_told_again(api: ApiServer) -> None:
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        api.add(node(name, mem=30, count=2))
    async with served(api) as page, page.live() as stream:
        await stream.next()
        api.add(bound("a", 5, "gpu-2"))
        name = ""
        while name != "change":
            name, event = await stream.next()
        assert [each["name"] for each in event["nodes"]] == ["gpu-2"]
        assert event["gone"] == []
        assert "waiting" not in event
        api.delete("nodes", "gpu-3")
        shown = await stream.until(lambda known: "gpu-3" not in known["nodes"])
        assert sorted(shown["nodes"]) == ["gpu-1", "gpu-2"]


async def test_the_server_knows_which_change_all_its_readers_were_told(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=30, count=2))
    async with served(api) as page:
        page_state, streams = page.server.page_state, page.server.streams
        assert streams.told == -1, "there is no reader"
        async with page.live() as stream, page.live() as other:
            await stream.until(lambda page: "gpu-1" in page["nodes"])
            await other.until(lambda page: "gpu-1" in page["nodes"])
            await eventually(lambda: page_state.current and streams.told == page_state.mark.value)
            before = page_state.mark.value
            api.add(bound("a", 5))
            await eventually(
                lambda: streams.told > before and page_state.current and streams.told == page_state.mark.value
            )
            for reader in (stream, other):
                await reader.until(lambda page: page["nodes"]["gpu-1"]["gpus"][0].get("pods"))
            page_state.dirty.set()
            assert not page_state.current
        await eventually(lambda: streams.told == -1)


async def test_pulses_say_that_the_watches_deliver_or_why_not(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=30, count=2))
    async with served(api) as page, page.live() as stream:
        await stream.next()
        name, event = await stream.next()
        assert (name, event["read"]["live"]) == ("pulse", True)
        await api.stop()
        shown = await stream.until(lambda known: not known["read"]["live"] and known["read"].get("why"))
        assert shown["read"]["ageS"] >= 0
        assert "Connect" in shown["read"]["why"] or "connect" in shown["read"]["why"]
        assert sorted(shown["nodes"]) == ["gpu-1"]
        await api.start()
        await stream.until(lambda known: known["read"]["live"])


async def test_a_quiet_cluster_is_heard_all_the_same(api: ApiServer) -> None:
    async with served(api) as page, page.live() as stream:
        await stream.next()
        ages = [(await stream.next())[1]["read"]["ageS"] for _ in range(5)]
        silent_s = page.server.watched.nodes.silent_s
    assert ages[-1] < silent_s, "the watches were silent all the time"


async def test_a_slow_reader_is_dropped_and_costs_no_memory(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=30, count=2))
    async with served(api) as page:
        with socket.create_connection(("127.0.0.1", page.port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            token = page.headers["Authorization"]
            peer.sendall(f"GET /api/v1/live HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode())
            await eventually(lambda: page.server.streams.readers == 1)
        await eventually(lambda: page.server.streams.readers == 0, "the stream ends with its reader")


# --- Waiting pods -----------------------------------------------------------------------------------------------------


async def test_waiting_pods_are_told_with_their_reasons(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    api.add(bound("a", 10))
    api.add(pod("big", container(mem=8), created="2026-11-22T10:00:00Z"))
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["waiting"] and known["waiting"][0].get("why"))
        (waits,) = shown["waiting"]
        assert (waits["namespace"], waits["name"], waits["since"]) == ("default", "big", "2026-11-22T10:00:00Z")
        assert waits["asks"] == f"{GPU_MEM}: 8 of one GPU"
        assert waits["scheduler"] == "default-scheduler"
        assert waits["why"].startswith("Does not fit on gpu-1, the only node that shares GPUs: ")
        assert waits["room"] == "There would be room on gpu-1 if this pod ended: default/a (10, priority 0)."
        api.bind("big", "gpu-1", {ALLOCATION: '{"0":{"0":8}}'})
        await stream.until(lambda known: known["waiting"] == [])


# --- What may not be read ---------------------------------------------------------------------------------------------


async def test_where_nodes_cannot_be_read_the_pods_stand_alone(api: ApiServer) -> None:
    api.allowed = frozenset(READABLE)
    api.add(node("gpu-1", mem=15, count=1))
    api.add(bound("a", 10))
    api.add(pod("w", container(count=1)))
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["alone"])
        await stream.until(lambda known: known["waiting"])
        status, answer = await page.get("api/v1/pods/default/a")
    assert shown["alone"] == [{"namespace": "default", "name": "a", "node": "gpu-1", "shares": 10, "phase": "Running"}]
    assert shown["nodes"] == {}
    (note,) = shown["notes"]
    assert note == (
        "The right to list nodes in the whole cluster is missing, so nodes and their GPUs are not shown; ask an "
        "administrator of the cluster for it."
    )
    assert shown["figures"] == {"source": "none", "why": "nodes cannot be read"}
    assert shown["read"]["live"] is True
    assert (status, answer["containers"][0]["gpus"]) == (200, [{"index": 0, "shares": 10}])


async def test_pods_with_whole_instances_stand_alone_too(api: ApiServer) -> None:
    api.allowed = frozenset(READABLE)
    resource = "nvidia.com/mig-1g.10gb"
    for each in (
        pod("two", container(limits={resource: "2"}), node="gpu-1", phase="Running"),
        pod("both", container(mem=3, limits={resource: "1"}), node="gpu-2", phase="Pending"),
        pod("over", container(limits={resource: "1"}), node="gpu-1", phase="Succeeded"),
        pod("cpu", container(), node="gpu-1", phase="Running"),
    ):
        api.add(each)
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: len(known["alone"]) == 2)
        both = {"namespace": "default", "name": "both", "node": "gpu-2", "shares": 3, "instances": {resource: 1}}
        two = {"namespace": "default", "name": "two", "node": "gpu-1", "instances": {resource: 2}, "phase": "Running"}
        assert shown["alone"] == [both | {"phase": "Pending"}, two]
        api.delete("pods", "both")
        await stream.until(lambda known: known["alone"] == [two])


async def test_pods_of_one_namespace_are_shown_where_only_that_may_be_read(api: ApiServer) -> None:
    api.add(bound("mine", 5, namespace="team"))
    api.add(bound("theirs", 5, namespace="other"))
    api.add(node("gpu-1", mem=15, count=1))
    refusal = Answer(403, reason="Forbidden", message="pods is forbidden")
    api.fail(refusal, verbs=["list"], resources=["pods"], times=1)
    async with served(api, namespace="team") as page, page.live() as stream:
        shown = await stream.until(lambda known: known["notes"])
    assert [each["name"] for each in shown["nodes"]["gpu-1"]["gpus"][0]["pods"]] == ["mine"]
    (note,) = shown["notes"]
    assert note == (
        "The right to list pods in the whole cluster is missing, so only the pods of the namespace team are shown, and "
        "GPU usage may be under-reported."
    )


@pytest.mark.parametrize(("namespace", "where"), [("", "the whole cluster"), ("team", "the namespace team")])
async def test_without_any_right_the_page_says_which_are_missing(api: ApiServer, namespace: str, where: str) -> None:
    api.allowed = frozenset()
    no_pods = f"The right to list pods in {where} is missing, so no pods are shown."
    async with served(api, namespace=namespace) as page, page.live() as stream:
        shown = await stream.until(lambda known: no_pods in known["notes"])
        status, answer = await page.get("api/v1/nodes/gpu-1")
    assert len(shown["notes"]) == 2
    assert status == 403
    assert answer["error"] == "Nodes are not shown: the right to list nodes in the whole cluster is missing."


# --- Callers ----------------------------------------------------------------------------------------------------------


async def test_a_caller_sees_no_names_of_pods_that_it_may_not_see(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    api.add(bound("mine-1", 2, namespace="mine"))
    api.add(bound("secret-pod", 9, namespace="secret-team"))
    api.add(pod("w", container(mem=8), namespace="mine"))
    api.add(pod("secret-waiting", container(mem=8), namespace="secret-team"))
    users = Users(ann={"mine"}, root={""})
    async with served(api, callers=users, mode="cluster") as page:
        seen: list[str] = []
        ann = {"Authorization": bearer("ann")}
        async with page.live(**ann) as stream:
            shown = await stream.until(lambda known: known["waiting"] and known["waiting"][0].get("why"))
            seen.append(json.dumps(shown))
            assert [each["name"] for each in shown["waiting"]] == ["w"]
            assert shown["nodes"]["gpu-1"]["gpus"][0]["pods"] == [
                {"namespace": "mine", "name": "mine-1", "shares": 2},
                {"shares": 9},
            ]
        seen += [json.dumps(await page.get(f"api/v1/{path}", **ann)) for path in ("nodes/gpu-1", "pods/mine/w")]
        assert (await page.get("api/v1/pods/secret-team/secret-pod", **ann))[0] == 403
        assert "secret" not in " ".join(seen)
        status, answer = await page.get("api/v1/pods/secret-team/secret-pod", Authorization=bearer("root"))
        assert (status, answer["name"]) == (200, "secret-pod")


async def test_no_other_reader_waits_while_a_pod_is_explained_to_one_who_may_not_see_all(api: ApiServer) -> None:
    """All nodes are shown to him without the names that he may not see: beside the event loop."""
    for number in range(30):
        api.add(node(f"gpu-{number}", mem=15, count=1))
        api.add(bound(f"secret-{number}", 9, namespace="secret-team", at=f"gpu-{number}"))
    api.add(pod("w", container(mem=8), namespace="mine"))
    on_loop = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal on_loop
        on_loop += event == "call" and frame.f_code is redacted.__code__

    async with served(api, callers=Users(ann={"mine"}), mode="cluster") as page:
        ann = {"Authorization": bearer("ann")}
        await eventually(lambda: page.server.page_state.complete)
        sys.setprofile(count)  # of this thread, which is the loop's
        try:
            status, told = await page.get("api/v1/pods/mine/w", **ann)
        finally:
            sys.setprofile(None)
    assert status == 200
    assert "secret" not in json.dumps(told)
    assert sum("too little free" in line for line in told["why"]) >= 1
    assert on_loop == 0


async def test_a_caller_without_nodes_sees_pods_with_instances_of_its_own_namespaces(api: ApiServer) -> None:
    api.add(pod("mine", container(limits={"aliyun.com/mig-1g.10gb": "1"}), namespace="mine", node="gpu-1"))
    api.add(pod("theirs", container(limits={"aliyun.com/mig-1g.10gb": "1"}), namespace="theirs", node="gpu-1"))
    users = WithoutNodes(ann={"mine"})
    async with (
        served(api, callers=users, mode="cluster") as page,
        page.live(Authorization=bearer("ann")) as stream,
    ):
        shown = await stream.until(lambda known: known["alone"])
        assert [each["name"] for each in shown["alone"]] == ["mine"]


async def test_a_right_that_is_given_or_taken_ends_the_open_stream_and_shows_in_the_next(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    api.add(bound("a", 2, namespace="team"))
    users = Users(ann={"other"})

    def names(known: dict[str, Any]) -> list[Any]:
        return [each.get("name") for each in known["nodes"]["gpu-1"]["gpus"][0]["pods"]]

    async def until_it_ends(page: Page, shown: str | None, then: set[str]) -> None:
        """Open a stream that shows the pod so, change the rights of its reader, and read it to its end."""
        async with page.live(Authorization=bearer("ann")) as stream:
            await stream.until(lambda known: names(known) == [shown])
            users.namespaces["ann"] = then
            name = "cluster"
            while name:
                name, _ = await stream.next()

    async with served(api, callers=users) as page:
        await until_it_ends(page, None, {"team"})
        await until_it_ends(page, "a", set())
        await until_it_ends(page, None, {"team"})


@pytest.mark.parametrize("path", ["session", "live", "nodes/gpu-1", "pods/default/a"])
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic YTpi", "Bearer é"])
async def test_there_is_no_data_without_the_token(api: ApiServer, path: str, header: str) -> None:
    async with served(api) as page:
        status, answer = await page.get(f"api/v1/{path}", Authorization=header)
        assert status == 401
        assert set(answer) == {"error"}


# --- Details ----------------------------------------------------------------------------------------------------------


async def test_a_pod_is_told_with_its_events_and_without_its_environment(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    body = bound("a", 5)
    body["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    made = api.add(body)
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": "default", "uid": made["metadata"]["uid"]},
        "eventTime": "2026-11-22T10:00:00.000000Z",
        "reportingController": "x",
        "reportingInstance": "y",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "it is\nthere",
    }
    api.add(event)
    async with served(api) as page:
        await eventually(lambda: page.server.page_state.node("gpu-1") is not None)
        status, answer = await page.get("api/v1/pods/default/a")
    assert status == 200
    assert (answer["namespace"], answer["name"], answer["node"], answer["phase"]) == (
        "default",
        "a",
        "gpu-1",
        "Running",
    )
    assert answer["containers"][0]["gpus"][0]["shares"] == 5
    assert answer["why"][0] == "default/a is on node gpu-1 (Running)."
    assert answer["events"] == [
        {"type": "Normal", "reason": "Scheduled", "message": "it is there", "count": 1, "last": event["eventTime"]}
    ]
    assert "hunter2" not in json.dumps(answer)


async def test_events_that_may_not_be_read_leave_the_rest(api: ApiServer) -> None:
    api.add(bound("a", 5))
    api.fail(Answer(403, reason="Forbidden", message="events is forbidden"), resources=["events"])
    async with served(api) as page:
        status, answer = await page.get("api/v1/pods/default/a")
    assert (status, answer["events"]) == (200, [])
    assert answer["notes"] == ["The right to list events in the namespace default is missing."]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("pods/default/missing", 404),
        ("pods/default", 400),
        ("pods/default/..%2F..%2Fsecrets", 400),
        ("pods/..%2Fx/a", 400),
        ("pods/default/%3Cimg%20onerror%3E", 400),
        (f"pods/{'n' * 64}/a", 400),
        ("pods/name.space/a", 400),
        ("nodes/..%2F..", 404),
        ("secrets/default/a", 404),
    ],
)
async def test_names_lead_nowhere_else(api: ApiServer, path: str, status: int) -> None:
    async with served(api) as page:
        found, answer = await page.get(f"api/v1/{path}")
    assert (found, set(answer)) == (status, {"error"})


async def test_a_pod_that_cannot_be_read_is_told_with_the_reason(api: ApiServer) -> None:
    async with served(api) as page:
        await eventually(lambda: page.server.page_state.complete)
        api.allowed = frozenset()
        assert await page.get("api/v1/pods/default/a") == (
            403,
            {
                "error": "This is not shown: the right to get pods in the namespace default is missing; ask an "
                "administrator of the cluster for it."
            },
        )
        api.allowed = None
        assert await page.get("api/v1/pods/default/a") == (
            404,
            {"error": "There is no pod a in the namespace default; it may be gone."},
        )
        api.fail(Answer(500, reason="InternalError", message="etcd has no leader"), resources=["pods"], verbs=["get"])
        status, answer = await page.get("api/v1/pods/default/a")
    assert status == 502
    assert "etcd has no leader" in answer["error"]


# --- Figures ----------------------------------------------------------------------------------------------------------


class FromAgents(AgentFigures):
    """Figures as agents would give them."""

    state = FiguresState("agents")

    def __init__(self) -> None:
        self.reader: Any = None  # nobody asks for the past
        self.asked: list[Collection[str]] = []
        self.in_view: Collection[str] = ()
        self.use: NodeUse | None = NodeUse("2026-11-22T10:00:00Z", {0: GpuUse(777)}, (part("a", used=777),))

    async def follow(
        self,
        nodes: Callable[[], Collection[str]],
        deliver: Callable[[str, NodeUse | None], None],
        in_view: Callable[[], Collection[str]] = tuple,
    ) -> NoReturn:
        while True:
            self.in_view = in_view()
            self.asked.append(nodes())
            for name in self.asked[-1]:
                deliver(name, self.use)
            deliver("nowhere", None)
            await asyncio.sleep(0.01)


async def test_figures_of_agents_take_the_place_of_the_nodes_own(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1, annotations=written(part("a", used=1), gpus={0: GpuUse(1)})))
    api.add(bound("a", 5))
    figures = FromAgents()
    async with served(api, figures=figures) as page:
        await eventually(lambda: page.server.page_state.complete)
        assert not any(figures.asked), "nobody looks, so nothing is read"
        async with page.live() as stream:
            shown = await stream.until(lambda known: known["nodes"]["gpu-1"].get("use", {}).get("live"))
            assert shown["nodes"]["gpu-1"]["gpus"][0]["usedMiB"] == 777
            assert shown["figures"] == {"source": "agents"}
            figures.use = None
            shown = await stream.until(lambda known: not known["nodes"]["gpu-1"]["use"].get("live"))
            assert shown["nodes"]["gpu-1"]["gpus"][0]["usedMiB"] == 1
            figures.state = FiguresState("nodes", note("no-agent-read", "agents do not answer"))
            await stream.until(lambda known: known["figures"]["source"] == "nodes")


async def test_what_readers_look_at_comes_first_until_their_streams_end(api: ApiServer) -> None:
    for number in range(4):
        api.add(node(f"gpu-{number}", mem=15, count=1))
    figures, callers = FromAgents(), Users(ann={""}, bob={"default"})
    async with served(api, figures=figures, callers=callers) as page:
        async with page.live(Authorization=bearer("ann")) as ann:
            async with page.live(Authorization=bearer("bob")) as bob:
                hers, his = [(await each.until(lambda known: known))["stream"] for each in (ann, bob)]
                assert hers != his
                view = {"stream": hers, "nodes": ["gpu-3", "gpu-1", "nowhere", "gpu-3"]}
                assert await page.post("api/v1/view", view, Authorization=bearer("ann")) == (200, {})
                view = {"stream": his, "nodes": ["gpu-2"]}
                assert await page.post("api/v1/view", view, Authorization=bearer("bob")) == (200, {})
                await eventually(lambda: figures.in_view == ("gpu-3", "gpu-2", "gpu-1"))
                status, error = await page.post("api/v1/view", view, Authorization=bearer("ann"))
                assert (status, error["error"][:25]) == (404, "No such stream is open he"), "it is his"
            await eventually(lambda: figures.in_view == ("gpu-3", "gpu-1"))
            assert (await page.post("api/v1/view", view, Authorization=bearer("bob")))[0] == 404
        await eventually(lambda: figures.in_view == ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"stream": 1, "nodes": []}',
        b'{"stream": "a", "nodes": "gpu-1"}',
        b'{"stream": "a", "nodes": [1]}',
        b'{"stream": "a", "nodes": [' + b"[" * 30_000,
        b'{"x": ' + b"[" * 30_000 + b"]" * 30_000 + b', "stream": "a", "nodes": []}',
    ],
    ids=lambda body: body[:24].decode(errors="replace"),
)
async def test_what_is_no_view_is_refused(api: ApiServer, body: bytes) -> None:
    async with served(api) as page:
        status, error = await page.post("api/v1/view", body)
        assert (status, error["error"][:18]) == (400, "The body names no ")


async def test_a_view_is_bounded_and_needs_token_host_and_rights(api: ApiServer) -> None:
    view = {"stream": "a", "nodes": []}
    async with served(api, hosts=True) as page:
        assert (await page.post("api/v1/view", b"[" * 70_000))[0] == 413
        assert (await page.post("api/v1/view", view, Authorization=bearer("wrong")))[0] == 401
        assert (await page.post("api/v1/view", view, Host="evil.example"))[0] == 403
        assert (await page.post("api/v1/view", view))[0] == 404
        assert (await page.get("api/v1/view"))[0] == 405
    async with served(api, callers=WithoutNodes(ann={"default"})) as page:
        assert (await page.post("api/v1/view", view, Authorization=bearer("ann")))[0] == 403


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "api/v1/session", "api/v1/none", "none.js", "healthz", "readyz"])
async def test_every_answer_has_the_headers_that_keep_browsers_safe(api: ApiServer, path: str) -> None:
    async with served(api) as page, page.http.get(page.url(path)) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nCookie: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"A%d: b\r\n" % number for number in range(99)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: <script>\r\n\r\n",
    ],
    ids=["no request", "no version", "long line", "long header", "many headers", "no length"],
)
async def test_so_has_every_answer_to_what_is_no_request(api: ApiServer, sent: bytes) -> None:
    async with served(api) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(sent)
        async with asyncio.timeout(stretched()):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.close()
    assert head.startswith(("HTTP/1.1 400 ", "HTTP/1.0 400 "))
    assert [f"\r\n{name}: {value}\r\n" in head for name, value in HEADERS.items()] == [True] * len(HEADERS)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed(api: ApiServer, method: str) -> None:
    async with (
        served(api) as page,
        page.http.request(method, page.url("api/v1/pods/default/a"), headers=page.headers) as answer,
    ):
        assert answer.status == 405
        assert "Content-Security-Policy" in answer.headers


async def test_files_below_folders_are_served_and_nothing_beside_them(api: ApiServer) -> None:
    async with served(api) as page:
        library = "vendor/lit-html/"
        status, text = await page.get(f"{library}directives/repeat.js")
        assert (status, "export{" in text) == (200, True)
        for path in ("LICENSE", "", "%2e%2e/%2e%2e/%2e%2e/web_routes.py", "..%2f..%2fmain.js", "//lit-html.js"):
            assert (await page.get(f"{library}{path}"))[0] == 404


async def test_a_foreign_host_is_refused(api: ApiServer) -> None:
    async with served(api, hosts=True) as page:
        assert (await page.get("api/v1/session"))[0] == 200
        for path in ("api/v1/session", "", "api/none"):
            status, answer = await page.get(path, Host="evil.example:80")
            assert (status, set(answer)) == (403, {"error"})


async def test_it_is_ready_once_the_cluster_was_read(api: ApiServer) -> None:
    api.black_hole()
    async with served(api) as page:
        assert (await page.get("healthz"))[0] == 200
        assert (await page.get("readyz"))[0] == 503
        api.heal()
        await eventually(lambda: page.server.page_state.complete)
        assert (await page.get("readyz"))[0] == 200


async def test_a_stream_that_begins_before_the_cluster_was_read_is_told_anew(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    api.black_hole()
    async with served(api, first_s=0.01) as page, page.live() as stream:
        name, event = await stream.next()
        assert (name, event["nodes"], event["read"]["live"]) == ("cluster", [], False)
        api.heal()
        await stream.until(lambda known: "gpu-1" in known["nodes"] and known["read"]["live"])


async def test_a_long_token_is_read_and_one_without_end_is_not(api: ApiServer) -> None:
    """Tokens of OpenID Connect list groups."""
    async with served(api) as page:
        for size, status in ((16 << 10, 401), (64 << 10, 400)):
            headers = {"Authorization": f"Bearer {'x' * size}"}
            async with page.http.get(f"http://127.0.0.1:{page.port}/api/v1/session", headers=headers) as answer:
                assert answer.status == status


async def test_a_token_that_is_no_text_is_a_wrong_one(api: ApiServer) -> None:
    async with served(api) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(b"GET /api/v1/session HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        async with asyncio.timeout(stretched()):
            line = await reader.readline()
        writer.close()
    assert line == b"HTTP/1.1 401 Unauthorized\r\n"


async def test_a_demand_that_nobody_can_meet_names_its_own_pod_only(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    api.add(pod("secret-pod", container(mem=10 << 30), namespace="secret-team", created="2026-01-01T00:00:00Z"))
    api.add(pod("mine", container(mem=20 << 30), namespace="team", created="2026-01-02T00:00:00Z"))
    async with served(api, callers=Users(ann={"team"})) as page, page.live(Authorization=bearer("ann")) as stream:
        shown = await stream.until(lambda known: known["waiting"] and known["waiting"][0].get("why"))
    (waiting,) = shown["waiting"]
    assert waiting["why"].startswith("team/mine asks for GPUs that no node can provide")
    assert waiting["asks"] == f"{GPU_MEM}: {20 << 30}"


async def test_pods_of_others_push_none_of_mine_off_the_page(api: ApiServer) -> None:
    api.add(node("gpu-1", mem=15, count=1))
    for number in range(MOST_WAITING + 5):
        theirs = pod(f"theirs-{number}", container(mem=3), namespace="other", created="2026-01-01T00:00:00Z")
        api.add(theirs)
    api.add(pod("mine", container(mem=3), namespace="team", created="2026-02-01T00:00:00Z"))
    users = Users(ann={"team"}, root={""})
    async with served(api, callers=users) as page:
        async with page.live(Authorization=bearer("ann")) as stream:
            _, event = await stream.next()
        assert ([each["name"] for each in event["waiting"]], event["notes"]) == (["mine"], [])
        async with page.live(Authorization=bearer("root")) as stream:
            _, event = await stream.next()
        assert len(event["waiting"]) == MOST_WAITING
        assert event["notes"] == ["6 more pods are pending; the oldest 200 are shown."]


async def test_without_the_right_to_nodes_a_pod_is_told_without_its_gpus(api: ApiServer) -> None:
    gpus = NodeGpus((ListedGpu(0, 15, "GPU-1", "Tesla T4", 15360),), share_mib=1024)
    api.add(node("gpu-1", mem=15, count=1, annotations={NODE_GPUS: write_node_gpus(gpus)}))
    api.add(bound("a", 5, namespace="team"))

    async with served(api, callers=WithoutNodes(ann={"team"})) as page:
        await eventually(lambda: page.server.page_state.complete)
        status, answer = await page.get("api/v1/pods/team/a", Authorization=bearer("ann"))
    assert status == 200
    assert answer["containers"][0]["gpus"] == [{"index": 0, "shares": 5}]
    assert answer["containers"][0]["variables"] == {}


async def test_a_stream_ends_when_nobody_says_for_long_what_its_reader_may_see(api: ApiServer) -> None:
    """The API server goes on to send pods, but reviews no tokens."""
    api.add(node("gpu-1", mem=15, count=1))
    users = Users(ann={""})
    async with served(api, callers=users) as page, page.live(Authorization=bearer("ann")) as stream:
        await stream.until(lambda known: known["nodes"])
        users.broken = True
        name = "cluster"
        async with asyncio.timeout(stretched()):
            while name:
                name, _ = await stream.next()


async def test_a_right_that_ends_ends_the_stream_of_a_reader_who_is_slow(api: ApiServer) -> None:
    """The first event has many parts, of which the reader takes one."""
    for number in range(3):
        api.add(node(f"gpu-{number}", mem=15, count=1))
    users = Users(ann={""})
    async with served(api, callers=users) as page:
        await eventually(lambda: page.server.page_state.complete)
        caller = await users.caller("ann")
        assert caller is not None
        streams = Streams(
            page.server.page_state, chunk=1, pulse_s=60, first_s=stretched(), rights_s=0, confirm_s=stretched()
        )
        events = await streams.events(caller, lambda: users.caller("ann"))
        assert (await anext(events)).startswith(b"event: cluster")
        assert b"gpu-1" in await anext(events)
        del users.namespaces["ann"]
        with pytest.raises(StopAsyncIteration):
            await anext(events)


# --- Rights that are slow to be known ---------------------------------------------------------------------------------


async def test_nobody_waits_for_the_page_until_all_namespaces_are_asked_about(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of pods follow, on the nodes that have them, and a note says so."""
    monkeypatch.setattr(SlowUser, "answers", asyncio.Event(), raising=False)
    for name in ("gpu-1", "gpu-2"):
        api.add(node(name, mem=30, count=2))
    api.add(bound("mine", 5, "gpu-1", namespace="a"))
    api.add(bound("theirs", 5, "gpu-2", namespace="b"))
    async with served(api, callers=SlowUsers(ann={"a"}), learn_s=0.01, rights_s=1000) as page:
        page.headers["Authorization"] = bearer("ann")
        await eventually(lambda: page.server.page_state.complete)
        async with page.live() as stream:
            first = await stream.until(lambda known: known["nodes"])
            assert set(first["nodes"]) == {"gpu-1", "gpu-2"}
            assert "mine" not in json.dumps(first)
            assert first["notes"][0].startswith("Names of pods follow")
            SlowUser.answers.set()
            told: list[str] = []
            while stream.page["notes"]:
                name, event = await stream.next()
                told += [each["name"] for each in event["nodes"]] if name == "change" else []
            assert told == ["gpu-1"]
            assert "mine" in json.dumps(stream.page)
            assert "theirs" not in json.dumps(stream.page)


async def test_a_stream_goes_on_where_the_api_server_does_not_say_whose_pods_may_be_seen(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SlowUser, "answers", asyncio.Event(), raising=False)
    monkeypatch.setattr(SlowUser, "fails", True)
    SlowUser.answers.set()
    api.add(node("gpu-1", mem=30, count=2))
    api.add(bound("mine", 5, "gpu-1", namespace="a"))
    async with served(api, callers=SlowUsers(ann={"a"}), rights_s=1000) as page:
        page.headers["Authorization"] = bearer("ann")
        await eventually(lambda: page.server.page_state.complete)
        async with page.live() as stream:
            await stream.until(lambda known: known["nodes"])
            assert "mine" not in json.dumps(stream.page)
            monkeypatch.setattr(SlowUser, "fails", False)
            await stream.until(lambda known: "mine" in json.dumps(known))
    assert "error" not in caplog.text.lower()


async def test_without_an_answer_about_the_reader_no_stream_begins(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The browser gets the sentence, and the log no traceback."""
    api.accounts["t"] = Account("ann", rights={("list", "nodes", "")})
    api.fail(Answer(500), resources=["subjectaccessreviews"])
    async with Client(ClusterConfig(api.url)) as client, served_by(client, callers=ReviewedCallers(client)) as page:
        status, answer = await page.get("api/v1/live", Authorization=bearer("t"))
    assert (status, answer["error"][:31]) == (502, "The API server does not answer:")
    assert caplog.text == ""


def _shows(text: str, page: dict[str, Any]) -> bool:
    return text in json.dumps(page)


async def test_two_hundred_tenants_at_once_are_one_question_each_about_each_namespace(api: ApiServer) -> None:
    """All get the page; some have two tabs."""
    api.add(node("gpu-1", mem=240, count=8))
    for number in range(5):
        api.add(bound(f"pod-{number}", 1, position=number % 8, namespace=f"space-{number}"))
    for number in range(200):
        rights = {("list", "nodes", ""), ("get", "pods", f"space-{number}")}
        api.accounts[f"tenant-{number}"] = Account(f"tenant-{number}", rights=rights)
    api.accounts["admin"] = Account("admin", rights={("list", "nodes", ""), ("get", "pods", "")})
    async with (
        Client(ClusterConfig(api.url), connections=CONNECTIONS) as client,
        served_by(client, callers=ReviewedCallers(client), answer_s=stretched(), learn_s=0.5, rights_s=1000) as page,
        AsyncExitStack() as stack,
    ):
        await eventually(lambda: page.server.page_state.complete)
        page.http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        before = api.count("create", "subjectaccessreviews")

        async def tab(number: int) -> Stream:
            return await stack.enter_async_context(page.live(Authorization=bearer(f"tenant-{number}")))

        streams = await asyncio.gather(*map(tab, [*range(200), *range(10)]))
        assert [name for name, _ in await asyncio.gather(*(each.next() for each in streams))] == ["cluster"] * 210
        admin = await stack.enter_async_context(page.live(Authorization=bearer("admin")))
        await admin.until(lambda known: "pod-4" in json.dumps(known))
        for number in range(5):
            mine = f"pod-{number}"
            await streams[number].until(partial(_shows, mine))
        for each in streams:
            await each.until(lambda known: not known["notes"])
    assert api.count("create", "tokenreviews") == 201
    # Nodes, all namespaces, and each of them; the admin needs no more than the first two.
    assert api.count("create", "subjectaccessreviews") - before == 200 * 7 + 2


async def test_a_request_does_not_wait_for_ever_for_the_api_server(api: ApiServer) -> None:
    api.accounts["t"] = Account("ann")
    api.fail(Hang(), resources=["subjectaccessreviews"])
    async with (
        Client(ClusterConfig(api.url)) as client,
        served_by(client, callers=ReviewedCallers(client), answer_s=0.1) as page,
    ):
        assert await page.get("api/v1/live", Authorization=bearer("t")) == (
            502,
            {"error": "The API server did not answer within 0.1 s; try again."},
        )


async def test_of_many_streams_that_begin_at_once_one_writes_at_a_time(api: ApiServer) -> None:
    """Whoever else asks has a turn after each, not after all of them."""
    api.add(node("gpu-1", mem=15, count=1))
    users = Users(ann={""})
    async with served(api, callers=users) as page:
        await eventually(lambda: page.server.page_state.complete)
        caller = await users.caller("ann")
        assert caller is not None
        streams = Streams(page.server.page_state)
        events = [await streams.events(caller, lambda: users.caller("ann")) for _ in range(20)]
        turn = 0
        written: list[int] = []

        async def read(parts: AsyncGenerator[bytes, None]) -> None:
            await anext(parts)
            written.append(turn)

        reading = [asyncio.ensure_future(read(each)) for each in events]
        while not all(each.done() for each in reading):
            await asyncio.sleep(0)
            turn += 1
        assert len(set(written)) == 20
        for each in events:
            await each.aclose()

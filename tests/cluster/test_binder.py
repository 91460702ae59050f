"""A pod is bound with its promise, or not at all; and whoever asked knows which."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.cluster.binder import Binder, BindError, BinderTiming, InDoubtError, PodRef
from gpu_device_plugin.cluster.client import Client, Timing
from gpu_device_plugin.cluster.config import ClusterConfig
from gpu_device_plugin.cluster.errors import ApiError
from gpu_device_plugin.testing.builders import pod
from gpu_device_plugin.testing.cluster import Answer, ApiServer, Garbage, Hang, Late, Reset, Slow, Trouble
from tests.patience import patience, stretched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POD = PodRef("default", "a", "u")
PROMISE = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
QUICK = BinderTiming(call_s=0.5, total_s=2.0, pause_s=0.001)


@asynccontextmanager
async def binding(server: ApiServer) -> AsyncIterator[Binder]:
    async with Client(ClusterConfig(server.url), timing=Timing(connect_s=1)) as client:
        yield Binder(client, timing=lambda: QUICK)


@pytest.fixture
async def binder(server: ApiServer) -> AsyncIterator[Binder]:
    async with binding(server) as made:
        yield made


def bound(server: ApiServer, name: str = "a") -> tuple[str, dict[str, str]]:
    """Return node and annotations."""
    found = server.get("pods", name)
    return found["spec"].get("nodeName", ""), found["metadata"].get("annotations", {})


def verbs(server: ApiServer) -> list[str]:
    return [f"{request.verb} {request.resource}" for request in server.requests]


async def test_node_and_promise_are_written_in_one_call(server: ApiServer, binder: Binder) -> None:
    """Only the first time it is looked whether the promise arrived."""
    for name in "ab":
        server.add(pod(name, uid=f"u{name}", annotations={"theirs": "1"}))
        await binder.bind(PodRef("default", name, f"u{name}"), "n", PROMISE)
        assert bound(server, name) == ("n", {"theirs": "1", **PROMISE})
    assert verbs(server) == ["create pods/binding", "get pods", "create pods/binding"]
    assert repr(binder) == "<Binder: in one call>"


async def test_a_change_of_the_pod_meanwhile_is_no_obstacle(server: ApiServer, binder: Binder) -> None:
    """No version is named: the one that the scheduler saw is old by the next label or condition."""
    server.add(pod("a", uid="u"))
    server.patch("pods", "a", {"metadata": {"labels": {"new": "label"}}})
    await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("n", PROMISE)


async def test_many_are_bound_at_a_time(server: ApiServer, binder: Binder) -> None:
    refs = [PodRef("default", f"p{number}", f"u{number}") for number in range(40)]
    for ref in refs:
        server.add(pod(ref.name, uid=ref.uid))
    server.fail(Slow(stretched(0.1)), resources={"pods/binding"})
    async with patience(server, quiet_s=3):  # one after the other they take 4 s
        await asyncio.gather(*(binder.bind(ref, "n", PROMISE) for ref in refs))
    assert all(bound(server, ref.name)[0] == "n" for ref in refs)


# What is certain


async def test_a_pod_that_is_gone_cannot_be_bound(binder: Binder) -> None:
    with pytest.raises(BindError, match=r"^pod default/a was deleted meanwhile$"):
        await binder.bind(POD, "n", PROMISE)


async def test_a_namesake_is_not_bound(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="another"))
    with pytest.raises(BindError, match=r"^pod default/a was replaced by another of the same name$"):
        await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("", {})


async def test_a_pod_bound_elsewhere_stays_there(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u", node="y"))
    with pytest.raises(BindError, match=r"^pod default/a is already bound to node y$"):
        await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("y", {})


async def test_a_pod_being_deleted_is_not_bound(server: ApiServer, binder: Binder) -> None:
    body = pod("a", uid="u")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.add(body)
    with pytest.raises(BindError, match=r"^pod default/a is being deleted$"):
        await binder.bind(POD, "n", PROMISE)


async def test_a_pod_that_is_held_back_is_not_bound(server: ApiServer, binder: Binder) -> None:
    body = pod("a", uid="u")
    body["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    server.add(body)
    with pytest.raises(BindError, match=r"pod default/a was not bound: .*non-empty \.spec\.schedulingGates"):
        await binder.bind(POD, "n", PROMISE)


@pytest.mark.parametrize("code", [400, 401, 403, 422, 429])
async def test_a_refusal_is_certain(server: ApiServer, binder: Binder, code: int) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Answer(code))
    with pytest.raises(
        BindError, match=f"^pod default/a was not bound: create pods/binding default/a: {code}"
    ) as failed:
        await binder.bind(POD, "n", PROMISE)
    assert isinstance(failed.value, ApiError)
    assert verbs(server) == ["create pods/binding"]


async def test_a_request_that_never_left_us_is_certain(server: ApiServer) -> None:
    """Nobody listens there: the claim need not wait."""
    async with binding(server) as binder:
        await server.stop()
        with pytest.raises(BindError, match="pod default/a was not bound"):
            await binder.bind(POD, "n", PROMISE)


# Lost answers

DONE_BUT_LOST: list[Trouble] = [
    Reset(done=True),
    Hang(done=True),
    Answer(500, done=True),
    Answer(504, reason="Timeout", done=True),
]
NOT_DONE_AND_LOST: list[Trouble] = [Reset(), Hang(), Answer(500), Answer(503), Answer(504, reason="Timeout")]


@pytest.mark.parametrize("trouble", DONE_BUT_LOST, ids=str)
async def test_a_binding_whose_answer_was_lost_is_recognised(
    server: ApiServer, binder: Binder, trouble: Trouble
) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble, resources={"pods/binding"}, times=1)
    await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("n", PROMISE)
    assert server.count("create", "pods/binding") == 1


@pytest.mark.parametrize("trouble", NOT_DONE_AND_LOST, ids=str)
async def test_a_request_that_was_lost_is_made_again(server: ApiServer, binder: Binder, trouble: Trouble) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble, resources={"pods/binding"}, times=2)
    await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("n", PROMISE)
    assert server.count("create", "pods/binding") == 3


async def test_our_own_binding_of_an_earlier_call_is_a_success(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    await binder.bind(POD, "n", PROMISE)
    await binder.bind(POD, "n", PROMISE)
    assert verbs(server) == ["create pods/binding", "get pods"] * 2


async def test_the_agent_may_have_confirmed_before_we_look(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u", node="n", annotations={**PROMISE, "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}))
    await binder.bind(POD, "n", PROMISE)


async def test_another_promise_on_the_same_node_leaves_doubt(server: ApiServer, binder: Binder) -> None:
    """Either the agent corrected ours or another scheduler made its own: the pod itself will tell, not this call."""
    server.add(pod("a", uid="u", node="n", annotations={**PROMISE, "ALIYUN_COM_GPU_MEM_IDX": "7"}))
    with pytest.raises(
        InDoubtError, match=r"^pod default/a is already bound to node n, with another promise than this"
    ):
        await binder.bind(POD, "n", PROMISE)


@pytest.mark.parametrize("trouble", NOT_DONE_AND_LOST + DONE_BUT_LOST, ids=str)
async def test_what_cannot_be_found_out_is_in_doubt(server: ApiServer, binder: Binder, trouble: Trouble) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble)
    with pytest.raises(InDoubtError, match="whether pod default/a is bound to node n is unknown: create pods/binding"):
        await binder.bind(POD, "n", PROMISE)


async def test_a_server_that_never_answers_is_in_doubt_within_the_time(server: ApiServer) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Hang(), resources={"pods/binding"})
    async with Client(ClusterConfig(server.url)) as client:
        binder = Binder(client, timing=lambda: BinderTiming(call_s=0.05, total_s=0.1, pause_s=0.001))
        with pytest.raises(InDoubtError, match="no answer in time"):
            await binder.bind(POD, "n", PROMISE)


async def test_a_refusal_after_a_lost_answer_proves_nothing(server: ApiServer, binder: Binder) -> None:
    """The first request may still be under way inside the server."""
    server.add(pod("a", uid="u"))
    server.fail(Reset(), resources={"pods/binding"}, times=1)
    server.fail(Answer(429), resources={"pods/binding"})
    with pytest.raises(InDoubtError):
        await binder.bind(POD, "n", PROMISE)


async def test_a_lost_answer_of_a_pod_that_went_to_another_node_is_certain(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u", node="y"))
    server.fail(Reset(), resources={"pods/binding"}, times=1)
    with pytest.raises(BindError, match="already bound to node y"):
        await binder.bind(POD, "n", PROMISE)


@pytest.mark.parametrize("namesake", [None, pod("a", uid="another")], ids=["deleted", "replaced"])
async def test_a_lost_answer_of_a_pod_that_is_gone_leaves_doubt(
    server: ApiServer, binder: Binder, namesake: dict[str, Any] | None
) -> None:
    """It may have been bound, and then deleted by force: its containers may run."""
    if namesake is not None:
        server.add(namesake)
    server.fail(Reset(), resources={"pods/binding"}, times=1)
    with pytest.raises(
        InDoubtError, match=r"(deleted meanwhile|of the same name); whether it was bound before is unkn"
    ):
        await binder.bind(POD, "n", PROMISE)


async def test_a_pod_that_goes_between_two_attempts_leaves_doubt(server: ApiServer, binder: Binder) -> None:
    """The first was lost, a look shows the pod unbound, and the second meets no pod."""
    server.add(pod("a", uid="u"))
    server.fail(Late(), resources={"pods/binding"}, times=1)
    server.fail(Answer(404), resources={"pods/binding"})
    with pytest.raises(InDoubtError, match="whether it was bound before is unknown"):
        await binder.bind(POD, "n", PROMISE)


async def test_a_look_that_shows_no_pod_proves_nothing(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Reset(), resources={"pods/binding"}, times=1)
    server.fail(Garbage(), verbs={"get"})
    with pytest.raises(InDoubtError, match="get pods default/a: not a pod"):
        await binder.bind(POD, "n", PROMISE)


# API servers that do not write a binding's annotations on the pod


@pytest.fixture
async def old_server() -> AsyncIterator[ApiServer]:
    async with ApiServer(copies_annotations=False) as running:
        yield running


async def test_from_the_second_pod_on_an_old_server_is_patched_first(
    old_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = old_server
    async with binding(server) as binder:
        for name in "ab":
            server.add(pod(name, uid=f"u{name}"))
            await binder.bind(PodRef("default", name, f"u{name}"), "n", PROMISE)
            assert bound(server, name) == ("n", PROMISE)
        assert repr(binder) == "<Binder: patches before it binds>"
    first, second = ["create pods/binding", "get pods", "patch pods"], ["patch pods", "create pods/binding"]
    assert verbs(server) == first + second
    assert len(caplog.records) == 1
    assert "does not write the annotations of a binding" in caplog.text


@asynccontextmanager
async def binding_in_two(server: ApiServer) -> AsyncIterator[Binder]:
    """Yield a binder that knows its server by now."""
    server.add(pod("first", uid="first"))
    async with binding(server) as binder:
        await binder.bind(PodRef("default", "first", "first"), "n", PROMISE)
        server.requests.clear()
        yield binder


async def test_a_promise_is_taken_back_if_the_binding_is_refused(old_server: ApiServer) -> None:
    async with binding_in_two(old_server) as binder:
        old_server.add(pod("a", uid="u", annotations={"theirs": "1"}))
        old_server.fail(Answer(403), resources={"pods/binding"})
        with pytest.raises(BindError, match="403"):
            await binder.bind(POD, "n", PROMISE)
        assert bound(old_server) == ("", {"theirs": "1"})


async def test_a_promise_stays_while_the_binding_is_in_doubt(old_server: ApiServer) -> None:
    async with binding_in_two(old_server) as binder:
        old_server.add(pod("a", uid="u"))
        old_server.fail(Reset(), resources={"pods/binding"})
        with pytest.raises(InDoubtError):
            await binder.bind(POD, "n", PROMISE)
        assert bound(old_server) == ("", PROMISE)


async def test_a_promise_stays_while_an_earlier_call_is_in_doubt(old_server: ApiServer) -> None:
    """What that one may still bind has no other promise."""
    async with binding_in_two(old_server) as binder:
        old_server.add(pod("a", uid="u"))
        late = old_server.fail(Late(), resources={"pods/binding"}, times=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await binder.bind(POD, "n", PROMISE)
        assert late.happened == 1
        old_server.fail(Answer(403), resources={"pods/binding"})
        with pytest.raises(BindError, match="403"):
            await binder.bind(POD, "n", PROMISE, again=True)
        await old_server.carry_out()
        assert bound(old_server) == ("n", PROMISE)


async def test_a_promise_that_somebody_changed_is_not_taken_back(old_server: ApiServer, eventually: Any) -> None:
    """Between our patch and our binding another scheduler was faster."""
    async with binding_in_two(old_server) as binder:
        old_server.add(pod("a", uid="u"))
        old_server.fail(Slow(0.1), resources={"pods/binding"}, times=1)
        asked = asyncio.create_task(binder.bind(POD, "n", PROMISE))
        await eventually(lambda: old_server.count("create", "pods/binding"))
        theirs = {**PROMISE, "ALIYUN_COM_GPU_MEM_IDX": "3"}
        old_server.bind("a", "y", theirs)
        with pytest.raises(BindError, match="already bound to node y"):
            await asked
        assert bound(old_server) == ("y", theirs)


async def test_taking_back_survives_conflicts_and_says_when_it_cannot(
    old_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with binding_in_two(old_server) as binder:
        caplog.clear()
        old_server.fail(Answer(403), resources={"pods/binding"})
        for conflicts, left in ((2, {}), (3, PROMISE)):
            old_server.add(pod("a", uid="u"))
            # The first patch is the promise itself.
            patches = [old_server.fail(Slow(0), verbs={"patch"}, times=1)]
            patches.append(old_server.fail(Answer(409), verbs={"patch"}, times=conflicts))
            with pytest.raises(BindError):
                await binder.bind(POD, "n", PROMISE)
            assert bound(old_server) == ("", left)
            old_server.delete("pods", "a")
        assert not caplog.records
        old_server.add(pod("a", uid="u"))
        old_server.fail(Slow(0), verbs={"patch"}, times=1)
        old_server.fail(Answer(500), verbs={"get"})
        with pytest.raises(BindError):
            await binder.bind(POD, "n", PROMISE)
        assert "keeps a promise that does not count" in caplog.text


@pytest.mark.parametrize(
    ("body", "trouble", "why"),
    [
        (None, None, "pod default/a was deleted meanwhile"),
        (pod("a", uid="another"), None, "pod default/a cannot be given its promise, it may have been replaced: "),
        (pod("a", uid="u"), Answer(403), "pod default/a cannot be given its promise: patch pods default/a: 403"),
        (pod("a", uid="u"), Reset(done=True), "pod default/a cannot be given its promise: patch pods default/a: "),
    ],
)
async def test_without_a_promise_there_is_no_binding(
    old_server: ApiServer, body: dict[str, Any] | None, trouble: Trouble | None, why: str
) -> None:
    async with binding_in_two(old_server) as binder:
        if body is not None:
            old_server.add(json.loads(json.dumps(body)))
        if trouble is not None:
            old_server.fail(trouble, verbs={"patch"}, times=1)
        with pytest.raises(BindError, match=f"^{why}"):
            await binder.bind(POD, "n", PROMISE)
        assert old_server.count("create", "pods/binding") == 0
        if body is not None:
            assert bound(old_server) == ("", {})


async def test_a_look_that_fails_is_made_again_at_the_next_binding(
    server: ApiServer, binder: Binder, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail(Answer(403), verbs={"get"}, times=1)
    for name in "ab":
        server.add(pod(name, uid=name))
        await binder.bind(PodRef("default", name, name), "n", PROMISE)
    assert "whether pod default/a carries its promise after its binding is unknown" in caplog.text
    assert repr(binder) == "<Binder: in one call>"


async def test_a_pod_that_is_gone_right_after_its_binding_tells_nothing(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Answer(404, reason="NotFound"), verbs={"get"}, times=1)
    await binder.bind(POD, "n", PROMISE)
    assert repr(binder) == "<Binder: nothing bound yet>"


async def test_a_binding_without_a_promise_needs_no_look(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    await binder.bind(POD, "n", {})
    assert verbs(server) == ["create pods/binding"]

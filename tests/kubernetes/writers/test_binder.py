"""A pod is bound with its promise, or not at all; and whoever asked knows which."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.writers.binder import Binder, BindError, BinderTiming, InDoubtError, PodRef
from tests.builders import pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage, Hang, Late, Reset, Trouble
from tests.patience import eventually, stretched

POD = PodRef("default", "a", "u")
PROMISE = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
READER = PodReader((), lambda _: True)


@asynccontextmanager
async def binding(server: ApiServer, trouble: Trouble | None = None) -> AsyncIterator[Binder]:
    """Make a binder, one that gives up soon if its trouble is to get no answer."""
    call_s = stretched(0.5 if isinstance(trouble, Hang | Late) else 10)
    timing = BinderTiming(call_s=call_s, total_s=4 * call_s, pause_s=0.001)
    async with Client(ClusterConfig(server.url), timing=Timing(connect_s=call_s, request_s=call_s)) as client:
        yield Binder(client, READER, timing=lambda: timing)


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
    for name in "ab":
        server.add(pod(name, uid=f"u{name}", annotations={"theirs": "1"}))
        await binder.bind(PodRef("default", name, f"u{name}"), "n", PROMISE)
        assert bound(server, name) == ("n", {"theirs": "1", **PROMISE})
    assert verbs(server) == ["create pods/binding"] * 2


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
    fault = server.fail(Hang(), resources={"pods/binding"})
    async with asyncio.TaskGroup() as tasks:
        for ref in refs:
            tasks.create_task(binder.bind(ref, "n", PROMISE))
        await eventually(lambda: fault.happened == len(refs))  # none waited for the answer to another
        server.heal()
        server.reset_connections()
    assert all(bound(server, ref.name)[0] == "n" for ref in refs)


# What is certain


def deleted_at(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def held_back(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "spec": {**body["spec"], "schedulingGates": [{"name": "example.com/wait"}]}}


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (None, r"^pod default/a was deleted meanwhile$"),
        (pod("a", uid="another"), r"^pod default/a was replaced by another of the same name$"),
        (pod("a", uid="u", node="y"), r"^pod default/a is already bound to node y$"),
        (deleted_at(pod("a", uid="u")), r"^pod default/a is being deleted$"),
        (held_back(pod("a", uid="u")), r"pod default/a was not bound: .*non-empty \.spec\.schedulingGates"),
    ],
    ids=["gone", "a namesake", "bound elsewhere", "being deleted", "held back"],
)
async def test_what_keeps_a_pod_from_this_node_is_certain(
    server: ApiServer, binder: Binder, there: dict[str, Any] | None, why: str
) -> None:
    before = server.add(there) if there is not None else None
    with pytest.raises(BindError, match=why):
        await binder.bind(POD, "n", PROMISE)
    assert before is None or server.get("pods", "a") == before


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
async def test_a_binding_whose_answer_was_lost_is_recognised(server: ApiServer, trouble: Trouble) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble, resources={"pods/binding"}, times=1)
    async with binding(server, trouble) as binder:
        await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("n", PROMISE)
    assert server.count("create", "pods/binding") == 1


@pytest.mark.parametrize("trouble", NOT_DONE_AND_LOST, ids=str)
async def test_a_request_that_was_lost_is_made_again(server: ApiServer, trouble: Trouble) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble, resources={"pods/binding"}, times=2)
    async with binding(server, trouble) as binder:
        await binder.bind(POD, "n", PROMISE)
    assert bound(server) == ("n", PROMISE)
    assert server.count("create", "pods/binding") == 3


async def test_our_own_binding_of_an_earlier_call_is_a_success(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    await binder.bind(POD, "n", PROMISE)
    await binder.bind(POD, "n", PROMISE)
    assert verbs(server) == ["create pods/binding"] * 2 + ["get pods"]


async def test_the_agent_may_have_confirmed_before_we_look(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u", node="n", annotations={**PROMISE, "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}))
    await binder.bind(POD, "n", PROMISE)


async def test_another_promise_on_the_same_node_leaves_doubt(server: ApiServer, binder: Binder) -> None:
    """Either the agent corrected ours or another scheduler made its own: the pod itself will tell, not this call."""
    server.add(pod("a", uid="u", node="n", annotations={**PROMISE, "ALIYUN_COM_GPU_MEM_IDX": "7"}))
    with pytest.raises(InDoubtError, match=r"^pod default/a is already bound to node n, with a different assignment"):
        await binder.bind(POD, "n", PROMISE)


@pytest.mark.parametrize("trouble", NOT_DONE_AND_LOST + DONE_BUT_LOST, ids=str)
async def test_what_cannot_be_found_out_is_in_doubt(server: ApiServer, trouble: Trouble) -> None:
    server.add(pod("a", uid="u"))
    server.fail(trouble)
    async with binding(server, trouble) as binder:
        with pytest.raises(InDoubtError, match="pod default/a is bound to node n is unknown: create pods/binding"):
            await binder.bind(POD, "n", PROMISE)


async def test_a_server_that_never_answers_is_in_doubt_within_the_time(server: ApiServer) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Hang(), resources={"pods/binding"})
    async with Client(ClusterConfig(server.url)) as client:
        binder = Binder(client, READER, timing=lambda: BinderTiming(call_s=0.05, total_s=0.1, pause_s=0.001))
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


async def test_a_pod_that_goes_between_two_attempts_leaves_doubt(server: ApiServer) -> None:
    """The first was lost, a look shows the pod unbound, and the second meets no pod."""
    server.add(pod("a", uid="u"))
    server.fail(Late(), resources={"pods/binding"}, times=1)
    server.fail(Answer(404), resources={"pods/binding"})
    async with binding(server, Late()) as binder:
        with pytest.raises(InDoubtError, match="whether it was bound before is unknown"):
            await binder.bind(POD, "n", PROMISE)


async def test_a_look_that_shows_no_pod_proves_nothing(server: ApiServer, binder: Binder) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Reset(), resources={"pods/binding"}, times=1)
    server.fail(Garbage(), verbs={"get"})
    with pytest.raises(InDoubtError, match="get pods default/a: not a pod"):
        await binder.bind(POD, "n", PROMISE)


async def test_the_claim_that_kube_scheduler_made_of_the_limits_is_read_from_the_pod(
    server: ApiServer, binder: Binder
) -> None:
    server.add(pod("a", uid="u"))
    assert not await binder.made_claim("default", "a")
    mappings = [
        {"containerName": "main", "resourceName": "aliyun.com/gpu-count", "requestName": "container-0-request-0"}
    ]
    status = {"resourceClaimName": "a-extended-resources-zt4q9", "requestMappings": mappings}
    server.patch("pods", "a", {"status": {"extendedResourceClaimStatus": status}}, subresource="status")
    assert await binder.made_claim("default", "a") == "a-extended-resources-zt4q9"
    with pytest.raises(ApiError):
        await binder.made_claim("default", "b")


@pytest.mark.parametrize("status", [{"extendedResourceClaimStatus": 7}, {"extendedResourceClaimStatus": {}}])
async def test_a_pod_whose_status_cannot_be_read_has_no_claim(
    server: ApiServer, binder: Binder, status: object
) -> None:
    server.add({**pod("a", uid="u"), "status": status})
    assert not await binder.made_claim("default", "a")

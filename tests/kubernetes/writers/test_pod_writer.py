"""Annotations that are written in the background. What conflicts do to it stands among the faults."""

from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, InvalidError
from gpu_device_plugin.kubernetes.writers.pod_writer import PodWriter
from gpu_device_plugin.model.pods import Pod
from tests.builders import Json, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage
from tests.kubernetes.conftest import beside


async def test_one_patch_carries_all_that_waits_for_a_pod(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u", annotations={"theirs": "1", "old": "1"}))
    writer = PodWriter(client)
    writer.annotate(Pod("u", "default", "a"), {"assigned": "false", "index": "0"})
    writer.annotate(Pod("u", "default", "a"), {"assigned": "true", "old": None})
    writer.annotate(Pod("u", "default", "a"), {})
    async with beside(writer.run()):
        await eventually(lambda: server.count("patch", "pods") == 1 and "0 waiting" in repr(writer))
    assert server.get("pods", "a")["metadata"]["annotations"] == {"theirs": "1", "assigned": "true", "index": "0"}
    assert server.count("patch", "pods") == 1


async def test_nothing_to_write_is_no_request(server: ApiServer, client: Client) -> None:
    writer = PodWriter(client)
    writer.annotate(Pod("u", "default", "a"), {})
    assert repr(writer) == "<PodWriter: 0 waiting, 0 dropped, no problem>"
    assert server.requests == []


async def test_what_is_asked_for_during_a_patch_is_written_next(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    server.add(pod("a", uid="u"))
    writer = PodWriter(client, first_retry_s=0.01)
    async with beside(writer.run()):
        fault = server.fail(Answer(500), times=1)
        writer.annotate(Pod("u", "default", "a"), {"first": "1"})
        await eventually(lambda: fault.happened)
        writer.annotate(Pod("u", "default", "a"), {"second": "1"})
        await eventually(lambda: len(server.get("pods", "a")["metadata"].get("annotations", {})) == 2)


async def test_an_answer_that_is_no_pod_proves_nothing(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Garbage(), times=1)
    writer = PodWriter(client, first_retry_s=0.01)
    writer.annotate(Pod("u", "default", "a"), {"x": "1"})
    async with beside(writer.run()):
        await eventually(lambda: server.get("pods", "a")["metadata"].get("annotations") == {"x": "1"})


async def test_a_pod_in_trouble_does_not_hold_up_the_others(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.add(pod("b", uid="v"))
    server.fail(Answer(500), times=1)
    writer = PodWriter(client, first_retry_s=0.01)
    writer.annotate(Pod("u", "default", "a"), {"x": "1"})
    writer.annotate(Pod("v", "default", "b"), {"x": "1"})
    async with beside(writer.run()):
        await eventually(lambda: server.count("patch", "pods") == 3 and "0 waiting" in repr(writer))
    assert [request.name for request in server.requests] == ["a", "b", "a"]


def too_large(_before: Json, after: Json) -> str:
    return "this costs too much" if after["metadata"]["name"] == "a" else ""


@pytest.mark.parametrize(("code", "kind"), [(422, InvalidError), (403, ForbiddenError)])
async def test_what_a_policy_refuses_is_asked_for_again_until_it_is_let_through(
    server: ApiServer, client: Client, eventually: Any, code: int, kind: type[ApiError]
) -> None:
    """Each time somebody is told which policy it is, and nothing of the pod."""
    server.add(pod("a", uid="u"))
    server.deny("size", too_large, code=code)
    told: list[tuple[str, ApiError]] = []
    writer = PodWriter(client, refused=lambda pod, error: told.append((pod.name, error)), first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"x": "1"})
        await eventually(lambda: len(told) >= 5)
        server.admit_again("size")
        await eventually(lambda: server.get("pods", "a")["metadata"].get("annotations") == {"x": "1"})
        await eventually(lambda: "0 waiting" in repr(writer))
    assert {(name, type(error), error.status) for name, error in told} == {("a", kind, code)}
    assert str(told[0][1]).endswith("; ValidatingAdmissionPolicy size denied it")
    assert writer.dropped == 0


async def test_a_pod_that_is_refused_again_and_again_holds_up_no_other(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    """However long it has to wait itself."""
    server.add(pod("a", uid="u"))
    server.add(pod("b", uid="v"))
    server.deny("size", too_large)
    writer = PodWriter(client, first_retry_s=3600, most_retry_s=3600)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"x": "1"})
        await eventually(lambda: writer.problem is not None)
        writer.annotate(Pod("u", "default", "a"), {"y": "1"})
        writer.annotate(Pod("v", "default", "b"), {"x": "1"})
        await eventually(lambda: server.get("pods", "b")["metadata"].get("annotations") == {"x": "1"})
        await eventually(lambda: "1 waiting" in repr(writer))
    assert [request.name for request in server.requests if request.verb == "patch"] == ["a", "b"]


async def test_a_refused_pod_that_is_gone_is_forgotten(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u", node="n"))
    server.deny("size", too_large)
    writer = PodWriter(client, node="n", first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"x": "1"})
        await eventually(lambda: writer.problem is not None)
        server.delete("pods", "a")
        await eventually(lambda: "0 waiting" in repr(writer))
    assert writer.dropped == 0
    looks = [request for request in server.requests if request.verb == "list"]
    assert {request.params["fieldSelector"] for request in looks} == {"metadata.name=a,spec.nodeName=n"}


async def test_the_queue_is_bounded(client: Client) -> None:
    writer = PodWriter(client, limit=2)
    for uid in "abc":
        writer.annotate(Pod(uid, "default", uid), {"x": "1"})
    assert repr(writer) == "<PodWriter: 2 waiting, 1 dropped, no problem>"

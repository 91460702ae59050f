"""Annotations that are written in the background. What conflicts do to it stands among the faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.cluster.podwriter import PodWriter
from gpu_device_plugin.core.pods import Pod
from gpu_device_plugin.testing.builders import pod
from gpu_device_plugin.testing.cluster import Answer, Garbage

if TYPE_CHECKING:
    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.testing.cluster import ApiServer


async def test_one_patch_carries_all_that_waits_for_a_pod(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u", annotations={"theirs": "1", "old": "1"}))
    writer = PodWriter(client)
    writer.annotate(Pod("u", "default", "a"), {"assigned": "false", "index": "0"})
    writer.annotate(Pod("u", "default", "a"), {"assigned": "true", "old": None})
    writer.annotate(Pod("u", "default", "a"), {})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        await eventually(lambda: server.count("patch", "pods") == 1 and "0 waiting" in repr(writer))
        running.cancel()
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
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        fault = server.fail(Answer(500), times=1)
        writer.annotate(Pod("u", "default", "a"), {"first": "1"})
        await eventually(lambda: fault.happened)
        writer.annotate(Pod("u", "default", "a"), {"second": "1"})
        await eventually(lambda: len(server.get("pods", "a")["metadata"].get("annotations", {})) == 2)
        running.cancel()


async def test_an_answer_that_is_no_pod_proves_nothing(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Garbage(), times=1)
    writer = PodWriter(client, first_retry_s=0.01)
    writer.annotate(Pod("u", "default", "a"), {"x": "1"})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        await eventually(lambda: server.get("pods", "a")["metadata"].get("annotations") == {"x": "1"})
        running.cancel()


async def test_a_pod_in_trouble_does_not_hold_up_the_others(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.add(pod("b", uid="v"))
    server.fail(Answer(500), times=1)
    writer = PodWriter(client, first_retry_s=0.01)
    writer.annotate(Pod("u", "default", "a"), {"x": "1"})
    writer.annotate(Pod("v", "default", "b"), {"x": "1"})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        await eventually(lambda: server.count("patch", "pods") == 3 and "0 waiting" in repr(writer))
        running.cancel()
    assert [request.name for request in server.requests] == ["a", "b", "a"]


async def test_an_annotation_that_is_invalid_is_given_up(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Answer(422), verbs={"patch"}, times=1)
    writer = PodWriter(client, first_retry_s=0.01)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        writer.annotate(Pod("u", "default", "a"), {"x": "1"})
        await eventually(lambda: writer.dropped == 1)
        running.cancel()


async def test_the_queue_is_bounded(client: Client) -> None:
    writer = PodWriter(client, limit=2)
    for uid in "abc":
        writer.annotate(Pod(uid, "default", uid), {"x": "1"})
    assert repr(writer) == "<PodWriter: 2 waiting, 1 dropped, no problem>"

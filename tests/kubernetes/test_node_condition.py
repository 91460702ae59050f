"""The condition on our node follows what is wanted; its transition is as old as its status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ForbiddenError
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.node.rules.gpu_health import NodeCondition
from tests.builders import node
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage

GOOD = NodeCondition("True", "GPUsHealthy", "2 of 2 GPUs are healthy")
BAD = NodeCondition("False", "GPUUnhealthy", "GPU 0: XID 79")
OLD = "2026-01-01T00:00:00Z"


def found(server: ApiServer) -> dict[str, Any]:
    every = {one["type"]: one for one in server.get("nodes", "n")["status"]["conditions"]}
    assert "Ready" in every, "the kubelet's own is left alone"
    return dict(every.get("GPUHealthy", {}))


@asynccontextmanager
async def keeping(client: Client, **how: Any) -> AsyncIterator[Observable[NodeCondition | None]]:
    wanted: Observable[NodeCondition | None] = Observable(None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(OwnNode(client, "n").keep_condition(wanted, first_retry_s=0.01, **how))
        yield wanted
        running.cancel()


async def test_it_is_written_changed_and_removed(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(node("n"))
    async with keeping(client) as wanted:
        wanted.set(GOOD)
        await eventually(lambda: found(server).get("status") == "True")
        assert found(server)["lastTransitionTime"] == found(server)["lastHeartbeatTime"]
        wanted.set(BAD)
        await eventually(lambda: found(server).get("status") == "False")
        assert (found(server)["reason"], found(server)["message"]) == (BAD.reason, BAD.message)
        wanted.set(None)
        await eventually(lambda: not found(server))


async def test_nothing_is_asked_before_it_is_known_what_is_wanted(server: ApiServer, client: Client) -> None:
    server.add(node("n"))
    async with keeping(client) as wanted:
        await asyncio.sleep(0)
        assert (server.requests, wanted.version) == ([], 0)


async def test_without_a_condition_nothing_is_removed(server: ApiServer, client: Client) -> None:
    server.add(node("n"))
    assert not await OwnNode(client, "n").put_condition(None)
    assert server.count("patch", "nodes/status") == 0


async def test_the_last_transition_outlives_the_agent(server: ApiServer, client: Client) -> None:
    server.add(node("n"))
    condition = {"type": "GPUHealthy", "status": "True", "lastTransitionTime": OLD, "lastHeartbeatTime": OLD}
    others = server.get("nodes", "n")["status"]["conditions"]
    server.patch("nodes", "n", {"status": {"conditions": [*others, condition]}}, subresource="status")
    own = OwnNode(client, "n")
    await own.put_condition(GOOD)
    assert found(server)["lastTransitionTime"] == OLD
    assert found(server)["lastHeartbeatTime"] != OLD
    await own.put_condition(BAD)
    assert found(server)["lastTransitionTime"] != OLD


async def test_its_heart_beats(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(node("n"))
    async with keeping(client, heartbeat_s=0.01) as wanted:
        wanted.set(GOOD)
        await eventually(lambda: server.count("patch", "nodes/status") > 3)


@pytest.mark.parametrize("trouble", [Answer(503), Garbage(), Answer(429, retry_after_s=0)])
async def test_it_is_written_as_soon_as_that_is_possible(
    server: ApiServer, client: Client, eventually: Any, trouble: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(node("n"))
    server.fail(trouble, verbs=["get"], times=3)
    async with keeping(client) as wanted:
        wanted.set(GOOD)
        await eventually(lambda: bool(found(server)))
    assert len(caplog.messages) == 1, "the same trouble is told once"


async def test_a_missing_right_is_told_once(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(node("n"))
    server.allowed = frozenset({("get", "nodes")})
    told: list[str] = []
    async with keeping(client, forbidden=told.append) as wanted:
        wanted.set(GOOD)
        await eventually(lambda: server.count("patch", "nodes/status") > 2)
    assert len(told) == 1
    assert told[0].startswith("The node's condition GPUHealthy cannot be written: patch nodes/status n: 403 Forbidden")
    with pytest.raises(ForbiddenError):
        await OwnNode(client, "n").put_condition(GOOD)

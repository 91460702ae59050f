"""The faults of API servers that have hurt device plugins, by their number in the fault catalogue."""

from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import (
    ForbiddenError,
    NotFoundError,
)
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NodeReader
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.kubernetes.writers.pod_writer import PodWriter
from gpu_device_plugin.model.pods import Pod
from tests.builders import node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Reset
from tests.kubernetes.conftest import beside

# The API server is away, slow or broken: E1


async def test_e1_writes_are_queued_and_written_when_the_server_is_back(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    server.add(pod("a", uid="u"))
    writer = PodWriter(client, first_retry_s=0.01)
    async with beside(writer.run()):
        await server.stop()
        writer.annotate(Pod("u", "default", "a"), {"first": "1", "second": "1"})
        writer.annotate(Pod("u", "default", "a"), {"second": "2"})
        await eventually(lambda: writer.problem is not None)
        await server.start()
        await eventually(
            lambda: server.get("pods", "a")["metadata"].get("annotations") == {"first": "1", "second": "2"}
        )
    assert writer.dropped == 0


async def test_e1_a_write_whose_answer_was_lost_is_simply_repeated(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Reset(done=True), verbs={"patch"}, times=2)
    writer = PodWriter(client, first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"assigned": "true"})
        await eventually(lambda: server.count("patch", "pods") == 3 and writer.problem is None)
    assert server.get("pods", "a")["metadata"]["annotations"] == {"assigned": "true"}


# Names and tokens: E5


async def test_e5_a_node_name_that_does_not_exist_is_found_out(server: ApiServer, client: Client) -> None:
    """NODE_NAME is not always the host's name; the agent reads its node at the start."""
    server.add(node("node-a"))
    with pytest.raises(NotFoundError, match=r"get nodes host-a: 404 NotFound: .*set the node's name"):
        await OwnNode(client, "host-a").read()


async def test_e5_a_rotated_token_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    """The old token is refused before we would have read the file again: once more with the new one."""
    file = tmp_path / "token"
    file.write_text("old\n")
    server.tokens = frozenset({"old"})
    server.add(node("n"))
    async with Client(ClusterConfig(server.url, token_file=file)) as client:
        await client.get(NODES, "n")
        file.write_text("new\n")
        server.tokens = frozenset({"new"})
        assert NodeReader().read(await client.get(NODES, "n")).name == "n"
    assert [request.token for request in server.requests] == ["old", "old", "new"]


async def test_e5_a_token_is_read_again_before_it_expires(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server.add(node("n"))
    async with Client(ClusterConfig(server.url, token_file=file), timing=Timing(token_s=0)) as client:
        await client.get(NODES, "n")
        file.write_text("new")
        await client.get(NODES, "n")
    assert [request.token for request in server.requests] == ["old", "new"]


# Conflicts and missing rights, told apart by number: C8


async def test_c8_conflicts_are_tried_again(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.fail(Answer(409), verbs={"patch"}, times=8)
    told: list[Exception] = []
    writer = PodWriter(client, refused=lambda _, error: told.append(error), first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"assigned": "true"})
        await eventually(lambda: server.get("pods", "a")["metadata"].get("annotations"))
    assert server.count("patch", "pods") == 9
    assert server.count("list", "pods") == 8  # a fresh look after each conflict
    assert (writer.dropped, told) == (0, [])


async def test_c8_a_missing_right_is_named_and_waited_for(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    server.allowed = frozenset({("list", "pods")})
    writer = PodWriter(client, first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("u", "default", "a"), {"assigned": "true"})
        await eventually(lambda: isinstance(writer.problem, ForbiddenError))
        assert "grant 'patch' on 'pods'" in str(writer.problem)
        server.allowed = None
        await eventually(lambda: server.get("pods", "a")["metadata"].get("annotations"))


async def test_c8_a_pod_that_is_gone_or_replaced_is_left_alone(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    server.add(pod("replaced", uid="new"))
    server.add(pod("there", uid="u"))
    writer = PodWriter(client, first_retry_s=0.01)
    async with beside(writer.run()):
        writer.annotate(Pod("x", "default", "gone"), {"assigned": "true"})
        writer.annotate(Pod("old", "default", "replaced"), {"assigned": "true"})
        writer.annotate(Pod("u", "default", "there"), {"assigned": "true"})
        await eventually(lambda: server.get("pods", "there")["metadata"].get("annotations"))
    assert "annotations" not in server.get("pods", "replaced")["metadata"]
    assert writer.dropped == 0

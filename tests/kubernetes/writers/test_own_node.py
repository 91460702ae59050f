"""What the agent says on its own node."""

from typing import Any

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.writers.own_node import NodeMetadata, OwnNode
from tests.builders import node
from tests.cluster_double.api_server import ApiServer
from tests.kubernetes.conftest import beside

NOTES = NodeMetadata(labels={"gpus": "8", "old": None}, annotations={"list": "[1]"})


async def test_it_reads_its_labels(server: ApiServer, client: Client) -> None:
    server.add(node("n", labels={"cgpu.disable.isolation": "true"}))
    found = await OwnNode(client, "n").read()
    assert found.labels == {"kubernetes.io/hostname": "n", "cgpu.disable.isolation": "true"}


async def test_it_patches_only_what_differs_and_nothing_else(server: ApiServer, client: Client) -> None:
    server.add(node("n", labels={"old": "1", "theirs": "2"}))
    myself = OwnNode(client, "n")
    assert await myself.publish(NOTES)
    assert not await myself.publish(NOTES)
    assert server.count("patch", "nodes") == 1
    meta = server.get("nodes", "n")["metadata"]
    assert meta["labels"] == {"kubernetes.io/hostname": "n", "theirs": "2", "gpus": "8"}
    assert meta["annotations"] == {"list": "[1]"}


async def test_it_keeps_up_with_what_is_wanted(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(node("n"))
    wanted = Observable(NodeMetadata(labels={"gpus": "8"}))
    async with beside(OwnNode(client, "n").keep(wanted)):
        await eventually(lambda: server.get("nodes", "n")["metadata"]["labels"].get("gpus") == "8")
        wanted.set(NodeMetadata(labels={"gpus": "7"}))
        await eventually(lambda: server.get("nodes", "n")["metadata"]["labels"].get("gpus") == "7")


async def test_it_puts_right_what_somebody_removed(server: ApiServer, client: Client, eventually: Any) -> None:
    server.add(node("n"))
    async with beside(OwnNode(client, "n").keep(Observable(NodeMetadata(labels={"gpus": "8"})), again_s=0.01)):
        for _ in range(2):
            await eventually(lambda: server.get("nodes", "n")["metadata"]["labels"].get("gpus") == "8")
            server.patch("nodes", "n", {"metadata": {"labels": {"gpus": None}}})

"""Whatever happens to the API server, the pods of a node end up as they are, in the right order."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.reflector import ReflectorTiming
from gpu_device_plugin.model.pods import Pod
from tests.cluster_double.api_server import ApiServer
from tests.kubernetes.busy_cluster import NODE, BusyCluster
from tests.patience import stretched


class CapacityCache(NodePods):
    """The pods of a node, and how often a watch began with a list."""

    begun = 0

    def replace(self, objects: Sequence[Pod]) -> None:
        self.begun += 1
        super().replace(objects)


def seen(pods: Mapping[str, Pod]) -> Mapping[str, str]:
    return {found.name: found.annotations.get("a", "") for found in pods.values()}


async def keeping_places(changes: Observable[Mapping[str, Pod]]) -> NoReturn:
    """Fail if a pod that stays ever changes its place, or a new one comes before it."""
    before: Mapping[str, Pod] = {}
    async for pods in changes.values():
        stayed = [uid for uid in before if uid in pods]
        assert list(pods)[: len(stayed)] == stayed
        before = pods
    raise AssertionError  # pragma: no cover (changes never end)


@pytest.mark.chance
@pytest.mark.parametrize("forgetful", [False, True])
async def test_the_pods_of_a_node_end_up_as_they_are(
    chance_seed: int,
    forgetful: bool,  # noqa: FBT001
    eventually: Any,
) -> None:
    """300 steps of life and trouble, then peace.

    A forgetful server drops its history now and then, and its cache lags: then the order can be that of age only. But
    what was shown once keeps its place. Checks run all the while, and bookmarks come.
    """
    timing = Timing(connect_s=20, request_s=stretched(0.05), watch_s=0.2, silence_s=0.05)
    async with (
        ApiServer(patience_s=0.01, bookmark_s=0.02) as server,
        Client(ClusterConfig(server.url), timing=timing) as client,
        asyncio.TaskGroup() as tasks,
    ):
        reader = PodReader([], lambda key: key == "a")
        there = CapacityCache(client, reader, NODE, timing=ReflectorTiming(0.001, 0.01, check_s=0.05, patience_s=0.005))
        running = [tasks.create_task(there.reflector.run()), tasks.create_task(keeping_places(there.changes))]
        await eventually(lambda: there.reflector.synced)
        world = BusyCluster(server, chance_seed)
        for _ in range(300):
            world.happen()
            if world.random.random() < 0.15:
                world.disturb(*([server.reads.hold, server.reads.release] if forgetful else []))
            if forgetful and world.random.random() < 0.05:
                server.store.compact()
            if world.random.random() < 0.3:
                await asyncio.sleep(world.random.choice([0, 0.001, 0.01]))  # things come together or apart
        server.heal()
        await eventually(lambda: seen(there.pods) == world.truth(NODE))
        if not forgetful:
            assert there.begun == 1
            await eventually(lambda: there.reflector.lists > 1)
            names = [name for name in world.bound if name in world.truth(NODE)]
            await eventually(lambda: [found.name for found in there.pods.values()] == names)
        for task in running:
            task.cancel()

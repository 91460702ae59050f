"""Whatever happens to the API server, the mirror ends up with the truth, in the right order."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.cluster.api import PodReader
from gpu_device_plugin.cluster.client import Client, Timing
from gpu_device_plugin.cluster.config import ClusterConfig
from gpu_device_plugin.cluster.mirror import MirrorTiming, PodMirror
from gpu_device_plugin.testing.builders import pod
from gpu_device_plugin.testing.cluster import Answer, ApiServer, Garbage, Hang, Reset, Slow, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.core.model.pods import Pod


class World:
    """A cluster in which things happen, and the order in which pods were bound to our node."""

    def __init__(self, server: ApiServer, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.server = server
        self.bound: list[str] = []
        self.born = 0

    def happen(self) -> None:
        self.random.choice(
            [self._create, self._create, self._bind, self._bind, self._bind, self._annotate, self._delete]
        )()

    def disturb(self, *, lag: bool) -> None:
        server = self.server
        troubles: list[Trouble] = [Answer(500), Answer(429, retry_after_s=0), Hang(), Reset(), Slow(0.02), Garbage()]
        actions: list[Callable[[], object]] = [
            lambda: server.fail(self.random.choice(troubles), times=self.random.randint(1, 3)),
            server.close_watches,
            server.reset_connections,
            server.black_hole,
            server.heal,
            *([server.hold_cache, server.release_cache] if lag else []),
        ]
        self.random.choice(actions)()

    def _create(self) -> None:
        self.born += 1
        self.server.add(pod(f"p{self.born}", uid=f"u{self.born}"))

    def _bind(self) -> None:
        free = [found for found in self.server.all("pods") if not found["spec"].get("nodeName")]
        if free:
            name = self.random.choice(free)["metadata"]["name"]
            node = self.random.choice(["n", "n", "elsewhere"])
            self.server.bind(name, node)
            if node == "n":
                self.bound.append(name)

    def _annotate(self) -> None:
        if pods := self.server.all("pods"):
            value = str(self.random.random())
            name = self.random.choice(pods)["metadata"]["name"]
            self.server.patch("pods", name, {"metadata": {"annotations": {"a": value}}})

    def _delete(self) -> None:
        if pods := self.server.all("pods"):
            self.server.delete("pods", self.random.choice(pods)["metadata"]["name"])

    def truth(self) -> Mapping[str, str]:
        return {
            found["metadata"]["name"]: found["metadata"].get("annotations", {}).get("a", "")
            for found in self.server.all("pods")
            if found["spec"].get("nodeName") == "n"
        }


def seen(pods: Mapping[str, Pod]) -> Mapping[str, str]:
    return {found.name: found.annotations.get("a", "") for found in pods.values()}


@pytest.mark.chance
@pytest.mark.parametrize("forgetful", [False, True])
async def test_the_mirror_ends_up_with_the_truth(
    chance_seed: int,
    forgetful: bool,  # noqa: FBT001
    eventually: Any,
) -> None:
    """300 steps of life and trouble, then peace.

    A forgetful server drops its history now and then, and its cache lags: then the order can be that of age only.
    """
    timing = Timing(connect_s=0.5, request_s=0.05, watch_s=0.2, silence_s=0.05)
    async with (
        ApiServer(patience_s=0.01) as server,
        Client(ClusterConfig(server.url), timing=timing) as client,
        asyncio.TaskGroup() as tasks,
    ):
        reader = PodReader([], lambda key: key == "a")
        mirror = PodMirror(client, reader, node="n", timing=MirrorTiming(0.001, 0.01, check_s=0.1))
        running = tasks.create_task(mirror.run())
        await eventually(lambda: mirror.synced)
        world = World(server, chance_seed)
        for _ in range(300):
            world.happen()
            if world.random.random() < 0.15:
                world.disturb(lag=forgetful)
            if forgetful and world.random.random() < 0.05:
                server.store.compact()
            if world.random.random() < 0.3:
                await asyncio.sleep(world.random.choice([0, 0.001, 0.01]))  # things come together or apart
        server.heal()
        await eventually(lambda: seen(mirror.pods) == world.truth())
        if not forgetful:
            assert mirror.lists == 1
            names = [name for name in world.bound if name in world.truth()]
            await eventually(lambda: [found.name for found in mirror.pods.values()] == names)
        running.cancel()

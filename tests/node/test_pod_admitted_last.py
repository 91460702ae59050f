"""Kubelets from 1.23 to 1.31 keep the pod that they admitted last in their records: its GPU becomes free all the same.

What they have dropped is told from what they do not know yet, or do not list: nothing is freed that may be in use.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import Pod, PodSpec
from tests.kubelet.gated_kubelet import Kubelet
from tests.names import COUNT, MEM
from tests.node.cluster_harness import Cluster, cluster
from tests.node.harness import NodeWorld, container, pod


@dataclass
class Node:
    """A node of Kubernetes 1.31 whose agent reaches the API server, or does not."""

    world: NodeWorld
    cluster: Cluster | None

    @property
    def kubelet(self) -> Kubelet:
        return self.world.kubelet

    async def run(self, spec: PodSpec) -> Pod:
        return await (self.kubelet.admit(spec) if self.cluster is None else self.cluster.run(spec))

    async def remove(self, made: Pod) -> None:
        if self.cluster is not None:
            self.cluster.api.delete("pods", made.name)
        await self.kubelet.delete(made)

    def finish(self, made: Pod) -> None:
        finished = self.kubelet.finish(made)
        if self.cluster is not None:
            self.cluster.report(finished)

    async def rounds(self, count: int = 5) -> None:
        """Wait until the agent has asked the kubelet for its pods so often, and followed all but the last answer."""
        gate = self.kubelet.pod_resources_gate
        for _ in range(count):
            gate.hold()
            await gate.reached()
            gate.release()


@asynccontextmanager
async def older_node(gpus: str, *, api: bool) -> AsyncIterator[Node]:
    async with cluster(gpus, version=(1, 31)) as there:
        if not api:
            there.node.settings["api"] = "off"
        await (there.start_agent() if api else there.node.start_agent())
        yield Node(there.node, there if api else None)


WITH_AND_WITHOUT_API = pytest.mark.parametrize("api", [False, True])


@WITH_AND_WITHOUT_API
async def test_a_gpu_whose_shares_the_last_pod_had_is_offered_whole_again(*, api: bool) -> None:
    async with older_node("fake:2xT4", api=api) as node:
        made = await node.run(pod("last", mem=3))
        await node.world.listed(made)
        await node.world.healthy_is(COUNT, 1)
        await node.remove(made)
        await node.world.healthy_is(COUNT, 2)
        assert (await node.run(pod("both", count=2))).phase == "Running"


@WITH_AND_WITHOUT_API
async def test_a_gpu_that_the_last_pod_had_whole_is_offered_in_shares_again(*, api: bool) -> None:
    """It is the only one of its node."""
    async with older_node("fake:1xT4", api=api) as node:
        made = await node.run(pod("last", count=1))
        await node.world.listed(made)
        await node.world.healthy_is(MEM, 0)
        await node.remove(made)
        await node.world.healthy_is(MEM, 14)
        await node.rounds()
        assert node.world.healthy(MEM) == 14, "the checkpoint shows it all the time"
        assert (await node.run(pod("shares", mem=14))).phase == "Running"


async def test_a_pod_that_has_ended_in_the_api_frees_its_gpu_though_it_is_listed() -> None:
    """As of a Job that is done: the pod stays in the API, and in the List of these kubelets with all its devices."""
    async with older_node("fake:1xT4", api=True) as node:
        made = await node.run(pod("job", count=1))
        await node.world.listed(made)
        await node.world.healthy_is(MEM, 0)
        node.finish(made)
        await node.world.healthy_is(MEM, 14)
        await node.rounds()
        assert node.world.healthy(MEM) == 14
        assert (await node.run(pod("shares", mem=14))).phase == "Running"


async def test_without_the_api_a_pod_that_has_ended_keeps_its_gpu_until_it_is_deleted() -> None:
    """Nothing tells a pod that is listed with its devices from one that runs."""
    async with older_node("fake:1xT4", api=False) as node:
        made = await node.run(pod("job", count=1))
        await node.world.listed(made)
        node.finish(made)
        await node.rounds()
        assert node.world.healthy(MEM) == 0
        await node.remove(made)
        await node.world.healthy_is(MEM, 14)


async def test_with_the_api_a_pod_with_devices_for_an_ordinary_init_container_only_frees_its_gpu() -> None:
    async with older_node("fake:1xT4", api=True) as node:
        made = await node.run(pod("p", container("init", kind=ContainerKind.INIT, mem=3), container("main")))
        await node.world.listed(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0, "it is there, and listed without what its init container has"
        await node.remove(made)
        await node.world.healthy_is(COUNT, 1)


async def test_without_the_api_such_a_pod_keeps_its_gpu_until_another_is_admitted() -> None:
    async with older_node("fake:1xT4", api=False) as node:
        made = await node.run(pod("p", container("init", kind=ContainerKind.INIT, mem=3), container("main")))
        await node.rounds()
        await node.remove(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0
        await node.run(pod("plain", container("main")))
        await node.world.healthy_is(COUNT, 1)


@WITH_AND_WITHOUT_API
async def test_a_kubelet_that_was_restarted_and_lists_nobody_has_dropped_nobody(*, api: bool) -> None:
    """Its API server is away: it lists nobody for as long as that lasts, and its pods go on."""
    async with older_node("fake:2xT4", api=api) as node:
        made = await node.run(pod("last", mem=3))
        await node.world.listed(made)
        await node.kubelet.restart()
        await node.world.ready()
        await node.rounds()
        assert node.world.held == made.devices(MEM)
        assert node.world.healthy(COUNT) == 1
        await node.kubelet.sources_ready()
        assert node.kubelet.pod(made).phase == "Running"


async def test_a_static_pod_that_is_taken_away_keeps_its_gpu_for_it_may_be_put_back_unnoticed() -> None:
    """The kubelet goes on with the entry that it has, and asks nobody."""
    async with older_node("fake:1xT4", api=False) as node:
        spec = replace(pod("static", mem=3), uid="8eb6c2962b3a2c6a8545e6726b3213a0")
        made = await node.run(spec)
        await node.world.listed(made)
        await node.remove(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0
        again = await node.run(spec)
        assert (again.phase, again.devices(MEM)) == ("Running", made.devices(MEM))

"""Kubelets from 1.23 to 1.31 keep the pod that they admitted last in their records: its GPU becomes free all the same.

What they have dropped is told from what they do not know yet, or do not list: nothing is freed that may be in use.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from gpu_device_plugin.testing.pod_specs import ContainerType
from tests.names import COUNT, MEM
from tests.programs.node.cluster_harness import cluster
from tests.programs.node.harness import container, pod, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from gpu_device_plugin.testing.kubelet.kubelet_double import Kubelet
    from gpu_device_plugin.testing.pod_specs import Pod, PodSpec
    from tests.programs.node.harness import NodeWorld


@dataclass
class Node:
    """A node of Kubernetes 1.31 with an agent, and whoever makes and removes pods there."""

    world: NodeWorld
    run: Callable[[PodSpec], Awaitable[Pod]]
    remove: Callable[[Pod], Awaitable[None]]
    finish: Callable[[Pod], None]

    @property
    def kubelet(self) -> Kubelet:
        return self.world.kubelet

    async def rounds(self, count: int = 5) -> None:
        """Wait until the agent has asked the kubelet for its pods so often, and followed all but the last answer."""
        gate = self.kubelet.pod_resources_gate
        for _ in range(count):
            gate.hold()
            await gate.reached()
            gate.release()


class Access(Protocol):
    """A node whose agent reaches the API server, or does not."""

    def __call__(
        self, gpus: str | Sequence[dict[str, Any]], process_wait: str = "60s"
    ) -> AbstractAsyncContextManager[Node]: ...


@asynccontextmanager
async def standalone(gpus: str | Sequence[dict[str, Any]], process_wait: str = "60s") -> AsyncIterator[Node]:
    async with world(gpus, version=(1, 31), process_wait=process_wait) as node:
        await node.start_agent()

        async def remove(made: Pod) -> None:
            await node.kubelet.delete(made)

        def finish(made: Pod) -> None:
            node.kubelet.finish(made)

        yield Node(node, node.kubelet.admit, remove, finish)


@asynccontextmanager
async def with_api(gpus: str | Sequence[dict[str, Any]], process_wait: str = "60s") -> AsyncIterator[Node]:
    async with cluster(gpus, version=(1, 31), process_wait=process_wait) as there:
        await there.start_agent()

        async def remove(made: Pod) -> None:
            there.api.delete("pods", made.name)
            await there.node.kubelet.delete(made)

        def finish(made: Pod) -> None:
            there.report(there.node.kubelet.finish(made))

        yield Node(there.node, there.run, remove, finish)


ACCESS = pytest.mark.parametrize("access", [standalone, with_api])


@ACCESS
async def test_a_gpu_whose_shares_the_last_pod_had_is_offered_whole_again(access: Access) -> None:
    async with access("fake:2xT4") as node:
        made = await node.run(pod("last", mem=3))
        await node.world.listed(made)
        assert node.world.healthy(COUNT) == 1
        await node.remove(made)
        await node.world.healthy_is(COUNT, 2)
        assert (await node.run(pod("both", count=2))).phase == "Running"


@ACCESS
async def test_a_gpu_that_the_last_pod_had_whole_is_offered_in_shares_again(access: Access) -> None:
    """It is the only one of its node."""
    async with access("fake:1xT4") as node:
        made = await node.run(pod("last", count=1))
        await node.world.listed(made)
        assert node.world.healthy(MEM) == 0
        await node.remove(made)
        await node.world.healthy_is(MEM, 14)
        await node.rounds()
        assert node.world.healthy(MEM) == 14, "the checkpoint shows it all the time"
        assert (await node.run(pod("shares", mem=14))).phase == "Running"


async def test_a_pod_that_has_ended_in_the_api_frees_its_gpu_though_it_is_listed() -> None:
    """As of a Job that is done: the pod stays in the API, and in the List of these kubelets with all its devices."""
    async with with_api("fake:1xT4") as node:
        made = await node.run(pod("job", count=1))
        await node.world.listed(made)
        node.finish(made)
        await node.world.healthy_is(MEM, 14)
        await node.rounds()
        assert node.world.healthy(MEM) == 14
        assert (await node.run(pod("shares", mem=14))).phase == "Running"


async def test_without_the_api_a_pod_that_has_ended_keeps_its_gpu_until_it_is_deleted() -> None:
    """Nothing tells a pod that is listed with its devices from one that runs."""
    async with standalone("fake:1xT4") as node:
        made = await node.run(pod("job", count=1))
        await node.world.listed(made)
        node.finish(made)
        await node.rounds()
        assert node.world.healthy(MEM) == 0
        await node.remove(made)
        await node.world.healthy_is(MEM, 14)


async def test_with_the_api_a_pod_with_devices_for_an_ordinary_init_container_only_frees_its_gpu() -> None:
    async with with_api("fake:1xT4") as node:
        made = await node.run(pod("p", container("init", kind=ContainerType.INIT, mem=3), container("main")))
        await node.world.listed(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0, "it is there, and listed without what its init container has"
        await node.remove(made)
        await node.world.healthy_is(COUNT, 1)


async def test_without_the_api_such_a_pod_keeps_its_gpu_until_another_is_admitted() -> None:
    async with standalone("fake:1xT4") as node:
        made = await node.run(pod("p", container("init", kind=ContainerType.INIT, mem=3), container("main")))
        await node.rounds()
        await node.remove(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0
        await node.run(pod("plain", container("main")))
        await node.world.healthy_is(COUNT, 1)


@ACCESS
async def test_a_kubelet_that_was_restarted_and_lists_nobody_has_dropped_nobody(access: Access) -> None:
    """Its API server is away: it lists nobody for as long as that lasts, and its pods go on."""
    async with access("fake:2xT4") as node:
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
    async with standalone("fake:1xT4") as node:
        spec = replace(pod("static", mem=3), uid="8eb6c2962b3a2c6a8545e6726b3213a0")
        made = await node.run(spec)
        await node.world.listed(made)
        await node.remove(made)
        await node.rounds()
        assert node.world.healthy(COUNT) == 0
        again = await node.run(spec)
        assert (again.phase, again.devices(MEM)) == ("Running", made.devices(MEM))

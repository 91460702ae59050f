"""The agent with the real MPS supervisor, over doubles of NVIDIA's programs: they agree on their two files."""

import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_device_plugin.features.mps.contract import MpsStatus
from gpu_device_plugin.features.mps.node import Mps
from gpu_device_plugin.features.mps.rules.mps_daemon import DEFAULT, EXCLUSIVE
from gpu_device_plugin.model.contract.variables import LIMITS, MPS_MEMORY, MPS_PIPE_DIRECTORY
from tests.features.mps.supervisor.supervised import A, B, Node
from tests.features.mps.supervisor.supervised import node as supervised
from tests.names import COUNT
from tests.node.harness import T4, NodeWorld, envs_of, pod, world


@asynccontextmanager
async def both() -> AsyncIterator[tuple[NodeWorld, Node]]:
    """Make a node of two GPUs with a supervisor that runs, and an agent that does not yet."""
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mps") as root, supervised(Path(root)) as mps:
        async with world([{**T4, "uuid": A}, {**T4, "uuid": B}]) as node:
            node.settings |= {"limits": "mps", "mps_dir": str(mps.directory)}
            mps.start()
            await node.until(lambda: mps.state()[1] > 0)
            yield node, mps


async def test_from_the_first_share_to_the_whole_gpu() -> None:
    async with both() as (node, mps):
        await node.start_agent()
        first = await node.kubelet.admit(pod("p", mem=3))
        assert first.only.running
        assert (mps.gpu().status, mps.gpu().limit_mib) == (MpsStatus.READY, 3072)
        envs = envs_of(first)
        assert (envs[LIMITS], envs[MPS_MEMORY]) == ("mps", "0=3072M")
        assert envs[MPS_PIPE_DIRECTORY] == mps.gpu().pipe_directory
        assert mps.programs.modes == {A: EXCLUSIVE, B: DEFAULT}
        larger = await node.kubelet.admit(pod("q", mem=5))
        assert larger.only.running
        assert mps.gpu().limit_mib == 5 * 1024
        await node.confirmed()
        for each in (first, larger):
            node.kubelet.finish(each)
            await node.kubelet.delete(each)
        await node.healthy_is(COUNT, 2)
        for name in ("w", "v"):
            assert (await node.kubelet.admit(pod(name, count=1))).only.running
        assert mps.programs.modes == {A: DEFAULT, B: DEFAULT}


async def test_the_daemon_of_running_clients_survives_the_agent_and_the_supervisor() -> None:
    async with both() as (node, mps):
        await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        before = mps.daemons()
        await node.stop_agent()
        mps.end(signal.SIGKILL)
        agent = node.launch()
        await node.ready()
        await node.rounds(1, now=True)
        beat_s = mps.state()[1]
        mps.start()
        await node.until(lambda: mps.state()[1] > beat_s and mps.gpu().status is MpsStatus.READY)
        assert mps.daemons() == before
        await node.until(
            lambda: A in agent.features.of(Mps).gpus and agent.features.of(Mps).gpus[A].status is MpsStatus.READY
        )
        assert (await node.kubelet.restart_container(client, "main")).only.running

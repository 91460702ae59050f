"""The agent's own answer, the kubelet's checkpoint and the API's pods lead to the cgroup whose limit is read back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.limits import Held
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.programs.node.use import UseWatch
from gpu_device_plugin.programs.node.verification import Verification
from gpu_device_plugin.testing.pods import pod
from tests.names import MEM
from tests.programs.node.cluster_harness import Cluster, cluster
from tests.programs.node.harness import T4

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = (f"{number:064x}" for number in (1, 2))


def runs(there: Cluster, name: str, container_id: str, root: Path) -> None:
    """Do what runtime and kubelet do when a container has started: make its cgroup, and tell the API."""
    uid = there.api.get("pods", name)["metadata"]["uid"]
    (root / f"kubepods/besteffort/pod{uid}/{container_id}").mkdir(parents=True)
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "c0", "containerID": f"containerd://{container_id}", "state": state}
    there.api.patch("pods", name, {"status": {"containerStatuses": [status]}}, subresource="status")


async def test_the_limit_of_every_start_of_a_container_is_read_back(tmp_path: Path) -> None:
    """The driver has a limit for the first one's cgroup, and none for the second one's."""
    card = T4 | {"memory_limits": True, "limits": {f"*/{FIRST}": "3GiB"}}
    async with cluster([card]) as there:
        there.node.hardware(card, driver="615.71.09", cgroup=2)
        await there.start_agent()
        agent = there.node.agent
        assert agent is not None

        entries, pods = agent.reconciler.checkpoint_entries, there.cluster.followed
        use = UseWatch(
            agent.hardware.use,
            entries,
            agent.settings.offered,
            lambda: agent.state.node.shares,
            interval_s=0,
            pods=lambda: tuple(pods.pods.values()),
        )
        made = Verification(
            use.holdings, agent.hardware.limits, CgroupTree(tmp_path), agent.state, there.cluster.pod_event
        )
        task = asyncio.create_task(made.run([entries, pods.changes], [agent.hardware.view]))
        try:
            pod_made = await there.run(pod("p", {MEM: 3}))
            await there.node.confirmed()
            assert made.states.value == {}
            runs(there, "p", FIRST, tmp_path)
            await there.node.until(lambda: made.counts[Held.HELD] == 1)
            assert made.states.value.keys() == {(pod_made.uid, "c0", there.node.uuids[0])}
            assert there.events("GPULimitNotHeld") == []
            runs(there, "p", SECOND, tmp_path)
            await there.node.until(lambda: bool(there.events("GPULimitNotHeld")))
            (told,) = there.events("GPULimitNotHeld")
            assert told["regarding"] == {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "p",
                "namespace": "default",
                "uid": pod_made.uid,
            }
            assert told["note"].startswith("The memory limit of container c0 does not hold: on GPU 0 the driver has no")
            assert (told["type"], made.counts[Held.MISSING]) == ("Warning", 1)
        finally:
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

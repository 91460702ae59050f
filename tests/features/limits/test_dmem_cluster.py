"""The agent, a kubelet, the API and the limit helper on a node with fake GPUs of AMD's: limits from start to end."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_device_plugin.features.limits.helper_program import LimitHelper
from gpu_device_plugin.features.limits.node import Limits
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.monitor import Hardware, MonitorTimings
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.model.limits import LimitStatus
from tests.features.claims.dra_harness import claims
from tests.kubelet.pod_lines import pod
from tests.names import MEM
from tests.node.cluster_harness import cluster
from tests.node.harness import NodeWorld, envs_of
from tests.patience import beside, stretched
from tests.scheduler_double.dra_scheduler import exactly

MI300X = {"model": "MI300X", "memory_limits": True}
BY = "GPUSHARE_MEMORY_LIMIT_BY"
FIRST = f"{1:064x}"


@asynccontextmanager
async def helper(node: NodeWorld) -> AsyncIterator[None]:
    """Run the limit helper of the node."""
    folder = node.folder
    timings = MonitorTimings(answer_within_s=stretched(5), start_within_s=stretched(20), retry_from_s=0.02)
    hardware = Hardware(str(folder / "gpus.json"), timings=timings)
    async with beside(LimitHelper(folder / "memory", hardware, CgroupTree(node.cgroups), poll_s=0.02).run()):
        yield


def limit_of(node: NodeWorld, path: Path) -> int | None:
    driver = Fake(str(node.folder / "gpus.json"))
    (gpu,) = driver.inventory()["gpus"]
    (found,) = driver.limits([(gpu["uuid"], str(path))])
    mib: int | None = found.get("hard_mib")
    return mib


async def test_a_pod_is_limited_before_it_starts_and_its_container_when_it_runs() -> None:
    async with cluster([MI300X]) as there:
        there.node.hardware(MI300X, cgroup=2)
        memory = there.node.folder / "memory"
        memory.mkdir()
        there.node.settings |= {"memory_dir": str(memory)}
        async with helper(there.node):
            await there.start_agent()
            agent = there.node.agent
            assert agent is not None
            await there.node.until(lambda: there.labels().get("limits") == "dmem")
            starting = asyncio.create_task(there.run(pod("p", {MEM: 3})))
            link = agent.features.of(Limits).link
            assert link is not None
            await there.node.until(lambda: bool(link.reasons))
            assert not starting.done()
            uid = there.api.get("pods", "p")["metadata"]["uid"]
            cgroup = there.node.cgroups / f"kubepods/besteffort/pod{uid}"
            cgroup.mkdir(parents=True)
            made = await starting
            assert made.phase == "Running"
            assert envs_of(made, "c0")[BY] == "dmem"
            assert limit_of(there.node, cgroup) == 3072
            (cgroup / FIRST).mkdir()
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            status = {"name": "c0", "containerID": f"containerd://{FIRST}", "state": state}
            there.api.patch("pods", "p", {"status": {"containerStatuses": [status]}}, subresource="status")
            await there.node.until(lambda: limit_of(there.node, cgroup / FIRST) == 3072)
            counts = agent.features.of(Limits).verification
            await there.node.until(lambda: counts.counts[LimitStatus.HELD] == 1)
            assert there.events("GPULimitNotHeld") == []


async def test_without_the_helper_limits_are_advisory_and_refused_where_they_are_required() -> None:
    async with cluster([MI300X]) as there:
        there.node.hardware(MI300X, cgroup=2)
        (there.node.folder / "memory").mkdir()
        await there.start_agent(memory_dir=str(there.node.folder / "memory"))
        made = await there.run(pod("a", {MEM: 3}))
        assert (made.phase, envs_of(made, "c0")[BY]) == ("Running", "advisory")
        there.node.reload(memory_dir=str(there.node.folder / "memory"), limits="dmem")
        refused = await there.run(pod("b", {MEM: 3}))
        assert refused.phase == "Failed"
        assert "the limit helper, which sets limits by dmem, does not run on this node" in refused.message


async def test_a_claim_is_limited_as_well(tmp_path: Path) -> None:
    gpu = MI300X | {"uuid": "GPU-11111111-2222-3333-4444-555555555555"}
    async with claims([gpu], memory_dir=str(tmp_path)) as here:
        here.node.hardware(gpu, cgroup=2)
        (here.node.folder / "memory").symlink_to(tmp_path)
        async with helper(here.node):
            await here.start()
            agent = here.node.agent
            assert agent is not None
            limits = agent.features.of(Limits)
            assert limits.link is not None
            lack = limits.link.lack_of_dmem
            await here.node.until(lambda: lack.value == "" and "dmem" in str(here.devices()))
            refused = await here.run_claim("small", exactly(memory="4Gi"))
            # Whether the kubelet's records show the pod already is chance.
            assert re.search(
                "GPU memory (is to be limited|of the pod is not limited yet).*; this is retried$", refused.error
            )
            await here.node.until(lambda: limits.link is not None and bool(limits.link.reasons))
            refused = await here.kubelet.start_pod("small")
            assert "the GPU memory of the pod is not limited yet" in refused.error
            uid = here.api.get("pods", "small")["metadata"]["uid"]
            cgroup = here.node.cgroups / f"kubepods/besteffort/pod{uid}"
            cgroup.mkdir(parents=True)
            await here.node.until(lambda: limit_of(here.node, cgroup) == 4096)
            await here.node.until(lambda: limits.link is not None and not limits.link.reasons)
            started = await here.kubelet.start_pod("small")
            assert (started.error, started.environ[BY]) == ("", "dmem")
            (cgroup / FIRST).mkdir()
            status = {"name": "main", "containerID": f"containerd://{FIRST}", "state": {"running": {}}}
            here.api.patch("pods", "small", {"status": {"containerStatuses": [status]}}, subresource="status")
            await here.node.until(lambda: limit_of(here.node, cgroup / FIRST) == 4096)

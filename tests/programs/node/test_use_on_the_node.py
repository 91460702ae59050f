"""The node's annotation tells who uses what on its GPUs, from the driver's processes to the pod's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import NODE_USE
from gpu_device_plugin.core.contract.nodereport import NodeUse, UsedGpu, UsedPart, read_node_use
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.use import NOT_READ, WITHOUT_HOST_PID
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests.programs.node.cluster_harness import NODE, cluster
from tests.programs.node.harness import pod, world

if TYPE_CHECKING:
    from tests.programs.node.cluster_harness import Cluster

T4 = {"model": "T4"}
ID = "5ad9" * 16
QUICK = "50ms"


def told(there: Cluster) -> NodeUse | None:
    text = there.api.get("nodes", NODE)["metadata"].get("annotations", {}).get(NODE_USE)
    return None if text is None else read_node_use(text)


def parts(there: Cluster) -> tuple[UsedPart, ...]:
    use = told(there)
    return () if use is None else use.parts


def using(*processes: dict[str, Any], used: str) -> dict[str, Any]:
    return {**T4, "processes": list(processes), "used": used}


async def start(there: Cluster) -> None:
    """Start an agent that reads and tells often."""
    there.node.settings["usage_interval"] = QUICK
    notes = there.node.launch().use_reports
    notes.soon_s = notes.seldom_s = 0.05
    await there.node.ready()


async def test_a_containers_use_is_told_beside_what_it_was_granted() -> None:
    async with cluster([T4]) as there:
        await start(there)
        made = await there.run(pod("web", mem=4))
        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB", "sm": 40}, used="3200MiB"))
        await there.node.until(lambda: [(part.pod, part.used_mib) for part in parts(there)] == [("web", 3072)])
        use = told(there)
        assert use is not None
        assert use.parts == (UsedPart("default", "web", "main", 0, 4096, 3072, 40, Rung.ADVISORY),)
        assert (use.gpus, use.blind) == ({0: UsedGpu(3200, 128)}, "")


async def test_a_blind_agent_and_one_that_does_not_read_say_so() -> None:
    async with cluster([using(used="3GiB")]) as there:
        await start(there)
        await there.run(pod("web", mem=4))
        await there.node.until(lambda: [(part.pod, part.used_mib) for part in parts(there)] == [("web", None)])
        use = told(there)
        assert use is not None
        assert use.blind == WITHOUT_HOST_PID
        assert there.node.agent is not None
        off = {**there.node.settings, "usage_interval": "0s"}
        there.node.agent.reload(Sources(NodeSettings, flags=off, environ={}).read())
        await there.node.until(lambda: (use := told(there)) is not None and use.blind == NOT_READ)
        assert [part.pod for part in parts(there)] == ["web"]


async def test_a_pod_on_a_gpu_that_it_was_not_given_is_named() -> None:
    async with cluster([T4]) as there:
        await start(there)
        stranger = await there.run(pod("stranger"))
        there.node.process(11, stranger, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        await there.node.until(lambda: parts(there) == (UsedPart("default", "stranger", "", 0, 0, 3072),))


async def test_without_the_api_the_use_is_known_by_the_containers_name() -> None:
    async with world([T4]) as there:
        agent = await there.start_agent(usage_interval=QUICK)
        made = await there.kubelet.admit(pod("web", mem=4))
        there.process(11, made, ID)
        there.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        reading = agent.use_watch.reading
        await there.until(lambda: [use.used_mib for use in reading.value.containers] == [3072])
        (use,) = reading.value.containers
        assert (use.pod_uid, use.container, use.granted_mib, use.pod) == (made.uid, "main", 4096, None)

"""The agent's own answer, the kubelet's checkpoint and the API's pods lead to the cgroup whose limit is read back."""

from gpu_device_plugin.features.limits.node import Limits
from gpu_device_plugin.features.limits.rules.running_limits import NO_CGROUPS, NO_CONTAINER
from gpu_device_plugin.model.limits import LimitStatus
from tests.kubelet.pod_lines import pod
from tests.names import MEM
from tests.node.cluster_harness import Cluster, cluster
from tests.node.harness import T4, world

FIRST, SECOND = (f"{number:064x}" for number in (1, 2))


def runs(there: Cluster, name: str, container_id: str, *, seen: bool = True) -> None:
    """Do what runtime and kubelet do when a container has started: make its cgroup, and tell the API.

    `seen`: the agent sees the cgroup.
    """
    uid = there.api.get("pods", name)["metadata"]["uid"]
    if seen:
        (there.node.cgroups / f"kubepods/besteffort/pod{uid}/{container_id}").mkdir(parents=True)
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "c0", "containerID": f"containerd://{container_id}", "state": state}
    there.api.patch("pods", name, {"status": {"containerStatuses": [status]}}, subresource="status")


CARD = T4 | {"memory_limits": True, "limits": {f"*/{FIRST}": "3GiB"}}
"""The driver has a limit for the cgroup of the first start, and none for that of the second."""


async def test_the_limit_of_every_start_of_a_container_is_read_back() -> None:
    async with cluster([CARD]) as there:
        there.node.hardware(CARD, driver="615.71.09", cgroup=2)
        await there.start_agent(http="127.0.0.1:0")
        assert there.node.agent is not None
        made = there.node.agent.features.of(Limits).verification
        pod_made = await there.run(pod("p", {MEM: 3}))
        await there.node.confirmed()
        runs(there, "p", FIRST)
        await there.node.until(lambda: made.counts[LimitStatus.HELD] == 1)
        assert there.node.agent.limit_states.value.keys() == {(pod_made.uid, "c0", there.node.uuids[0])}
        assert there.events("GPULimitNotHeld") == []
        runs(there, "p", SECOND)
        await there.node.until(lambda: bool(there.events("GPULimitNotHeld")))
        (told,) = there.events("GPULimitNotHeld")
        about = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default", "uid": pod_made.uid}
        assert told["regarding"] == about
        assert told["note"].startswith("The memory limit of container c0 does not hold: on GPU 0 the driver has no")
        assert told["type"] == "Warning"
        shown = await there.metrics()
        assert 'gpushare_limit_states{state="missing"} 1.0' in shown
        assert 'gpushare_limit_states{state="held"} 0.0' in shown


async def test_an_agent_that_sees_no_cgroups_says_what_to_mount() -> None:
    async with cluster([CARD]) as there:
        there.node.hardware(CARD, driver="615.71.09", cgroup=2)
        await there.start_agent()
        assert there.node.agent is not None
        states = there.node.agent.limit_states
        await there.run(pod("p", {MEM: 3}))
        runs(there, "p", FIRST, seen=False)
        await there.node.until(lambda: [each.why for each in states.value.values()] == [NO_CGROUPS])
        assert there.events("GPULimitNotHeld") == []


async def test_an_agent_without_the_api_says_that_it_does_not_know_the_containers() -> None:
    async with world([CARD]) as node:
        node.hardware(CARD, driver="615.71.09", cgroup=2)
        agent = await node.start_agent()
        await node.kubelet.admit(pod("p", {MEM: 3}))
        await node.until(lambda: [each.why for each in agent.limit_states.value.values()] == [NO_CONTAINER])

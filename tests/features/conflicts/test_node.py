"""GPUs that somebody else hands out are not shared, and everybody can see why; when that ends, they are."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.conflicts.node import ConflictingPlugins
from gpu_device_plugin.features.over_use.node import OverUse
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.testing.pod_specs import ContainerSpec, PodSpec
from tests import builders
from tests.features.claims.dra_harness import DRA_RIGHTS
from tests.features.claims.dra_harness import claims as dra_world
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.listening import listening
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, RIGHTS, Cluster, cluster
from tests.node.harness import T4, NodeWorld, pod, world


def launch(node: NodeWorld) -> None:
    """Start an agent that looks often."""
    node.launch().features.of(ConflictingPlugins).look_s = 0.05


async def test_beside_another_device_plugin_nothing_is_registered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with world() as node:
        with listening(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            launch(node)
            assert node.agent is not None
            agent = node.agent
            await node.until(lambda: "GPUs of this node are not shared: NVIDIA's device plugin" in caplog.text)
            assert node.kubelet.registrations == []
            missing = await agent.server.ready()
            assert "nvidia.com/gpu.deploy.device-plugin=false" in missing[0]
            assert "--allow-other-plugins" in missing[0]
            assert await agent.server.alive() == (), "a restart would not help"
        await node.ready()  # the file is still there, and nobody listens
        assert await agent.server.ready() == ()
        assert node.healthy(MEM) == 28
        assert "GPUs are shared again: no other plugin hands them out" in caplog.text


async def test_plugins_for_gpus_of_other_vendors_are_no_obstacle_where_none_of_those_are_shared() -> None:
    async with world() as node:
        folder = node.kubelet.device_plugin_dir
        with listening(folder / "amd.com_gpu"), listening(folder / "gpu.intel.com-xe.sock"):
            launch(node)
            await node.ready()
            assert node.healthy(MEM) == 28


async def test_one_that_comes_later_ends_the_sharing_and_running_pods_stay() -> None:
    async with world() as node:
        launch(node)
        await node.ready()
        made = await node.kubelet.admit(pod("p", mem=3))
        with listening(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await node.healthy_is(MEM, 0)
            await node.healthy_is(COUNT, 0)
            assert node.sockets == set()
            assert node.held == made.devices(MEM)
        await node.ready()
        await node.healthy_is(MEM, 28)
        await node.healthy_is(COUNT, 1)
        assert node.kubelet.pod(made).phase == "Running"


async def test_one_that_restarts_is_not_believed_gone() -> None:
    async with world() as node:
        path = node.kubelet.device_plugin_dir / "nvidia-gpu.sock"
        with listening(path):
            launch(node)
            assert node.agent is not None
            found, others = node.agent.features.of(ConflictingPlugins), node.agent.other_plugins.others
            await node.until(lambda: bool(others.value))
            found.look_s = 60
        path.unlink()
        found.detect()
        assert others.value
        found.look_s = 0
        found.detect()
        assert others.value == ()


async def test_a_dra_driver_beside_the_pod_resources_socket_counts_too() -> None:
    async with world() as node:
        registry = node.kubelet.pod_resources_socket.parent.parent / "plugins_registry"
        with listening(registry / "gpu.nvidia.com-reg.sock"):
            launch(node)
            assert node.agent is not None
            agent = node.agent
            await node.until(lambda: bool(agent.other_plugins.others.value))
            assert "nvidia.com/gpu.deploy.dra-driver=false" in agent.other_plugins.unmet()[0]


async def test_who_allows_it_shares_beside_others_also_without_a_restart() -> None:
    async with world() as node:
        with listening(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await node.start_agent(allow_other_plugins="true")
            assert node.agent is not None
            agent, allowing = node.agent, node.agent.settings.value
            await node.stop_agent()
            node.settings["allow_other_plugins"] = "false"
            agent = node.launch()
            await node.until(lambda: bool(agent.other_plugins.others.value))
            agent.reload(allowing)
            await node.ready()


async def test_what_the_node_offers_by_the_api_counts_and_people_are_told_in_an_event() -> None:
    async with cluster() as there:
        there.api.patch("nodes", NODE, {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}, subresource="status")
        agent = there.node.launch()
        agent.features.of(ConflictingPlugins).look_s = 0.05
        there.cluster.look_s = 0.05
        await there.node.until(lambda: bool(there.events("OtherDevicePlugin")))
        (event,) = there.events("OtherDevicePlugin")
        assert "the node offers 2 nvidia.com/gpu" in event["note"]
        assert event["type"] == "Warning"
        assert there.node.kubelet.registrations == []
        await there.node.until(lambda: [gpu["healthy"] for gpu in there.said_of_node().get("gpus", ())] == [False] * 2)
        assert there.said_of_node()["gpus"][0]["reason"].endswith("(the node offers 2 nvidia.com/gpu)")
        there.api.patch("nodes", NODE, {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, subresource="status")
        await there.node.ready()
        assert agent.other_plugins.others.value == ()
        await there.node.until(lambda: [gpu["healthy"] for gpu in there.said_of_node()["gpus"]] == [True] * 2)


EVICTING = {*RIGHTS, ("create", "pods/eviction")}
WATCHED: dict[str, Any] = {"over_use": "evict", "over_use_grace": "1ms", "usage_interval": "50ms"}
BUSY = {**T4, "processes": [{"pid": 77, "used": "3GiB"}], "used": "3200MiB"}
"""A card that a process of the pod `theirs` uses."""


async def theirs(there: Cluster) -> None:
    """Run a pod that was not given a GPU by us, and has a process on the first one."""
    there.api.add(builders.pod("theirs", builders.container("main"), node=NODE, phase="Running"))
    await there.seen("theirs")
    there.node.process(77, there.known(pod("theirs")), "5ad9" * 16)
    there.node.hardware(BUSY, T4)


async def reading_of(there: Cluster, agent: NodeAgent) -> None:
    """Wait until a reading shows the process, and for some more."""
    await there.node.until(lambda: agent.features.of(Use).reading.value.used_mib.get(there.node.uuids[0]) == 3200)
    at = agent.features.of(Use).reading.version
    await there.node.until(lambda: agent.features.of(Use).reading.version >= at + 5)


def nobody_is_accused(there: Cluster, agent: NodeAgent) -> bool:
    assert agent.features.of(OverUse).excesses == {}
    assert not any(use.trespassing for use in agent.features.of(Use).reading.value.containers)
    assert there.events("GPUTrespass") == []
    return bool(there.api.count("create", "pods/eviction") == 0)


async def test_beside_another_plugin_its_pods_do_not_trespass_and_nobody_is_evicted() -> None:
    async with cluster([T4, T4], allowed=EVICTING, **WATCHED) as there:
        there.node.show_processes()
        agent = await there.node.start_agent()
        with listening(there.node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await theirs(there)  # the agent has not looked for others since, and will not for a minute
            await reading_of(there, agent)
            assert nobody_is_accused(there, agent)
        agent.features.of(ConflictingPlugins).look_s = 0.0
        await there.node.ready()
        await reading_of(there, agent)
        assert nobody_is_accused(there, agent), "the other plugin is gone, and its pod still runs"
        there.node.hardware(T4, T4)
        await there.node.until(lambda: agent.features.of(Use).reading.value.used_mib.get(there.node.uuids[0]) != 3200)
        there.node.hardware(BUSY, T4)
        await there.node.until(lambda: bool(there.events("GPUTrespass")))


async def test_beside_another_plugin_nobody_trespasses_on_a_node_that_serves_claims() -> None:
    async with dra_world([T4, T4], serve="dra", allowed=EVICTING | DRA_RIGHTS, **WATCHED) as there:
        there.node.show_processes()
        await there.start()
        agent = there.node.agent
        assert agent is not None
        with listening(there.node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await theirs(there)
            await reading_of(there, agent)
            assert nobody_is_accused(there, agent)


async def test_beside_another_plugin_the_kubelets_records_are_read_on() -> None:
    """The GPUs that the other plugin gives to containers are not shared after it has left, either."""
    async with world([T4, T4], reconcile_interval="100ms") as node:
        agent = await node.start_agent()
        await node.kubelet.admit(pod("ours", mem=3))
        with listening(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            agent.other_plugins.look()
            await node.until(lambda: node.sockets == set())
            path = node.kubelet.device_plugin_dir / "kubelet_internal_checkpoint"
            content = json.loads(path.read_text())
            theirs = {"PodUID": "77", "ContainerName": "main", "ResourceName": "nvidia.com/gpu"}
            given = {"DeviceIDs": {"-1": [node.uuids[1]]}, "AllocResp": ""}
            content["Data"]["PodDeviceEntries"].append(theirs | given)
            path.write_text(json.dumps(content))
            await node.until(
                lambda: agent.state.node.ledger.held_by_other_resource == {node.uuids[1]: "nvidia.com/gpu"}
            )
            await node.until(lambda: "77" in {allocation.pod_uid for allocation in agent.entries.value})


UNKNOWN = "example.com/slice"


async def given(node: NodeWorld) -> str:
    """Have a plugin of an unknown kind give a GPU to a container, and leave; return the UID of the container's pod."""
    answer = ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": node.uuids[1]})
    script = Script(allocate=lambda _: answer)
    plugin = ScriptedPlugin(node.kubelet.device_plugin_dir, UNKNOWN, {"slot-3": True}, script=script)
    await plugin.start()
    await node.until(lambda: UNKNOWN in node.kubelet.amounts)
    made = await node.kubelet.admit(PodSpec("theirs", (ContainerSpec("main", {UNKNOWN: 1}),)))
    await plugin.stop()
    return made.uid


async def test_a_plugin_that_nobody_knows_is_found_by_the_gpus_that_it_gave() -> None:
    async with cluster([T4, T4]) as there:
        there.node.settings["reconcile_interval"] = "100ms"
        there.api.patch("nodes", NODE, {"status": {"allocatable": {UNKNOWN: "8"}}}, subresource="status")
        agent = await there.node.start_agent()
        await given(there.node)
        await there.node.until(lambda: agent.state.node.ledger.held_by_other_resource == {there.node.uuids[1]: UNKNOWN})
        await there.node.until(lambda: bool(there.events("OtherDevicePlugin")))
        (event,) = there.events("OtherDevicePlugin")
        assert f"a container was allocated GPUs by {UNKNOWN}" in event["note"]
        await there.node.until(lambda: there.node.sockets == set())


async def test_what_another_plugin_gave_is_not_shared_when_it_has_left_and_nobody_trespasses_there() -> None:
    """An agent that starts only then has seen nothing but the kubelet's record."""
    async with cluster([T4, T4], allowed=EVICTING, **WATCHED) as there:
        there.node.show_processes()
        there.node.settings["reconcile_interval"] = "100ms"
        agent = await there.node.start_agent()
        uid = await given(there.node)
        await there.node.until(lambda: bool(agent.state.node.ledger.held_by_other_resource))
        there.node.process(77, replace(pod("x"), uid=uid), "5ad9" * 16)
        there.node.hardware(T4, BUSY)
        await there.node.until(lambda: agent.features.of(Use).reading.value.used_mib.get(there.node.uuids[1]) == 3200)
        assert nobody_is_accused(there, agent)
        await there.node.healthy_is(COUNT, 1)

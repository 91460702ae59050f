"""GPUs that somebody else hands out are not shared, and everybody can see why; when that ends, they are."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.names import COUNT, MEM
from tests.programs.node.cluster_harness import NODE, cluster
from tests.programs.node.harness import pod, world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.programs.node.harness import NodeWorld


@contextmanager
def listener(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


def launch(node: NodeWorld) -> None:
    """Start an agent that looks often."""
    node.launch().conflicting_plugins.look_s = 0.05


async def test_beside_another_device_plugin_nothing_is_registered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with world() as node:
        with listener(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            launch(node)
            assert node.agent is not None
            agent = node.agent
            await node.until(lambda: "GPUs of this node are not shared: NVIDIA's device plugin" in caplog.text)
            assert node.kubelet.registrations == []
            missing = await agent.serving_switch.ready()
            assert "nvidia.com/gpu.deploy.device-plugin=false" in missing[0]
            assert "--allow-other-plugins" in missing[0]
            assert await agent.serving_switch.alive() == (), "a restart would not help"
        await node.ready()  # the file is still there, and nobody listens
        assert await agent.serving_switch.ready() == ()
        assert node.healthy(MEM) == 28
        assert "GPUs are shared again: no other plugin hands them out" in caplog.text


async def test_one_that_comes_later_ends_the_sharing_and_running_pods_stay() -> None:
    async with world() as node:
        launch(node)
        await node.ready()
        made = await node.kubelet.admit(pod("p", mem=3))
        with listener(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
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
        with listener(path):
            launch(node)
            assert node.agent is not None
            others = node.agent.conflicting_plugins
            await node.until(lambda: bool(others.others.value))
            others.look_s = 60
        path.unlink()
        others.look()
        assert others.others.value
        others.look_s = 0
        others.look()
        assert others.others.value == ()


async def test_a_dra_driver_beside_the_pod_resources_socket_counts_too() -> None:
    async with world() as node:
        registry = node.kubelet.pod_resources_socket.parent.parent / "plugins_registry"
        with listener(registry / "gpu.nvidia.com-reg.sock"):
            launch(node)
            assert node.agent is not None
            agent = node.agent
            await node.until(lambda: bool(agent.conflicting_plugins.others.value))
            assert "nvidia.com/gpu.deploy.dra-driver=false" in agent.conflicting_plugins.unmet()[0]


async def test_who_allows_it_shares_beside_others_also_without_a_restart() -> None:
    async with world() as node:
        with listener(node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await node.start_agent(allow_other_plugins="true")
            assert node.agent is not None
            agent, allowing = node.agent, node.agent.settings.value
            await node.stop_agent()
            node.settings["allow_other_plugins"] = "false"
            agent = node.launch()
            await node.until(lambda: bool(agent.conflicting_plugins.others.value))
            agent.reload(allowing)
            await node.ready()


async def test_what_the_node_offers_by_the_api_counts_and_people_are_told_in_an_event() -> None:
    async with cluster() as there:
        there.api.patch("nodes", NODE, {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}, subresource="status")
        agent = there.node.launch()
        agent.conflicting_plugins.look_s = 0.05
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
        assert agent.conflicting_plugins.others.value == ()
        await there.node.until(lambda: [gpu["healthy"] for gpu in there.said_of_node()["gpus"]] == [True] * 2)

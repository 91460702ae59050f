"""What the kubelet is answered: for whom a call is, and what the container gets."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubelet.servicer import RefusalError
from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.allocation_handler import AllocationHandler
from gpu_device_plugin.node.extension import Features, GrantRequest, NodeFeature, StartRequest
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.matching import Call, ContainerRequest, Match, Matched, WaitingPod
from gpu_device_plugin.node.rules.node_config import NodeConfig
from tests import names
from tests.node.cluster_harness import cluster, promise
from tests.node.contexts import mps
from tests.node.harness import T4, gpus_of, pod, world
from tests.nodes import ids, node
from tests.resources import MEM

FREE = (*ids(0, range(8)), *ids(1, range(8)))
"""Of two GPUs of 8 shares."""


class Queue:
    """Pods that wait for 4 shares, in the order in which calls are matched with them."""

    def __init__(self, *uids: str, promise: Promise | None = None) -> None:
        wanted = ContainerRequest("main", Kind.MEMORY, 4, promise=promise)
        self.matches = [Match(WaitingPod(uid, f"default/{uid}", (wanted,), total_shares=6), wanted) for uid in uids]
        self.served_uids: list[str] = []
        self.waits = 0
        """How often the answer could have waited."""

    async def find(self, call: Call) -> Matched:
        self.waits += 1
        return self.find_now(call)

    def find_now(self, _call: Call) -> Matched:
        return Matched(self.matches.pop(0), {})

    def served(self, match: Match, _device_ids: frozenset[str]) -> None:
        self.served_uids.append(match.pod.uid)


def answering(waiting: Queue, folder: Path) -> AllocationHandler:
    state = NodeState(node(8, 8))
    there = SimpleNamespace(
        state=state,
        api=SimpleNamespace(waiting=waiting),
        metrics=m.Metrics(),
        config=Observable(NodeConfig(shares=state.node.shares)),
        dev=folder,
        features=Features(mps(folder / "no supervisor", state=state)),
    )
    return AllocationHandler(cast("NodeContext", there), on_refusal=lambda *_: None, on_grant=lambda: None)


async def test_the_pod_that_was_matched_when_the_kubelet_asked_is_served(tmp_path: Path) -> None:
    """Another pod that fits as well has come in between."""
    waiting = Queue("a", "b", promise=Promise(((1, 4),)))
    answers = answering(waiting, tmp_path)
    chosen = await answers.prefer(MEM, FREE, (), 4)
    assert set(chosen) == set(ids(1, range(4)))
    given = await answers.allocate(MEM, chosen)
    assert waiting.served_uids == ["a"]
    assert given.envs["ALIYUN_COM_GPU_MEM_POD"] == "6", "of all containers of the pod"


async def test_an_answer_that_must_not_wait_goes_by_the_pods_known_now(tmp_path: Path) -> None:
    waiting = Queue("a", "b", promise=Promise(((1, 4),)))
    answers = answering(waiting, tmp_path)
    for waits in (False, True):
        assert set(await answers.prefer(MEM, FREE, (), 4, waits=waits)) == set(ids(1, range(4)))
        assert waiting.waits == waits


async def test_an_answer_is_remembered_for_the_next_allocation_only(tmp_path: Path) -> None:
    waiting = Queue("a", "b", "c")
    answers = answering(waiting, tmp_path)
    chosen = await answers.prefer(MEM, FREE, (), 4)
    await answers.allocate(MEM, ids(1, range(4)))
    await answers.allocate(MEM, chosen)
    assert waiting.served_uids == ["b", "c"]


async def test_a_feature_without_a_part_in_an_answer_takes_none_of_its_time(tmp_path: Path) -> None:
    """The kubelet's only sync loop waits for it; here nobody asks for MPS."""
    answers = answering(Queue(), tmp_path)
    answers.features.add(NodeFeature())
    request = GrantRequest(lambda: Refusal(RefusalCode.UNHEALTHY, "out of service"))
    async with answers.features.granting(request):
        assert request.contributions == []


# --- In the whole agent -----------------------------------------------------------------------------------------------


async def test_f8_a_missing_device_node_is_told_with_the_command_that_makes_it() -> None:
    """nvidia-uvm often appears late after a boot; a container without it would start and then fail."""
    async with world([T4], devices="device-specs") as one:
        (one.dev / "nvidiactl").touch()
        await one.start_agent()
        refused = await one.kubelet.admit(pod("early", mem=3))
        assert "/dev/nvidia-uvm is not on this node yet; run `nvidia-modprobe -u -c 0` there" in refused.message
        (one.dev / "nvidia-uvm").touch()
        assert (await one.kubelet.admit(pod("late", mem=3))).phase == "Running"


async def test_several_whole_gpus_are_the_best_connected_ones() -> None:
    """GPUs 1 and 3 share a PCIe switch; the others are further from each other."""
    links = [{"gpus": [1, 3], "closeness": "switch"}]
    async with world([T4, T4, T4, T4]) as one:
        one.hardware(T4, T4, T4, T4, links=links)
        await one.start_agent()
        made = await one.kubelet.admit(pod("p", count=2))
        assert gpus_of(made, names.COUNT) == {one.uuids[1], one.uuids[3]}


@pytest.mark.parametrize("devices", ["device-specs", "cdi", "envvar,device-specs,cdi"])
async def test_gpus_reach_containers_as_the_administrator_chose(devices: str) -> None:
    async with world([T4, T4 | {"minor": 7}], devices=devices) as one:
        for name in ("nvidiactl", "nvidia-uvm"):
            (one.dev / name).touch()
        await one.start_agent()
        await one.kubelet.admit(pod("first", mem=14))
        received = (await one.kubelet.admit(pod("p", mem=3))).only.received
        second = one.uuids[1]
        nodes = [(each.host_path, each.container_path, each.permissions) for each in received.devices]
        expected = ["/dev/nvidia-uvm", "/dev/nvidia7", "/dev/nvidiactl"] if "device-specs" in devices else []
        assert sorted(nodes) == [(path, path, "rw") for path in expected]
        named = [device.name for device in received.cdi_devices]
        assert named == ([f"nvidia.com/gpu={second}"] if "cdi" in devices else [])
        assert received.envs["NVIDIA_VISIBLE_DEVICES"] == ("void" if devices == "cdi" else second)


async def test_a_container_waits_while_its_gpu_is_out_of_service() -> None:
    """Asked before each start; the kubelet tries again."""
    async with world([T4, T4], pre_start="true") as one:
        await one.start_agent()
        made = await one.kubelet.admit(pod("p", mem=3))
        one.hardware(T4 | {"error": "no answer"}, T4)
        await one.until(lambda: one.agent is not None and bool(one.agent.state.node.blocks))
        waiting = (await one.kubelet.restart_container(made, "main")).only
        assert not waiting.running
        assert "GPU 0 is unhealthy" in str(waiting.waiting)
        one.hardware(T4, T4)
        await one.until(lambda: one.agent is not None and not one.agent.state.node.blocks)
        assert (await one.kubelet.restart_container(made, "main")).only.running


class Asked(NodeFeature):
    """Takes note of each start that it is asked about."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self.asked = name, asked

    async def before_start(self, _start: StartRequest) -> Refusal | None:
        self.asked.append(self.name)
        return None


async def test_features_are_asked_about_a_start_in_service_alone_and_the_last_one_first() -> None:
    """Nobody has to give memory back for a container whose GPU is out of service."""
    async with world([T4, T4], pre_start="true") as one:
        agent, asked = await one.start_agent(), list[str]()
        made = await one.kubelet.admit(pod("p", mem=3))
        for name in ("first", "second"):
            agent.features.add(Asked(name, asked))
        assert (await one.kubelet.restart_container(made, "main")).only.running
        assert asked == ["second", "first"]
        one.hardware(T4 | {"error": "no answer"}, T4)
        await one.until(lambda: bool(agent.state.node.blocks))
        assert not (await one.kubelet.restart_container(made, "main")).only.running
        assert asked == ["second", "first"]


async def test_a_container_does_not_start_with_devices_that_the_kubelet_has_freed() -> None:
    """The kubelet called while the agent was stopped; our watch still shows the pod, which was deleted by force."""
    async with cluster([T4]) as it:
        await it.start_agent()
        made = await it.run(pod("p", mem=3), promise(0, 3))
        await it.node.confirmed()
        assert it.node.agent is not None
        ids, answers = tuple(made.only.devices[names.MEM]), it.node.agent._answers
        await answers.before_start(MEM, ids)
        await it.node.kubelet.delete(made, force=True)
        with pytest.raises(RefusalError, match="the pod of this container was deleted"):
            await answers.before_start(MEM, ids)

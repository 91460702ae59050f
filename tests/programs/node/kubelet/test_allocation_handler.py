"""What the kubelet is answered, and who else is told. Two GPUs of 8 shares unless a test says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.core.contract.promises import Promise
from gpu_device_plugin.core.model.resources import Kind, Resource
from gpu_device_plugin.core.node.limits.container_grants import Delivery
from gpu_device_plugin.core.node.matching import Call, Match, Matched, WaitingPod, Wanted
from gpu_device_plugin.core.node.node_config import NodeConfig
from gpu_device_plugin.core.node.preferred_allocation import UNMATCHED
from gpu_device_plugin.kubelet.servicer import RefusedError
from gpu_device_plugin.node_state import NodeState
from gpu_device_plugin.programs.node.kubelet.allocation_handler import AllocationHandler
from gpu_device_plugin.programs.node.limits.mps_link import MpsLink
from tests import names
from tests.nodes import ids, node
from tests.programs.node.harness import T4, gpus_of, pod, world
from tests.resources import MEM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpu_device_plugin.core.node.kubelet.admission import Refused
    from gpu_device_plugin.core.node.node import Node
    from gpu_device_plugin.programs.node.kubelet.waiting_pods import WaitingPods

FREE = (*ids(0, range(8)), *ids(1, range(8)))


def match_of(name: str, amount: int, promise: Promise | None = None, *, kind: Kind = Kind.MEMORY) -> Match:
    wanted = Wanted("main", kind, amount, promise=promise)
    return Match(WaitingPod(name, f"default/{name}", (wanted,), total_shares=amount + 2), wanted)


@dataclass
class Queue:
    """Pods that wait, in the order in which they are found."""

    matches: list[Matched] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    waits: int = 0
    """How often the answer could have waited."""

    async def find(self, call: Call) -> Matched:
        self.waits += 1
        return self.find_now(call)

    def find_now(self, call: Call) -> Matched:
        self.calls.append(call)
        return self.matches.pop(0) if self.matches else UNMATCHED

    def served(self, match: Match, device_ids: frozenset[str]) -> None:
        self.told.append(("served", f"{match.pod.uid} {len(device_ids)}"))

    def refused(self, match: Match) -> None:
        self.told.append(("refused", match.pod.uid))


@dataclass
class Counts(m.Metrics):
    """What was counted."""

    counted: list[tuple[str, ...]] = field(default_factory=list)

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        self.counted += [(what.name.removeprefix("gpushare_"), *labels)] * times


@dataclass
class Desk:
    """Answers with everything around them that they speak to."""

    node: Node
    dev: Path
    policy: str = "binpack"
    serving_switch: tuple[str, ...] = ("envvar",)
    waiting: Queue = field(default_factory=Queue)
    alone: bool = False
    """There is no API server."""
    metrics: Counts = field(default_factory=Counts)
    refusals: list[tuple[Kind, int, Refused]] = field(default_factory=list)
    grants: int = 0
    answers: AllocationHandler = field(init=False)

    def __post_init__(self) -> None:
        self.state = NodeState(self.node)
        self.answers = AllocationHandler(
            self.state,
            None if self.alone else cast("WaitingPods", self.waiting),
            self.metrics,
            config=Observable(
                NodeConfig(
                    shares=self.node.shares, policy=self.policy, delivery=Delivery(frozenset(self.serving_switch))
                )
            ),
            dev=self.dev,
            on_refusal=lambda kind, amount, refused: self.refusals.append((kind, amount, refused)),
            on_grant=self._granted,
            mps=MpsLink(self.dev / "no supervisor", self.state, Observable(()), lambda *_: None),
        )

    def _granted(self) -> None:
        self.grants += 1

    async def prefer(self, amount: int, *, must: Sequence[str] = (), free: Sequence[str] = FREE) -> set[str]:
        return set(await self.answers.prefer(MEM, free, must, amount))

    async def refused(self, device_ids: Sequence[str], resource: Resource = MEM) -> str:
        with pytest.raises(RefusedError) as caught:
            await self.answers.allocate(resource, device_ids)
        return str(caught.value)


# --- Device nodes -----------------------------------------------------------------------------------------------------


async def test_f8_a_missing_device_node_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    """nvidia-uvm often appears late after a boot; a container without it would start and then fail."""
    (tmp_path / "nvidiactl").touch()
    desk = Desk(node(8), tmp_path, serving_switch=("device-specs",))
    said = await desk.refused(ids(0, [0]))
    assert said.startswith("/dev/nvidia-uvm is not on this node yet; run `nvidia-modprobe -u -c 0` there")
    assert desk.metrics.counted == [("refusals_total", "aliyun.com/gpu-mem", "no_device_node")]
    (tmp_path / "nvidia-uvm").touch()
    assert (await desk.answers.allocate(MEM, ids(0, [0]))).device_nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm")


# --- Whose call is it? ------------------------------------------------------------------------------------------------


async def test_who_was_thought_of_when_the_kubelet_asked_is_who_is_served(tmp_path: Path) -> None:
    """Another pod that fits as well has come in between."""
    desk = Desk(node(8, 8), tmp_path)
    desk.waiting.matches = [Matched(match_of("a", 4, Promise(((1, 4),))), {}), Matched(match_of("b", 4), {})]
    chosen = await desk.prefer(4)
    assert chosen == set(ids(1, range(4)))
    given = await desk.answers.allocate(MEM, sorted(chosen))
    assert desk.waiting.told == [("served", "a 4")]
    assert given.envs["ALIYUN_COM_GPU_MEM_POD"] == "6", "of all containers of the pod"
    assert len(desk.waiting.calls) == 1


async def test_an_answer_that_must_not_wait_goes_by_the_pods_known_now(tmp_path: Path) -> None:
    desk = Desk(node(8, 8), tmp_path)
    desk.waiting.matches = [Matched(match_of("a", 4, Promise(((1, 4),))), {})] * 2
    assert set(await desk.answers.prefer(MEM, FREE, (), 4, waits=False)) == set(ids(1, range(4)))
    assert (len(desk.waiting.calls), desk.waiting.waits) == (1, 0)
    await desk.prefer(4)
    assert (len(desk.waiting.calls), desk.waiting.waits) == (2, 1)


async def test_an_answer_is_remembered_for_the_next_allocation_only(tmp_path: Path) -> None:
    desk = Desk(node(8, 8), tmp_path)
    desk.waiting.matches = [Matched(match_of("a", 4), {}), Matched(match_of("b", 4), {}), Matched(match_of("c", 4), {})]
    chosen = sorted(await desk.prefer(4))
    await desk.answers.allocate(MEM, ids(1, range(4)))
    await desk.answers.allocate(MEM, chosen)
    assert desk.waiting.told == [("served", "b 4"), ("served", "c 4")]


# --- In the whole agent -----------------------------------------------------------------------------------------------


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
        assert received.cdi_devices == ((f"nvidia.com/gpu={second}",) if "cdi" in devices else ())
        assert received.envs["NVIDIA_VISIBLE_DEVICES"] == ("void" if devices == "cdi" else second)


async def test_a_container_waits_while_its_gpu_is_out_of_service() -> None:
    """Asked before each start; the kubelet tries again."""
    async with world([T4, T4], pre_start="true") as one:
        await one.start_agent()
        made = await one.kubelet.admit(pod("p", mem=3))
        one.hardware(T4 | {"error": "no answer"}, T4)
        await one.until(lambda: one.agent is not None and bool(one.agent.state.node.unhealthy))
        waiting = (await one.kubelet.restart_container(made, "main")).only
        assert not waiting.running
        assert "GPU 0 is out of service" in str(waiting.waiting)
        one.hardware(T4, T4)
        await one.until(lambda: one.agent is not None and not one.agent.state.node.unhealthy)
        assert (await one.kubelet.restart_container(made, "main")).only.running

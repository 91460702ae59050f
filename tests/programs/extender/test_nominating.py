"""A pod that fits on no node of kube-scheduler's sample, and on another one, is nominated for that one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.cluster.client.errors import Call, ForbiddenError, NotFoundError
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.model.resources import Amounts
from gpu_device_plugin.metrics import SAMPLE_MISSES
from gpu_device_plugin.programs.extender.nominating import SMALLEST_SAMPLE, Nominator
from gpu_device_plugin.testing.builders import GPU_MEM, container, pod
from tests.patience import eventually
from tests.programs.extender.harness import world as cluster
from tests.programs.extender.test_verbs import World, node_gpus, read, running, wanting

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

SAMPLE = [f"full-{at:03}" for at in range(SMALLEST_SAMPLE)]


@dataclass
class Asked:
    """Takes every nomination, of the best node."""

    nodes: list[str] = field(default_factory=list)
    gives_up: bool = False

    def __call__(self, _pod: Pod, nodes: Sequence[str]) -> str | None:
        self.nodes = list(nodes)
        return None if self.gives_up else nodes[0]


def sampled(*, gives_up: bool = False) -> tuple[World, Asked]:
    """Return nodes on whose GPUs no pod of 8 shares fits, and who is asked to nominate another node."""
    world, asked = World(), Asked(gives_up=gives_up)
    for name in SAMPLE:
        world.node(name, 6, 6)
    world.verbs.nominate = asked
    return world, asked


def misses(world: World) -> dict[str, int]:
    return {outcome: number for (name, outcome), number in world.metrics.counts.items() if name == SAMPLE_MISSES.name}


# --- What filter answers ---------------------------------------------------------------------------------------------


def test_a_pod_that_fits_only_outside_the_sample_is_an_error_that_names_the_node() -> None:
    world, _ = sampled()
    world.node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE)
    assert answer["Error"] == "none of the 100 nodes of kube-scheduler's sample has room; node roomy is tried next"
    assert not answer.get("FailedNodes")
    assert misses(world) == {"nominated": 1}


def test_fewer_names_than_a_sample_are_all_nodes_that_passed() -> None:
    world, asked = sampled()
    world.node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE[1:])
    assert not answer["Error"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(SAMPLE[1:])
    assert (asked.nodes, misses(world)) == ([], {})


def test_without_room_elsewhere_the_sample_is_answered_as_usual() -> None:
    world, asked = sampled()
    world.node("full", 16).runs(running("p", "full", 0, 10))
    assert not world.filter(wanting(8), *SAMPLE)["Error"]
    assert (asked.nodes, misses(world)) == ([], {})


def test_a_pod_that_was_given_enough_nodes_is_refused_as_usual_and_counted() -> None:
    world, _ = sampled(gives_up=True)
    world.node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE)
    assert not answer["Error"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(SAMPLE)
    assert misses(world) == {"refused": 1}


def test_the_best_node_comes_first_and_none_that_the_scheduler_would_refuse() -> None:
    """Binpack: the smallest GPU. Cordoned nodes and those without enough CPU are left out."""
    world, asked = sampled()
    for name, size, cpu in (("large", 32, 4000), ("small", 8, 4000), ("short", 8, 100)):
        gpus = gpus_of_node({"gpu-device-plugin/gpus": node_gpus(size)}, {}, size, 1)
        world.fleet.put_node(name, gpus, Amounts(cpu, 4096))
    world.node("cordoned", 8)
    world.verbs.closed = {"cordoned"}
    wanted = pod("wanted", container(mem=8))
    wanted["spec"]["containers"][0]["resources"]["requests"] = {GPU_MEM: "8", "cpu": "1"}
    world.filter(wanted, *SAMPLE)
    assert asked.nodes == ["small", "large"]


def test_nodes_like_those_of_the_sample_are_preferred() -> None:
    """Others may be tainted, or lack a label that the pod selects."""
    world, asked = sampled()
    for name in SAMPLE:
        world.node(name, 8, 8).runs(*(running(f"{at}-{name}", name, at, 2) for at in range(2)))
    world.node("like", 8, 8).node("other", 8)
    assert "node like is tried next" in world.filter(wanting(8), *SAMPLE)["Error"]
    assert asked.nodes == ["like"]


def test_room_that_time_alone_makes_outside_the_sample_is_waited_for() -> None:
    world, _ = sampled()
    vanishing = running("vanishing", "soon", 0, 10)
    world.node("soon", 16).runs(vanishing)
    world.fleet.remove_pod(read(vanishing), 0.0)
    assert world.filter(wanting(8), *SAMPLE)["Error"].startswith("node soon: ")
    assert not world.filter(wanting(8), *SAMPLE[1:])["Error"]


# --- Which node is nominated -----------------------------------------------------------------------------------------


class Api:
    """Takes patches."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []
        self.errors: list[Exception] = []

    async def patch(self, _kind: object, name: str, body: Any, *, namespace: str, subresource: str) -> bytes:
        assert (namespace, subresource) == ("team", "status")
        self.patches.append((name, body))
        if self.errors:
            raise self.errors.pop(0)
        return b""


@dataclass
class Nominating:
    """A nominator, its clock and the pods that wait."""

    api: Api = field(default_factory=Api)
    now: float = 100.0
    waiting: set[str] = field(default_factory=lambda: {"u-a", "u-b", "u-c"})

    def __post_init__(self) -> None:
        self.nominator = Nominator(self.api, lambda: self.waiting, delay_s=0.0, clock=lambda: self.now)  # type: ignore[arg-type]

    def nominate(self, name: str, nodes: str) -> str | None:
        return self.nominator.nominate(Pod(f"u-{name}", "team", name), nodes.split())


def test_a_pod_gets_the_best_node_and_after_it_those_that_it_did_not_have() -> None:
    world = Nominating()
    assert [world.nominate("a", "x y z") for _ in range(4)] == ["x", "y", "z", "x"]


def test_pods_share_a_node_only_if_each_has_one() -> None:
    world = Nominating()
    assert [world.nominate(name, "x y") for name in "abc"] == ["x", "y", "x"]
    world.waiting.remove("u-b")
    assert world.nominate("b", "x y") == "y"


def test_a_pod_gets_six_nodes_in_five_minutes() -> None:
    world = Nominating()
    assert [world.nominate("a", "x") for _ in range(7)] == ["x"] * 6 + [None]
    assert world.nominate("a", "y") is None
    world.now += 299
    assert world.nominate("a", "x") is None
    assert world.nominate("b", "x") == "x"
    world.now += 1
    assert world.nominate("a", "x") == "x"
    assert repr(world.nominator) == "<Nominator: 2 pods, 8 to be written>"


def test_without_nodes_nothing_is_nominated() -> None:
    assert Nominating().nominate("a", "") is None


async def test_nominations_are_written_and_one_that_fails_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    world = Nominating()
    call = Call("patch", "pods/status", "", "team", "a")
    world.api.errors = [ForbiddenError(call, "may not"), NotFoundError(call, "gone")]
    for name in "abc":
        world.nominate(name, f"node-{name}")
    world.nominator.nominate(Pod("u-bound", "team", "bound"), ["node-d"])
    task = asyncio.create_task(world.nominator.run())
    await eventually(lambda: len(world.api.patches) == 3)
    assert world.api.patches[2] == ("c", {"metadata": {"uid": "u-c"}, "status": {"nominatedNodeName": "node-c"}})
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "a node could not be nominated for a pod; kube-scheduler looks for one by itself"
    ]
    task.cancel()
    await asyncio.wait({task})
    assert "bound" not in dict(world.api.patches)


# --- All together ----------------------------------------------------------------------------------------------------


async def test_the_last_room_outside_the_sample_is_found_and_nobody_is_evicted_for_it() -> None:
    """Of 120 nodes only the last has room; the sums of all suffice, and each has a pod that could be evicted."""
    async with cluster() as w:
        for at in range(119):
            w.node(f"n{at:03}", 6, 6)
        w.node("roomy", 16)
        w.pod("low", mem=4, node="n000", priority=-1)
        await w.start()
        w.pod("wanted", mem=8)
        async with w.scheduler() as scheduler:
            task = asyncio.create_task(scheduler.run())
            await w.until(lambda: bool(w.where("wanted")))
            task.cancel()
            await asyncio.wait({task})
        assert w.where("wanted") == "roomy"
        assert w.api.count("patch", "pods/status") == 1
        assert scheduler.calls["preempt"] == 0
        assert w.get("low")["metadata"].get("deletionTimestamp") is None

"""A pod that fits on no node of kube-scheduler's sample, and on another one, is nominated for that one."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.cluster.client.errors import Call, ForbiddenError, NotFoundError
from gpu_device_plugin.core.contract.keys import NODE_GPUS
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.model.resources import Amounts
from gpu_device_plugin.metrics import SAMPLE_MISSES
from gpu_device_plugin.programs.extender.nominating import SMALLEST_SAMPLE, Nominator
from gpu_device_plugin.testing.builders import GPU_MEM, Json
from tests.patience import eventually
from tests.programs.extender.harness import world as cluster
from tests.programs.extender.test_verbs import World, node_gpus, read, running, wanting

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

SAMPLE = [f"full-{at:03}" for at in range(SMALLEST_SAMPLE)]


def sampled() -> World:
    """Return nodes on whose GPUs no pod of 8 shares fits."""
    world = World()
    for name in SAMPLE:
        world.node(name, 6, 6)
    return world


def misses(world: World) -> dict[str, int]:
    return {outcome: number for (name, outcome), number in world.metrics.counts.items() if name == SAMPLE_MISSES.name}


def tried_next(world: World, wanted: Json, names: Sequence[str] = SAMPLE) -> str:
    """Return the node that is nominated for a pod; empty: none is."""
    error = world.filter(wanted, *names)["Error"]
    found = re.fullmatch(r"none of the 100 nodes of kube-scheduler's sample has room; node (\S+) is tried next", error)
    assert bool(found) is bool(error)
    return found[1] if found else ""


# --- What filter answers ---------------------------------------------------------------------------------------------


def test_a_pod_that_fits_only_outside_the_sample_is_an_error_that_names_the_node() -> None:
    world = sampled().node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE)
    assert answer["Error"] == "none of the 100 nodes of kube-scheduler's sample has room; node roomy is tried next"
    assert not answer.get("FailedNodes")
    assert misses(world) == {"nominated": 1}


def test_fewer_names_than_a_sample_are_all_nodes_that_passed() -> None:
    world = sampled().node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE[1:])
    assert not answer["Error"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(SAMPLE[1:])
    assert misses(world) == {}


def test_without_room_elsewhere_the_sample_is_answered_as_usual() -> None:
    world = sampled().node("full", 16).runs(running("p", "full", 0, 10))
    assert not tried_next(world, wanting(8))
    assert misses(world) == {}


def test_a_pod_that_was_given_enough_nodes_is_refused_as_usual_and_counted() -> None:
    world = sampled().node("roomy", 16)
    assert [tried_next(world, wanting(8)) for _ in range(6)] == ["roomy"] * 6
    answer = world.filter(wanting(8), *SAMPLE)
    assert not answer["Error"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(SAMPLE)
    assert misses(world) == {"nominated": 6, "refused": 1}


def test_the_best_node_comes_first_and_none_that_the_scheduler_would_refuse() -> None:
    """Binpack: the smallest GPU. Cordoned nodes and those without enough CPU are left out."""
    world = sampled()
    for name, size, cpu in (("large", 32, 4000), ("small", 8, 4000), ("short", 8, 100)):
        gpus = gpus_of_node({NODE_GPUS: node_gpus(size)}, {}, size, 1)
        world.fleet.put_node(name, gpus, Amounts(cpu, 4096))
    world.node("cordoned", 8)
    world.verbs.closed = {"cordoned"}
    wanted = wanting(8)
    wanted["spec"]["containers"][0]["resources"]["requests"] = {GPU_MEM: "8", "cpu": "1"}
    assert [tried_next(world, wanted) for _ in range(3)] == ["small", "large", "small"]


def test_nodes_that_the_scheduler_has_named_for_like_pods_are_preferred() -> None:
    """Others may be tainted, or lack a label that the pod selects."""
    world = sampled().node("named", 32).node("better", 8)
    world.filter(wanting(1), *SAMPLE[1:], "named")
    assert tried_next(world, wanting(8)) == "named"
    selective = wanting(8)
    selective["spec"]["nodeSelector"] = {"pool": "a"}
    assert tried_next(world, selective) == "better"


def test_a_nominated_node_that_the_scheduler_asks_about_is_none_that_it_refuses() -> None:
    world = sampled().node("roomy", 16)
    assert tried_next(world, wanting(8)) == "roomy"
    assert world.filter(wanting(8), "roomy")["NodeNames"] == ["roomy"]


def test_room_that_time_alone_makes_outside_the_sample_is_waited_for() -> None:
    vanishing = running("vanishing", "soon", 0, 10)
    world = sampled().node("soon", 16).runs(vanishing)
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

    def nominate(self, name: str, nodes: str, kind: int = 1) -> str | None:
        """Nominate one of these nodes; the score of each is the negative place of its name in the alphabet."""
        pod = Pod(f"u-{name}", "team", name)
        return self.nominator.nominate(pod, kind, nodes.split(), lambda some: [-ord(each[0]) for each in some])

    async def written(self, number: int = 1) -> None:
        """Have nominations written, and let kube-scheduler see them."""
        before = len(self.api.patches)
        task = asyncio.create_task(self.nominator.run())
        await eventually(lambda: len(self.api.patches) == before + number)
        task.cancel()
        await asyncio.wait({task})
        self.now += 0.3


def test_a_pod_gets_the_best_node_and_after_it_those_that_it_did_not_have() -> None:
    world = Nominating()
    assert [world.nominate("a", "z y x") for _ in range(4)] == ["x", "y", "z", "x"]


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


async def test_a_node_that_the_plugins_refuse_is_left_out_for_pods_of_the_kind() -> None:
    world = Nominating()
    assert world.nominate("a", "x y") == "x"
    await world.written()
    assert world.nominate("a", "x y") == "y"
    assert world.nominate("b", "x z") == "z"
    assert world.nominate("c", "x", kind=2) == "x"


async def test_three_refused_nodes_are_enough_for_pods_of_a_kind_but_for_nodes_that_were_named() -> None:
    """Or each of the pods that a full pool keeps waiting would be tried on the nodes of another pool."""
    world = Nominating()
    for node in "uvw":
        assert world.nominate("a", "u v w x") == node
        await world.written()
    assert world.nominate("a", "u v w x y") is None
    assert world.nominate("b", "y") is None
    world.nominator.sampled(1, ["y", "w"])
    assert world.nominate("b", "x y") == "y"
    assert world.nominate("c", "v w") == "w"
    world.now += 300
    assert world.nominate("b", "x") == "x"


async def test_a_node_that_kube_scheduler_has_tried_or_not_seen_yet_is_not_refused() -> None:
    world = Nominating()
    world.nominate("a", "x")
    await world.written()
    world.nominator.tried("u-a", "other")
    world.nominator.tried("u-a", "x")
    world.nominator.tried("u-b", "x")
    assert world.nominate("b", "x") == "x"
    await world.written()
    world.now -= 0.2
    assert world.nominate("b", "x") == "x"


def test_some_kinds_of_pods_are_remembered_with_some_nodes() -> None:
    world = Nominating()
    for kind in range(17):
        world.nominator.sampled(kind, ["z"])
    assert world.nominate("a", "x z", kind=16) == "z"
    assert world.nominate("b", "x z", kind=0) == "x"
    world.nominator.sampled(16, [f"n{at}" for at in range(50_001)])
    world.nominator.sampled(16, ["y"])
    assert world.nominate("c", "x y z", kind=16) == "y"


def test_without_nodes_nothing_is_nominated() -> None:
    assert Nominating().nominate("a", "") is None


async def test_nominations_are_written_and_one_that_fails_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    world = Nominating()
    world.waiting.add("u-bound")
    call = Call("patch", "pods/status", "", "team", "a")
    world.api.errors = [ForbiddenError(call, "may not"), NotFoundError(call, "gone")]
    for name in ("a", "b", "bound", "c"):
        world.nominate(name, f"node-{name}")
    world.waiting.remove("u-bound")
    await world.written(3)
    assert [name for name, _ in world.api.patches] == ["a", "b", "c"]
    assert world.api.patches[2][1] == {"metadata": {"uid": "u-c"}, "status": {"nominatedNodeName": "node-c"}}
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "a node could not be nominated for a pod; kube-scheduler looks for one by itself"
    ]
    assert world.nominate("a", "node-a") == "node-a", "a node that was not written is not refused"


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

"""A pod that fits on no node of kube-scheduler's sample, and on another one, is nominated for that one."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_device_plugin.features.sample_misses import scheduler as nominating
from gpu_device_plugin.features.sample_misses.scheduler import Nominator
from gpu_device_plugin.kubernetes.client.errors import Call, ForbiddenError, NotFoundError
from gpu_device_plugin.metrics import SAMPLE_MISSES
from gpu_device_plugin.model.contract.keys import ALLOCATION, NODE_GPUS
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.wire import SMALLEST_SAMPLE
from tests.builders import GPU_MEM, Json
from tests.patience import eventually
from tests.scheduler.contexts import context
from tests.scheduler.harness import world as cluster
from tests.scheduler.test_verbs import World, node_gpus, read, running, wanting

SAMPLE = [f"full-{at:03}" for at in range(SMALLEST_SAMPLE)]


class Api:
    """Takes patches."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []
        self.errors: list[Exception] = []
        self.hangs = False

    async def patch(self, _kind: object, name: str, body: Any, *, namespace: str, subresource: str) -> bytes:
        assert (bool(namespace), subresource) == (True, "status")
        self.patches.append((name, body))
        if self.errors:
            raise self.errors.pop(0)
        if self.hangs:
            await asyncio.Event().wait()
        return b""


async def written(nominator: Nominator, api: Api, number: int) -> None:
    """Have nominations written until there are so many."""
    task = asyncio.create_task(nominator.run())
    await eventually(lambda: len(api.patches) == number)
    task.cancel()
    await asyncio.wait({task})


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
    found = re.fullmatch(
        r"none of the 100 nodes of kube-scheduler's sample has room; node (\S+), which has room, is proposed to it",
        error,
    )
    assert bool(found) is bool(error)
    return found[1] if found else ""


# --- What filter answers ---------------------------------------------------------------------------------------------


def test_a_pod_that_fits_only_outside_the_sample_is_an_error_that_names_the_node() -> None:
    world = sampled().node("roomy", 16)
    answer = world.filter(wanting(8), *SAMPLE)
    assert (
        answer["Error"]
        == "none of the 100 nodes of kube-scheduler's sample has room; node roomy, which has room, is proposed to it"
    )
    assert not answer.get("FailedNodes")
    assert misses(world) == {"nominated": 1}


def test_a_pod_is_not_refused_while_the_search_outside_the_sample_goes_on() -> None:
    """On the first nodes there is no room, which takes long to find; on the last there is, which takes a search too."""
    world = sampled().node("a", 11, 12, 13, 19, 20, 26).node("b", 11, 11, 13, 19, 20, 26)
    world.node("c", 12, 12, 13, 18, 19, 26).filter(wanting(8), *SAMPLE)  # so that "roomy" has the last row
    world.node("roomy", 14, 14, 14, 15, 19, 19)
    wanted = wanting(7, 9, 7, 5, 10, 7, 10, 7, 7, 7, 9, 10)
    errors = list[str]()
    while not errors or "not finished" in errors[-1]:
        errors.append(world.filter(wanted, *SAMPLE)["Error"])
        assert len(errors) < 10
    assert len(errors) > 1
    assert "roomy" in errors[-1]


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
    world.missed.put_node(NodeRecord("cordoned", "u", "1", unschedulable=True))
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


def lower(world: World, name: str, shares: int, priority: int) -> World:
    """Add a node with a GPU of 16, on which a pod has so many shares."""
    return world.node(name, 16).runs(running(f"on-{name}", name, 0, shares, priority=priority))


def proposed_for_evictions(world: World, wanted: Json) -> str:
    error = world.filter(wanted, *SAMPLE)["Error"]
    found = re.search(r"; node (\S+), which may have room once other pods are evicted, is proposed to it$", error)
    assert bool(found) is bool(error)
    return found[1] if found else ""


def test_a_node_on_which_evicting_may_help_is_proposed_where_no_node_has_room() -> None:
    """kube-scheduler looks for pods to evict only on nodes that it has looked at. The lowest priority goes first."""
    world = lower(lower(sampled(), "low", 16, 2), "lowest", 16, 1)
    assert proposed_for_evictions(world, wanting(8, priority=5)) == "lowest"
    assert proposed_for_evictions(world, wanting(8, priority=5)) == "low"
    assert proposed_for_evictions(world, wanting(8, priority=1)) == ""
    assert misses(world) == {}


def test_once_a_node_is_nominated_kube_scheduler_may_evict() -> None:
    wanted = wanting(8, priority=5)
    wanted["status"] = {"nominatedNodeName": "low"}
    assert proposed_for_evictions(lower(sampled(), "low", 16, 2), wanted) == ""


def test_a_pod_that_evicts_nobody_is_proposed_no_node_for_that() -> None:
    wanted = wanting(8, priority=5)
    wanted["spec"]["preemptionPolicy"] = "Never"
    assert proposed_for_evictions(lower(sampled(), "low", 16, 2), wanted) == ""


async def test_a_nomination_is_withdrawn_where_kube_scheduler_would_keep_it() -> None:
    """Of a pod that evicts nobody it keeps the nominated node, and room for the pod there."""
    api = Api()
    world = World(client=api)
    for name in SAMPLE:
        world.node(name, 6, 6)
    world.node("roomy", 16)
    wanted = wanting(8)
    wanted["spec"]["preemptionPolicy"] = "Never"
    assert tried_next(world, wanted) == "roomy"
    world.runs(running("first", "roomy", 0, 16))
    wanted["status"] = {"nominatedNodeName": "other"}
    world.filter(wanted, *SAMPLE)
    await written(world.nominator, api, 1)
    wanted["status"] = {"nominatedNodeName": "roomy"}
    world.filter(wanted, *SAMPLE)
    await written(world.nominator, api, 2)
    assert [body["status"]["nominatedNodeName"] for _, body in api.patches] == ["roomy", None]


def test_room_that_time_alone_makes_outside_the_sample_is_waited_for() -> None:
    vanishing = running("vanishing", "soon", 0, 10)
    world = sampled().node("soon", 16).runs(vanishing)
    world.fleet.remove_pod(read(vanishing), 0.0)
    assert world.filter(wanting(8), *SAMPLE)["Error"].startswith("node soon: ")
    assert not world.filter(wanting(8), *SAMPLE[1:])["Error"]


# --- Which node is nominated -----------------------------------------------------------------------------------------


@dataclass
class Nominating:
    """A nominator, its clock and the pods that wait."""

    api: Api = field(default_factory=Api)
    now: float = 100.0
    waiting: set[str] = field(default_factory=lambda: {"u-a", "u-b", "u-c"})
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        fleet = SimpleNamespace(pending=self.waiting)
        self.nominator = Nominator(context(fleet, client=self.api, clock=lambda: self.now, nominate_s=self.delay_s))

    def nominate(self, name: str, nodes: str, kind: int = 1) -> str | None:
        """Nominate one of these nodes; the score of each is the negative place of its name in the alphabet."""
        pod = Pod(f"u-{name}", "team", name)
        return self.nominator.nominate(pod, kind, nodes.split(), lambda some: [-ord(each[0]) for each in some])


def test_a_pod_gets_the_best_node_and_after_it_those_that_it_did_not_have() -> None:
    world = Nominating()
    assert [world.nominate("a", "z y x") for _ in range(4)] == ["x", "y", "z", "x"]


def test_pods_share_a_node_only_if_each_has_one() -> None:
    world = Nominating()
    world.nominator.asked("", 1, ["x", "y"] * 50)
    assert [world.nominate(name, "x y") for name in "abc"] == ["x", "y", "x"]
    world.waiting.remove("u-b")
    assert world.nominate("b", "x y") == "y"


def test_a_pod_gets_six_nodes_in_five_minutes() -> None:
    world = Nominating()
    world.nominator.asked("", 1, ["x"] * 100)
    assert [world.nominate("a", "x") for _ in range(7)] == ["x"] * 6 + [None]
    assert world.nominate("a", "y") is None
    world.now += 299
    assert world.nominate("a", "x") is None
    assert world.nominate("b", "x") == "x"
    world.now += 1
    assert world.nominate("a", "x") == "x"


def test_three_nodes_are_guessed_for_pods_of_a_kind() -> None:
    """Or each of the pods that a full pool keeps waiting would be tried on the nodes of another pool."""
    world = Nominating()
    assert [world.nominate("a", "u v w x") for _ in range(7)] == [*"uvwuvw", None]
    assert world.nominate("b", "u v w x") is None
    assert world.nominate("c", "x", kind=2) == "x"
    world.now += 300
    assert world.nominate("b", "u v") == "u"


def test_nodes_that_kube_scheduler_names_or_asks_about_are_no_guesses() -> None:
    world = Nominating()
    assert [world.nominate("a", "u v w") for _ in range(3)] == ["u", "v", "w"]
    world.nominator.asked("u-a", 1, ["v"])
    world.nominator.asked("u-b", 1, ["w"])
    assert world.nominate("b", "u v w x") is None
    world.nominator.asked("u-a", 1, ["w"])
    assert world.nominate("b", "u v w x") == "w"
    world.nominator.asked("u-c", 1, ["x"] * 100)
    world.nominator.asked("u-c", 1, ["y"] * 99)
    assert [world.nominate("c", "u x y") for _ in range(2)] == ["x", "x"]


def test_some_kinds_of_pods_are_remembered_with_some_nodes() -> None:
    world = Nominating()
    for kind in range(17):
        world.nominator.asked("", kind, ["z"] * 100)
    assert world.nominate("a", "x z", kind=16) == "z"
    assert world.nominate("b", "x z", kind=0) == "x"
    for at in range(0, 51_000, 1000):
        world.nominator.asked("", 16, [f"n{at + each}" for each in range(1000)])
    world.nominator.asked("", 16, ["x"] * 1001)
    world.nominator.asked("", 16, ["y"] * 100)
    assert world.nominate("c", "x y z", kind=16) == "y"


def test_kinds_of_pods_that_were_never_sampled_are_forgotten_too() -> None:
    """Where all of thousands of nodes are named nothing is learned, and owners choose as many kinds as they like."""
    world = Nominating()
    assert world.nominate("a", "x", kind=0) == "x"
    assert world.nominate("b", "x", kind=0) is None
    for kind in range(1, 17):
        world.nominate("c", "y", kind=kind)
    assert world.nominate("b", "x", kind=0) == "x"


def test_without_nodes_nothing_is_nominated() -> None:
    assert Nominating().nominate("a", "") is None


async def test_nominations_are_written_and_one_that_fails_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    world = Nominating()
    world.waiting.add("u-bound")
    call = Call("patch", "pods/status", "", "team", "a")
    world.api.errors = [ForbiddenError(call, "may not"), NotFoundError(call, "gone")]
    for kind, name in enumerate(("a", "b", "bound", "c")):
        world.nominate(name, f"node-{name}", kind)
    assert repr(world.nominator) == "<Nominator: 4 pods, 4 to be written>"
    world.waiting.remove("u-bound")
    await written(world.nominator, world.api, 3)
    assert [name for name, _ in world.api.patches] == ["a", "b", "c"]
    assert world.api.patches[2][1] == {"metadata": {"uid": "u-c"}, "status": {"nominatedNodeName": "node-c"}}
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "a node could not be nominated for a pod; kube-scheduler looks for one by itself"
    ]


async def test_only_the_latest_nomination_is_written_and_none_that_is_late() -> None:
    world = Nominating()
    world.nominate("a", "x")
    world.now += 1
    for kind, (name, nodes) in enumerate((("b", "y"), ("c", "z"), ("b", "u"))):
        world.nominate(name, nodes, kind)
    world.nominator.withdraw(Pod("u-c", "team", "c"))
    await written(world.nominator, world.api, 2)
    assert [(name, body["status"]["nominatedNodeName"]) for name, body in world.api.patches] == [
        ("b", "u"),
        ("c", None),
    ]


async def test_a_nomination_waits_for_what_kube_scheduler_writes() -> None:
    world = Nominating(delay_s=0.05)
    task = asyncio.create_task(world.nominator.run())
    await asyncio.sleep(0)
    world.nominate("a", "x")
    await asyncio.sleep(0.01)
    assert not world.api.patches
    world.now += 0.05
    await eventually(lambda: len(world.api.patches) == 1)
    task.cancel()
    await asyncio.wait({task})


async def test_an_api_server_that_does_not_answer_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nominating, "_TOO_LATE_S", 0.01)
    world = Nominating()
    world.api.hangs = True
    world.nominate("a", "x")
    task = asyncio.create_task(world.nominator.run())
    await eventually(
        lambda: any(getattr(each, "why", "") == "the API server did not answer" for each in caplog.records)
    )
    task.cancel()
    await asyncio.wait({task})


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


async def test_pods_of_lower_priority_are_evicted_from_a_node_outside_the_sample() -> None:
    """Of 120 nodes the sums of 119 suffice, and no GPU does; on the last one a pod may be evicted."""
    async with cluster() as w:
        for at in range(119):
            w.node(f"n{at:03}", 6, 6)
        w.node("low", 16)
        w.pod("small", mem=16, node="low", priority=-1, annotations={ALLOCATION: '{"0":{"0":16}}'})
        await w.start()
        w.pod("wanted", mem=8)
        async with w.scheduler() as scheduler:
            task = asyncio.create_task(scheduler.run())
            await w.until(lambda: w.get("small")["metadata"].get("deletionTimestamp") is not None)
            w.finish("small")
            await w.until(lambda: bool(w.where("wanted")))
            task.cancel()
            await asyncio.wait({task})
        assert w.where("wanted") == "low"
        assert scheduler.calls["preempt"] == 1

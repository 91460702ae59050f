"""The mark against scale-down is there before an autoscaler can drain: judged at every state of the API server."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import IDLE_SINCE, MEMORY_GUARANTEE, MEMORY_PROMISED, RESIZE_BOUND
from tests.builders import GPU_MEM
from tests.cluster_double.troubles import Answer, Hang, Late, Reset, Slow, Trouble
from tests.features.capacity.capacity_world import (
    GOING,
    KARPENTER,
    KEPT,
    annotate,
    capacity_world,
    going,
    held,
    kept,
    node,
    notes_on,
    pod,
    some_rounds,
    taint,
    wants,
)
from tests.patience import rounds
from tests.scheduler.harness import HASTY, NODE_GPUS, ExtenderWorld
from tests.scheduler.harness import held as shares_of

Json = dict[str, Any]
Objects = dict[str, Json]

WRITES = {"verbs": {"patch", "create"}, "resources": {"nodes", "pods/binding"}}


# --- What must be so at every state -----------------------------------------------------------------------------------


def states(w: ExtenderWorld, since: int) -> Iterator[tuple[str, Objects, Objects]]:
    """Yield what was written last, and all nodes and pods by name, of every state of the API server since a version."""
    objects: dict[str, Objects] = {"nodes": {}, "pods": {}}
    for change in w.api.store.changes_after(1, w.api.store.version):
        body = change.after or change.before
        assert body is not None
        there, name = objects.setdefault(change.served.plural, {}), body["metadata"]["name"]
        there.pop(name, None)
        if change.after is not None:
            there[name] = change.after
        if change.version >= since:
            yield f"#{change.version} {change.served.plural}/{name}", objects["nodes"], objects["pods"]


def stranded(nodes: Objects, pods: Objects) -> str:
    """Return why not all nodes without a mark may go at once, by the GPUs of those with one; empty: they may."""
    on_nodes: dict[str, list[Json]] = {name: [] for name in nodes}
    for each in pods.values():
        if each["spec"].get("nodeName") in nodes and each["status"]["phase"] not in {"Succeeded", "Failed"}:
            on_nodes[each["spec"]["nodeName"]].append(each)
    going = [name for name in nodes if nodes[name]["metadata"]["annotations"].get(KEPT) != "true"]
    leavers = [each for name in going for each in on_nodes[name]]
    if alone := [each["metadata"]["name"] for each in leavers if not each["metadata"].get("ownerReferences")]:
        return f"nobody replaces {alone}"
    free: list[int] = []
    for name in nodes.keys() - set(going):
        sizes = [gpu["shares"] for gpu in json.loads(nodes[name]["metadata"]["annotations"][NODE_GPUS])["gpus"]]
        for each in on_nodes[name]:
            for at, shares in shares_of(each, GPU_MEM).items():
                sizes[at] -= shares
        free += sizes
    sizes = sorted((sum(shares_of(each, GPU_MEM).values()) for each in leavers), reverse=True)
    return "" if all_fit(tuple(sizes), tuple(sorted(free))) else f"{going} without a mark: {sizes} on {sorted(free)}"


@cache
def all_fit(sizes: tuple[int, ...], free: tuple[int, ...]) -> bool:
    """Whether there is a way to place pods on GPUs."""
    if not sizes:
        return True
    return any(
        room >= sizes[0] and all_fit(sizes[1:], tuple(sorted((*free[:at], room - sizes[0], *free[at + 1 :]))))
        for at, room in enumerate(free)
    )


def check(w: ExtenderWorld, since: int) -> None:
    for what, nodes, pods in states(w, since):
        assert not stranded(nodes, pods), f"{what}: {stranded(nodes, pods)}"


async def settled(w: ExtenderWorld) -> int:
    """Wait until it is decided which nodes may go, and return the version of that state."""
    await some_rounds(w)
    return w.api.store.version


# --- The order of writes ----------------------------------------------------------------------------------------------


async def spread(w: ExtenderWorld) -> None:
    """The pods of `a` may go to `b` and `c`, which stay; `d` is empty, and has no mark."""
    node(w, "a", 4, 4, 4)
    node(w, "b", 8)
    node(w, "c", 8)
    node(w, "d", 4)
    for at, name in enumerate(("p", "q")):
        pod(w, name, 4, at=("a", at))
    pod(w, "stays-b", 4, rs="", at=("b", 0))
    pod(w, "stays-c", 4, rs="", at=("c", 0))
    await w.start()
    await w.until(lambda: kept(w, "b") == kept(w, "c") == "true" and kept(w, "a") is None)


async def bound(w: ExtenderWorld, name: str, to: str, mem: int = 4, **rest: Any) -> None:
    """Have a pod bound to a node, if it is not yet, as a scheduler that tries again."""
    if not any(each["metadata"]["name"] == name for each in w.api.all("pods")):
        pod(w, name, mem, rs="", **rest)
        await w.seen()
    while not w.where(name):
        await w.bind(name, to)
        await asyncio.sleep(0.01)


async def story(w: ExtenderWorld) -> None:
    """Two pods take the two places that `a` relies on, one after the other frees its own, and nodes get their first."""
    await asyncio.gather(bound(w, "x", "b"), bound(w, "y", "c"))
    await bound(w, "z", "d")
    for name in ("x", "y"):
        if w.get(name)["status"]["phase"] != "Failed":
            w.end(name, "Failed")
    if "u" not in {each["metadata"]["name"] for each in w.api.all("pods")}:
        await w.until(lambda: kept(w, "a") is None)
    await bound(w, "u", "a")
    await w.until(lambda: kept(w, "a") == "true")


WRITTEN = 8
"""Requests of the extender in that story: a mark and two bindings, a mark and one, a mark less, a mark and one."""


def written(w: ExtenderWorld) -> int:
    return w.api.count("patch", "nodes") + w.api.count("create", "pods/binding")


async def test_two_pods_that_take_the_places_of_a_nodes_pods_are_bound_once_it_has_the_mark() -> None:
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        since = await settled(w)
        before = written(w)
        await story(w)
        await some_rounds(w)
        check(w, since)
        assert written(w) - before == WRITTEN


@pytest.mark.parametrize("writes", range(WRITTEN + 1))
async def test_whenever_the_extender_is_killed_no_node_without_a_mark_is_needed(writes: int) -> None:
    """After so many of its writes, when the next extender goes on."""
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        since = await settled(w)
        killed = w.api.fail(Answer(401), **WRITES, spared=writes)  # type: ignore[arg-type]
        telling = asyncio.create_task(story(w))
        await w.until(lambda: killed.happened > 0 or telling.done())
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await w.stop()
        w.api.heal()
        await w.start()
        await story(w)
        await some_rounds(w)
        check(w, since)


# --- Races ------------------------------------------------------------------------------------------------------------


async def test_a_pod_waits_for_a_mark_that_is_being_removed_and_has_it_written_again() -> None:
    """The watch shows the old mark meanwhile."""
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        pod(w, "x", 4, rs="", at=("b", 0))
        await w.until(lambda: kept(w, "a") == "true")
        since = await settled(w)
        w.api.fail(Slow(0.3), verbs={"patch"}, resources={"nodes"}, times=1)
        writes = w.api.count("patch", "nodes")
        w.end("x")
        pod(w, "y", 4, rs="")
        await w.until(lambda: w.api.count("patch", "nodes") == writes + 1)
        assert await w.bind("y", "b") == ""
        assert kept(w, "a") == "true"
        await some_rounds(w)
        check(w, since)


async def test_a_removal_without_an_answer_takes_no_mark_that_a_pod_needs() -> None:
    """It is carried out after the pod is bound, and meets another state of the node."""
    async with capacity_world(keep_nodes="true", timings=HASTY) as w:
        await spread(w)
        pod(w, "x", 4, rs="", at=("b", 0))
        await w.until(lambda: kept(w, "a") == "true")
        since = await settled(w)
        w.api.fail(Late(), verbs={"patch"}, resources={"nodes"}, times=1)
        writes = w.api.count("patch", "nodes")
        w.end("x")
        pod(w, "y", 4, rs="")
        await w.until(lambda: w.api.count("patch", "nodes") == writes + 1)
        assert await w.bind("y", "b") == ""
        await w.api.carry_out()
        await some_rounds(w)
        assert kept(w, "a") == "true"
        check(w, since)


@pytest.mark.parametrize("value", ["true", "false"])
async def test_what_a_person_wrote_stays_when_a_pod_takes_the_room(value: str) -> None:
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        annotate(w, "a", **{KEPT: value})
        await bound(w, "x", "b")
        assert kept(w, "a") == value
        assert notes_on(w, "a")[KARPENTER] == "true"


async def test_a_node_that_was_written_by_others_meanwhile_is_marked_as_it_is() -> None:
    """What a person writes is not shown by the watch yet."""
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        await settled(w)
        pod(w, "x", 4, rs="")
        await w.seen()
        with w.api.watch_gap():
            annotate(w, "a", **{KARPENTER: "false"})
            assert await w.bind("x", "b") == ""
        assert kept(w, "a") == "true"
        assert notes_on(w, "a")[KARPENTER] == "false"


@pytest.mark.parametrize("trouble", [Answer(403), Answer(503), Hang()], ids=["forbidden", "broken", "silent"])
async def test_a_pod_is_bound_also_if_the_mark_cannot_be_written(trouble: Answer | Hang) -> None:
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        await settled(w)
        w.api.fail(trouble, verbs={"patch"}, resources={"nodes"})
        await bound(w, "x", "b")
        assert any("nodes that must stay are not marked yet" in line for line in w.logs)
        w.api.heal()
        await w.until(lambda: kept(w, "a") == "true")


async def test_idle_pods_that_take_long_to_look_at_keep_no_node_from_its_mark_when_a_term_begins() -> None:
    async with capacity_world(keep_nodes="true", timings=HASTY) as w:
        await spread(w)
        pod(w, "x", 4, rs="")
        pod(w, "idle", 1, rs="", at=("d", 0), annotations={IDLE_SINCE: "2026-01-01T00:00:00Z"})
        w.api.fail(Hang(), verbs={"get"}, resources={"namespaces"})
        await w.restart()
        assert await w.bind("x", "b") == ""
        assert kept(w, "a") == "true"


async def test_nothing_is_written_before_a_binding_where_nodes_are_not_kept() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        await w.start()
        await bound(w, "x", "a")
        assert not w.api.count("patch", "nodes")


STEPS = 60
TROUBLES: tuple[Trouble, ...] = (Slow(0.03), Answer(503, done=True), Reset(done=True))


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_comes_and_goes_no_node_without_a_mark_is_needed(seed: int) -> None:
    """Pods come in twos and go, while it is decided all the time; now and then the extender is another one."""
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    async with capacity_world(keep_nodes="true") as w:
        names = [f"n{n}" for n in range(6)]
        for name in names:
            node(w, name, *[8] * draw.randint(1, 3))
        await w.start()
        since = await settled(w)
        here: list[str] = []
        for step in range(STEPS):
            if here and draw.random() < 0.45:
                w.end(here.pop(draw.randrange(len(here))))
            elif draw.random() < 0.05:
                await w.restart()
            elif draw.random() < 0.2:
                w.api.fail(draw.choice(TROUBLES), verbs={"patch"}, resources={"nodes"}, times=draw.randint(1, 3))
            else:
                new = [f"p{step}-{n}" for n in range(2)]
                for name in new:
                    pod(w, name, draw.choice([2, 3, 4, 5, 8]), rs=draw.choice(["", "x", "y", "y"]))
                await w.seen()
                await asyncio.gather(*(w.bind(name, draw.choice(names)) for name in new))
                here += [name for name in new if w.where(name)]
                for name in new:
                    if not w.where(name):
                        w.force_delete(name)
            await rounds(draw.choice([0, 0, 1, 3]), 0.01)
        await some_rounds(w)
        check(w, since)
        assert w.api.count("patch", "nodes") > 10


# --- The loop of an autoscaler that began before the mark -------------------------------------------------------------

DOOMED = {"key": "DeletionCandidateOfClusterAutoscaler", "value": "1", "effect": "PreferNoSchedule"}


async def binding_beside_a_doomed_node(w: ExtenderWorld) -> asyncio.Task[str]:
    """Begin to bind a pod to `b`, on which those of `a` rely, and wait until `a` has the mark."""
    await spread(w)
    taint(w, "a", DOOMED)
    await settled(w)
    pod(w, "x", 4, rs="")
    await w.seen()
    binding = asyncio.create_task(w.bind("x", "b"))
    await w.until(lambda: kept(w, "a") == "true")
    return binding


async def test_a_pod_gives_way_to_those_of_a_node_that_is_removed_though_it_has_the_mark() -> None:
    """The autoscaler has read the nodes before; its soft taint tells which of them it may remove in this loop."""
    async with capacity_world(keep_nodes="true") as w:
        binding = await binding_beside_a_doomed_node(w)
        taint(w, "a", DOOMED, GOING)
        assert "an autoscaler is removing node a" in await binding
        assert not w.where("x")
        await w.until(lambda: sum(len(held(w, name)) for name in "bcd") == 2)


async def test_a_pod_is_bound_as_soon_as_the_autoscaler_has_seen_the_mark() -> None:
    async with capacity_world(keep_nodes="true") as w:
        binding = await binding_beside_a_doomed_node(w)
        taint(w, "a")
        assert await binding == ""


async def test_a_pod_waits_two_seconds_for_the_autoscaler_and_no_longer() -> None:
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        taint(w, "a", DOOMED)
        await settled(w)
        began = time.monotonic()
        await bound(w, "x", "b")
        assert time.monotonic() - began >= 1.9
        began = time.monotonic()
        await bound(w, "y", "c")
        assert time.monotonic() - began < 1.9, "the node has had the mark for long"


# --- Other things that take room --------------------------------------------------------------------------------------


def order(w: ExtenderWorld, *happened: Callable[[Objects, Objects], bool]) -> bool:
    """Return whether each of these was so at an earlier state of the API server than the next one."""
    first = [next((at for at, (_, *now) in enumerate(states(w, 0)) if each(*now)), None) for each in happened]
    assert None not in first, first
    return first == sorted(set(first))  # type: ignore[type-var]


def marked(nodes: Objects, _pods: Objects) -> bool:
    return bool(nodes.get("a", {}).get("metadata", {}).get("annotations", {}).get(KEPT) == "true")


async def test_a_pod_is_moved_to_room_that_a_node_relies_on_once_that_has_the_mark() -> None:
    async with capacity_world(keep_nodes="true") as w:
        await spread(w)
        node(w, "e", 4, 4)
        pod(w, "stays-e", 4, rs="", at=("e", 0))
        pod(w, "moves", 4, rs="y", at=("e", 1))
        await settled(w)
        assert kept(w, "a") is None
        wants(w, "moves", "b")
        await w.until(lambda: going(w, "moves"))
        assert order(w, marked, lambda _, pods: "deletionTimestamp" in pods.get("moves", {}).get("metadata", {}))


async def test_memory_is_promised_that_a_node_relies_on_once_that_has_the_mark() -> None:
    async with capacity_world(keep_nodes="true") as w:
        labels = {RESIZE_BOUND: "100"}
        w.api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}})
        node(w, "a", 4)
        pod(w, "p", 4, at=("a", 0))
        node(w, "b", 8)
        await w.start()
        await bound(w, "x", "b", 2)
        w.run("x")
        await w.until(lambda: kept(w, "b") == "true")
        await settled(w)
        assert kept(w, "a") is None
        w.api.patch("pods", "x", {"metadata": {"annotations": {MEMORY_GUARANTEE: "5"}}})

        def promised(_nodes: Objects, pods: Objects) -> bool:
            return "5" in pods.get("x", {"metadata": {}})["metadata"].get("annotations", {}).get(MEMORY_PROMISED, "")

        await w.until(lambda: promised({}, {"x": w.get("x")}))
        assert order(w, marked, promised)

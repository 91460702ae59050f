"""Guarantees grow and shrink while containers run. A T4 has 14 shares of 1 GiB."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.guarantees import Guarantees
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.reservations import Answer, read_answer
from tests.cluster_double import troubles
from tests.names import COUNT, MEM
from tests.node.cluster_harness import Cluster, cluster
from tests.node.harness import pod
from tests.patience import stretched


def namespace(bound: str | None, name: str = "default") -> dict[str, Any]:
    labels = {} if bound is None else {RESIZE_BOUND: bound}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def part(there: Cluster) -> Guarantees:
    """Return the part of the agent that this is about; it does not wait long."""
    assert there.node.agent is not None
    found = there.node.agent.features.of(Guarantees)
    found.pace_s, found.again_s = 0.05, 0.2
    return found


@asynccontextmanager
async def node(bound: str | None = "99") -> AsyncIterator[Cluster]:
    """A node with one GPU whose namespace has this label."""
    async with cluster("fake:1xT4") as there:
        there.api.add(namespace(bound))
        await there.start_agent()
        part(there)
        yield there


def wish(there: Cluster, name: str, amount: str | None, promised: int | None = None) -> None:
    """Change what the owner of a pod wishes, and what an extender has promised for it."""
    changes: dict[str, str | None] = {MEMORY_GUARANTEE: amount}
    if promised is not None:
        changes[MEMORY_PROMISED] = json.dumps({"guarantees": {"main": promised}, "wish": amount, "why": ""})
    there.api.patch("pods", name, {"metadata": {"annotations": changes}})


def held(there: Cluster, name: str) -> Answer:
    """Return what the agent says that a pod is guaranteed."""
    return read_answer(there.annotations(name), MEMORY_HELD)


async def holds(there: Cluster, name: str, shares: int, wish: str) -> None:
    """Wait until the agent has answered a wish with so many shares."""
    await there.node.until(lambda: held(there, name) == Answer({"main": shares}, wish))


async def test_a_guarantee_grows_and_shrinks_while_the_container_runs() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        await there.node.healthy_is(MEM, 14)
        wish(there, "a", "6")
        await holds(there, "a", 6, "6")
        await there.node.healthy_is(MEM, 12)
        assert there.node.healthy(COUNT) == 0
        assert (await there.run(pod("b", mem=8))).phase == "Running"
        wish(there, "a", "5")
        await holds(there, "a", 5, "5")
        await there.node.healthy_is(MEM, 13)
        wish(there, "a", None)
        await there.node.until(lambda: MEMORY_HELD not in there.annotations("a"))
        await there.node.healthy_is(MEM, 14)
        notes = [event["note"] for event in there.events("GPUMemoryResized")]
        await there.node.until(lambda: len(there.events("GPUMemoryResized")) == 3)
        assert notes[0] == "container main is now guaranteed 6 GiB of GPU 0; it was guaranteed 4 GiB."


async def test_what_was_guaranteed_ends_with_the_pod() -> None:
    async with node() as there:
        a = await there.run(pod("a", mem=4))
        wish(there, "a", "13")
        await holds(there, "a", 13, "13")
        assert (await there.run(pod("b", mem=2))).phase == "Failed"
        await there.node.kubelet.delete(a)
        there.api.delete("pods", "a")
        await there.node.healthy_is(MEM, 14)
        assert (await there.run(pod("c", mem=14))).phase == "Running"


async def test_room_that_a_pod_gets_while_a_guarantee_is_being_saved_is_not_guaranteed_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is slow, and the kubelet gets its answers meanwhile."""
    begun, goes_on, patient_s = threading.Event(), threading.Event(), stretched()
    async with node() as there:
        save = part(there)._file.write_document

        def slow(reservations: Sequence[object]) -> bool:
            if reservations:
                begun.set()
                goes_on.wait(patient_s)
            return save(reservations)

        a = await there.run(pod("a", mem=4))
        await there.node.healthy_is(MEM, 14)
        monkeypatch.setattr(part(there)._file, "write_document", slow)
        wish(there, "a", "10")
        await there.node.until(begun.is_set)
        b = await there.run(pod("b", mem=8))
        assert b.phase == "Running"
        goes_on.set()
        why = "GPU 0 has 2 GiB left that is not assigned to anyone, and the request needs 6 GiB more"
        await there.node.until(lambda: held(there, "a").why == why)
        assert there.node.agent is not None
        assert there.node.agent.state.node.ledger.reservations == {}
        assert await asyncio.to_thread(part(there)._load) == {}
        assert there.positions(a) == {0: 4}


async def test_a_wish_without_room_is_refused_until_there_is_room() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        b = await there.run(pod("b", mem=9))
        wish(there, "a", "6")
        why = "GPU 0 has 1 GiB left that is not assigned to anyone, and the request needs 2 GiB more"
        await there.node.until(lambda: held(there, "a").why == why)
        assert held(there, "a").guarantees == {}
        await there.node.until(lambda: len(there.events("GPUMemoryNotResized")) == 1)
        (event,) = there.events("GPUMemoryNotResized")
        assert event["note"] == f"The guarantee of GPU memory is unchanged: {why}."
        await there.node.kubelet.delete(b)
        there.api.delete("pods", "b")
        await holds(there, "a", 6, "6")


async def test_beside_another_plugin_no_guarantee_grows() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        part(there).withheld = lambda: "another plugin hands out GPUs of this node too"
        wish(there, "a", "6")
        await there.node.until(lambda: held(there, "a").why == "another plugin hands out GPUs of this node too")
        part(there).withheld = lambda: ""
        part(there).again_s = 0.1
        await holds(there, "a", 6, "6")


async def test_the_label_of_the_namespace_bounds_what_its_pods_get_on_the_node() -> None:
    async with node(None) as there:
        await there.run(pod("a", mem=1))
        await there.run(pod("b", mem=1))
        wish(there, "a", "3")
        await there.node.until(lambda: f"has no label {RESIZE_BOUND}" in held(there, "a").why)
        there.api.patch("namespaces", "default", {"metadata": {"labels": {RESIZE_BOUND: "3"}}}, namespace="")
        await holds(there, "a", 3, "3")
        wish(there, "b", "3")
        why = (
            f"the pods of namespace default may have 3 shares beyond their requests (label {RESIZE_BOUND}), and have 2"
        )
        await there.node.until(lambda: held(there, "b").why == why)


async def test_the_agent_takes_what_an_extender_has_promised() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        wish(there, "a", "8", promised=6)
        await holds(there, "a", 6, "8")
        wish(there, "a", "5", promised=6)
        await holds(there, "a", 5, "5")


async def test_what_the_owner_of_a_pod_writes_in_the_name_of_others_is_corrected() -> None:
    async with node("0") as there:
        await there.run(pod("a", mem=4))
        forged = json.dumps({"guarantees": {"main": 12}, "wish": "12", "why": ""})
        there.api.patch("pods", "a", {"metadata": {"annotations": {MEMORY_HELD: forged, MEMORY_PROMISED: forged}}})
        await there.node.until(lambda: MEMORY_HELD not in there.annotations("a"))
        wish(there, "a", "12", promised=12)
        await there.node.until(lambda: "may have 0 shares beyond their requests" in held(there, "a").why)
        assert held(there, "a").guarantees == {}
        assert there.node.healthy(MEM) == 14


async def test_it_survives_the_agent_while_the_api_server_is_away() -> None:
    async with node() as there:
        a = await there.run(pod("a", mem=4))
        await there.run(pod("b", mem=2))
        wish(there, "a", "11")
        await holds(there, "a", 11, "11")
        await there.node.stop_agent()
        await there.api.stop()
        await there.node.start_agent()
        await there.node.healthy_is(MEM, 7)
        await there.node.rounds(2)
        assert there.node.healthy(MEM) == 7
        await there.node.kubelet.delete(a)
        await there.node.healthy_is(MEM, 14)
        await there.api.start()


async def test_it_survives_kubelet_and_agent_and_shrinks_if_the_wish_is_gone() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        wish(there, "a", "11")
        await holds(there, "a", 11, "11")
        await there.node.kubelet.restart(ready=True)
        await there.node.ready()
        await there.node.healthy_is(MEM, 7)
        await there.node.stop_agent()
        wish(there, "a", None)
        await there.start_agent()
        part(there)
        await there.node.until(lambda: MEMORY_HELD not in there.annotations("a"))
        await there.node.healthy_is(MEM, 14)


async def test_a_former_agent_that_gave_it_to_others_takes_it_back() -> None:
    """It knew neither the file nor the annotations."""
    async with node() as there:
        await there.run(pod("a", mem=4))
        wish(there, "a", "11")
        await holds(there, "a", 11, "11")
        await there.node.stop_agent()
        path = there.node.kubelet.device_plugin_dir / "gpushare" / "guarantees"
        saved = path.read_text()
        path.unlink()
        wish(there, "a", None)
        await there.start_agent()
        await there.run(pod("b", mem=8))
        await there.node.stop_agent()
        path.write_text(saved)
        wish(there, "a", "11")
        await there.start_agent()
        part(there)
        await there.node.until(lambda: held(there, "a").guarantees == {"main": 6})
        await there.node.healthy_is(MEM, 12)


async def test_a_wish_that_changes_all_the_time_changes_little() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        wish(there, "a", "5")
        await holds(there, "a", 5, "5")
        part(there).pace_s = 1000.0  # the round that runs now may still see one wish
        answers = set()
        for amount in range(6, 15):
            wish(there, "a", str(amount))
            await there.seen("a")
            await there.node.rounds(1, now=True)  # time in which it would be answered
            answers.add(held(there, "a").guarantees["main"])
        assert len(answers | {5}) <= 2
        assert len(there.events("GPUMemoryResized")) <= 2


async def test_without_the_right_to_read_namespaces_nothing_grows() -> None:
    async with node() as there:
        await there.run(pod("a", mem=4))
        there.api.fail(troubles.Answer(403), verbs=["get"], resources=["namespaces"])
        wish(there, "a", "6")
        await there.node.until(lambda: "cannot be read" in held(there, "a").why)

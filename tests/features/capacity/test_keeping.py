"""Nodes whose pods have no other place are kept from autoscalers; of nodes that go the pods have their places held."""

import asyncio
import json

import pytest

from gpu_device_plugin.model.contract.keys import HELD_ROOM, KEPT_NODE
from tests.builders import container
from tests.builders import pod as pod_of
from tests.cluster_double.owned import owned
from tests.cluster_double.troubles import Answer, Late
from tests.features.capacity.capacity_world import (
    GOING,
    KARPENTER,
    KEPT,
    LONG_AGO,
    annotate,
    capacity_world,
    cordon,
    held,
    kept,
    node,
    notes_on,
    pod,
    some_rounds,
    taint,
)
from tests.scheduler.harness import ExtenderWorld


def evict(w: ExtenderWorld, name: str) -> None:
    """Evict a pod as `kubectl drain` does, after it has cordoned the node."""
    w.delete(name)


# --- Marks ------------------------------------------------------------------------------------------------------------


async def test_a_node_is_kept_as_long_as_its_pods_have_no_other_place() -> None:
    """Pod of 4 on `a`; on `b` 3 shares of each GPU are free at first, which is enough by the sum alone."""
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8, 8)
        pod(w, "p", 4, at=("a", 0))
        pod(w, "b-0", 5, rs="x", at=("b", 0))
        pod(w, "b-1", 5, rs="y", at=("b", 1))
        await w.start()
        await w.until(lambda: kept(w, "a") == "true" and kept(w, "b") == "true")
        mark = json.loads(notes_on(w, "a")[KEPT_NODE])
        assert mark["keys"] == [KEPT, KARPENTER]
        assert "default/p" in mark["why"]

        w.finish("b-0")
        await w.until(lambda: kept(w, "a") is None)
        assert not {KEPT_NODE, KEPT, KARPENTER} & notes_on(w, "a").keys()
        await w.until(lambda: kept(w, "b") == "true")


async def test_a_node_with_a_pod_that_nobody_replaces_is_kept() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "alone", 1, rs="", at=("a", 0))
        pod(w, "daemon", 1, rs="agent", kind="DaemonSet", at=("b", 0))
        await w.start()
        await w.until(lambda: kept(w, "a") == "true")
        await some_rounds(w)
        assert kept(w, "b") is None, "a DaemonSet's pod goes with its node"


async def test_two_nodes_never_count_on_the_same_room() -> None:
    """Pods of 4 on `a` and `b`, and room for one of them on `c`."""
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 4)
        node(w, "b", 4)
        node(w, "c", 8)
        pod(w, "p", 4, at=("a", 0))
        pod(w, "q", 4, at=("b", 0))
        pod(w, "r", 4, at=("c", 0))
        await w.start()
        await w.until(lambda: kept(w, "c") == "true" and [kept(w, "a"), kept(w, "b")].count("true") == 1)
        await some_rounds(w)
        assert [kept(w, "a"), kept(w, "b")].count("true") == 1


@pytest.mark.parametrize("value", ["true", "false", ""])
async def test_what_a_person_wrote_is_never_touched(value: str) -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        annotate(w, "a", **{KEPT: value})
        pod(w, "p", 4, at=("a", 0))
        await w.start()
        await w.until(lambda: notes_on(w, "a").get(KARPENTER) == "true")
        assert kept(w, "a") == value
        node(w, "b", 8)
        pod(w, "alone", 1, rs="", at=("b", 0))  # `b` has to stay, so `a` may go
        await w.until(lambda: KARPENTER not in notes_on(w, "a"))
        await some_rounds(w)
        assert kept(w, "a") == value


async def test_what_a_person_writes_between_decision_and_writing_is_not_touched() -> None:
    """The request of the extender meets the node as the person has changed it meanwhile."""
    async with capacity_world(keep_nodes="true") as w:
        w.api.fail(Late(), verbs={"patch"}, resources={"nodes"}, times=1)
        node(w, "a", 8)
        pod(w, "p", 4, at=("a", 0))
        await w.start()
        await w.until(lambda: w.api.count("patch", "nodes") == 1)
        annotate(w, "a", **{KEPT: "false"})
        await w.seen()
        await w.api.carry_out()
        assert kept(w, "a") == "false"
        assert KEPT_NODE not in notes_on(w, "a")


async def test_nodes_that_come_and_go_while_it_is_decided_harm_nobody() -> None:
    async with capacity_world(keep_nodes="true") as w:
        for n in range(40):
            node(w, f"n{n}", 4)
            pod(w, f"p{n}", 4, at=(f"n{n}", 0))
        await w.start()
        for turn in range(15):
            for n in range(turn, 40, 5):
                w.api.delete("nodes", f"n{n}")
            taint(w, f"n{(turn + 4) % 5}", GOING)
            await asyncio.sleep(0.01)
            for n in range(turn, 40, 5):
                node(w, f"n{n}", 4)
        await some_rounds(w)
        await w.until(lambda: kept(w, "n39") == "true")


async def test_the_marks_go_with_the_setting() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        pod(w, "p", 4, at=("a", 0))
        await w.start()
        await w.until(lambda: kept(w, "a") == "true")
        await w.restart(keep_nodes="false")
        await w.until(lambda: kept(w, "a") is None)


# --- Nodes that go ----------------------------------------------------------------------------------------------------


async def test_when_an_autoscaler_drains_a_node_the_places_of_its_pods_are_held_at_once_and_for_them_alone() -> None:
    """A pod of 4 has to leave `a`; `b` has 4 left, which another pod wants as well."""
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", 4, at=("a", 0))
        pod(w, "q", 4, rs="x", at=("b", 0))
        await w.start()
        taint(w, "a", GOING)
        w.api.patch("nodes", "a", {"spec": {"unschedulable": True}})
        await w.until(lambda: held(w, "b") == {uid: {"0": 4}})
        assert w.only.free("b") == [0]

        pod(w, "thief", 1, rs="x")
        found = await w.filter(w.get("thief"), "b")
        assert "room held for others is released" in found["Error"], "the scheduler is to try again by itself"
        assert (await w.schedule())["thief"].reason == "SchedulerError"

        w.delete("p")
        pod(w, "p-2", 4)
        assert (await w.schedule())["p-2"].node == "b"
        assert w.places("p-2") == {0: 4}
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        w.finish("q")
        assert (await w.schedule())["thief"].node == "b"


async def test_a_drain_by_hand_has_room_held_once_a_replacement_waits() -> None:
    """The node is cordoned, and then its pods are evicted one by one."""
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", 4, at=("a", 0))
        await w.start()
        cordon(w, "a")
        await some_rounds(w)
        assert not held(w, "b"), "a cordon alone sends nobody away"
        evict(w, "p")
        await some_rounds(w)
        assert not held(w, "b"), "perhaps the pod was only deleted, by a scale-down"
        pod(w, "p-2", 4)
        await w.until(lambda: held(w, "b") == {uid: {"0": 4}})
        assert (await w.schedule())["p-2"].node == "b"
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        await some_rounds(w)
        assert not held(w, "b"), "its replacement has a place, and needs no other"


async def test_a_drain_that_is_given_up_gives_the_room_back() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", 4, at=("a", 0))
        await w.start()
        taint(w, "a", GOING)
        await w.until(lambda: uid in held(w, "b"))
        taint(w, "a")
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        assert w.only.free("b") == [8]


async def test_pods_of_two_nodes_that_go_have_each_their_own_room() -> None:
    async with capacity_world(keep_nodes="true") as w:
        for name in ("a", "b"):
            node(w, name, 4)
            pod(w, f"p-{name}", 4, rs=name, at=(name, 0))
        node(w, "c", 4)
        await w.start()
        taint(w, "a", GOING)
        taint(w, "b", GOING)
        await w.until(lambda: len(held(w, "c")) == 1)
        await some_rounds(w)
        assert len(held(w, "c")) == 1
        node(w, "d", 4)
        await w.until(lambda: len(held(w, "d")) == 1)
        assert held(w, "c").keys() != held(w, "d").keys()


async def test_a_pod_of_several_containers_on_one_gpu_has_all_of_its_room_held() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        rs = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "uid": "uid-web"}}
        both = [container("one", mem=3), container("two", mem=2)]
        notes = {"scheduler.framework.gpushare.allocation": '{"0": {"0": 3}, "1": {"0": 2}}'}
        w.api.add(owned(pod_of("p", *both, node="a", annotations=notes), rs))
        await w.start()
        taint(w, "a", GOING)
        await w.until(lambda: list(held(w, "b").values()) == [{"0": 5}])
        w.delete("p")
        w.api.add(owned(pod_of("p-2", *both), rs))
        assert (await w.schedule())["p-2"].node == "b"


async def test_held_room_is_given_back_when_its_time_is_over() -> None:
    """Nobody comes for it. What a node says of the past holds nothing, also where another extender wrote it."""
    past = {"gone": {"namespace": "default", "owner": "uid-web", "gpus": {"0": 8}, "until": 1_000_000_000}}
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        annotate(w, "a", **{HELD_ROOM: json.dumps(past)})
        await w.start()
        assert w.only.free("a") == [8]
        await w.until(lambda: HELD_ROOM not in notes_on(w, "a"))
        pod(w, "p", 8)
        assert (await w.schedule())["p"].node == "a"


async def two_pods_of_one_deployment_have_to_leave(w: ExtenderWorld) -> tuple[str, str]:
    """Each from a node of its own, one at once; `c` and `d` have room for one of them each. Return their UIDs."""
    node(w, "a", 4)
    node(w, "b", 4)
    uids = pod(w, "p", 4, at=("a", 0)), pod(w, "q", 4, at=("b", 0))
    node(w, "c", 4)
    node(w, "d", 4)
    await w.start()
    taint(w, "a", GOING)
    await w.until(lambda: uids[0] in {**held(w, "c"), **held(w, "d")})
    taint(w, "b", GOING)
    await w.until(lambda: held(w, "c").keys() | held(w, "d").keys() == set(uids))
    return uids


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("ended", [False, True], ids=["ending", "ended"])
async def test_room_is_not_held_for_a_replacement_that_is_bound_elsewhere(*, killed: bool, ended: bool) -> None:
    """A node comes that takes the replacement of one of two pods; the room of the other one stays held."""
    async with capacity_world(keep_nodes="true") as w:
        await two_pods_of_one_deployment_have_to_leave(w)
        node(w, "e", 4)
        w.delete("p")
        pod(w, "p-2", 4)
        await w.seen()
        assert await w.bind("p-2", "e") == ""
        if ended:
            w.finish("p")
        if killed:
            await w.restart()
        await w.until(lambda: len(held(w, "c")) + len(held(w, "d")) == 1)
        await some_rounds(w)
        assert len(held(w, "c")) + len(held(w, "d")) == 1
        w.delete("q")
        pod(w, "q-2", 4)
        while (found := (await w.schedule())["q-2"]).reason == "SchedulerError":
            pass  # a node that goes was tried first, which kube-scheduler repeats
        assert found.node in {"c", "d"}
        await w.until(lambda: not held(w, "c") and not held(w, "d"))


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_room_that_is_held_once_a_replacement_waits_is_given_back_wherever_that_is_bound(*, killed: bool) -> None:
    """The replacement has waited for a while, as no other node had room before."""
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 4)
        uid = pod(w, "p", 4, at=("a", 0))
        await w.start()
        cordon(w, "a")
        evict(w, "p")
        pod(w, "p-2", 4, created=LONG_AGO)
        await some_rounds(w)
        node(w, "c", 4)
        await w.until(lambda: uid in held(w, "c"))
        node(w, "d", 4)
        await w.seen()
        assert await w.bind("p-2", "d") == ""
        if killed:
            await w.restart()
        await w.until(lambda: not held(w, "c"))


async def test_a_replacement_gets_the_room_among_those_of_its_controller_whose_node_it_may_go_to() -> None:
    """`c` or `d`, whichever has the first room, is out of CPU: the scheduler does not name it."""
    for full in ("c", "d"):
        async with capacity_world(keep_nodes="true") as w:
            await two_pods_of_one_deployment_have_to_leave(w)
            w.delete("p")
            pod(w, "p-2", 4)
            await w.seen()
            (other,) = {"c", "d"} - {full}
            found = await w.filter(w.get("p-2"), other)
            assert found["NodeNames"] == [other], found
            assert await w.bind("p-2", other) == ""
            await w.until(lambda other=other: not held(w, other))  # type: ignore[misc]
            await some_rounds(w)
            assert len(held(w, full)) == 1


async def test_a_pod_that_waits_for_one_room_has_no_second_one_held() -> None:
    """The replacement of `q` was bound at once; that of `p` waits, and its room is held."""
    async with capacity_world(keep_nodes="true") as w:
        for name in ("a", "b", "c", "d", "e"):
            node(w, name, 4)
        uid = pod(w, "p", 4, at=("a", 0))
        pod(w, "q", 4, at=("b", 0))
        await w.start()
        cordon(w, "a")
        evict(w, "p")
        pod(w, "p-2", 4)
        await w.until(lambda: any(uid in held(w, name) for name in "cde"))
        rooms = {name: held(w, name) for name in "cde"}
        cordon(w, "b")
        evict(w, "q")
        pod(w, "q-2", 4)
        await w.seen()
        assert await w.bind("q-2", next(name for name in "cde" if not rooms[name])) == ""
        await some_rounds(w)
        assert sum(len(held(w, name)) for name in "cde") <= 1


async def test_no_room_stays_held_on_a_node_that_goes_itself() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 4)
        uid = pod(w, "p", 4, at=("a", 0))
        node(w, "c", 4)
        await w.start()
        taint(w, "a", GOING)
        await w.until(lambda: uid in held(w, "c"))
        node(w, "d", 4)
        taint(w, "c", GOING)
        await w.until(lambda: uid in held(w, "d") and not held(w, "c"))


# --- What the watch shows ---------------------------------------------------------------------------------------------


async def test_without_the_right_to_write_on_nodes_the_rest_goes_on_and_room_is_held_meanwhile() -> None:
    async with capacity_world(keep_nodes="true") as w:
        w.api.fail(Answer(403), verbs={"patch"}, resources={"nodes"})
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", 4, at=("a", 0))
        await w.start()
        taint(w, "a", GOING)
        await w.until(lambda: w.only.free("b") == [4])
        await w.until(lambda: any("apply deploy/optional/capacity.yaml" in line for line in w.logs))
        w.delete("p")
        pod(w, "p-2", 4)
        assert (await w.schedule())["p-2"].node == "b"
        await w.until(lambda: w.only.free("b") == [4])
        w.api.heal()
        await some_rounds(w)
        assert not held(w, "b")


async def test_the_next_extender_holds_what_the_node_says_and_gives_it_to_the_replacement() -> None:
    async with capacity_world(keep_nodes="true") as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", 4, at=("a", 0))
        await w.start()
        taint(w, "a", GOING)
        await w.until(lambda: uid in held(w, "b"))
        w.delete("p")
        await w.restart()
        assert w.only.free("b") == [4]
        pod(w, "thief", 8, rs="x")
        pod(w, "p-2", 4)
        found = await w.schedule()
        assert found["p-2"].node == "b"
        assert not found["thief"].node
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))

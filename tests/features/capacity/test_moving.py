"""Pods are moved to where somebody wants them: room is held, the pod evicted, and its replacement bound there."""

import asyncio
import json
import math
import time
from dataclasses import replace

import pytest

from gpu_device_plugin.features.audit.contract import LOGGER, AuditKind
from gpu_device_plugin.features.capacity.capacity_cache import Waiter
from gpu_device_plugin.features.capacity.rules.movable import Fits
from gpu_device_plugin.features.capacity.scheduler import Capacity
from gpu_device_plugin.model.contract.keys import HELD_ROOM, MOVE_TO
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests import builders
from tests.cluster_double import owned as owned_objects
from tests.cluster_double.troubles import Answer
from tests.features.audit.records import record_of
from tests.features.capacity.capacity_world import (
    GRANTED,
    capacity_world,
    cordon,
    going,
    held,
    node,
    notes_on,
    pod,
    refusal,
    said,
    some_rounds,
    taint,
    wants,
)
from tests.patience import rounds
from tests.scheduler.harness import ALLOCATION, QUICK, RIGHTS, ExtenderWorld, Running


async def replaced(w: ExtenderWorld, name: str, by: str, mem: int = 4) -> str:
    """Let the kubelet end a pod and its controller make another, which is scheduled; return where that is."""
    await w.until(lambda: going(w, name))
    pod(w, by, mem)
    w.finish(name)
    return (await w.schedule())[by].node


def leads(running: Running) -> bool:
    return running.extender._leader_tasks._term is not None


async def test_a_pod_is_moved_to_the_gpu_that_was_named() -> None:
    """On GPU 1 of `b`; by itself the scheduler would take GPU 0 of `b`, which is fuller, and others want it too."""
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8, 8)
        uid = pod(w, "p", at=("a", 0))
        pod(w, "q", 2, rs="x", at=("b", 0))
        await w.start()
        wants(w, "p", "b", gpu=1)
        await w.until(lambda: going(w, "p"))
        assert held(w, "b") == {uid: {"1": 4}}
        assert w.only.free("b") == [6, 4]
        pod(w, "thief", 8, rs="x")
        assert not (await w.schedule())["thief"].node

        assert await replaced(w, "p", "p-2") == "b"
        assert w.places("p-2") == {1: 4}
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        assert w.only.free("b") == [6, 4]


async def test_a_pod_is_moved_to_the_gpu_that_was_named_also_where_another_pod_has_just_ended() -> None:
    """Its GPU is closed to pods with whole GPUs for a while, and open to others; it is not the GPU that is held."""
    async with capacity_world(timings=replace(QUICK, settle_s=1000)) as w:
        node(w, "a", 8)
        node(w, "b", 8, 8)
        pod(w, "p", 8, at=("a", 0))
        pod(w, "q", 2, rs="x", at=("b", 0))
        await w.start()
        wants(w, "p", "b", gpu=1, mem=8)
        await w.until(lambda: going(w, "p"))
        w.end("q")
        assert await replaced(w, "p", "p-2", 8) == "b"
        assert w.places("p-2") == {1: 8}


async def test_a_pod_may_be_moved_within_its_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with capacity_world() as w:
        node(w, "a", 8, 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "a", gpu=1)
        assert await replaced(w, "p", "p-2") == "a"
        assert w.places("p-2") == {1: 4}
    (record,) = [record_of(vars(each)) for each in caplog.records if each.name == LOGGER]
    assert (record.kind, record.pod, record.node, record.to_node) == (AuditKind.MOVED, "p", "a", "a")
    assert record.owner_kind == "ReplicaSet"


async def test_no_more_is_held_than_the_pod_asks_for() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b", mem=8)
        await w.until(lambda: going(w, "p"))
        assert held(w, "b") == {uid: {"0": 4}}


MALFORMED = {
    "no JSON": "b",
    "a list of GPUs": '{"node": "b", "gpus": [0]}',
    "no GPU": '{"node": "b", "gpus": {}}',
    "no number": '{"node": "b", "gpus": {"0": "all"}}',
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
async def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        said(w, "p", text)
        await w.until(lambda: "names no place; write" in refusal(w, "p"))
        assert not going(w, "p")


async def test_a_pod_stays_where_nobody_would_replace_it() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "alone", 1, rs="", at=("a", 0))
        pod(w, "daemon", 1, rs="agent", kind="DaemonSet", at=("a", 0))
        await w.start()
        for name in ("alone", "daemon"):
            wants(w, name, "b", mem=1)
            await w.until(lambda name=name: "no controller would replace it" in refusal(w, name))  # type: ignore[misc]
            assert not going(w, name)
        assert not held(w, "b")


async def test_a_pod_stays_where_the_named_node_cannot_take_it() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "full", 8)
        pod(w, "q", 5, rs="x", at=("full", 0))
        node(w, "cordoned", 8)
        cordon(w, "cordoned")
        node(w, "going", 8)
        taint(w, "going", {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"})
        node(w, "other", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        for to, gpu, why in (
            ("nowhere", 0, "node nowhere is not known to the GPU scheduler"),
            ("cordoned", 0, "node cordoned is cordoned, not ready, or about to be removed"),
            ("going", 0, "node going is cordoned, not ready, or about to be removed"),
            ("full", 0, "node full no longer has the room: no GPU has 4 GiB free"),
            ("other", 7, "node other no longer has the room"),
        ):
            wants(w, "p", to, gpu=gpu)
            await w.until(lambda why=why: refusal(w, "p").startswith(why))  # type: ignore[misc]
        assert not going(w, "p")
        assert w.api.count("patch", "nodes") == 0
        assert w.only.free("full") == [3]


@pytest.mark.parametrize("keep_nodes", ["true", "false"])
async def test_a_pod_whose_terms_are_too_long_to_be_kept_is_not_moved(keep_nodes: str) -> None:
    """Of such a pod it is not known where it may go, also where the labels of nodes are followed."""
    names = [f"{number:060}" for number in range(100)]
    elsewhere = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": names}]}
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [elsewhere]}}
    async with capacity_world(keep_nodes=keep_nodes) as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0), spec={"affinity": {"nodeAffinity": node_affinity}})
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p") or bool(refusal(w, "p")))
        assert refusal(w, "p") == "node affinity, selector or taints exclude node b"


async def test_a_pod_goes_to_a_node_that_is_not_ready_if_it_tolerates_that() -> None:
    """As kube-scheduler would have it: what manages nodes runs there."""
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "sick", 8)
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        w.api.patch("nodes", "sick", unready, subresource="status")
        taint(w, "sick", {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
        pod(w, "usual", at=("a", 0))
        pod(
            w,
            "hardy",
            at=("a", 0),
            spec={"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]},
        )
        await w.start()
        wants(w, "usual", "sick")
        await w.until(lambda: refusal(w, "usual") == "node sick is cordoned, not ready, or about to be removed")
        wants(w, "hardy", "sick")
        await w.until(lambda: going(w, "hardy"))
        assert not going(w, "usual")


async def test_a_disruption_budget_that_allows_nothing_is_obeyed_and_the_room_given_back() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        w.api.patch("pods", "p", {"status": ready}, subresource="status")
        w.api.add(
            {
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "web", "namespace": "default", "generation": 1},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"observedGeneration": 1, "desiredHealthy": 1, "currentHealthy": 1, "disruptionsAllowed": 0},
            }
        )
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: "PodDisruptionBudget allows no disruption" in refusal(w, "p"))
        assert not going(w, "p")
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        assert w.only.free("b") == [8]


@pytest.mark.parametrize("missing", [("patch", "nodes"), ("create", "pods/eviction")])
async def test_without_the_rights_the_pod_says_what_grants_them_and_nothing_is_tried_for_ever(
    missing: tuple[str, str],
) -> None:
    async with capacity_world(allowed=(RIGHTS | GRANTED) - {missing}) as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: "deploy/optional/capacity.yaml" in refusal(w, "p"))
        await w.until(lambda: w.only.free("b") == [8])
        await some_rounds(w)
        tried = w.api.count("patch", "nodes")
        await some_rounds(w)
        assert w.api.count("patch", "nodes") == tried
        assert not held(w, "b")


async def test_one_pod_that_cannot_be_written_on_keeps_no_other_from_moving() -> None:
    async with capacity_world() as w:
        w.api.deny("no-refusals", lambda _old, new: "no" if new["metadata"]["name"] == "bad" else "", code=403)
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "bad", 1, annotations={MOVE_TO: "nonsense"}, at=("a", 0))
        pod(w, "p", at=("a", 0), annotations={MOVE_TO: json.dumps({"node": "b", "gpus": {"0": 4}})})
        await w.start()
        await w.until(lambda: going(w, "p"))


async def test_an_eviction_whose_answer_is_lost_is_found_out_and_the_room_kept() -> None:
    async with capacity_world() as w:
        w.api.fail(Answer(504, done=True), verbs={"create"}, resources={"pods/eviction"}, times=1)
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        assert await replaced(w, "p", "p-2") == "b"


async def test_an_eviction_that_fails_gives_the_room_back() -> None:
    async with capacity_world() as w:
        w.api.fail(Answer(500), verbs={"create"}, resources={"pods/eviction"}, times=1)
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: bool(refusal(w, "p")))
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b") and w.only.free("b") == [8])
        wants(w, "p", "b")
        assert await replaced(w, "p", "p-2") == "b"


@pytest.mark.parametrize("keep_nodes", ["false", "true"])
async def test_room_stays_held_although_the_watch_shows_the_eviction_late(keep_nodes: str) -> None:
    """Until then the pod seems to stay after all, whose room would be given back."""
    async with capacity_world(keep_nodes=keep_nodes) as w:
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        with w.api.watch_gap():  # the deletion is never shown, only what happens afterwards
            await w.until(lambda: going(w, "p"))
            await rounds(5, QUICK.settled_s)
            assert held(w, "b") == {uid: {"0": 4}}
            assert w.only.free("b") == [4]
        assert w.api.count("create", "pods/eviction") == 1
        assert await replaced(w, "p", "p-2") == "b"


async def test_a_replacement_that_the_scheduler_puts_elsewhere_leaves_no_room_twice() -> None:
    """Its controller has another node selector by now. The room is given back, and the pod is placed."""
    async with capacity_world() as w:
        node(w, "a", 8, labels={"zone": "1"})
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))
        pod(w, "p-2", spec={"nodeSelector": {"zone": "1"}})
        w.finish("p")
        assert (await w.schedule())["p-2"].node == "a"
        await w.until(lambda: w.only.free("b") == [8])
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))


async def test_a_pod_that_cannot_be_written_on_is_left_alone_for_longer_and_longer() -> None:
    """200 of them had cost 858 requests a second, without end. Another wish is obeyed at once."""
    async with capacity_world() as w:
        denied = ["p"]
        w.api.deny("no-refusals", lambda _old, new: "no" if new["metadata"]["name"] in denied else "", code=403)
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0), annotations={MOVE_TO: "nonsense"})
        await w.start()
        began = time.monotonic()
        await w.until(lambda: w.api.count("patch", "pods") == 1)
        await some_rounds(w, 40)
        # After 1 s, 2 s more, 4 s more.
        assert w.api.count("patch", "pods") <= 1 + math.log2(1 + time.monotonic() - began)
        denied.clear()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))


async def test_moves_that_nobody_replaces_take_the_room_of_one_pod() -> None:
    """The next pod of the namespace is moved once the last one has a replacement, or its room is given back.

    With a quota of one pod somebody could make pods of invented controllers one after the other, and have room held
    for each of them: for hours, and of the whole cluster.
    """
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8, 8)
        await w.start()
        for n in range(5):
            pod(w, f"p{n}", rs=f"invented-{n}", at=("a", 0))
            wants(w, f"p{n}", "b", gpu=n % 2)
            if not n:
                await w.until(lambda: going(w, "p0"))
                w.finish("p0")
            else:
                await some_rounds(w)
                assert not going(w, f"p{n}")
                w.force_delete(f"p{n}")
        assert len(held(w, "b")) == 1
        pod(w, "next", rs="next", at=("a", 0))
        wants(w, "next", "b", gpu=1)
        await some_rounds(w)
        assert not going(w, "next")
        pod(w, "p0-again", rs="invented-0")
        await w.until(lambda: going(w, "next"))


async def test_of_many_wishes_every_namespace_has_its_turn() -> None:
    async with capacity_world() as w:
        node(w, "a", 64)
        node(w, "b", 8)
        for n in range(40):
            pod(w, f"vain-{n:02}", 1, at=("a", 0), annotations={MOVE_TO: "nonsense"})
        notes = {ALLOCATION: '{"0": {"0": 4}}', MOVE_TO: json.dumps({"node": "b", "gpus": {"0": 4}})}
        there = builders.pod("z", builders.container(mem=4), namespace="z", node="a", annotations=notes)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "z", "uid": "uid-z"}}
        w.api.add(owned_objects.owned(there, owner))
        await w.start()
        await w.until(lambda: w.api.count("create", "pods/eviction") == 1)
        made = [(each.verb, each.resource) for each in w.api.requests]
        before = made[: made.index(("create", "pods/eviction"))]
        assert before.count(("patch", "pods")) <= 1, "one of the other namespace had its turn before"
        await w.until(lambda: all(refusal(w, f"vain-{n:02}") for n in range(40)))


# --- Another extender becomes the active one --------------------------------------------------------------------------


async def test_an_extender_that_stopped_before_the_eviction_is_followed_by_one_that_moves_the_pod() -> None:
    """It had held the room. That is no obstacle for the next one."""
    async with capacity_world() as w:
        stuck = w.api.fail(Answer(503, retry_after_s=60), verbs={"create"}, resources={"pods/eviction"})
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", at=("a", 0))
        room = {"namespace": "default", "owner": "uid-web", "gpus": {"0": 8}, "until": 4_000_000_000}
        w.api.patch("nodes", "b", {"metadata": {"annotations": {HELD_ROOM: json.dumps({uid: room})}}})
        said(w, "p", json.dumps({"node": "b", "gpus": {"0": 4}}))
        stuck.times = 0
        await w.start()
        await w.until(lambda: going(w, "p"))
        assert held(w, "b") == {uid: {"0": 4}}
        assert await replaced(w, "p", "p-2") == "b"
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))


async def test_an_extender_that_stopped_after_the_eviction_is_followed_by_one_that_holds_the_room() -> None:
    async with capacity_world() as w:
        node(w, "a", 8)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))
        await w.restart()
        assert w.only.free("b") == [4]
        pod(w, "thief", 8, rs="x")
        await w.schedule()
        assert await replaced(w, "p", "p-2") == "b"
        assert not w.where("thief") or w.where("thief") == "a"


async def test_a_replacement_whose_binding_got_no_answer_counts_on_its_room_alone() -> None:
    async with capacity_world() as w:
        node(w, "a", 4)
        node(w, "b", 8)
        pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))
        w.bindings_meet(Answer(504, done=True), times=1)
        pod(w, "p-2")
        await w.schedule()
        await w.until(lambda: w.where("p-2") == "b")
        w.check()
        await w.restart()
        pod(w, "q", 8, rs="x")
        assert not (await w.schedule())["q"].node
        assert w.places("p-2") == {0: 4}


async def test_room_that_is_taken_is_not_held_by_the_next_extender_although_the_node_says_so() -> None:
    """The one before ended between the binding and the node; another pod of the controller waits for room elsewhere."""
    async with capacity_world() as w:
        node(w, "a", 4)
        node(w, "b", 8)
        uid = pod(w, "p", at=("a", 0))
        await w.start()
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))
        w.api.fail(Answer(503), verbs={"patch"}, resources={"nodes"})
        pod(w, "p-2")
        assert (await w.schedule())["p-2"].node == "b"
        pod(w, "p-3", 7)
        await w.stop()
        w.api.heal()
        assert held(w, "b") == {uid: {"0": 4}}
        await w.start()
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        assert w.only.free("b") == [4]


async def test_of_two_extenders_the_second_knows_the_room_of_the_first_and_does_nothing_itself() -> None:
    """Both follow the Lease of their schedulers; the second takes it while the replacement is awaited."""
    lease = {("get", "leases"), ("create", "leases"), ("update", "leases")}

    def lead(who: str) -> None:
        spec = {"holderIdentity": f"{who}_1", "leaseTransitions": len(who)}
        w.api.patch("leases", "kube-scheduler", {"spec": spec}, namespace="kube-system")

    async with capacity_world(allowed=RIGHTS | GRANTED | lease, scheduler_lease="kube-scheduler") as w:
        w.api.add({"kind": "Lease", "metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": {}})
        lead("one")
        node(w, "a", 8)
        node(w, "b", 8)
        uid = pod(w, "p", at=("a", 0))
        first = await w.start(identity="one")
        second = await w.start(identity="second")
        wants(w, "p", "b")
        await w.until(lambda: going(w, "p"))
        await w.until(lambda: second.free("b") == [4])
        assert w.api.count("create", "pods/eviction") == 1

        lead("second")
        await w.until(lambda: leads(second) and not leads(first))
        pod(w, "p-2")
        w.finish("p")
        assert (await w.schedule(second))["p-2"].node == "b"
        await w.until(lambda: HELD_ROOM not in notes_on(w, "b"))
        await w.until(lambda: first.free("b") == second.free("b") == [4])
        assert uid not in held(w, "b")


# --- Rebalancing ------------------------------------------------------------------------------------------------------


def halves(w: ExtenderWorld, name: str, grace_s: int | None = None) -> None:
    """Add a node whose two GPUs of 8 have 3 left each; a pod of 5 has room once one of 2 has moved to the other GPU."""
    node(w, name, 8, 8)
    pod(w, f"{name}-two", 2, rs=f"{name}-two", at=(name, 0), grace_s=grace_s)
    pod(w, f"{name}-three", 3, rs=f"{name}-three", at=(name, 0))
    pod(w, f"{name}-five", 5, rs="", at=(name, 1))


async def test_pods_are_moved_for_one_that_waits_within_the_budget() -> None:
    async with capacity_world(rebalance="1") as w:
        halves(w, "a")
        await w.start()
        pod(w, "p", 5, rs="big")
        await w.schedule()
        await w.until(lambda: going(w, "a-two"))
        pod(w, "again", 2, rs="a-two")
        w.finish("a-two")
        assert (await w.schedule())["again"].node == "a"
        assert w.places("again") == {1: 2}
        if not w.where("p"):
            await w.schedule()
        assert w.places("p") == {0: 5}

        halves(w, "b")
        pod(w, "q", 5, rs="big")
        await w.schedule()
        await some_rounds(w)
        assert w.api.count("create", "pods/eviction") == 1, "the budget of this hour is used up"
        assert "a plan is stopped" not in " ".join(w.logs)


async def test_a_plan_stops_at_the_first_surprise() -> None:
    """Two moves make room for a pod of 8; the first eviction is refused, and the second is not tried."""
    async with capacity_world(rebalance="10") as w:
        w.api.fail(Answer(403), verbs={"create"}, resources={"pods/eviction"})
        node(w, "a", 8, 8, 8)
        for name, at in (("one", 0), ("two", 0), ("three", 1), ("four", 2)):
            pod(w, name, 4, rs="" if at else name, at=("a", at))
        await w.start()
        pod(w, "p", 8, rs="big")
        await w.schedule()
        await w.until(lambda: any("a plan is stopped" in line for line in w.logs))
        assert w.api.count("create", "pods/eviction") == 1
        await w.until(lambda: HELD_ROOM not in notes_on(w, "a"))


async def test_a_plan_stops_where_a_replacement_does_not_come_into_its_room() -> None:
    """Somebody gives the room back; the other pod of the plan stays."""
    async with capacity_world(rebalance="10") as w:
        node(w, "a", 8, 8, 8)
        for name, at in (("one", 0), ("two", 0), ("three", 1), ("four", 2)):
            pod(w, name, 4, rs="" if at else name, at=("a", at))
        await w.start()
        pod(w, "p", 8, rs="big")
        await w.schedule()
        await w.until(lambda: bool(held(w, "a")) and w.api.count("create", "pods/eviction") == 1)
        w.api.patch("nodes", "a", {"metadata": {"annotations": {HELD_ROOM: None}}})
        await w.until(lambda: any("was not bound in its room" in line for line in w.logs))
        assert w.api.count("create", "pods/eviction") == 1


async def test_a_pod_that_ends_for_hours_does_not_stop_rebalancing_for_others() -> None:
    """Its controller does not exist, or waits for its end."""
    async with capacity_world(rebalance="10") as w:
        halves(w, "a", grace_s=3600)
        await w.start()
        w.only.extender.features.of(Capacity).rebalancer.patience_s = 0.5
        pod(w, "p", 5, rs="big")
        await w.schedule()
        await w.until(lambda: going(w, "a-two"))
        halves(w, "b")
        pod(w, "q", 6, rs="big")
        await w.schedule()
        await w.until(lambda: going(w, "b-two") or going(w, "b-three"))
        assert any("its replacement was not bound within" in line for line in w.logs)
        assert held(w, "a"), "the pod has not gone yet"


async def test_namespaces_take_turns_in_rebalancing() -> None:
    """`default` has the pods that wait longest."""
    async with capacity_world(rebalance="10") as w:
        for name in ("a", "b", "c"):
            halves(w, name)
        await w.start()
        looked: list[str] = []
        all_wait = asyncio.Event()
        rebalancer = w.only.extender.features.of(Capacity).rebalancer
        goal, plan = rebalancer._goal, rebalancer.plan

        async def planned() -> None:
            if all_wait.is_set():
                await plan()

        def looked_at(waiter: Waiter) -> Fits:
            looked.append(waiter.pod.namespace)
            return goal(replace(waiter, needs=replace(waiter.needs, ask=GpuRequest((Part(Demand(Kind.MEMORY, 9)),)))))

        rebalancer._goal = looked_at  # type: ignore[method-assign]
        rebalancer.plan = planned  # type: ignore[method-assign]
        for n in range(3):
            pod(w, f"p{n}", 5, rs="big", created=f"2026-01-01T00:00:0{n}Z")
        w.api.add(builders.pod("z", builders.container(mem=5), namespace="z"))
        await w.schedule()
        await w.until(lambda: len(rebalancer._cache.waiters()) == 4)
        all_wait.set()
        await w.until(lambda: len(looked) >= 3)
        assert looked[1] == "z"


async def test_without_a_budget_nothing_is_moved() -> None:
    async with capacity_world(rebalance="0", keep_nodes="true") as w:
        for name in ("a", "b"):
            node(w, name, 8)
            pod(w, f"{name}-2", 2, at=(name, 0))
            pod(w, f"{name}-3", 3, at=(name, 0))
        await w.start()
        pod(w, "p", 5, rs="big")
        await w.schedule()
        await some_rounds(w)
        assert w.api.count("create", "pods/eviction") == 0

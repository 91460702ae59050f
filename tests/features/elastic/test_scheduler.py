"""Wishes of running pods for more or less guaranteed memory, against an API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.scheduler import Resizes
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.scheduler.controller_context import ExtenderTimings
from tests.cluster_double.troubles import Answer, Late, Trouble
from tests.scheduler.harness import HASTY, LEASE_RIGHTS, QUICK, RIGHTS, ExtenderWorld, Running, world

NO_LABEL = "ask an administrator to label it"


@asynccontextmanager
async def cluster(
    *, bound: str | None = "100", timings: ExtenderTimings = QUICK, started: bool = True
) -> AsyncIterator[ExtenderWorld]:
    """Node a has one GPU of 12 shares, on which pod p has 4."""
    async with world(timings=timings, allowed=RIGHTS | LEASE_RIGHTS) as w:
        w.node("a", 12)
        label(w, bound)
        if started:
            await w.start()
            await placed(w, "p")
        yield w


def label(w: ExtenderWorld, bound: str | None) -> None:
    labels = {} if bound is None else {RESIZE_BOUND: bound}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    w.api.add(body)


async def placed(w: ExtenderWorld, name: str, mem: int = 4, running: Running | None = None) -> None:
    w.pod(name, mem=mem)
    await w.seen()
    assert await w.bind(name, "a", running) == ""
    await w.seen()


def in_doubt(w: ExtenderWorld) -> bool:
    return any(claim.doubted_at is not None for claim in w.only.extender.features.of(Resizes)._claims.values())


def annotate(w: ExtenderWorld, name: str, **annotations: str | None) -> None:
    w.api.patch("pods", name, {"metadata": {"annotations": annotations}})


def wish(w: ExtenderWorld, name: str, shares: int | None) -> None:
    annotate(w, name, **{MEMORY_GUARANTEE: None if shares is None else str(shares)})


def hold(w: ExtenderWorld, name: str, shares: int) -> None:
    """Let the agent say that it holds so many shares for a pod's only container, which is called main."""
    said = {"guarantees": {"main": shares}, "wish": w.annotations(name).get(MEMORY_GUARANTEE, "")}
    annotate(w, name, **{MEMORY_HELD: json.dumps(said)})


def promise(w: ExtenderWorld, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(w.annotations(name)[MEMORY_PROMISED])
    return found


def promised(w: ExtenderWorld, name: str) -> int | None:
    shares: int | None = promise(w, name).get("guarantees", {}).get("main")
    return shares


async def answered(w: ExtenderWorld, name: str) -> Mapping[str, Any]:
    """Wait until a pod's wish is answered."""
    await w.until(lambda: promise(w, name).get("wish", "") == w.annotations(name).get(MEMORY_GUARANTEE, ""))
    await w.seen()
    return promise(w, name)


def patches(w: ExtenderWorld) -> int:
    return sum((request.verb, request.resource) == ("patch", "pods") for request in w.api.requests)


async def test_a_wish_is_granted_and_counts_and_less_is_taken_back_once_the_agent_holds_it() -> None:
    async with cluster() as w:
        assert promise(w, "p") == {}
        wish(w, "p", 6)
        assert await answered(w, "p") == {"guarantees": {"main": 6}, "wish": "6"}
        assert w.only.free("a") == [6]
        hold(w, "p", 6)
        wish(w, "p", 4)
        await w.seen()
        assert w.only.free("a") == [6], "the agent has not given it back"
        hold(w, "p", 4)
        await w.until(lambda: promised(w, "p") is None)
        await w.until(lambda: w.only.free("a") == [8])
        assert 'gpushare_extender_resizes_total{outcome="grown"} 1' in await w.metrics()
        assert 'gpushare_extender_resizes_total{outcome="lowered"} 1' in await w.metrics()


async def test_a_wish_is_refused_without_room_and_granted_when_there_is_some() -> None:
    async with cluster() as w:
        await placed(w, "q", 7)
        wish(w, "p", 6)
        assert "has 1 GiB that is not assigned to anyone" in (await answered(w, "p"))["why"]
        w.end("q")
        await w.until(lambda: promised(w, "p") == 6)
        await w.until(lambda: w.only.free("a") == [6])


async def test_what_an_owner_writes_as_held_takes_nothing_from_others() -> None:
    """Without policies a pod of one share could keep a whole GPU free, and grow without room."""
    async with cluster() as w:
        hold(w, "p", 12)
        await w.seen()
        assert w.only.free("a") == [8]
        await placed(w, "q", 7)
        wish(w, "p", 12)
        hold(w, "p", 12)
        assert "has 1 GiB that is not assigned to anyone" in (await answered(w, "p"))["why"]
        assert promised(w, "p") is None


async def test_what_is_promised_is_promised_to_nobody_else() -> None:
    async with cluster() as w:
        wish(w, "p", 10)
        await answered(w, "p")
        w.pod("q", mem=4)
        await w.seen()
        assert await w.bind("q", "a") == "node a: no GPU has 4 GiB free"


@pytest.mark.parametrize(
    ("bound", "why"), [(None, NO_LABEL), ("1", "namespace default may have 1 share beyond their requests")]
)
async def test_the_namespace_has_to_allow_it(bound: str | None, why: str) -> None:
    async with cluster(bound=bound) as w:
        wish(w, "p", 6)
        assert why in (await answered(w, "p"))["why"]
        assert w.only.free("a") == [8]


async def test_a_namespace_that_cannot_be_read_is_asked_again() -> None:
    async with cluster() as w:
        w.api.fail(Answer(500), verbs={"get"}, resources={"namespaces"}, times=1)
        wish(w, "p", 6)
        assert (await answered(w, "p"))["guarantees"] == {"main": 6}
        assert any("bound of its namespace cannot be read" in line for line in w.logs)


async def test_a_pod_that_no_extender_has_bound_is_left_to_its_agent() -> None:
    async with cluster() as w:
        w.pod("q", mem=4, node="a", annotations={MEMORY_GUARANTEE: "6"})
        wish(w, "p", 6)
        await answered(w, "p")
        assert MEMORY_PROMISED not in w.annotations("q")


async def test_what_an_owner_forges_on_a_new_pod_is_overwritten() -> None:
    async with cluster() as w:
        forged = json.dumps({"guarantees": {"main": 12}})
        w.pod("q", mem=4, annotations={MEMORY_PROMISED: forged, MEMORY_HELD: forged})
        await w.seen()
        assert await w.bind("q", "a") == ""
        assert (w.annotations("q")[MEMORY_PROMISED], w.annotations("q")[MEMORY_HELD]) == ("{}", "{}")
        await w.seen()
        assert w.only.free("a") == [4]


async def test_an_owner_who_changes_a_wish_all_the_time_gets_an_answer_a_second() -> None:
    async with cluster() as w:
        for shares in range(5, 12):
            for _ in range(30):
                wish(w, "p", shares)
            await w.seen()
        assert await answered(w, "p") == {"guarantees": {"main": 11}, "wish": "11"}
        assert patches(w) <= 4


@pytest.mark.parametrize("trouble", [Answer(500), Answer(429), Late()], ids=["500", "429", "late"])
async def test_a_patch_that_fails_or_gets_no_answer_leads_to_the_promise_in_the_end(trouble: Trouble) -> None:
    async with cluster(timings=HASTY) as w:
        w.api.fail(trouble, verbs={"patch"}, resources={"pods"}, times=1)
        wish(w, "p", 6)
        await w.until(lambda: w.only.free("a") == [6])
        await answered(w, "p")
        await w.api.carry_out()
        await w.seen()
        await w.until(lambda: not in_doubt(w))
        assert (promised(w, "p"), w.only.free("a")) == (6, [6])


async def test_a_patch_in_doubt_counts_until_it_shows_that_it_cannot_be_made() -> None:
    """Nothing is answered any more. Then the owner takes the wish back, so that the patch is outdated."""
    async with cluster(timings=HASTY) as w:
        w.api.fail(Late(), verbs={"patch"}, resources={"pods"}, times=1000)
        wish(w, "p", 12)
        await w.until(lambda: in_doubt(w))
        w.pod("q", mem=4)
        await w.seen()
        assert await w.bind("q", "a") == "node a: no GPU has 4 GiB free"
        wish(w, "p", None)
        await w.until(lambda: not in_doubt(w) and w.only.free("a") == [8])
        await w.api.carry_out()
        await w.seen()
        assert (promise(w, "p"), w.only.free("a")) == ({}, [8])


async def test_a_pod_that_ends_while_its_patch_is_in_doubt_leaves_nothing() -> None:
    async with cluster(timings=HASTY) as w:
        w.api.fail(Late(), verbs={"patch"}, resources={"pods"}, times=1000)
        wish(w, "p", 12)
        await w.until(lambda: in_doubt(w))
        w.end("p")
        w.force_delete("p")
        await w.seen()
        await w.until(lambda: not in_doubt(w) and w.only.free("a") == [12])
        assert repr(w.only.extender.features.of(Resizes)) == "<Resizes: 0 pods, 0 queued, 0 claimed>"


async def test_an_extender_that_starts_goes_on_where_the_last_one_was() -> None:
    async with cluster() as w:
        wish(w, "p", 6)
        await answered(w, "p")
        await w.stop()
        wish(w, "p", 8)
        await w.start()
        await answered(w, "p")
        await w.until(lambda: w.only.free("a") == [4])


async def test_only_the_leader_resizes() -> None:
    async with cluster(started=False) as w:
        first = await w.start(leader_election="true", identity="first", lease_namespace="default")
        second = await w.launch(leader_election="true", identity="second", lease_namespace="default")
        await placed(w, "p", running=first)
        await w.until(lambda: bool(second.extender.fleet.entries))
        wish(w, "p", 6)
        await answered(w, "p")
        assert patches(w) == 1
        await w.stop(first)
        wish(w, "p", 7)
        await answered(w, "p")
        assert (promised(w, "p"), second.free("a")) == (7, [5])


async def test_beside_a_kube_scheduler_the_one_whose_scheduler_leads_resizes() -> None:
    async with cluster(started=False) as w:
        more = {"scheduler_lease": "gpushare-scheduler", "lease_namespace": "default"}
        first = await w.start(identity="pod-a", **more)
        await w.start(identity="pod-b", **more)
        await placed(w, "p", running=first)
        wish(w, "p", 6)
        await asyncio.sleep(0.1)
        assert patches(w) == 0, "nobody leads"
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpushare-scheduler"}}
        spec = {"holderIdentity": "pod-b_0e-1", "leaseTransitions": 1, "leaseDurationSeconds": 15}
        w.api.add({**lease, "spec": spec})
        await answered(w, "p")
        assert (promised(w, "p"), patches(w)) == (6, 1)


async def test_without_the_right_to_patch_pods_nothing_else_suffers_and_the_log_says_so() -> None:
    timings = replace(QUICK)
    async with world(timings=timings, allowed=RIGHTS - {("patch", "pods")}) as w:
        w.node("a", 12)
        label(w, "100")
        await w.start()
        await placed(w, "p")
        wish(w, "p", 6)
        await w.until(lambda: any("the assignment could not be written" in line for line in w.logs))
        await w.seen()
        assert w.only.free("a") == [8]
        await placed(w, "q", 8)


@pytest.mark.parametrize(("limit", "gpu"), [("8", 1), ('{"main": 8}', 1), ("4", 0), ("junk", 0), (None, 0)])
async def test_a_pod_that_may_borrow_gets_of_equal_gpus_the_one_with_more_free_memory(
    limit: str | None, gpu: int
) -> None:
    """It is guaranteed 4. On GPU 0 more memory is in use than on GPU 1, by what the agent tells."""
    async with world() as w:
        w.node("a", 8, 8)
        use = {"version": 1, "gpus": [{"index": 0, "used": 900}, {"index": 1, "used": 5}]}
        w.api.patch("nodes", "a", {"metadata": {"annotations": {"gpu-device-plugin/use": json.dumps(use)}}})
        await w.start()
        w.pod("p", mem=4, annotations={} if limit is None else {"gpu-device-plugin/memory-limit": limit})
        await w.seen()
        assert await w.bind("p", "a") == ""
        assert w.places("p") == {gpu: 4}

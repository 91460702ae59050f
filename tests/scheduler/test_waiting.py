"""The extender's page of metrics says how many pods wait for what, since when, and how full each node is."""

import re
from datetime import UTC, datetime

import pytest

from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.scheduler_gauges import WaitingReason
from gpu_device_plugin.scheduler.verbs import WaitingObserved
from tests.promtool import complaints, needs_promtool
from tests.resources import RESOURCES
from tests.scheduler.harness import ExtenderWorld, world

LONG_AGO = "2026-01-01T00:00:00Z"
MANY = 100_000


async def reasons(w: ExtenderWorld) -> dict[str, int]:
    """Return the number of waiting pods for each reason that some have; every reason has to be there."""
    await w.seen()
    found = re.findall(r'^gpushare_extender_pods_waiting{reason="(\w+)"} (\S+)$', await w.metrics(), re.MULTILINE)
    assert [reason for reason, _ in found] == ["not_asked", "no_room", "never_fits", "fits"]
    return {reason: int(float(number)) for reason, number in found if float(number)}


async def test_a_pod_waits_for_what_its_scheduler_was_last_told() -> None:
    """GPUs of 8 and 4 shares: two have room for 7 and 4 more, one pod asks for 8, one for 99."""
    async with world() as w:
        w.node("a", 8)
        w.node("b", 4)
        await w.start()
        assert await reasons(w) == {}
        w.pod("held", mem=1, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        w.run("held")
        w.pod("big", mem=8)
        assert await reasons(w) == {"not_asked": 1}
        await w.filter(w.get("big"), "a", "b")
        assert await reasons(w) == {"no_room": 1}
        await w.filter(w.pod("giant", mem=99), "a", "b")
        await w.filter(w.pod("small", mem=2), "a", "b")
        w.pod("new", mem=2)
        assert await reasons(w) == {"no_room": 1, "never_fits": 1, "fits": 1, "not_asked": 1}
        w.force_delete("giant")
        assert await w.bind("small", "a") == ""
        assert await reasons(w) == {"no_room": 1, "not_asked": 1}


async def test_a_node_that_the_scheduler_left_out_may_have_room_later() -> None:
    """By the sums kube-scheduler asks about `b` only, whose GPUs are too small; evictions on `a` would help."""
    async with world() as w:
        w.node("a", 8)
        w.node("b", 4, 4)
        await w.start()
        w.pod("held", mem=8, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        w.run("held")
        await w.seen()
        await w.filter(w.pod("big", mem=8), "b")
        assert await reasons(w) == {"no_room": 1}
        w.api.delete("nodes", "a")
        await w.seen()
        await w.filter(w.get("big"), "b")
        assert await reasons(w) == {"never_fits": 1}


async def test_a_scheduler_that_looks_for_victims_says_that_there_is_no_room() -> None:
    """It asks for nothing else while the sums of no node are sufficient."""
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("held", mem=8, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        w.run("held")
        await w.seen()
        meant = {"a": {"Pods": [{"UID": w.get("held")["metadata"]["uid"]}], "NumPDBViolations": 0}}
        for name, asks in (("big", 8), ("odd", MANY)):
            body = {"Pod": w.pod(name, mem=asks, priority=5), "NodeNameToVictims": None, "NodeNameToMetaVictims": meant}
            await w.ask("preempt", body)
        assert await reasons(w) == {"no_room": 2}
        impossible = w.pod("impossible", mem=1 << 40, priority=5)
        await w.ask("preempt", {"Pod": impossible, "NodeNameToVictims": None, "NodeNameToMetaVictims": meant})
        assert await reasons(w) == {"no_room": 2, "never_fits": 1}


async def test_the_age_of_the_oldest_pod_and_the_memory_of_every_node_are_shown() -> None:
    """3 of 8 GiB are allocated on `a`, nothing on `b`."""
    async with world() as w:
        w.node("a", 8)
        w.node("b", 4, 4)
        w.node("plain")
        await w.start()
        assert "gpushare_extender_pods_waiting_oldest_seconds 0.0" in await w.metrics()
        w.pod("held", mem=3, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        w.run("held")
        w.pod("old", mem=8, created=LONG_AGO)
        w.pod("ahead", mem=8, created="2999-01-01T00:00:00Z")
        await w.seen()
        page = await w.metrics()
        age = re.search(r"^gpushare_extender_pods_waiting_oldest_seconds (\S+)$", page, re.MULTILINE)
        assert age is not None
        assert (
            float(age[1])
            >= datetime(2026, 11, 1, tzinfo=UTC).timestamp() - datetime.fromisoformat(LONG_AGO).timestamp()
        )
        found = dict(re.findall(r"^gpushare_extender_(node_\w+{.*}) (\S+)$", page, re.MULTILINE))
        assert {name: float(value) for name, value in found.items()} == {
            'node_memory_bytes{node="a"}': 8 << 30,
            'node_memory_bytes{node="b"}': 8 << 30,
            'node_memory_allocated_bytes{node="a"}': 3 << 30,
            'node_memory_allocated_bytes{node="b"}': 0,
        }
        w.force_delete("old")
        await w.seen()
        assert "gpushare_extender_pods_waiting_oldest_seconds 0.0" in await w.metrics()


@needs_promtool
async def test_promtool_has_nothing_against_the_page_of_a_cluster_in_use() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=3)
        w.pod("waits", mem=8)
        await w.schedule()
        assert complaints(await w.metrics()) == ""


def waiting_pod(uid: str) -> Pod:
    container = Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: 1})
    return Pod(uid, "default", uid, containers=(container,))


def test_verdicts_on_pods_that_no_longer_wait_are_forgotten() -> None:
    fleet = Fleet(RESOURCES, vanished_grace_s=30)
    waiting = WaitingObserved(fleet, lambda: 0.0)
    for number in range(300):
        fleet.put_pod(waiting_pod(f"stays-{number}"))
        waiting.filtered(f"stays-{number}", WaitingReason.NO_ROOM)
    for number in range(MANY):
        waiting.filtered(f"gone-{number}", WaitingReason.FITS)
    assert len(waiting._reasons) <= 3 * 300 + 256
    assert waiting.counts() == {WaitingReason.NO_ROOM: 300}


@pytest.mark.parametrize(
    ("before", "helps", "after"),
    [
        (None, False, WaitingReason.NO_ROOM),
        (WaitingReason.FITS, False, WaitingReason.NO_ROOM),
        (WaitingReason.NO_ROOM, True, WaitingReason.NO_ROOM),
        (WaitingReason.NEVER_FITS, False, WaitingReason.NEVER_FITS),
        (WaitingReason.NEVER_FITS, True, WaitingReason.NO_ROOM),
    ],
)
def test_a_pod_for_which_others_may_be_evicted_has_no_room(
    before: WaitingReason | None, after: WaitingReason, *, helps: bool
) -> None:
    fleet = Fleet(RESOURCES, vanished_grace_s=30)
    fleet.put_pod(waiting_pod("p"))
    waiting = WaitingObserved(fleet, lambda: 0.0)
    if before is not None:
        waiting.filtered("p", before)
    waiting.preempted("p", helps=helps)
    assert waiting.counts() == {after: 1}


def test_a_verdict_before_the_watch_shows_the_pod_counts() -> None:
    fleet = Fleet(RESOURCES, vanished_grace_s=30)
    waiting = WaitingObserved(fleet, lambda: 0.0)
    for number in range(1000):
        waiting.filtered(f"other-{number}", WaitingReason.FITS)
    waiting.filtered("early", WaitingReason.NO_ROOM)
    fleet.put_pod(waiting_pod("early"))
    assert waiting.counts() == {WaitingReason.NO_ROOM: 1}

"""What `why` says of a pod's limits, of its use, and of neighbours that use more than their parts."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpu_device_plugin.features.use.contract import GpuUse, NodeReport, asked_s
from gpu_device_plugin.model.contract.keys import ALLOCATION, OVER_USE
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.rules.node_answers import besides
from gpu_device_plugin.report.rules.pod_causes import SchedulingStatus, causes
from gpu_device_plugin.report.rules.pod_use import of_pod, refusals, told_over_use
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.findings import facts
from tests.names import MEM
from tests.reports import ASKED, SINCE, part, report
from tests.resources import RESOURCES
from tests.views import node_view

WEB = Pod("uid", "default", "web", containers=(Container("main", ContainerKind.APP, 0, {MEM: 4}),), node_name="a")
SAID = "main uses 6,120 MiB of GPU 0, was granted 4,096 MiB"
REFUSED = GpuEnforcement(Enforcement.ADVISORY, "no MPS", refusal="the label wants mps, and there is no supervisor")


def told(*parts: object, used: int | None = None, other: int | None = None, **more: object) -> list[str]:
    gpus = {0: GpuUse(used, other)}
    view = node_view("a", (15, 15), report=report(*parts, gpus=gpus, **more))  # type: ignore[arg-type]
    return list(map(str, of_pod(WEB, view, [0])))


def test_a_pod_within_its_part_is_told_what_it_uses() -> None:
    assert told(part("web"), part("other", used=9)) == [
        "Container 'main' uses 1,000 MiB of GPU 0, was granted 4,096 MiB."
    ]
    nameless = replace(part("web"), container="")
    assert told(nameless) == ["It uses 1,000 MiB of GPU 0, was granted 4,096 MiB."]


def test_a_limit_that_does_not_hold_is_told_with_both_numbers() -> None:
    differs = part(
        "web",
        used=None,
        enforcement=Enforcement.DRIVER,
        held=LimitStatus.DIFFERS,
        found_mib=8192,
        why="its env names another",
    )
    assert told(differs) == [
        "Container 'main' is limited to 8,192 MiB of GPU 0 instead of 4,096 MiB: its env names another."
    ]


def test_figures_that_are_old_or_missing_say_so() -> None:
    assert told(part("web", used=9000), age_s=1200) == [
        "Its node's agent read last 20 min ago who uses how much, so nothing is said about that."
    ]
    assert told(part("web"), age_s=420) == [
        "Its node's agent wrote these figures 7 min ago:",
        "Container 'main' uses 1,000 MiB of GPU 0, was granted 4,096 MiB.",
    ]
    assert told(part("other"), age_s=420) == []
    assert told(part("web", used=None), blind="no hostPID") == ["How much it uses is not known: no hostPID."]


def test_a_pod_that_uses_more_is_told_what_its_agent_wrote() -> None:
    wrote = replace(WEB, annotations={OVER_USE: f"{SAID}."})
    for writer, verb in (
        (wrote, "uses"),
        (replace(wrote, deleting=True), "used"),
        (replace(wrote, phase="Failed"), "used"),
    ):
        (finding,) = told_over_use(writer)
        assert str(finding) == f"It {verb} more GPU memory than it was granted: {SAID}."
    assert told_over_use(WEB) == []
    assert len(str(told_over_use(replace(WEB, annotations={OVER_USE: "x" * 65_000}))[0])) < 1100


def test_of_an_evicted_pod_the_over_use_is_told() -> None:
    wrote = replace(WEB, annotations={OVER_USE: SAID, ALLOCATION: '{"0":{"0":4}}'})
    evicted = replace(wrote, phase="Failed")
    findings, _ = causes(evicted, SchedulingStatus(reason="Evicted", message="over-use"), RESOURCES, {})
    assert facts(findings, "written") == ["ended", f"over-use written={SAID}"]
    view = node_view("a", (15, 15), report=report(part("web", used=6120, over_since=SINCE), gpus={0: GpuUse(6120)}))
    findings, _ = causes(replace(wrote, phase="Running", deleting=True), SchedulingStatus(), RESOURCES, {"a": view})
    assert facts(findings, "written") == ["leaves-node", "has", f"over-use written={SAID}", "use"]


# --- Neighbours -------------------------------------------------------------------------------------------------------


def test_a_neighbour_that_uses_more_than_its_part_is_named() -> None:
    """Of 15,360 MiB the others and the processes of no pod use 13,000, so that 2,360 are left for 4,096."""
    hog, spy = part("ml/hog", granted=8192, used=12_000), part("spy", granted=0, used=700)
    tidy = part("tidy", granted=1024, used=0)
    assert told(part("web", used=1000), hog, spy, tidy, used=14_000, other=300)[1:] == [
        (
            "GPU 0 has only 2,360 MiB left for the 4,096 MiB that the pod was granted: ml/hog uses 12,000 MiB (granted "
            "8,192 MiB); default/spy uses 700 MiB (not given this GPU); processes of no pod use 300 MiB."
        )
    ]


def test_many_neighbours_are_not_all_named() -> None:
    many = [part(f"n{number}", granted=1024, used=2000 + number) for number in range(7)]
    (said,) = told(part("web", used=0), *many, used=14_021)[1:]
    assert "default/n6 uses 2,006 MiB (granted 1,024 MiB); default/n5" in said
    assert said.endswith("default/n2 uses 2,002 MiB (granted 1,024 MiB) and 2 more.")


def test_a_gpu_that_is_too_full_without_a_culprit_is_told() -> None:
    """What the driver does not attribute to anybody."""
    assert told(part("web", used=0), used=15_000)[1:] == [
        "GPU 0 has only 360 MiB left for the 4,096 MiB that the pod was granted."
    ]


@pytest.mark.parametrize(
    ("parts", "used"),
    [
        ((part("web", used=1000), part("hog", used=9000)), 10_000),
        ((part("web", used=None), part("hog", used=15_000)), 15_000),
        ((part("web", used=0), part("hog", used=15_000)), None),
        ((part("web", 1, used=0), part("hog", used=15_000)), 15_000),
    ],
    ids=["enough is left", "its own use is unknown", "the GPU's is", "it is not on this GPU"],
)
def test_where_nothing_is_short_or_known_nobody_is_accused(parts: tuple[object, ...], used: int | None) -> None:
    assert [line for line in told(*parts, used=used) if "left for" in line] == []


def test_a_gpu_of_unknown_size_is_never_short() -> None:
    view = node_view("a", (15,), share_mib=None, report=report(part("web", used=0), gpus={0: GpuUse(15_000)}))
    assert len(list(of_pod(WEB, view, [0]))) == 1


# --- Refusals ---------------------------------------------------------------------------------------------------------


def test_a_node_that_refuses_shares_says_why() -> None:
    refusing = node_view(
        "a",
        (15, 15, 15),
        report=report(enforcements={0: REFUSED, 2: REFUSED, 1: GpuEnforcement(Enforcement.MPS, "ok")}),
    )
    (why,) = refusals(refusing.report)
    assert str(why) == "its agent refuses shares of GPU 0, 2: the label wants mps, and there is no supervisor"
    assert refusals(node_view("a", (15,)).report) == ()
    assert besides(refusing, GpuRequest((Part(Demand(Kind.MEMORY, 4)),)), RESOURCES) == (why,)
    assert besides(refusing, GpuRequest((Part(Demand(Kind.COUNT, 1)),)), RESOURCES) == (), "whole GPUs have no limit"
    rejected = replace(WEB, phase="Failed")
    status = SchedulingStatus(reason="UnexpectedAdmissionError", message="Allocate failed")
    ended, refused = causes(rejected, status, RESOURCES, {"a": refusing})[0]
    assert (ended.code, str(refused)) == ("ended", f"Node a: {why}.")
    assert len(causes(rejected, replace(status, reason="Error"), RESOURCES, {"a": refusing})[0]) == 1


def test_a_pod_is_told_who_borrows_the_memory_that_it_needs() -> None:
    lent = replace(ASKED, needed_by="default/web", asked_at=rfc3339(time.time() - 40))
    sentence = "{} 3,072 MiB that default/nb/main borrows of GPU 0, asked to return it 40 s ago."
    assert told(lent, part("other", needed_by="ml/web"))[0].replace("39 s", "40 s") == sentence.format("It waits for")
    running = replace(WEB, running=True)
    view = node_view("a", (15,), report=replace(report(replace(lent, asked_at="once")), use_age_s=None))
    assert list(map(str, of_pod(running, view, []))) == [
        "Its node's agent read last at an unknown time who uses how much, so nothing is said about that."
    ]
    view = node_view("a", (15,), report=report(replace(lent, asked_at="once")))
    assert [str(each) for each in of_pod(running, view, [])] == [
        sentence.format("It needs").replace("40 s ago", "at an unknown time")
    ]


def test_without_a_report_nobody_is_asked() -> None:
    assert asked_s(NodeReport(), ASKED) is None
    assert asked_s(report(part("web")), part("web")) is None

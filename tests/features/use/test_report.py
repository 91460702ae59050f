"""The report of a node's agent in words: used beside granted, and which limit holds."""

import time
from dataclasses import replace

import pytest

from gpu_device_plugin.features.over_use.report import told_over_use
from gpu_device_plugin.features.use.report import at_a_glance, does_not_hold, memory_in_use, of_pod, uses
from gpu_device_plugin.model.contract.keys import ALLOCATION, OVER_USE
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeReport, asked_s
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.inspect.gpushare_layout import details, summary, wide
from gpu_device_plugin.report.rules.pod_causes import besides, refusals
from gpu_device_plugin.report.rules.printing import container, limit
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.findings import facts
from tests.names import MEM
from tests.reporting import causes
from tests.reports import ASKED, BORROWER, NO_LIMITS, SINCE, part, report
from tests.resources import RESOURCES
from tests.views import node_view, pod_on

WEB = part("web", used=1200, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED)
HOG = part("ml/hog", used=6120, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED, over_since=SINCE)
STRANGER = part("spy", granted=0, used=700, over_since=SINCE)
DIFFERS = part(
    "big", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192, why="its own env names another"
)
MISSING = part("old", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING, why="its CDI specification is older")
HELD = part("good", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.HELD, found_mib=4096)


def test_a_container_is_named_as_far_as_it_is_known() -> None:
    """An agent without the API knows only the UID of a pod, and of some processes only the pod."""
    assert container(HOG) == "ml/hog/main"
    assert container(ContainerUse("", "0b7c6d5e-uid", "", 0, 0)) == "0b7c6d5e-uid"


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (part("whole"), "-"),
        (WEB, "advisory"),
        (part("x", enforcement=Enforcement.MPS, held=LimitStatus.UNVERIFIED), "mps: unverified"),
        (part("x", enforcement=Enforcement.CUSTOM, held=LimitStatus.UNVERIFIED), "custom: unverified"),
        (part("x", enforcement=Enforcement.MPS), "mps"),
        (HELD, "driver: held"),
        (DIFFERS, "driver limit 8,192 MiB, granted 4,096 MiB"),
        (MISSING, "driver: missing (4,096 MiB)"),
    ],
)
def test_a_limit_is_the_means_and_whether_it_holds(held: ContainerUse, said: str) -> None:
    assert limit(held) == said


def test_what_is_wrong_with_a_container_is_a_sentence() -> None:
    assert str(uses(HOG)) == f"uses 6,120 MiB of GPU 0, was granted 4,096 MiB, since {SINCE}"
    assert str(uses(WEB)) == "uses 1,200 MiB of GPU 0, was granted 4,096 MiB"
    assert str(uses(part("x", used=None))) == "uses an unknown amount of GPU 0, was granted 4,096 MiB"
    assert str(uses(STRANGER)) == "uses 700 MiB of GPU 0, which it was not assigned"
    assert str(does_not_hold(DIFFERS)) == (
        "is limited to 8,192 MiB of GPU 1 instead of 4,096 MiB: its own env names another"
    )
    missing = part("old", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING)
    assert str(does_not_hold(missing)) == "has no limit on GPU 1, where it was granted 4,096 MiB"


# --- The tables -------------------------------------------------------------------------------------------------------

GPUS = {0: GpuUse(8320, 300), 1: GpuUse(3000, 0)}
ENFORCEMENTS = {
    0: GpuEnforcement(Enforcement.ADVISORY, NO_LIMITS),
    1: GpuEnforcement(Enforcement.DRIVER, "the driver limits"),
}
ALL = (WEB, HOG, STRANGER, DIFFERS, MISSING, HELD)


def test_the_details_have_used_beside_granted() -> None:
    """The most use first; the original's tables come before, unchanged."""
    view = node_view(
        "a", (15, 15), pod_on("web", {0: 4}), report=report(*ALL, gpus=GPUS, enforcements=ENFORCEMENTS, left_out=2)
    )
    before = details([node_view("a", (15, 15), pod_on("web", {0: 4}))])
    printed = details([view])
    assert printed[: len(before)] == before
    assert printed[len(before) :] == [
        "",
        "GPU memory in use on a:",
        "  GPU  CONTAINER          USED       GRANTED        LIMIT",
        f"  0    ml/hog/main        6,120 MiB  4,096 MiB      advisory                                   over its limit since {SINCE}",  # noqa: E501
        "  0    default/web/main   1,200 MiB  4,096 MiB      advisory",
        "  0    default/spy/main   700 MiB    0 MiB          -                                          was not assigned this GPU",  # noqa: E501
        "  0    (outside pods)     300 MiB    -              -",
        "  0    (total)            8,320 MiB  of 15,360 MiB  advisory",
        "  1    default/big/main   1,000 MiB  4,096 MiB      driver limit 8,192 MiB, granted 4,096 MiB  its own env names another",  # noqa: E501
        "  1    default/good/main  1,000 MiB  4,096 MiB      driver: held",
        "  1    default/old/main   1,000 MiB  4,096 MiB      driver: missing (4,096 MiB)                its CDI specification is older",  # noqa: E501
        "  1    (total)            3,000 MiB  of 15,360 MiB  driver",
        "  2 more containers are not listed.",
    ]  # fmt: skip


def test_blind_is_not_zero_and_old_figures_say_so() -> None:
    blind = "the agent's pod has no hostPID"
    unknown = part("web", used=None, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED)
    view = node_view("a", (15,), report=report(unknown, gpus={0: GpuUse(9000)}, blind=blind, age_s=420))
    assert memory_in_use([view]) == [
        "",
        "GPU memory in use on a, read 7 min ago:",
        f"  Its use by container is unknown: {blind}.",
        "  GPU  CONTAINER         USED       GRANTED        LIMIT",
        "  0    default/web/main  unknown    4,096 MiB      advisory",
        "  0    (total)           9,000 MiB  of 15,360 MiB  advisory",
    ]


def test_a_refusing_gpu_and_one_of_unknown_size_have_their_rows() -> None:
    refusing = {0: GpuEnforcement(Enforcement.ADVISORY, "why", refusal="MPS is required here and not there")}
    view = node_view("a", (15,), share_mib=None, report=report(enforcements=refusing))
    assert memory_in_use([view])[2:] == [
        "  GPU  CONTAINER  USED     GRANTED  LIMIT",
        "  0    (total)    unknown  -        advisory  shares are refused: MPS is required here and not there",
    ]
    unknown = node_view("a", (15,), report=report(enforcements={}))
    assert memory_in_use([unknown])[3].split() == ["0", "(total)", "unknown", "of", "15,360", "MiB", "-"]


def test_the_overview_says_at_a_glance_that_something_is_wrong() -> None:
    wrong = node_view("a", (15, 15), report=report(*ALL, gpus=GPUS))
    assert summary([wrong])[-2:] == [
        "",
        (
            "1 container is over the limit; 1 container uses a GPU without a grant; 2 limits do not "
            "hold: kubectl inspect gpushare -d has the names."
        ),
    ]
    two = node_view("b", (15, 15), report=report(HOG, HOG))
    assert summary([two])[-1] == "2 containers are over the limit: kubectl inspect gpushare -d has the names."
    for well in (report(WEB, HELD), report(HOG, age_s=1000), report(part("dcgm", granted=0, used=3))):
        assert summary([node_view("a", (15, 15), report=well)])[-1] == "0/30 (0%)  "


def test_wide_rows_have_the_use_and_the_means_of_each_gpu() -> None:
    refusing = GpuEnforcement(Enforcement.ADVISORY, "why", refusal="no")
    enforcements = {**ENFORCEMENTS, 2: refusing, 3: GpuEnforcement(Enforcement.MPS, "the label")}
    gpus = {**GPUS, 2: GpuUse(0)}
    told = [
        row[34:82].split("  ")
        for row in wide([node_view("a", (15,) * 5, report=report(*ALL, gpus=gpus, enforcements=enforcements))])
    ]
    cells = [[cell.strip() for cell in row if cell.strip()][1:3] for row in told]
    assert cells == [
        ["USED", "LIMITS"],
        ["8,320 MiB", "advisory"],
        ["3,000 MiB", "driver, 2 differ"],
        ["0 MiB", "advisory, shares refused"],
        ["-", "mps"],
        ["-", "-"],
    ]
    old = wide([node_view("a", (15,), report=report(gpus=GPUS, age_s=600))])
    assert "  8,320 MiB (10 min ago)  advisory  " in old[1]


# --- Memory that is borrowed ------------------------------------------------------------------------------------------


def test_a_borrower_is_told_its_guarantee_its_limit_and_what_it_returns() -> None:
    own = "uses 7,168 MiB of GPU 0, is guaranteed 4,096 MiB and limited to 12,288 MiB"
    assert str(uses(replace(BORROWER, used_mib=100))) == own.replace("7,168", "100")
    assert str(uses(BORROWER)) == f"{own}; borrows 3,072 MiB"
    asked = f"has been asked since {SINCE} to release it for ml/train, and is evicted at 2026-11-22T09:57:00Z otherwise"
    assert str(uses(ASKED)) == f"{own}; borrows 3,072 MiB; {asked}"
    assert str(uses(replace(ASKED, return_by="", needed_by=""))).endswith(
        f"; has been asked since {SINCE} to release it"
    )
    differs = replace(BORROWER, enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192)
    assert limit(differs) == "driver limit 8,192 MiB, allowed 12,288 MiB"
    assert str(does_not_hold(differs)) == "is limited to 8,192 MiB of GPU 0 instead of 12,288 MiB"


def test_the_tables_name_borrowers() -> None:
    view = node_view("a", (15,), report=report(ASKED, replace(BORROWER, pod="idle", used_mib=None)))
    rows = memory_in_use([view])
    assert " may use 12,288 MiB; borrows 3,072 MiB; has been asked since" in rows[3]
    assert rows[4].endswith(" may use 12,288 MiB")
    assert at_a_glance([view]) == [
        "",
        "1 container is asked to return borrowed memory: kubectl inspect gpushare -d has the names.",
    ]


POD = Pod("uid", "default", "web", containers=(Container("main", ContainerKind.APP, 0, {MEM: 4}),), node_name="a")


SAID = "main uses 6,120 MiB of GPU 0, was granted 4,096 MiB"


REFUSED = GpuEnforcement(Enforcement.ADVISORY, "no MPS", refusal="the label wants mps, and there is no supervisor")


def told(*parts: object, used: int | None = None, other: int | None = None, **more: object) -> list[str]:
    gpus = {0: GpuUse(used, other)}
    view = node_view("a", (15, 15), report=report(*parts, gpus=gpus, **more))  # type: ignore[arg-type]
    return list(map(str, of_pod(POD, view, [0])))


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
        "Its node's agent last read GPU memory use 20 min ago, too long ago to report it."
    ]
    assert told(part("web"), age_s=420) == [
        "Its node's agent wrote these figures 7 min ago:",
        "Container 'main' uses 1,000 MiB of GPU 0, was granted 4,096 MiB.",
    ]
    assert told(part("other"), age_s=420) == []
    assert told(part("web", used=None), blind="no hostPID") == ["Its use is unknown: no hostPID."]


def test_a_pod_that_uses_more_is_told_what_its_agent_wrote() -> None:
    wrote = replace(POD, annotations={OVER_USE: f"{SAID}."})
    for writer, verb in (
        (wrote, "uses"),
        (replace(wrote, deleting=True), "used"),
        (replace(wrote, phase="Failed"), "used"),
    ):
        (finding,) = told_over_use(writer)
        assert str(finding) == f"It {verb} more GPU memory than it was granted: {SAID}."
    assert told_over_use(POD) == []
    assert len(str(told_over_use(replace(POD, annotations={OVER_USE: "x" * 65_000}))[0])) < 1100


def test_of_an_evicted_pod_the_over_use_is_told() -> None:
    wrote = replace(POD, annotations={OVER_USE: SAID, ALLOCATION: '{"0":{"0":4}}'})
    evicted = replace(wrote, phase="Failed")
    findings, _ = causes(evicted, SchedulingStatus(reason="Evicted", message="over-use"), RESOURCES, {})
    assert facts(findings, "written") == ["ended", f"used-over written={SAID}"]
    view = node_view("a", (15, 15), report=report(part("web", used=6120, over_since=SINCE), gpus={0: GpuUse(6120)}))
    findings, _ = causes(replace(wrote, phase="Running", deleting=True), SchedulingStatus(), RESOURCES, {"a": view})
    assert facts(findings, "written") == ["leaves-node", "has", f"used-over written={SAID}", "use"]


def test_a_neighbour_that_uses_more_than_its_part_is_named() -> None:
    """Of 15,360 MiB the others and the processes outside pods use 13,000, so that 2,360 are left for 4,096."""
    hog, spy = part("ml/hog", granted=8192, used=12_000), part("spy", granted=0, used=700)
    tidy = part("tidy", granted=1024, used=0)
    assert told(part("web", used=1000), hog, spy, tidy, used=14_000, other=300)[1:] == [
        (
            "GPU 0 has only 2,360 MiB left for the 4,096 MiB that the pod was granted: ml/hog uses 12,000 MiB (granted "
            "8,192 MiB); default/spy uses 700 MiB (not assigned this GPU); processes outside pods use 300 MiB."
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
    assert len(list(of_pod(POD, view, [0]))) == 1


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
    rejected = replace(POD, phase="Failed")
    status = SchedulingStatus(reason="UnexpectedAdmissionError", message="Allocate failed")
    ended, refused = causes(rejected, status, RESOURCES, {"a": refusing})[0]
    assert (ended.code, str(refused)) == ("ended", f"Node a: {why}.")
    assert len(causes(rejected, replace(status, reason="Error"), RESOURCES, {"a": refusing})[0]) == 1


def test_a_pod_is_told_who_borrows_the_memory_that_it_needs() -> None:
    lent = replace(ASKED, needed_by="default/web", asked_at=rfc3339(time.time() - 40))
    sentence = "{} 3,072 MiB that default/nb/main borrows of GPU 0, asked to return it 40 s ago."
    assert told(lent, part("other", needed_by="ml/web"))[0].replace("39 s", "40 s") == sentence.format("It waits for")
    running = replace(POD, running=True)
    view = node_view("a", (15,), report=replace(report(replace(lent, asked_at="once")), use_age_s=None))
    assert list(map(str, of_pod(running, view, []))) == [
        "Its node's agent last read GPU memory use at an unknown time, too long ago to report it."
    ]
    view = node_view("a", (15,), report=report(replace(lent, asked_at="once")))
    assert [str(each) for each in of_pod(running, view, [])] == [
        sentence.format("It needs").replace("40 s ago", "at an unknown time")
    ]


def test_without_a_report_nobody_is_asked() -> None:
    assert asked_s(NodeReport(), ASKED) is None
    assert asked_s(report(part("web")), part("web")) is None

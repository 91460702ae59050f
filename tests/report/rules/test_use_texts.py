"""The report of a node's agent in words: used beside granted, and which limit holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimRequest
from gpu_device_plugin.features.over_use.rules import Excess, Response
from gpu_device_plugin.features.use.contract import ContainerUse, GpuUse
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.report.rules.gpushare_layout import details, summary, wide
from gpu_device_plugin.report.rules.use_texts import (
    age,
    annotation,
    at_a_glance,
    borrowed,
    container,
    does_not_hold,
    duration,
    event_note,
    limit,
    memory_in_use,
    mib,
    misdirected,
    outlook,
    ultimatum,
    use_of,
    uses,
    waits,
)
from tests.reports import ASKED, BORROWER, NO_LIMITS, SINCE, part, report
from tests.views import node_view, pod_on

WEB = part("web", used=1200, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED)
HOG = part("ml/hog", used=6120, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED, over_since=SINCE)
STRANGER = part("spy", granted=0, used=700, over_since=SINCE)
DIFFERS = part(
    "big", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192, why="its own env names another"
)
MISSING = part("old", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING, why="its CDI specification is older")
HELD = part("good", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.HELD, found_mib=4096)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        *((-1, "0 s"), (59.9, "59 s"), (119, "119 s"), (120, "2 min"), (185, "3 min"), (7199, "119 min")),
        *((7200, "2 h"), (400_000, "4 days")),
    ],
)
def test_a_duration_is_told_in_a_unit_of_which_it_has_two(seconds: float, told: str) -> None:
    assert (duration(seconds), age(seconds)) == (told, f"{told} ago")
    assert age(None) == "at an unknown time"


def test_amounts_that_are_compared_have_one_unit() -> None:
    assert [mib(amount) for amount in (None, 0, 4096, 143_771)] == ["unknown", "0 MiB", "4,096 MiB", "143,771 MiB"]


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
        (DIFFERS, "driver: differs (8,192 MiB instead of 4,096 MiB)"),
        (MISSING, "driver: missing (4,096 MiB)"),
    ],
)
def test_a_limit_is_the_means_and_whether_it_holds(held: ContainerUse, said: str) -> None:
    assert limit(held) == said


def test_what_is_wrong_with_a_container_is_a_sentence() -> None:
    assert uses(HOG) == f"uses 6,120 MiB of GPU 0, was granted 4,096 MiB, since {SINCE}"
    assert uses(WEB) == "uses 1,200 MiB of GPU 0, was granted 4,096 MiB"
    assert uses(part("x", used=None)) == "uses an unknown amount of GPU 0, was granted 4,096 MiB"
    assert uses(STRANGER) == "uses 700 MiB of GPU 0, which it was not given"
    assert does_not_hold(DIFFERS) == (
        "is limited to 8,192 MiB of GPU 1 instead of 4,096 MiB: its own env names another"
    )
    missing = part("old", 1, enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING)
    assert does_not_hold(missing) == "has no limit on GPU 1, where it was granted 4,096 MiB"


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
        "  GPU  CONTAINER              USED       GRANTED        LIMIT",
        f"  0    ml/hog/main            6,120 MiB  4,096 MiB      advisory                                          over since {SINCE}",  # noqa: E501
        "  0    default/web/main       1,200 MiB  4,096 MiB      advisory",
        "  0    default/spy/main       700 MiB    0 MiB          -                                                 was not given this GPU",  # noqa: E501
        "  0    (processes of no pod)  300 MiB    -              -",
        "  0    (in all)               8,320 MiB  of 15,360 MiB  advisory",
        "  1    default/big/main       1,000 MiB  4,096 MiB      driver: differs (8,192 MiB instead of 4,096 MiB)  its own env names another",  # noqa: E501
        "  1    default/good/main      1,000 MiB  4,096 MiB      driver: held",
        "  1    default/old/main       1,000 MiB  4,096 MiB      driver: missing (4,096 MiB)                       its CDI specification is older",  # noqa: E501
        "  1    (in all)               3,000 MiB  of 15,360 MiB  driver",
        "  2 more containers are not listed.",
    ]  # fmt: skip


def test_blind_is_not_zero_and_old_figures_say_so() -> None:
    blind = "the agent's pod has no hostPID"
    unknown = part("web", used=None, enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED)
    view = node_view("a", (15,), report=report(unknown, gpus={0: GpuUse(9000)}, blind=blind, age_s=420))
    assert memory_in_use([view]) == [
        "",
        "GPU memory in use on a, read 7 min ago:",
        f"  Who uses it is not known: {blind}.",
        "  GPU  CONTAINER         USED       GRANTED        LIMIT",
        "  0    default/web/main  unknown    4,096 MiB      advisory",
        "  0    (in all)          9,000 MiB  of 15,360 MiB  advisory",
    ]


def test_a_refusing_gpu_and_one_of_unknown_size_have_their_rows() -> None:
    refusing = {0: GpuEnforcement(Enforcement.ADVISORY, "why", refusal="MPS is required here and not there")}
    view = node_view("a", (15,), share_mib=None, report=report(enforcements=refusing))
    assert memory_in_use([view])[2:] == [
        "  GPU  CONTAINER  USED     GRANTED  LIMIT",
        "  0    (in all)   unknown  -        advisory  shares are refused: MPS is required here and not there",
    ]
    unknown = node_view("a", (15,), report=report(enforcements={}))
    assert memory_in_use([unknown])[3].split() == ["0", "(in", "all)", "unknown", "of", "15,360", "MiB", "-"]


def test_the_overview_says_at_a_glance_that_something_is_wrong() -> None:
    wrong = node_view("a", (15, 15), report=report(*ALL, gpus=GPUS))
    assert summary([wrong])[-2:] == [
        "",
        (
            "1 container uses more than granted; 1 container uses a GPU that was not given to it; 2 limits do not "
            "hold: kubectl inspect gpushare -d has the names."
        ),
    ]
    two = node_view("b", (15, 15), report=report(HOG, HOG))
    assert summary([two])[-1] == "2 containers use more than granted: kubectl inspect gpushare -d has the names."
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
        ["3,000 MiB", "driver, 2 not held"],
        ["0 MiB", "advisory, shares refused"],
        ["-", "mps"],
        ["-", "-"],
    ]
    old = wide([node_view("a", (15,), report=report(gpus=GPUS, age_s=600))])
    assert "  8,320 MiB (10 min ago)  advisory  " in old[1]


# --- Of a pod that exceeds --------------------------------------------------------------------------------------------

EXCESS = Excess(("u", "main", "GPU-0"), 6120, 4096, 100, Pod("u", "default", "p"))


def test_an_event_has_the_numbers_the_time_and_the_outlook() -> None:
    assert event_note(EXCESS, "GPU 0", 280, Response.REPORT) == (
        "container main uses 6,120 MiB of GPU 0, was given 4,096 MiB, for 3 min; "
        "this is only reported (setting over_use)"
    )


def test_a_trespasser_was_given_nothing_and_may_have_no_name() -> None:
    found = replace(EXCESS, place=("u", "", "GPU-0"), granted_mib=0)
    assert use_of(found, "GPU 0") == "a container uses 6,120 MiB of GPU 0, was not given that GPU"


def test_who_may_borrow_is_told_its_limit() -> None:
    found = replace(EXCESS, limit_mib=5120)
    assert use_of(found, "GPU 0") == "container main uses 6,120 MiB of GPU 0, may use up to 5,120 MiB"


def test_a_name_cannot_control_a_terminal() -> None:
    assert "\x1b" not in use_of(replace(EXCESS, place=("u", "\x1b[2J", "g")), "GPU 0")


@pytest.mark.parametrize(
    ("pod", "response", "told"),
    [
        (EXCESS.pod, Response.REPORT, "this is only reported (setting over_use)"),
        (EXCESS.pod, Response.SUSPENDED, "nobody is evicted while another plugin hands out GPUs of this node"),
        (EXCESS.pod, Response.EVICT, "the pod is evicted, one of its GPU at a time"),
        (
            EXCESS.pod,
            Response.EVICT_WHEN_SHORT,
            "the pod is evicted as soon as the GPU has too little free memory for what others were granted",
        ),
        (None, Response.EVICT, "it is not evicted: it is not known in the API"),
        (Pod("u", "kube-system", "p"), Response.EVICT, "it is not evicted: it is in the namespace kube-system"),
        (Pod("u", "default", "p", deleting=True), Response.EVICT, "the pod is ending"),
    ],
)
def test_what_will_happen(pod: Pod | None, response: Response, told: str) -> None:
    assert outlook(replace(EXCESS, pod=pod), response) == told


def test_an_annotation_has_the_largest_excesses_of_its_pod() -> None:
    told = [(replace(EXCESS, used_mib=6000 + n, place=("u", f"c{n}", "g")), "GPU 0", "then") for n in range(6)]
    found = annotation(told, Response.REPORT)
    assert found.startswith("container c5 uses 6,005 MiB of GPU 0, was given 4,096 MiB, since then; container c4 uses")
    assert found.endswith(" and 2 more; this is only reported (setting over_use)")
    assert annotation(told[:1], Response.REPORT).count(";") == 1


# --- Of memory that is borrowed ---------------------------------------------------------------------------------------

NB = Pod("u", "default", "nb-2")
LADDER = ReclaimRequest(("u", "main", "GPU-0"), 100, 110, 3072, 8192, 130, "default/new", NB)


def test_a_borrower_is_told_how_much_is_needed_for_whom() -> None:
    told = "container main borrows 8,192 MiB of GPU 0 beyond its guarantee, and 3,072 MiB of that are needed"
    assert borrowed(LADDER, "GPU 0") == f"{told} for default/new"
    assert borrowed(replace(LADDER, needed_by=""), "GPU 0") == told
    assert borrowed(replace(LADDER, needed_by="secret/new"), "GPU 0") == f"{told} for another pod"
    assert borrowed(replace(LADDER, pod=None), "GPU 0") == f"{told} for another pod"


@pytest.mark.parametrize(
    ("asked", "evicts", "told"),
    [
        (LADDER, True, "in 18 s it may be evicted"),
        (replace(LADDER, until=112), True, "it is to be evicted"),
        (replace(LADDER, until=None, pod=None), True, "nothing evicts it: it is not known in the API"),
        (replace(LADDER, until=None), True, "nothing evicts it: it was told the limit of another container"),
        (replace(LADDER, until=None), False, "nothing evicts it, since the setting borrowers is report"),
    ],
)
def test_a_borrower_is_told_what_will_happen(asked: ReclaimRequest, told: str, *, evicts: bool) -> None:
    assert ultimatum(asked, 112, evicts=evicts) == told


def test_who_waits_is_told_for_whom_and_what_will_happen() -> None:
    assert waits(3072, "GPU 0", [LADDER], 112, "default") == (
        "waits for 3 GiB that default/nb-2 borrows of GPU 0, asked to return 12 s ago; in 18 s it may be evicted"
    )
    unknown = replace(LADDER, pod=None, mib=4096, until=None)
    assert waits(7168, "GPU 0", [LADDER, unknown], 112, "default") == (
        "waits for 7 GiB that another pod and 1 other borrow of GPU 0, asked to return 12 s ago; "
        "nothing evicts it: it is not known in the API"
    )
    assert waits(3072, "GPU 0", [LADDER], 112, "other").startswith("waits for 3 GiB that another pod borrows")


def told_wrongly(
    pod: Pod, started_mib: int | None = 10240, enforcement: Enforcement = Enforcement.ADVISORY
) -> ContainerGpus:
    own = {"GPU-0": 4096}
    return ContainerGpus(
        "u", "main", own, own, enforcement=enforcement, pod=pod, started_mib=started_mib, misdirected=True
    )


def test_who_has_the_variables_of_another_container_is_told_which_and_what_its_own_are() -> None:
    """Names of other namespaces are not told; of two that are told the same nothing is."""
    near, far = Pod("v", "default", "a", annotations={MEMORY_LIMIT: "10"}), Pod("v", "secret", "a")
    note = misdirected(told_wrongly(NB), "first", near)
    assert note.startswith(
        "container main was started with the variables of container first of default/a (a limit of 10,240 MiB, and its "
        "own is 4,096 MiB): the kubelet does not say for which pod it asks"
    )
    for pod, meant in ((NB, far), (NB, None)):
        assert misdirected(told_wrongly(pod), "first", meant).startswith(
            "container main was started with the variables of a container of another pod (a limit of 10,240 MiB"
        )
    assert "of another pod: the kubelet" in misdirected(told_wrongly(NB, 4096), "first", far)
    twin = replace(NB, uid="v", name="nb-3")
    for meant in (twin, None):
        assert misdirected(told_wrongly(NB, 4096), "main", meant) == ""
        assert misdirected(told_wrongly(NB, 4096, Enforcement.CUSTOM), "main", meant)


# --- Memory that is borrowed ------------------------------------------------------------------------------------------


def test_a_borrower_is_told_its_guarantee_its_limit_and_what_it_returns() -> None:
    own = "uses 7,168 MiB of GPU 0, is guaranteed 4,096 MiB and limited to 12,288 MiB"
    assert uses(replace(BORROWER, used_mib=100)) == own.replace("7,168", "100")
    assert uses(BORROWER) == f"{own}; borrows 3,072 MiB"
    asked = f"is asked since {SINCE} to return it for ml/train, and is evicted at 2026-11-22T09:57:00Z otherwise"
    assert uses(ASKED) == f"{own}; borrows 3,072 MiB; {asked}"
    assert uses(replace(ASKED, return_by="", needed_by="")).endswith(f"; is asked since {SINCE} to return it")
    differs = replace(BORROWER, enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192)
    assert limit(differs) == "driver: differs (8,192 MiB instead of 12,288 MiB)"
    assert does_not_hold(differs) == "is limited to 8,192 MiB of GPU 0 instead of 12,288 MiB"


def test_the_tables_name_borrowers() -> None:
    view = node_view("a", (15,), report=report(ASKED, replace(BORROWER, pod="idle", used_mib=None)))
    rows = memory_in_use([view])
    assert " may use 12,288 MiB; borrows 3,072 MiB; is asked since" in rows[3]
    assert rows[4].endswith(" may use 12,288 MiB")
    assert at_a_glance([view]) == [
        "",
        "1 container is asked to return borrowed memory: kubectl inspect gpushare -d has the names.",
    ]

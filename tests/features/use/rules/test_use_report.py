"""A node's report shows who holds and who uses its GPUs, each figure that is known, and nobody twice.

The annotation tells the same, and is written no more often than it has to be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimRequest, ReclaimState
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.features.use.rules.use_report import (
    AGAIN_S,
    FRESH_S,
    MOST_OTHERS,
    SELDOM_S,
    SOON_S,
    due_in_s,
    longest_pause_s,
    names,
    node_use,
)
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.node_use import STALE_S, ContainerUse, GpuUse, NodeUse
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus
from gpu_device_plugin.model.pods import Pod
from tests.nodes import node, uuid

SHARES = node(16, 16).shares
EPOCH = 1_795_169_580.25
"""20 November 2026, 10:13:00 UTC."""
WEB = Pod("uid-web", "shop", "web-0")
HELD = ContainerGpus("uid-web", "main", {uuid(1): 4096}, {uuid(1): 4096}, enforcement=Enforcement.DRIVER, pod=WEB)
PLACE = ("uid-web", "main", uuid(1))
USE = AttributedUse("uid-web", "main", uuid(1), 4096, 6144, 35, HELD, WEB)
STRANGER = AttributedUse("uid-x", "job", uuid(0), 0, 512, 5, None, Pod("uid-x", "lab", "stranger"))


def shown(
    holders: Sequence[ContainerGpus] = (HELD,),
    uses: Sequence[AttributedUse] = (),
    limits: Mapping[Place, LimitState] | None = None,
    **more: Any,
) -> tuple[ContainerUse, ...]:
    reading = UseReading(containers=tuple(uses))
    named = names({}, holders, reading)
    return node_use(holders, reading, limits or {}, {}, SHARES, **{"named": named, "epoch": EPOCH, **more}).parts


@pytest.mark.parametrize(("mib", "until"), [(1024, 70.0), (1024, None), (0, 70.0)])
def test_a_borrower_is_reported_with_what_it_is_asked(mib: int, until: float | None) -> None:
    borrower = replace(HELD, limits={uuid(1): 12288})
    requests = {PLACE: ReclaimRequest(PLACE, 40.0, 40.0, mib, 2048, until, "shop/new", WEB)}
    (part,) = shown((borrower,), (USE,), asked=ReclaimState(requests=requests).asked)
    assert (part.limit_mib, part.borrowed_mib) == (12288, 2048)
    told = ("2026-11-20T10:13:40Z", "2026-11-20T10:14:10Z" if until else "", "shop/new") if mib else ("", "", "")
    assert (part.asked_at, part.return_by, part.needed_by) == told
    assert [part.borrowed_mib for part in shown((HELD,), (USE,))] == [None]


def test_since_when_its_pod_is_idle_is_reported_with_the_figures_that_show_it() -> None:
    idle = {"uid-web": "2026-11-20T09:00:00Z"}
    assert [part.idle_since for part in shown(uses=(USE,), idle=idle)] == ["2026-11-20T09:00:00Z"]
    assert [part.idle_since for part in shown(uses=(USE,), idle=idle, fresh=False)] == [""]
    assert [part.idle_since for part in shown(uses=(USE,))] == [""]


def test_everything_that_is_known_is_reported() -> None:
    """6 GiB of 4 are used, 35 % of the time; the driver has a limit of 5 GiB, which differs."""
    reading = UseReading(
        100.0, (USE,), {uuid(0): None, uuid(1): 6500, "GPU-unshared": 9}, {uuid(1): 380, "GPU-unshared": 9}, "why"
    )
    limits = {PLACE: LimitState(Enforcement.DRIVER, LimitStatus.DIFFERS, 5120, "because")}
    over = {PLACE: 40.0}
    named = names({}, (HELD,), reading)
    use = node_use((HELD,), reading, limits, over, SHARES, named=named, epoch=EPOCH)
    since = "2026-11-20T10:13:40Z"
    assert use == NodeUse(
        "2026-11-20T10:14:40Z",
        {0: GpuUse(), 1: GpuUse(6500, 380)},
        (
            ContainerUse(
                "shop",
                "web-0",
                "main",
                1,
                4096,
                6144,
                35,
                Enforcement.DRIVER,
                LimitStatus.DIFFERS,
                5120,
                "because",
                since,
            ),
        ),
        "why",
    )
    old = node_use((HELD,), reading, limits, over, SHARES, named=named, epoch=EPOCH, fresh=False)
    assert (old.gpus, old.parts) == ({}, (replace(use.parts[0], used_mib=None, sm_percent=None),))


@pytest.mark.parametrize(
    ("holder", "state", "expected"),
    [
        (HELD, LimitState(Enforcement.MPS), (Enforcement.MPS, LimitStatus.UNVERIFIED)),
        (HELD, None, (Enforcement.DRIVER, None)),
        (replace(HELD, enforcement=Enforcement.ADVISORY), None, (Enforcement.ADVISORY, None)),
        (replace(HELD, enforcement=None), None, (None, None)),
        (replace(HELD, whole=True), None, (None, None)),
    ],
    ids=["mps", "not read yet", "advisory", "an older agent's", "whole"],
)
def test_the_means_is_known_before_the_state_of_the_limit(
    holder: ContainerGpus, state: LimitState | None, expected: tuple[Enforcement | None, LimitStatus | None]
) -> None:
    (part,) = shown((holder,), (), {} if state is None else {PLACE: state})
    assert (part.enforcement, part.held) == expected


def test_what_is_not_known_is_not_zero() -> None:
    unknown = replace(USE, used_mib=None, sm_percent=None)
    for uses, known in (((), True), ((unknown,), True), ((USE,), False)):
        (part,) = shown((HELD,), uses, fresh=known)
        assert (part.granted_mib, part.used_mib, part.sm_percent) == (4096, None, None)
    assert shown((HELD,), (replace(USE, used_mib=0, sm_percent=0),))[0].used_mib == 0


def test_whoever_uses_a_gpu_without_holding_it_is_reported() -> None:
    unnamed = AttributedUse("uid-web", "", uuid(1), 4096, 100)
    gone = replace(STRANGER, uuid="GPU-unshared")
    assert shown((HELD,), (USE, STRANGER, unnamed, gone)) == (
        ContainerUse("lab", "stranger", "job", 0, 0, 512, 5),
        ContainerUse("shop", "web-0", "", 1, 4096, 100),
        ContainerUse("shop", "web-0", "main", 1, 4096, 6144, 35, Enforcement.DRIVER),
    )


def test_whoever_has_ended_since_the_reading_is_not_reported() -> None:
    assert shown((), (USE,)) == ()
    assert shown((), (STRANGER,), there={"uid-web"}) == ()
    assert [part.pod for part in shown((), (STRANGER,), there={"uid-x"})] == ["stranger"]
    unknown = replace(STRANGER, pod=None)
    assert [(part.namespace, part.pod) for part in shown((), (unknown,), there=())] == [("", "uid-x")]


def test_what_strangers_start_is_bounded_and_the_largest_stay() -> None:
    crowd = [replace(STRANGER, container=f"c{number}", used_mib=number) for number in range(MOST_OTHERS + 10)]
    crowd.append(replace(STRANGER, container="unknown", used_mib=None))
    parts = shown((), crowd)
    assert len(parts) == MOST_OTHERS
    assert min(part.used_mib or 0 for part in parts) == 10


def test_nobody_is_reported_twice_on_a_gpu() -> None:
    """The successor of a pod has its name before the old one's devices are free; another plugin gave a GPU again."""
    old = replace(HELD, pod_uid="uid-old", pod=Pod("uid-old", "shop", "web-0"), granted={uuid(1): 1024})
    again = replace(HELD, granted={uuid(1): 8192})
    less = replace(HELD, granted={uuid(1): 2048})
    assert [part.granted_mib for part in shown((HELD, old, again, less))] == [8192]


def test_a_pod_that_the_api_has_deleted_keeps_its_name_while_it_holds_a_gpu() -> None:
    gone = replace(HELD, pod=None)
    nobody = UseReading()
    first = names({}, (HELD,), nobody)
    assert first == {"uid-web": ("shop", "web-0")}
    assert names(first, (gone,), nobody) == first
    assert names({}, (gone,), nobody) == names(first, (), nobody) == {}
    assert names({}, (HELD, replace(gone, container="side")), nobody) == first
    assert names({}, (), UseReading(containers=(STRANGER, USE))) == {"uid-x": ("lab", "stranger")}
    (part,) = shown((gone,), named={})
    assert (part.namespace, part.pod) == ("", "uid-web")


@pytest.mark.parametrize(
    ("age_s", "interval_s", "is_fresh"), [(FRESH_S, 1.0, True), (61.0, 15.0, False), (61.0, 30.0, True)]
)
def test_figures_are_of_the_present_for_some_intervals(age_s: float, interval_s: float, *, is_fresh: bool) -> None:
    assert (age_s <= longest_pause_s(interval_s)) is is_fresh


# --- The annotation ---------------------------------------------------------------------------------------------------

MAIN = ContainerUse("shop", "web-0", "main", 0, 4096, 10_000, 35, Enforcement.MPS, LimitStatus.HELD)
WRITTEN = NodeUse("2026-11-22T09:33:00Z", {0: GpuUse(12_000, 2_000)}, (MAIN,))


def with_part(**changed: Any) -> NodeUse:
    return replace(WRITTEN, parts=(replace(MAIN, **changed),))


def test_the_first_is_written_at_once() -> None:
    assert due_in_s(None, WRITTEN, 0.0) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        WRITTEN,
        replace(WRITTEN, at="2026-11-22T10:33:00Z"),
        with_part(sm_percent=99),
        with_part(sm_percent=None),
        with_part(used_mib=10_500),  # 5 % of 10,000
        with_part(used_mib=9_500),
        replace(WRITTEN, gpus={0: GpuUse(12_600, 2_256)}),
    ],
)
def test_what_says_the_same_is_written_for_its_time_alone(now: NodeUse) -> None:
    assert due_in_s(WRITTEN, now, SELDOM_S + 1) == AGAIN_S - SELDOM_S - 1
    assert due_in_s(WRITTEN, now, AGAIN_S) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        with_part(used_mib=10_501),
        with_part(used_mib=9_499),
        with_part(used_mib=None),
        with_part(why="another reason"),
        with_part(needed_by="shop/another"),
        replace(WRITTEN, gpus={0: GpuUse(12_601, 2_000)}),
        replace(WRITTEN, gpus={0: GpuUse(12_000, 2_257)}),
        replace(WRITTEN, gpus={0: GpuUse(None, 2_000)}),
    ],
)
def test_figures_wait_for_their_minute(now: NodeUse) -> None:
    assert due_in_s(WRITTEN, now, 20.0) == SELDOM_S - 20.0
    assert due_in_s(WRITTEN, now, SELDOM_S + 1) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        with_part(held=LimitStatus.MISSING),
        with_part(found_mib=8192),
        with_part(enforcement=Enforcement.ADVISORY),
        with_part(over_since="2026-11-22T09:33:00Z"),
        with_part(granted_mib=2048),
        with_part(limit_mib=20_480),
        with_part(asked_at="2026-11-22T09:33:00Z"),
        with_part(idle_since="2026-11-22T09:33:00Z"),
        with_part(container="side"),
        replace(WRITTEN, parts=()),
        replace(WRITTEN, parts=(MAIN, replace(MAIN, pod="web-1"))),
        replace(WRITTEN, gpus={}),
        replace(WRITTEN, blind="why"),
    ],
)
def test_what_holds_and_who_is_there_is_told_soon(now: NodeUse) -> None:
    assert due_in_s(WRITTEN, now, SOON_S) == 0.0
    assert due_in_s(WRITTEN, now, 1.0) == SOON_S - 1.0


def test_since_when_somebody_uses_too_much_changes_nothing() -> None:
    """The clock of the machine may be set meanwhile."""
    earlier, later = (with_part(over_since=f"2026-11-22T09:33:{second}Z") for second in ("00", "01"))
    assert due_in_s(earlier, later, SELDOM_S) == AGAIN_S - SELDOM_S


def test_figures_are_renewed_before_readers_take_them_for_old() -> None:
    assert 2 * AGAIN_S < STALE_S

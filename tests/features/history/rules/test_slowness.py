"""Why a running pod is slow: one verdict for each injected cause, none for healthy pods, and what was not looked at."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import (
    ContainerHistory,
    GpuHistory,
    NodeHistory,
    Series,
    gpu_path,
    namespace_path,
)
from gpu_device_plugin.features.history.rules.gpu_window import windows
from gpu_device_plugin.features.history.rules.slowness import CHECKS, everyone, gpus_of, histories_of, slowness
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.report.rules.finding import Finding, Severity
from tests.findings import facts
from tests.slow_pods import (
    AT,
    CAUSES,
    CONDITION,
    HEALTHY,
    LENGTH,
    NOT_READ,
    NOW,
    TOTAL_MIB,
    degraded,
    history,
    lately,
    on,
    other,
    series,
    slowed,
    train,
)

HOT = int(Throttle.HEAT)
CAPPED = "slowed-by-power-cap"


SLOW_CLOCK = replace(CONDITION, sm_clock_mhz=795)


def linked(**condition: Any) -> NodeHistory:
    """Return the history of a GPU whose link carries half of what it can."""
    return history(pcie_percent=series(50), telemetry=replace(CONDITION, **condition))


def newest(steps: int, of: NodeHistory) -> NodeHistory:
    """Return what an agent that began so many steps ago has of a history."""

    def cut(one: Any) -> Any:
        values = {each.name: getattr(one, each.name) for each in fields(one)}
        return replace(one, **{name: value[-steps:] for name, value in values.items() if isinstance(value, tuple)})

    return replace(of, gpus=tuple(map(cut, of.gpus)), containers=tuple(map(cut, of.containers)))


def verdicts(*histories: NodeHistory, **more: Any) -> list[Finding]:
    """Return the causes that are found for the pod of `tests.slow_pods`."""
    return [each for each in slowness(histories, "default", "train", NOW, **more) if each.severity is Severity.WARNING]


def codes(*histories: NodeHistory) -> list[str]:
    return [each.code for each in verdicts(*histories)]


def said(of: NodeHistory, code: str, **more: Any) -> str:
    return next(str(each) for each in slowness([of], "default", "train", NOW, **more) if each.code == code)


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_the_first_verdict(name: str) -> None:
    slow, code = CAUSES[name]
    assert codes(slow)[0] == code


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_alone_is_the_only_verdict(name: str) -> None:
    """Memory that is paged to the host shows on PCIe as well."""
    slow, code = CAUSES[name]
    assert set(codes(slow)) - {"pcie-saturated"} <= {code}
    assert "nothing-slows-it" not in facts(slowness([slow], "default", "train", NOW))


def estimates(of: NodeHistory) -> dict[str, float]:
    """Return by code which part of the pod's speed each cause may have cost."""
    (window,) = windows(of, "default", "train", NOW)
    causes = [verdict for _, check in CHECKS if isinstance(verdict := check(window, everyone), tuple)]
    return {finding.code: round(part, 3) for part, finding in causes}


@pytest.mark.parametrize(
    ("of", "parts"),
    [
        (CAUSES["heat"][0], {"slowed-by-heat": 0.394}),  # the clock is at 1200 of 1980 MHz
        (history(throttle=lately(0, 5, HOT)), {"slowed-by-heat": 0.1}),  # 0.3 of a third of the time: no clock of then
        (history(throttle=series(HOT), telemetry=NOT_READ), {"slowed-by-heat": 0.3}),
        (slowed(HOT, 1200, sm_clock_max_mhz=None), {}),  # the clock of now is not known, so it may be harmless
        (CAUSES["low clocks"][0], {"clocks-low": 0.598}),
        (CAUSES["a busy neighbour"][0], {"neighbours-busy": 0.68}),
        (CAUSES["too little CPU"][0], {"starved-of-cpu": 0.78}),
        (CAUSES["thrashing, as seen by its memory"][0], {"memory-thrash": 0.72}),  # full for four steps of five
        (CAUSES["PCIe traffic"][0], {"pcie-saturated": 0.47}),
        (CAUSES["a narrow link"][0], {"pcie-link-slow": 0.36}),  # 12 of 16 lanes are missing, of which 48 % are used
        (CAUSES["a slow link"][0], {"pcie-link-slow": 0.384}),
        (history(pcie_percent=series(50), telemetry=replace(CONDITION, pcie_width=8, pcie_generation=3)),
         {"pcie-link-slow": 0.35}),
        (linked(pcie_generation=1, pcie_width=None), {"pcie-link-slow": 0.4}),
        (linked(pcie_width=8, pcie_generation=1, sm_percent=4), {"pcie-link-slow": 0.25}),  # an idle moment
        (CAUSES["uncorrected errors"][0], {"gpu-degraded": 0.02}),
        (CAUSES["memory that others fill"][0], {"memory-full": 0.489}),
    ],
)  # fmt: skip
def test_a_cause_is_estimated_by_what_it_takes_and_for_how_long(of: NodeHistory, parts: dict[str, float]) -> None:
    assert estimates(of) == parts


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_pod_gets_no_verdict(name: str) -> None:
    assert codes(HEALTHY[name]) == []


def test_there_are_twelve_of_both() -> None:
    assert len({code for _, code in CAUSES.values()}) >= 12
    assert len(HEALTHY) >= 12


# --- The evidence -----------------------------------------------------------------------------------------------------


def test_a_slowdown_is_told_with_its_duration_and_the_clock() -> None:
    """It began 20 minutes ago; the last 15 are judged."""
    assert said(CAUSES["heat"][0], "slowed-by-heat") == (
        "GPU 0 is slowed by heat, for 15 min of the 15 min in which the pod worked, since 2026-11-28T11:40:15Z; its "
        "multiprocessors run at 1,200 of 1,980 MHz; it is at 88 °C. Check the node's cooling."
    )


@pytest.mark.parametrize(
    ("name", "reason", "advice"),
    [
        ("the power brake", "its machine (power brake)", "Check the node's power supplies."),
        ("hardware slowdown", "itself (hardware slowdown)", "Check its power cables and its cooling."),
        ("sync boost", "the slowest GPU of its sync boost group", "Find out what slows that one."),
        (
            "a very low power limit",
            "its power limit",
            "For NVIDIA GPUs nvidia-smi -q -d POWER shows it, and -pl sets another.",
        ),
    ],
)
def test_a_slowdown_is_told_with_its_reason_and_what_to_do(name: str, reason: str, advice: str) -> None:
    slow, code = CAUSES[name]
    told = said(slow, code)
    assert told.startswith(f"GPU 0 is slowed by {reason}, for 15 min ")
    assert told.endswith(f" MHz. {advice}" if name != "a very low power limit" else f" W. {advice}")


def test_a_power_limit_is_told_with_the_power() -> None:
    assert "; it draws 299 of 300 W. " in said(CAUSES["a very low power limit"][0], CAPPED)


def test_a_lowered_power_limit_is_told_with_the_default() -> None:
    assert said(CAUSES["a lowered power limit"][0], CAPPED).endswith(
        "; its multiprocessors run at 1,400 of 1,980 MHz; it draws 499 of 500 W; its default limit is "
        "700 W. For NVIDIA GPUs nvidia-smi -q -d POWER shows it, and -pl sets another."
    )


def test_a_cause_that_has_ended_is_told_with_its_end() -> None:
    """Heat from 11:45:15 to 11:53; ten minutes of the last fifteen are left, of which it held for eight."""
    hot = (*series(HOT)[: LENGTH - 28], *[0] * 28)
    (told,) = verdicts(history(throttle=hot))
    assert str(told).startswith(
        "GPU 0 is slowed by heat, for 8 min of the 15 min in which the pod worked, until 2026-11-28T11:53:00Z"
    )
    assert told.parameters["share"] == 53


@pytest.mark.parametrize(
    ("last", "period"),
    [
        ((*[HOT] * 17, *[0] * 4, *[HOT] * 8, *[0] * 3, *[HOT] * 8), "since 2026-11-28T11:55:30Z"),  # 18 steps ago
        ((*[HOT] * 20, *[0] * 4, HOT), "since 2026-11-28T12:00:00Z"),
        ((*[HOT] * 20, *[0] * 3, HOT), "since 2026-11-28T11:54:15Z"),
        ((*[HOT] * 20, *[0] * 3), "since 2026-11-28T11:54:30Z"),
        ((*[HOT] * 20, *[0] * 4), "until 2026-11-28T11:59:00Z"),
    ],
)  # fmt: skip
def test_a_pause_of_four_steps_ends_a_cause_and_a_shorter_one_does_not(last: Series, period: str) -> None:
    flags = (*[0] * (LENGTH - len(last)), *last)
    assert f", {period}" in said(history(throttle=flags), "slowed-by-heat")


@pytest.mark.parametrize("at", ["noon", "9999-12-31T23:59:59-12:00"])
def test_without_a_readable_time_only_durations_are_told(at: str) -> None:
    told = said(history(at=at, throttle=series(HOT)), "slowed-by-heat")
    assert told == (
        "GPU 0 is slowed by heat, for 15 min of the 15 min in which the pod worked; it is at 62 °C. Check the node's "
        "cooling."
    )


def test_neighbours_are_told_by_what_they_take() -> None:
    busy = history(
        train(sm_percent=series(20)),
        other(series(50)),
        other(series(1), pod="small"),
        other(series(20), namespace="secret", pod="one"),
        other(series(0), namespace="secret", pod="idle"),
    )
    told = said(busy, "neighbours-busy")
    assert told.startswith("Neighbours took 71 % of the multiprocessors' time on GPU 0, for 15 min of the 15 min in ")
    assert told.endswith(
        ": ml/other 50 %, secret/one 20 %, ml/small 1 %. The pod needs another GPU, or one of its own."
    )


def test_neighbours_that_the_reader_may_not_see_have_no_names() -> None:
    busy = history(
        train(sm_percent=series(20)),
        other(series(30)),
        other(series(30), namespace="secret", pod="one"),
        other(series(20), namespace="secret", pod="two"),
    )
    told = said(busy, "neighbours-busy", may_see=lambda namespace: namespace == "ml")
    assert ": pods that you may not see 50 %, ml/other 30 %. " in told
    assert "secret" not in told


def test_who_fills_the_memory_is_told() -> None:
    assert said(CAUSES["memory that others fill"][0], "memory-full") == (
        "Others left 20,920 MiB of GPU 0 for the 40,960 MiB that the pod was granted, for 15 min of the 15 min in "
        "which the pod was there, since 2026-11-28T11:00:15Z: ml/other 61,000 MiB."
    )
    told = said(history(train(used_mib=series(0)), used_mib=series(TOTAL_MIB)), "memory-full")
    assert told.startswith("Others left 0 MiB of GPU 0 ")
    assert told.endswith(": processes outside pods.")


def test_a_pod_without_a_guarantee_is_left_nothing_to_miss() -> None:
    stranger = train(granted_mib=0, most_mib=0, used_mib=series(20_000))
    assert codes(history(stranger, other(used=series(61_000)))) == []
    # Memory that is kept in multiples of some MiB may be more than there is.
    assert codes(history(replace(stranger, used_mib=series(0)), used_mib=series(TOTAL_MIB + 1))) == []


def test_a_low_clock_is_told_as_it_is() -> None:
    assert said(CAUSES["low clocks"][0], "clocks-low") == (
        "GPU 0 has a low clock, for which its driver gives no reason: its multiprocessors run at 795 of 1,980 MHz. "
        "For NVIDIA GPUs nvidia-smi -q -d CLOCK shows more."
    )


def test_too_little_memory_is_told_with_its_signs() -> None:
    (of, _), (paging, _) = (CAUSES[f"thrashing, as seen by {what}"] for what in ("its memory", "PCIe"))
    assert said(replace(paging, containers=of.containers), "memory-thrash") == (
        "The pod has too little memory: it used 40,725 MiB of at most 40,960 MiB on GPU 0, for 12 min of the 15 min in "
        "which the pod was there, since 2026-11-28T11:00:15Z; its use fell 12 times and PCIe carried 82 % of what it "
        "can. It needs more, or smaller batches."
    )


def test_a_full_link_is_told_with_its_load() -> None:
    assert said(CAUSES["PCIe traffic"][0], "pcie-saturated") == (
        "The PCIe link of GPU 0 is full: it carried 94 % of what it can, for 15 min of the 15 min in which the pod was "
        "there, since 2026-11-28T11:00:15Z. Copy less at a time."
    )


def test_the_container_that_the_cpu_holds_back_most_is_named() -> None:
    pods = [
        train(sm_percent=series(5), cpu_throttled_percent=series(30)),
        train(container="loader", sm_percent=(), used_mib=(), cpu_throttled_percent=series(60)),
    ]
    assert said(history(*pods), "starved-of-cpu").startswith(
        "GPU 0 waits for its CPU: container 'loader' was held back by its CPU limit in 60 % of the periods, for 15 min"
    )


def test_a_container_that_was_restarted_is_one() -> None:
    """The agent remembers the former one as well, which had as little CPU."""
    before = train(
        used_mib=lately(9, 10, None), sm_percent=lately(5, 10, None), cpu_throttled_percent=lately(80, 10, None)
    )
    after = train(
        used_mib=lately(None, 10, 9), sm_percent=lately(None, 10, 5), cpu_throttled_percent=lately(None, 10, 60)
    )
    assert "container 'main' was held back" in (told := said(history(before, after), "starved-of-cpu"))
    assert told.endswith(
        ", for 15 min of the 15 min in which the pod was there, since 2026-11-28T11:00:15Z. Raise that limit."
    )


def test_links_are_told_as_they_are_and_as_they_could_be() -> None:
    both = replace(CONDITION, pcie_width=8, pcie_generation=3)
    told = said(history(pcie_percent=series(50), telemetry=both), "pcie-link-slow")
    assert told == (
        "The PCIe link of GPU 0 is slower than it could be: 8 of 16 lanes and generation 3 of 5, and it carried 50 % "
        "of that while the pod worked. Reseat the GPU, and check its slot."
    )
    unmeasured = said(history(pcie_percent=(), telemetry=both), "pcie-link-slow")
    assert ": 8 of 16 lanes and generation 3 of 5. " in unmeasured


def test_a_link_that_carries_little_slows_nothing() -> None:
    for now in (replace(CONDITION, pcie_width=8), replace(CONDITION, pcie_generation=3)):
        assert codes(history(pcie_percent=series(9), telemetry=now)) == []
        assert codes(history(pcie_percent=series(10), telemetry=now)) == ["pcie-link-slow"]


def test_an_idle_moment_lowers_a_link_and_is_no_cause() -> None:
    now = replace(CONDITION, pcie_generation=1, sm_percent=4)
    assert codes(history(pcie_percent=series(50), telemetry=now)) == []
    unread = replace(CONDITION, pcie_generation=1, sm_percent=None)
    assert codes(history(pcie_percent=series(50), telemetry=unread)) == ["pcie-link-slow"]
    assert codes(history(pcie_percent=series(50), telemetry=unread, sm_percent=())) == []


def test_all_faults_of_the_memory_are_told_together() -> None:
    ill = degraded(ecc_uncorrected=1, ecc_corrected=500, repair_pending=True, repair_failed=True)
    assert said(ill, "gpu-degraded") == (
        "The memory of GPU 0 has faults: 1 uncorrected error, 500 corrected errors, a row that could not be replaced, "
        "rows or pages that wait for replacement. Drain and reset the GPU; replace it if they come back."
    )


# --- Which cause comes first ------------------------------------------------------------------------------------------


def test_causes_are_ordered_by_how_much_they_explain() -> None:
    """A neighbour takes 80 %; heat costs a quarter of the clock; faults rarely slow anything."""
    now = replace(CONDITION, throttle=HOT, sm_clock_mhz=1485, ecc_uncorrected=1)
    slow = history(
        train(sm_percent=series(15)), other(series(80)), sm_percent=series(99), throttle=series(HOT), telemetry=now
    )
    assert codes(slow) == ["neighbours-busy", "slowed-by-heat", "gpu-degraded"]
    worse = replace(slow.gpus[0], condition=replace(now, sm_clock_mhz=200))
    assert codes(replace(slow, gpus=(worse,)))[0] == "slowed-by-heat"


def test_hardware_slowdown_is_only_the_summary_of_heat_and_brake() -> None:
    for told in (Throttle.HARDWARE_HEAT, Throttle.POWER_BRAKE):
        assert codes(slowed(told | Throttle.HARDWARE, 600)) == codes(slowed(told, 600))


def test_of_several_gpus_the_slowest_is_told_and_the_others_named() -> None:
    three = [slowed(HOT, 1600), on(1, slowed(HOT, 700)), on(2, slowed(HOT, 1200)), on(3, history())]
    (told,) = verdicts(*three)
    assert str(told).startswith("GPU 1 is slowed by heat, ")
    assert str(told).endswith(" Check the node's cooling. Likewise on GPU 0,2.")


# --- What is no cause -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (slowed(HOT, 1881), []),
        (slowed(HOT, 1880), ["slowed-by-heat"]),
        (slowed(Throttle.POWER_CAP, 1089), []),
        (slowed(Throttle.POWER_CAP, 1088), [CAPPED]),
        (slowed(Throttle.POWER_CAP, 1880, power_limit_mw=678_999, power_limit_default_mw=700_000), [CAPPED]),
        (slowed(Throttle.POWER_CAP, 1880, power_limit_mw=679_000, power_limit_default_mw=700_000), []),
        (slowed(Throttle.POWER_CAP, 1881, power_limit_mw=500_000, power_limit_default_mw=700_000), []),
        (history(throttle=series(int(Throttle.POWER_CAP))), []),
        (
            history(
                throttle=series(int(Throttle.POWER_CAP)),
                telemetry=replace(CONDITION, power_limit_mw=500_000, power_limit_default_mw=700_000),
            ),
            [CAPPED],
        ),
        (history(throttle=series(int(Throttle.POWER_CAP)), telemetry=NOT_READ), [CAPPED]),
        (newest(8, slowed(HOT, 1200)), ["slowed-by-heat"]),
        (newest(7, slowed(HOT, 1200)), []),
        (history(throttle=lately(0, 4.75, HOT)), []),
        (history(throttle=lately(0, 5, HOT)), ["slowed-by-heat"]),
        (history(train(used_mib=(), sm_percent=lately(None, 2, 60)), throttle=series(HOT)), ["slowed-by-heat"]),
        (history(train(used_mib=(), sm_percent=lately(None, 1.75, 60)), throttle=series(HOT)), []),
        (history(train(sm_percent=series(4)), throttle=series(HOT)), []),
        (history(train(sm_percent=series(5)), throttle=series(HOT)), ["slowed-by-heat"]),
        (degraded(sm_clock_mhz=1386), []),
        (degraded(sm_clock_mhz=1385), ["clocks-low"]),
        (degraded(sm_clock_mhz=795, throttle=None), []),
        (degraded(sm_clock_mhz=2100), []),
        (degraded(sm_clock_mhz=795, sm_clock_max_mhz=None), []),
        (degraded(sm_clock_mhz=None), []),
        (degraded(sm_clock_mhz=0, sm_clock_max_mhz=0), []),
        (degraded(sm_clock_mhz=795, throttle=int(Throttle.POWER_CAP)), []),
        (history(throttle=series(int(Throttle.POWER_CAP)), telemetry=SLOW_CLOCK), []),
        (history(train(sm_percent=lately(0, 2, 60)), telemetry=SLOW_CLOCK), ["clocks-low"]),
        (history(train(sm_percent=(*[60] * 232, 0, *[60] * 7)), telemetry=SLOW_CLOCK), []),
        (history(train(sm_percent=lately(60, 1, 0)), telemetry=replace(CONDITION, sm_clock_mhz=300)), []),
        (history(train(sm_percent=series(49)), telemetry=SLOW_CLOCK), []),
        (history(train(sm_percent=series(50)), telemetry=SLOW_CLOCK), ["clocks-low"]),
        (history(train(sm_percent=series(72)), other(series(19))), []),
        (history(train(sm_percent=series(70)), other(series(20))), ["neighbours-busy"]),
        (history(train(sm_percent=series(70)), other(series(20)), sm_percent=()), ["neighbours-busy"]),
        (history(train(sm_percent=series(60)), other(series(29))), []),
        (history(train(sm_percent=series(30)), other(series(29)), sm_percent=series(90)), ["neighbours-busy"]),
        (history(train(sm_percent=series(20), cpu_throttled_percent=series(19))), []),
        (history(train(sm_percent=series(20), cpu_throttled_percent=series(20))), ["starved-of-cpu"]),
        (history(train(sm_percent=series(29), cpu_throttled_percent=series(90))), ["starved-of-cpu"]),
        (history(train(sm_percent=series(30), cpu_throttled_percent=series(90))), []),
        (history(train(sm_percent=series(5, 0, 0, 0, 0), cpu_throttled_percent=series(90))), ["starved-of-cpu"]),
        (history(train(sm_percent=series(0), cpu_throttled_percent=series(90))), []),
        (history(train(used_mib=series(40_960, 40_960, 40_960, 40_300))), []),
        (history(train(used_mib=series(*[40_960] * 29, 30_000))), []),
        (history(train(used_mib=series(40_960)), pcie_percent=series(39)), []),
        (history(train(used_mib=series(40_960)), pcie_percent=series(40)), ["memory-thrash"]),
        (history(train(used_mib=(*[40_960] * 200, *([40_960] * 19 + [40_000]) * 2))), []),
        (history(train(used_mib=(*[40_960] * 180, *([40_960] * 19 + [40_000]) * 3))), ["memory-thrash"]),
        (history(pcie_percent=series(84)), []),
        (history(pcie_percent=series(85)), ["pcie-saturated"]),
        (history(train(sm_percent=series(90)), pcie_percent=series(97)), []),
        (history(train(sm_percent=series(1)), pcie_percent=series(97)), ["pcie-saturated"]),
        (history(train(sm_percent=series(0)), pcie_percent=series(97)), []),
        (linked(pcie_width=None), []),
        (linked(pcie_generation=None), []),
        (linked(pcie_width=1), ["pcie-link-slow"]),
        (newest(8, linked(pcie_width=8)), ["pcie-link-slow"]),
        (linked(pcie_width=8, pcie_generation=None), ["pcie-link-slow"]),
        (linked(pcie_generation=1, sm_percent=50), ["pcie-link-slow"]),
        (linked(pcie_generation=1, sm_percent=49), []),
        (degraded(ecc_corrected=99), []),
        (degraded(ecc_corrected=100), ["gpu-degraded"]),
        (history(train(granted_mib=30_000), other(used=series(50_000)), used_mib=series(81_000)), []),
        (history(train(used_mib=series(38_911)), used_mib=series(TOTAL_MIB)), ["memory-full"]),
        (history(train(used_mib=series(38_912)), used_mib=series(TOTAL_MIB)), []),
        (history(train(used_mib=series(0), sm_percent=series(0)), used_mib=series(TOTAL_MIB)), ["memory-full"]),
    ],
)  # fmt: skip
def test_a_cause_begins_at_its_threshold(of: NodeHistory, found: list[str]) -> None:
    assert codes(of) == found


def test_a_pod_of_the_same_name_that_is_gone_does_not_count() -> None:
    before = on(1, history(train(used_mib=lately(9, 30, None), sm_percent=lately(99, 30, None))))
    (told,) = slowness([history(), before], "default", "train", NOW)
    assert told.code == "nothing-slows-it"


# --- Nothing found, and what was not looked at ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "before", "end"),
    [
        ("main", lately(40_000, 30, None), lately(60, 30, None)),
        ("main", series(None), series(None)),
        ("init", series(None), series(0)),
        ("init", lately(9_000, 30, None), lately(50, 30, None)),
    ],
)
def test_what_was_granted_before_is_not_granted_twice(container: str, before: Series, end: Series) -> None:
    """A pod replaced one of its name, or its init container handed on its shares; both pods fill their halves."""
    own = train(used_mib=lately(None, 29, 40_500), sm_percent=lately(None, 29, 60))
    unmeasured = replace(own, sm_percent=())
    former = train(
        container=container, granted_mib=TOTAL_MIB, used_mib=before, sm_percent=end, cpu_throttled_percent=()
    )
    of = history(own, former, other(series(10), series(40_500)), used_mib=series(81_000))
    assert [each.code for each in slowness([of], "default", "train", NOW)] == ["nothing-slows-it"]
    assert codes(replace(of, containers=(unmeasured, *of.containers[1:]))) == []


def test_where_nothing_is_found_it_is_told_what_was_looked_at() -> None:
    fast = replace(CONDITION, sm_clock_mhz=CONDITION.sm_clock_max_mhz)
    (told,) = slowness([history(train(sm_percent=series(90)), telemetry=fast)], "default", "train", NOW)
    assert (told.severity, told.code) == (Severity.NOTE, "nothing-slows-it")
    assert str(told) == (
        "Found nothing that slowed it in the last 15 min; checked: slowdowns, low clocks, busy neighbours, its "
        "CPU limit, its memory limit, memory that others use, PCIe traffic, the PCIe link, memory errors. It kept the "
        "multiprocessors busy for 90 % of it."
    )


def test_where_nothing_is_found_it_is_told_how_busy_the_pod_was_if_that_is_known() -> None:
    idle, both = history(train(sm_percent=series(0))), history(train(), train(container="side"), sm_percent=())
    assert said(idle, "nothing-slows-it").endswith(" It kept the multiprocessors busy for 0 % of it.")
    assert said(both, "nothing-slows-it").endswith(" It kept the multiprocessors busy for 100 % of it.")
    assert said(HEALTHY["a MIG instance"], "nothing-slows-it") == (
        "Found nothing that slowed it in the last 15 min; checked: busy neighbours, its memory limit, memory "
        "that others use."
    )


def test_gpus_and_neighbours_that_the_pod_is_not_beside_do_not_count() -> None:
    """Another GPU stands first; a neighbour went 20 minutes ago."""
    of = history(train(), other(lately(90, 20, None), lately(9_000, 20, None)))
    more = replace(of, gpus=(replace(of.gpus[0], gpu=7, uuid="GPU-7"), *of.gpus))
    assert [each.code for each in slowness([more], "default", "train", NOW)] == ["nothing-slows-it"]


GROUPS = "slowdowns, low clocks, PCIe traffic, the PCIe link"
ALL = f"{GROUPS}, busy neighbours, its CPU limit, its memory limit, memory that others use"


@pytest.mark.parametrize(
    ("of", "unlooked"),
    [
        (
            history(telemetry=None, throttle=(), pcie_percent=()),
            {f"{GROUPS}, memory errors": "not read, or not reported by the driver"},
        ),
        (
            HEALTHY["a MIG instance"],
            {
                GROUPS: "how busy the pod kept the multiprocessors is not known",
                "its CPU limit": "how its CPU limit holds it back is not known",
                "memory errors": "MIG instances have none of their own",
            },
        ),
        (
            history(train(used_mib=lately(None, 1, 9), sm_percent=lately(None, 1, 9)), other(series(90))),
            {ALL: "its figures cover 60 s, less than 2 min"},
        ),
        (
            HEALTHY["idle beside a busy neighbour"],
            {
                "slowdowns, low clocks, busy neighbours, the PCIe link":
                "the pod hardly kept the multiprocessors busy",
            },
        ),
        (
            history(train(), other(sm_percent=())),
            {"busy neighbours": "how busy its neighbours keep the multiprocessors is not known"},
        ),
        *(
            (
                linked(**{most: None, unread: None}),
                {"the PCIe link": "not read, or not reported by the driver"},
            )
            for most, unread in (("pcie_width_max", "pcie_generation"), ("pcie_generation_max", "pcie_width"))
        ),
        (
            history(train(used_mib=()), used_mib=()),
            {"its memory limit, memory that others use": "how much memory is used is not known"},
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_told_with_the_reason(of: NodeHistory, unlooked: dict[str, str]) -> None:
    told = [each for each in slowness([of], "default", "train", NOW) if each.code == "not-looked-at"]
    assert {frozenset(str(each.parameters["checks"]).split(", ")): str(each.parameters["why"]) for each in told} == {
        frozenset(checks.split(", ")): why for checks, why in unlooked.items()
    }
    assert all(each.severity is Severity.UNKNOWN and str(each).startswith("Not checked: ") for each in told)


def test_alone_on_its_gpu_a_pod_is_what_keeps_it_busy() -> None:
    """A driver that does not tell processes apart tells how busy the GPU is."""
    alone = history(train(sm_percent=()), sm_percent=series(95), throttle=series(HOT))
    assert codes(alone) == ["slowed-by-heat"]
    new = history(train(used_mib=lately(None, 10, 9), sm_percent=()), sm_percent=series(95), throttle=series(HOT))
    assert "for 10 min of the 10 min in which the pod worked" in said(new, "slowed-by-heat")
    beside = history(train(sm_percent=()), other(sm_percent=()), sm_percent=series(95), throttle=series(HOT))
    assert codes(beside) == []


@pytest.mark.parametrize(
    ("histories", "told"),
    [
        ([], ["history-empty"]),
        ([history(other(series(3)))], ["history-empty"]),
        ([history(step_s=0.0)], ["history-empty"]),
        ([history(step_s=float("nan"))], ["history-empty"]),
        ([replace(history(), at="2026-11-28T11:44:00Z")], ["history-old age=16 min"]),
        ([history(train(used_mib=(), sm_percent=()), telemetry=None, sm_percent=())], ["not-looked-at"]),
        ([history(train(used_mib=(), sm_percent=(), cpu_throttled_percent=()))], ["not-looked-at"]),
    ],
)
def test_without_usable_figures_nothing_is_concluded(histories: list[NodeHistory], told: list[str]) -> None:
    assert facts(slowness(histories, "default", "train", NOW), "age")[-1:] == told


def test_it_is_told_why_nothing_is_concluded() -> None:
    old, none = replace(history(), at="2026-11-28T11:44:00Z"), history(other())
    assert said(old, "history-old") == (
        "The figures of its node's agent are 16 min old, too old to tell whether it is slow."
    )
    assert said(none, "history-empty") == "Its node's agent has no figures that tell whether it is slow."


def test_the_gpus_of_a_pod_are_those_of_its_containers() -> None:
    mine = [train(gpu=3), train(gpu=1), train(gpu=3, container="b"), train(gpu=2, namespace="ml"), other(gpu=4)]
    assert gpus_of(NodeHistory(AT, 15.0, (), tuple(mine)), "default", "train") == (1, 3)


# --- Any history ------------------------------------------------------------------------------------------------------


def some(most: int) -> st.SearchStrategy[tuple[int | None, ...]]:
    """Return series of many lengths: of single values, and of runs, which checks take for causes."""
    value = st.none() | st.integers(0, most) | st.just(most)
    runs = st.lists(st.tuples(value, st.integers(1, 60)), max_size=6)
    return runs.map(lambda each: tuple(one for one, number in each for _ in range(number))[:240])


NUMBERS = {
    name: st.none() | st.integers(0, most)
    for name, most in {
        "temperature_c": 120, "power_mw": 900_000, "power_limit_mw": 900_000, "power_limit_default_mw": 900_000,
        "sm_clock_mhz": 2000,
        "sm_clock_max_mhz": 2000, "throttle": 255, "sm_percent": 100, "pcie_generation": 6, "pcie_generation_max": 6,
        "pcie_width": 16, "pcie_width_max": 16, "ecc_corrected": 10**6, "ecc_uncorrected": 9,
    }.items()
}  # fmt: skip
CONDITIONS = st.builds(
    GpuTelemetry,
    st.sampled_from(["GPU-a", "MIG-b"]),
    repair_pending=st.none() | st.booleans(),
    repair_failed=st.none() | st.booleans(),
    **NUMBERS,
)
PERCENT, MEMORY = some(100), some(TOTAL_MIB)
GPUS = st.builds(
    GpuHistory,
    st.integers(0, 1),
    st.sampled_from(["GPU-a", "MIG-b"]),
    st.sampled_from([0, TOTAL_MIB]),
    used_mib=MEMORY,
    sm_percent=PERCENT,
    throttle=some(0xFC),
    pcie_percent=PERCENT,
    condition=st.none() | CONDITIONS,
)
CONTAINERS = st.builds(
    ContainerHistory,
    st.sampled_from(["default", "ml"]),
    st.sampled_from(["train", "other"]),
    st.sampled_from(["main", "side"]),
    st.integers(0, 1),
    st.sampled_from([0, 9_000, TOTAL_MIB]),
    st.sampled_from([0, 9_000, TOTAL_MIB]),
    used_mib=MEMORY,
    sm_percent=PERCENT,
    cpu_throttled_percent=PERCENT,
)
HISTORIES = st.builds(
    NodeHistory,
    st.sampled_from([AT, "", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00"]),
    st.sampled_from([0.0, -1.0, 0.2, 15.0, 60.0, 900.0, float("nan"), float("inf")]),
    st.lists(GPUS, max_size=2).map(tuple),
    st.lists(CONTAINERS, max_size=5).map(tuple),
)
SLOWED = HISTORIES.map(lambda each: replace(each, at=AT, step_s=15.0, containers=(train(), *each.containers)))


@given(st.lists(HISTORIES | SLOWED, max_size=2), st.booleans())
def test_any_history_is_answered(histories: list[NodeHistory], sees: bool) -> None:  # noqa: FBT001
    told = slowness(histories, "default", "train", NOW, lambda _: sees)
    assert told
    for each in map(str, told):
        assert re.match(r"[A-Z].*\.$", each)
        assert all(0 <= int(number) <= 100 for number in re.findall(r"(-?\d+) %", each))
        assert sees or "ml/" not in each


OF_WORK = {"neighbours-busy", "clocks-low", "pcie-link-slow"}
"""With the slowdowns: what concerns pods alone that keep the multiprocessors busy."""


@given(SLOWED, some(4))
def test_an_idle_pod_is_slowed_by_nothing_that_its_gpu_or_neighbours_do(of: NodeHistory, sm: Series) -> None:
    idle = tuple(replace(each, sm_percent=sm) if each.pod == "train" else each for each in of.containers[:1])
    others = tuple(each for each in of.containers if each.pod != "train")
    told = {each.code for each in verdicts(replace(of, containers=(*idle, other(), *others)))}
    assert told & OF_WORK == set()
    assert not any(code.startswith("slowed-by") for code in told)


@given(st.integers(1, 7), st.integers(0, 52), st.integers(0, 255))
def test_what_lasts_less_than_two_minutes_is_no_cause(steps: int, after: int, bits: int) -> None:
    """Seven steps are 105 seconds; whatever happens in them, the pod is not slow because of them."""

    def blip(usual: int, value: int) -> Series:
        return (*[usual] * (LENGTH - steps - after), *[value] * steps, *[usual] * after)

    own = train(sm_percent=blip(60, 20), used_mib=blip(30_000, 40_950), cpu_throttled_percent=blip(0, 100))
    happened = history(own, other(blip(0, 99), blip(9_000, 50_000)), throttle=blip(0, bits), pcie_percent=blip(5, 100))
    assert verdicts(happened) == []


@given(SLOWED, st.randoms())
def test_the_order_of_containers_decides_nothing(of: NodeHistory, random: Any) -> None:
    mixed = list(of.containers)
    random.shuffle(mixed)
    assert slowness([of], "default", "train", NOW) == slowness(
        [replace(of, containers=tuple(mixed))], "default", "train", NOW
    )


SOURCES: dict[str, Callable[[NodeHistory], list[tuple[int | None, ...]]]] = {
    "starved-of-cpu": lambda of: [each.cpu_throttled_percent for each in of.containers],
    "pcie-saturated": lambda of: [of.gpus[0].pcie_percent],
}
"""The series whose mean a verdict tells."""


@given(SLOWED.filter(lambda of: len(of.gpus) == 1))
def test_percentages_of_the_evidence_lie_within_the_data(of: NodeHistory) -> None:
    for each in verdicts(of):
        if each.code in SOURCES:
            known = [value for one in SOURCES[each.code](of) for value in one if value is not None]
            assert min(known) <= int(str(each.parameters["percent"])) <= max(known)
        if "share" in each.parameters:
            assert 33 <= int(str(each.parameters["share"])) <= 100


async def test_of_each_of_them_the_history_with_all_containers_is_read() -> None:
    mine = [replace(train(), gpu=position) for position in (3, 1)]
    read: list[str] = []

    async def agent(path: str) -> NodeHistory:
        read.append(path)
        return NodeHistory(AT, 15.0, (), tuple(mine))

    found = await histories_of(Pod("u", "default", "train"), agent)
    assert (len(found), read) == (2, [namespace_path("default"), gpu_path(1), gpu_path(3)])

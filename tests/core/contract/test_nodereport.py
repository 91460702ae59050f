"""The report of a node's agent: two annotations, read with the age of their figures."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpu_device_plugin.core.contract.keys import NODE_LIMITS, NODE_USE
from gpu_device_plugin.core.contract.nodelimits import NodeLimits, write_node_limits
from gpu_device_plugin.core.contract.nodereport import NO_REPORT, exceeds, node_report, not_held, trespasses
from gpu_device_plugin.core.contract.nodeuse import NodeUse, UsedGpu, UsedPart, write_node_use
from gpu_device_plugin.core.model.limits import GpuRung, Held, Rung

AT = "2026-11-22T10:00:00Z"
NOW_S = datetime(2026, 11, 22, 10, 0, 0, tzinfo=UTC).timestamp()
LIMITS = NodeLimits({1: GpuRung(Rung.MPS, "the label wants it")})
PART = UsedPart("default", "web", "main", gpu=1, granted_mib=4096, used_mib=100)
USE = NodeUse(AT, {1: UsedGpu(300, 200)}, (PART,))


def test_both_annotations_are_read_with_the_age_of_the_figures() -> None:
    written = {NODE_LIMITS: write_node_limits(LIMITS), NODE_USE: write_node_use(USE), "x": "y"}
    report, problems = node_report(written, NOW_S + 20)
    assert problems == ()
    assert (report.limits, report.use, report.use_age_s) == (LIMITS, USE, 20.0)
    assert report.rung(1) == GpuRung(Rung.MPS, "the label wants it")
    assert report.rung(0) is None
    assert (report.used(1), report.used(0)) == (UsedGpu(300, 200), UsedGpu())
    assert (report.parts(1), report.parts(0)) == ((PART,), ())
    assert report.current == (PART,)


def test_an_older_agent_reports_nothing() -> None:
    report, problems = node_report({}, NOW_S)
    assert (report, problems) == (NO_REPORT, ())
    assert (report.rung(0), report.used(0), report.parts(0), report.current) == (None, UsedGpu(), (), ())
    assert not report.stale


def test_an_annotation_that_cannot_be_parsed_counts_as_absent_and_is_told() -> None:
    report, problems = node_report({NODE_LIMITS: "?", NODE_USE: "[]"}, NOW_S)
    assert report == NO_REPORT
    assert [problem.partition(" is not")[0] for problem in problems] == [
        f"the node's annotation {NODE_LIMITS}",
        f"the node's annotation {NODE_USE}",
    ]


@pytest.mark.parametrize(
    ("at", "later_s", "age_s", "stale"),
    [
        (AT, 900, 900.0, False),
        (AT, 901, 901.0, True),
        (AT, -50, 0.0, False),
        ("2026-11-22T12:00:00+02:00", 5, 5.0, False),
        ("2026-11-22T10:00:00", 5, 5.0, False),
        ("yesterday", 0, None, True),
        ("", 0, None, True),
    ],
    ids=["the limit", "older", "clocks differ", "a time zone", "none", "no time", "nothing"],
)
def test_figures_that_are_old_show_nothing_of_the_present(
    at: str,
    later_s: float,
    age_s: float | None,
    stale: bool,  # noqa: FBT001 - pytest's
) -> None:
    report, _ = node_report({NODE_USE: write_node_use(NodeUse(at, parts=(PART,)))}, NOW_S + later_s)
    assert (report.use_age_s, report.stale, report.current) == (age_s, stale, () if stale else (PART,))


def test_what_is_wrong_with_a_container_is_told_apart() -> None:
    """Within its part, over it, without any and using nothing, without any and using a little."""
    over = UsedPart("d", "p", "c", 0, 4096, 9000, over_since=AT)
    idle, stranger = UsedPart("d", "p", "c", 0, 0, 0), UsedPart("d", "p", "c", 0, 0, 1)
    assert [exceeds(part) for part in (PART, over, idle, stranger)] == [False, True, False, False]
    assert [trespasses(part) for part in (PART, over, idle, stranger)] == [False, False, False, True]
    states = {state: UsedPart("d", "p", "c", 0, 4096, rung=Rung.DRIVER, held=state) for state in Held}
    assert {state for state, part in states.items() if not_held(part)} == {Held.DIFFERS, Held.MISSING}


def test_of_figures_that_are_not_of_now_the_age_is_told() -> None:
    written = {NODE_USE: write_node_use(USE)}
    assert [node_report(written, NOW_S + age_s)[0].old for age_s in (180, 181)] == [False, True]
    assert node_report({NODE_USE: write_node_use(NodeUse("?"))}, NOW_S)[0].old
    assert not NO_REPORT.old

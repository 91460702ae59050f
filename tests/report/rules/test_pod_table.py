"""The pods with GPUs, each on its GPUs."""

from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.model.contract.node_use import ContainerUse, NodeReport, NodeUse
from gpu_device_plugin.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.times import epoch_s, rfc3339
from gpu_device_plugin.report.rules.columns import Tone, columns
from gpu_device_plugin.report.rules.terminal_tables import (
    SORTS,
    PodRow,
    folded_details,
    pod_rows,
    pod_table,
    rows_alone,
    rows_waiting,
)
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.names import MEM
from tests.reports import ASKED, BORROWER, SINCE, part, report
from tests.resources import RESOURCES
from tests.views import node_view, pod_on


def test_a_pod_is_shown_with_what_it_was_given_and_uses() -> None:
    parts = (
        replace(part("web", used=1024), enforcement=Enforcement.DRIVER, held=LimitStatus.HELD),
        replace(part("web", used=512), enforcement=Enforcement.DRIVER, held=LimitStatus.HELD, container="side"),
    )
    (row,) = pod_rows([node_view("n", (15,), pod_on("web", {0: 4}), report=report(*parts))])
    assert row == PodRow("default/web", "n", "0", "4G", 4096, 1536, "driver: held")
    assert row.percent == 37


def test_a_pod_with_several_gpus_has_a_row_for_each() -> None:
    rows = pod_rows([node_view("n", (15, 15, 15), pod_on("web", {0: 4, 2: 4}), pod_on("all", None, 1))])
    assert [(row.pod, row.gpu, row.given, row.given_mib) for row in rows] == [
        ("default/web", "0", "4G", 4096),
        ("default/all", "1", "whole", 15360),
        ("default/web", "2", "4G", 4096),
    ]


def test_over_use_trespass_and_loose_limits_are_said() -> None:
    parts = (
        replace(part("over", used=9000), over_since=SINCE, held=LimitStatus.DIFFERS, enforcement=Enforcement.DRIVER),
        part("thief", granted=0, used=100),
        part("idle", granted=0, used=0),
    )
    view = node_view("n", (15,), pod_on("over", {0: 4}, deleting=True), report=report(*parts))
    over, thief = pod_rows([view])
    assert (over.state, over.bad) == ("over; limit not as granted; ending", True)
    assert (thief.pod, thief.given, thief.state, thief.percent) == ("default/thief", "nothing", "not assigned", None)


def test_how_long_a_pod_is_idle_is_said_and_sorts() -> None:
    hour, day = (replace(part(name, used=0), idle_since=SINCE) for name in ("hour", "day"))
    now = epoch_s(SINCE)
    assert now is not None
    views = [
        node_view(name, (15,), pod_on(name, {0: 4}), report=idle_report(each, now + seconds, age_s=10))
        for name, each, seconds in (("hour", hour, 3600 * 3), ("day", day, 86400 * 2), ("busy", part("busy"), 5))
    ]
    rows = sorted(pod_rows(views), key=SORTS["idle"][1])
    assert [(row.pod, row.state, row.idle_s) for row in rows] == [
        ("default/day", "idle 2 days", 86400 * 2 + 10),
        ("default/hour", "idle 3 h", 3600 * 3 + 10),
        ("default/busy", "", None),
    ]
    assert [view.name for view in sorted(views, key=SORTS["idle"][0])] == ["day", "hour", "busy"]
    stale = node_view("n", (15,), pod_on("hour", {0: 4}), report=idle_report(hour, now + 3600, age_s=5000))
    assert [row.idle_s for row in pod_rows([stale])] == [None]
    unread = node_view("n", (15,), pod_on("hour", {0: 4}))
    assert [row.idle_s for row in pod_rows([unread])] == [None]


def idle_report(part: ContainerUse, at: float, age_s: float) -> NodeReport:
    return NodeReport(None, NodeUse(rfc3339(at), parts=(part,)), age_s)


def test_the_use_of_one_container_that_is_not_known_makes_that_of_the_pod_unknown() -> None:
    parts = (part("web", used=100), replace(part("web", used=None), container="side"))
    (row,) = pod_rows([node_view("n", (15,), pod_on("web", {0: 4}), report=report(*parts))])
    assert row.used_mib is None


def test_pods_of_one_namespace_can_be_chosen() -> None:
    view = node_view("n", (15,), pod_on("a/web", {0: 4}), pod_on("ab/web", {0: 4}))
    assert [row.pod for row in pod_rows([view], "a")] == ["a/web"]
    assert len(pod_rows([view])) == 2


def test_pods_on_unknown_gpus_and_nodes_without_share_size_are_shown() -> None:
    (unassigned_usage,) = pod_rows([node_view("n", (15,), pod_on("web", unassigned_usage=4))])
    assert (unassigned_usage.gpu, unassigned_usage.given, unassigned_usage.state) == (
        "?",
        "4 GiB",
        "GPU not known yet",
    )
    (bare,) = pod_rows([node_view("n", (15,), pod_on("web", {0: 4}), share_mib=None)])
    assert (bare.given, bare.given_mib) == ("4", 0)


def test_of_pods_alone_their_annotations_are_known() -> None:
    plain = Pod("u1", "ml", "a", "n1", "Running")
    over = Pod("u2", "ml", "b", "n2", "Running", annotations={OVER_USE: "uses more"})
    usage = Usage(((0, 1), (2, 3)), (4,), unplaced_shares=5, unplaced_gpus=2)
    rows = rows_alone([(plain, usage), (over, Usage(((0, 1),)))])
    assert [(row.gpu, row.given) for row in rows] == [
        ("0", "1 share"),
        ("2", "3 shares"),
        ("4", "whole"),
        ("?", "5 shares"),
        ("?", "2 whole"),
        ("0", "1 share"),
    ]
    assert [(row.state, row.bad) for row in (rows[0], rows[-1])] == [("Running", False), ("over", True)]


@pytest.mark.parametrize(
    ("word", "order"),
    [("name", "abc"), ("given", "cab"), ("used", "bca"), ("percent", "bca"), ("over", "abc"), ("free", "abc")],
)
def test_rows_are_sorted_by_a_word(word: str, order: str) -> None:
    rows = [
        PodRow("a", "n", "0", "", 2048, None, bad=True),
        PodRow("b", "n", "0", "", 1024, 1000),
        PodRow("c", "n", "0", "", 4096, 900),
    ]
    assert "".join(row.pod for row in sorted(rows, key=SORTS[word][1])) == order


def test_the_table_fits_the_terminal() -> None:
    rows = [
        PodRow("namespace/" + "p" * 253, "n" * 253, "0", "4G", 4096, 9000, "driver: held", "over", bad=True),
        PodRow("a/b", "", "?", "4G", 0),
    ]
    lines = pod_table(rows, 80)
    assert max(columns(line.text) for line in lines) <= 80
    assert [line.tone for line in lines] == [Tone.HEADING, Tone.BAD, Tone.PLAIN]
    assert lines[1].text.split()[-1] == "over"
    assert "219" in lines[1].text


def test_pods_that_wait_have_what_they_ask_for() -> None:
    waiting = Pod("u1", "ml", "a", containers=(Container("main", ContainerKind.APP, 0, {MEM: 5}),))
    (row,) = rows_waiting([waiting], RESOURCES)
    assert (row.pod, row.node, row.gpu, row.given, row.state) == ("ml/a", "", "-", f"{MEM}: 5", "waits")


# --- In detail --------------------------------------------------------------------------------------------------------


def test_each_node_has_its_gpus_and_their_pods() -> None:
    first = node_view(
        "gpu-1", (15, 15), pod_on("web", {1: 4}), pod_on("a", {0: 2}), report=report(part("web", 1, used=1024))
    )
    empty, shares_none = node_view("gpu-2", (15,)), node_view("cpu-1", ())
    lines = [line.text.split() for line in folded_details([first, empty, shares_none], 80)]
    assert [line[:4] for line in lines] == [
        ["NODE", "GPU", "MODEL", "GIVEN"],
        ["gpu-1", "0", "Tesla", "T4"],
        ["1", "Tesla", "T4", "4G/15G"],
        [],
        ["POD", "NODE", "GPU", "GIVEN"],
        ["default/a", "gpu-1", "0", "2G"],
        ["default/web", "gpu-1", "1", "4G"],
        ["-" * 80],
        [],
        ["NODE", "GPU", "MODEL", "GIVEN"],
        ["gpu-2", "0", "Tesla", "T4"],
        ["-" * 80],
        [],
        ["2", "nodes,", "3", "GPUs"],
        ["whole", "GPUs", "free", "1"],
    ]


def test_a_borrower_is_shown_with_its_limit_and_whether_it_is_asked() -> None:
    view = node_view("n", (15,), pod_on("nb", {0: 4}), report=report(replace(ASKED, enforcement=Enforcement.ADVISORY)))
    (row,) = pod_rows([view])
    assert (row.given, row.limit, row.state) == ("4G", "advisory, up to 12G", "borrows 3G; asked to return")
    assert not row.bad, "nothing is wrong"
    (row,) = pod_rows([node_view("n", (15,), pod_on("nb", {0: 4}), report=report(replace(BORROWER, used_mib=9)))])
    assert (row.limit, row.state) == ("up to 12G", "")

"""The GPUs of a cluster in a table that fits a terminal."""

from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.report.rules.columns import Tone, columns
from gpu_device_plugin.report.rules.node_view import NodeView, sums_of
from gpu_device_plugin.report.rules.printing import gib
from gpu_device_plugin.report.rules.terminal_tables import figures_age, folded, wrapped
from tests.reports import ASKED, SINCE, part, report
from tests.views import node_view, pod_on

H200 = "NVIDIA H200"


def texts(*nodes: NodeView, width: int = 80) -> list[str]:
    return [line.text for line in folded(nodes, width)]


def big(name: str, *pods: object, **more: object) -> NodeView:
    return node_view(name, (140,) * 8, *pods, model=H200, **more)  # type: ignore[arg-type]


def test_equal_gpus_share_a_row() -> None:
    pods = (pod_on("a", {0: 70}), pod_on("b", {1: 70}), pod_on("c", None, 4))
    lines = texts(big("gpu-1", *pods))
    assert [line.split()[1 if line.startswith("gpu-1") else 0] for line in lines[1:5]] == ["0-1", "2-3", "4", "5-7"]
    assert lines[1].split()[4:6] == ["70G/140G", "each"]
    assert lines[3].endswith("whole")


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_no_row_is_wider_than_the_terminal(width: int, gpus: int) -> None:
    """Every GPU in a row of its own, since each is used another way, and names of any length."""
    pods = [pod_on(f"p{at}", {at: at + 1}) for at in range(gpus)]
    nodes = [
        node_view(
            name,
            (140,) * gpus,
            *pods,
            model="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            unhealthy={0: "XID 79: it has fallen off the bus"},
            report=report(*(part(f"p{at}", at, used=9000) for at in range(gpus)), gpus={0: GpuUse(9999)}),
        )
        for name in ("n", "a" * 253, "节点" * 60)
    ]
    shown = texts(*nodes, width=width)
    assert max(map(columns, shown)) <= width
    assert sum(line.startswith(("n ", "aaa", "节点")) for line in shown) == 3


def test_gpus_of_other_models_sizes_or_states_have_rows_of_their_own() -> None:
    view = node_view("n", (15, 15, 7, 15), unhealthy={3: "XID 48"})
    rows = texts(view)[1:4]
    assert [row.split()[-1] for row in rows[:2]] == ["-", "-"]
    assert "unhealthy: XID 48" in rows[2]
    assert rows[2].split()[4:6] == ["-", "unhealthy"], "nothing of it is free, and its size would mislead"
    assert folded([view], 80)[3].tone is Tone.BAD


def test_the_use_of_equal_gpus_is_that_of_the_busiest() -> None:
    gpus = {0: GpuUse(1024), 1: GpuUse(3072)}
    shown = texts(node_view("n", (15, 15), report=report(gpus=gpus, enforcements={})))
    assert "≤3G" in shown[1]
    same = texts(node_view("n", (15, 15), report=report(gpus={0: GpuUse(1024), 1: GpuUse(1024)}, enforcements={})))
    assert " 1G" in same[1]
    assert "≤" not in same[1]


def test_over_use_trespass_and_limits_that_do_not_hold_are_told_in_words() -> None:
    over = replace(part("a", used=9000), over_since=SINCE)
    stranger = part("b", granted=0, used=700)
    unassigned_usage = replace(part("c"), enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING)
    enforcements = {
        0: GpuEnforcement(Enforcement.DRIVER, "r615", "no MPS"),
        1: GpuEnforcement(Enforcement.MPS, "chosen"),
    }
    view = node_view("n", (15, 15), report=report(over, stranger, unassigned_usage, enforcements=enforcements))
    row, other = folded([view], 120)[1:3]
    assert row.tone is Tone.BAD
    assert row.text.endswith("driver, refused  1 over, 1 not assigned, 1 limit not as granted")
    assert "mps" in other.text


def test_stale_figures_are_not_shown() -> None:
    over = replace(part("a", used=9000), over_since=SINCE)
    view = node_view("n", (15,), report=report(over, gpus={0: GpuUse(9000)}, age_s=5000))
    assert " - " in texts(view)[1]
    assert "over" not in texts(view)[1]
    assert sums_of([view]).used_mib is None


def test_nodes_that_take_no_pods_say_so_and_are_not_free() -> None:
    closed = node_view("c", (15,), ready=False, unschedulable=True)
    opened = node_view("o", (7,))
    shown = folded([closed, opened], 80)
    assert shown[1].text.endswith("not ready, cordoned")
    assert shown[1].tone is Tone.WARNING
    sums = sums_of([closed, opened])
    assert (sums.free, sums.largest, sums.whole, sums.total) == (7 * 1024, 7 * 1024, 1, 22 * 1024)


def test_pods_on_unknown_gpus_and_unreadable_gpus_have_rows() -> None:
    unassigned_usage = folded([node_view("n", (15,), pod_on("p", unassigned_usage=4))], 80)
    assert unassigned_usage[2].text.split()[:2] == ["?", "-"]
    assert unassigned_usage[2].tone is Tone.WARNING
    broken = folded([node_view("n", (), problem="the annotation is no JSON")], 80)
    assert broken[1].tone is Tone.BAD
    assert broken[1].text.endswith("the annotation is no JSON")


def test_where_the_size_of_shares_is_not_known_numbers_are_bare() -> None:
    shown = texts(node_view("n", (15,), pod_on("p", {0: 5}), share_mib=None))
    assert "5/15" in shown[1]
    assert "given 5 of 15 (33%)" in shown[3]


@pytest.mark.parametrize(("mib", "shown"), [(None, "-"), (0, "0G"), (1024, "1G"), (1536, "1.5G"), (312, "0.3G")])
def test_amounts_are_short(mib: int | None, shown: str) -> None:
    assert gib(mib) == shown


def test_facts_stand_side_by_side_where_they_fit() -> None:
    assert wrapped(["aaa", "bbb", "ccc"], 9) == ["aaa   bbb", "ccc"]
    assert wrapped(["aaaaaaaa"], 4) == ["aaa…"]


def test_the_age_of_old_figures_is_told() -> None:
    assert figures_age([node_view("n", (15,), report=report(part("a")))]) == ""
    assert figures_age([node_view("n", (15,), report=report(part("a"), age_s=600))]) == "use read up to 10 min ago"


def test_a_gpu_whose_borrowers_are_asked_has_a_row_that_says_so() -> None:
    view = node_view("n", (15, 15), report=report(ASKED, ASKED))
    first, second, *_ = folded([view], 80)[1:]
    assert (first.tone, first.text.split("  ")[-1]) == (Tone.WARNING, "2 to return memory")
    assert second.tone is Tone.PLAIN
    stale = node_view("n", (15, 15), report=report(ASKED, age_s=1200))
    assert "return" not in "".join(texts(stale))

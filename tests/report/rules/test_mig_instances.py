"""MIG instances in the tables and documents that people and their tools read."""

from dataclasses import replace

from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.programs.inspect.gpushare_layout import summary, wide
from gpu_device_plugin.programs.inspect.top_picture import Picture, frame
from gpu_device_plugin.report.rules.node_answers import explain
from gpu_device_plugin.report.rules.node_view import sums_of
from gpu_device_plugin.report.rules.pod_causes import Kept
from gpu_device_plugin.report.rules.printing import gpu_names, place
from gpu_device_plugin.report.rules.terminal_tables import (
    folded,
    folded_details,
    pod_rows,
    pod_table,
    rows_alone,
)
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import NOTHING
from tests.reporting import answers
from tests.reports import part, report
from tests.views import WHOLE, changed, mig_view, pod_on, with_instances

ONE, TWO = with_instances("one", 2), with_instances("two", asks=1, deleting=True)
MIXED = mig_view("a", pod_on("web", {0: 4, 1: 3}), ONE, TWO, gpus=1, shared=2, whole=3, ill={4: "XID 94"})


def test_an_instance_has_its_position_and_its_number() -> None:
    listed = MIXED.candidate.gpus.all
    assert gpu_names(listed[:2]) == "GPU 0, 1 (MIG 0:0 1g.10gb)"
    assert [place(gpu) for gpu in listed] == ["0", "1 (0:0)", "2 (0:1)", "3 (0:2)", "4 (0:3)", "5 (0:4)"]


def test_sums_count_an_instance_of_which_is_not_known_which() -> None:
    """Just after a binding nothing on the pod names its instances. The node has lost some of the last pod's."""
    view = mig_view("n", ONE, TWO, whole=4)
    assert (sums_of([view]).given, sums_of([view]).total) == (2 * 9 * 1024, 4 * 9 * 1024)
    lost = mig_view("n", ONE, with_instances("many", asks=9), whole=4)
    assert sums_of([lost]).given == sums_of([lost]).total


def test_the_summary_lists_instances_below_the_table_of_the_original() -> None:
    assert summary([MIXED, mig_view("b", whole=2)])[:3] == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  GPU Memory(GiB)",
        "a     10.0.0.7   4/15                   3/9                    0/9                    7/33",
        "-------------------------------------------------",
    ]
    assert summary([MIXED, mig_view("b", whole=2)])[5:] == [
        "",
        "MIG instances:",
        "a: GPU 0 (MIG): 0:0 1g.10gb (GPU1) 3/9, 0:1 1g.10gb (GPU2) 0/9",
        f"a: {WHOLE}: 2/3 in use, 1 not available",
        f"b: {WHOLE}: 0/2 in use",
    ]


def test_a_shared_instance_that_nobody_can_get_is_marked() -> None:
    assert summary([mig_view("a", gpus=1, shared=2, ill={2: "XID 94"})])[-1] == (
        "a: GPU 0 (MIG): 0:0 1g.10gb (GPU1) 0/9, 0:1 1g.10gb (GPU2) 0/9 (not available)"
    )


def test_the_wide_table_has_a_line_for_each_instance() -> None:
    cells = [line.split() for line in wide([MIXED])]
    places = [row[1:3] for row in cells[2:]]
    assert places == [
        ["1", "(0:0)"],
        ["2", "(0:1)"],
        ["3", "(0:2)"],
        ["4", "(0:3)"],
        ["5", "(0:4)"],
        ["?", "-"],
    ]
    assert cells[4][-3:] == ["healthy", "default/one:", "whole"]
    assert "unhealthy: XID 94" in wide([MIXED])[5]
    assert wide([MIXED])[-1].endswith("default/two: 1 whole")


def test_the_reason_of_an_unhealthy_gpu_makes_no_line_of_another_one_longer() -> None:
    node = mig_view("b", whole=1)
    (gpu,) = node.candidate.gpus.instances

    def table(why: str) -> list[str]:
        gpus = replace(node.candidate.gpus, instances=(replace(gpu, unhealthy=why),))
        return wide([replace(node, candidate=replace(node.candidate, gpus=gpus)), node])

    short, long = table("XID 94"), table("XID 94: " + "contained memory error " * 20)
    assert [short[0], *short[2:]] == [long[0], *long[2:]]
    assert long[1].rstrip().endswith("contained memory error")


def test_narrow_terminals_have_a_row_for_the_instances_of_a_resource() -> None:
    told = [" ".join(line.text.split()) for line in folded([MIXED, mig_view("b", whole=2)], 110)]
    assert told[1:6] == [
        "a 0 Tesla T4 4G/15G - 11G -",
        "1 H100 MIG 1g.10gb 3G/9G - 6G -",
        "2 H100 MIG 1g.10gb 0G/9G - 9G -",
        "3-5 3x MIG 1g.10gb 2/3 whole - 0 partition 1 unhealthy: XID 94",
        "b 0-1 2x MIG 1g.10gb 0/2 whole - 2 partition",
    ]
    assert " ".join(told[-2:]) == (
        "2 nodes, 3 GPUs given 25G of 78G (32%) free 26G largest pod now 11G whole GPUs free 0 "
        "MIG instances free 2 of 5"
    )
    assert "2/3 whole" in "".join(line.text for line in folded_details([MIXED], 110))
    cordoned = folded([changed(mig_view("b", whole=2), unschedulable=True)], 110)
    assert cordoned[1].text.endswith("cordoned")


def test_pods_with_whole_instances_have_rows_with_their_use() -> None:
    used = report(part("one", gpu=3, used=2048, granted=9728), gpus={3: GpuUse(2048)})
    node = replace(MIXED, report=used)
    rows = [" ".join(line.text.split()) for line in pod_table(pod_rows([node]), 110)]
    assert rows[3:] == [
        "default/one a 3 (0:2) whole 2G 21 -",
        "default/two a ? 1x 1g.10gb - - - instance not known yet",
    ]
    frame_lines = [line.text for line in frame(Picture([node], 0, "12:00:00", sort="used"), 110)]
    assert any("3 (0:2)" in line for line in frame_lines)
    ending = replace(ONE, terminating=True)
    (row,) = pod_rows([mig_view("a", replace(ending, held=frozenset({"MIG-0"})), whole=1)])
    assert row.state == "ending"


def test_where_no_node_can_be_read_pods_with_instances_are_told_by_their_limits() -> None:
    pod = Pod("uid", "default", "one", "a", "Running", containers=(Container("c", ContainerKind.APP, 0, {WHOLE: 2}),))
    (row,) = rows_alone([(pod, NOTHING)])
    assert (row.gpu, row.given, row.state) == ("?", "2x mig-1g.10gb", "Running")


def test_an_instance_is_no_whole_gpu() -> None:
    """The node's rooms say which are instances."""
    node = mig_view("a", gpus=1, shared=1)
    rooms = tuple(replace(room, card=1 if room.position == 1 else None) for room in node.candidate.rooms)
    node = replace(node, candidate=replace(node.candidate, rooms=rooms))
    ask = GpuRequest((Part(Demand(Kind.COUNT, 1)),))
    text = [*map(str, explain(answers([(node, ask, Kept())], "binpack", 1), 1))]
    assert [line.split()[0] for line in text if "would be chosen" in line] == ["0"]
    assert ["(0:0)" in line for line in text if "only a MIG instance" in line] == [True]

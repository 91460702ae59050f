"""One picture of the cluster that fits a terminal."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.programs.inspect.top_picture import Picture, frame, tables
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.terminal_tables import SORTS, PodRow
from tests.reports import SINCE, part, report
from tests.views import node_view, pod_on

NODES = (
    node_view("a", (15,), pod_on("x", {0: 3}), report=report(part("x"), gpus={0: GpuUse(9000)})),
    node_view("b", (15,), pod_on("y", {0: 9}), report=report(gpus={0: GpuUse(100)})),
    node_view(
        "c",
        (30,),
        pod_on("ml/z", {0: 12}),
        report=report(replace(part("ml/z", used=15000), over_since=SINCE), gpus={0: GpuUse(500)}, age_s=300),
    ),
)
PICTURE = Picture(NODES, 2, "12:00:00", ("node d: its annotation is no JSON",))


def texts(**how: Any) -> list[str]:
    return [line.text for line in frame(replace(PICTURE, **how), 80)]


def test_the_head_says_what_is_shown_and_since_when() -> None:
    head = texts()
    assert head[0] == "GPU shares, read at 12:00:00; 2 pods are pending"
    assert head[1] == "node d: its annotation is no JSON"
    assert head[2].startswith("3 nodes, 3 GPUs   given 24G of 60G (40%)")
    assert "(use read up to 5 min ago)" in head
    assert frame(replace(PICTURE, waiting=0), 80)[0].text.endswith("; no pod is pending")


def test_why_it_is_not_current_is_told_in_red() -> None:
    lines = frame(replace(PICTURE, problem="kubectl could not read /api/v1/nodes"), 80)
    assert lines[1].text == "Not current: kubectl could not read /api/v1/nodes"
    assert lines[1].tone is Tone.BAD


def test_nodes_and_pods_stand_below() -> None:
    shown = texts()
    nodes, pods = (
        shown.index(next(line for line in shown if line.startswith("NODE"))),
        shown.index(next(line for line in shown if line.startswith("POD"))),
    )
    assert [line.split()[0] for line in shown[nodes + 1 : nodes + 4]] == ["a", "b", "c"]
    assert [line.split()[0] for line in shown[pods + 1 :]] == ["default/x", "default/y", "ml/z"]


@pytest.mark.parametrize(
    ("word", "order"),
    [("name", "abc"), ("given", "cba"), ("used", "acb"), ("percent", "bca"), ("over", "cab"), ("free", "cab")],
)
def test_nodes_are_sorted_by_a_word(word: str, order: str) -> None:
    assert "".join(node.name for node in sorted(NODES, key=SORTS[word][0])) == order


def test_nodes_without_gpus_and_stale_figures_are_sorted_as_nothing() -> None:
    empty = node_view("empty", (), problem="none")
    stale = node_view("stale", (15,), report=report(gpus={0: GpuUse(9999)}, age_s=5000))
    assert min([stale, NODES[1]], key=SORTS["used"][0]).name == "b"
    assert min([empty, NODES[0]], key=SORTS["percent"][0]).name == "a"


def test_pods_of_one_namespace_are_shown_alone_and_the_head_says_so() -> None:
    shown = texts(namespace="ml")
    assert shown[0].startswith("GPU shares of namespace ml,")
    assert [line for line in shown if "default/" in line] == []
    assert "No pod has a GPU here." in texts(namespace="nobody")


@pytest.mark.parametrize(
    ("how", "nodes", "pods"),
    [
        ({"sort": "given", "backwards": True}, ["a", "b", "c"], ["default/x", "default/y", "ml/z"]),
        ({"sort": "node", "backwards": True}, ["c", "b", "a"], ["ml/z", "default/y", "default/x"]),
        ({"sought": "ML/"}, ["c"], ["ml/z"]),
        ({"sought": "9G"}, ["b"], ["default/y"]),
        ({"sought": "tesla"}, ["a", "b", "c"], ["No"]),
        ({"sought": "nothing like it"}, [], ["No"]),
    ],
)
def test_rows_are_turned_round_and_sought(how: dict[str, Any], nodes: list[str], pods: list[str]) -> None:
    upper, lower, names = tables(replace(PICTURE, **how), 80)
    assert [line.text.split()[0] for line in upper[1:]] == nodes
    assert [line.text.split()[0] for line in lower[bool(names) :]] == pods
    assert names == (pods if pods != ["No"] else [])


def test_pods_that_wait_are_listed_where_their_why_can_be_opened() -> None:
    waits = PodRow("ml/a", "", "-", "aliyun.com/gpu-mem: 3", 0, state="waits")
    _, lower, names = tables(replace(PICTURE, queue=[waits]), 80)
    assert names == ["default/x", "default/y", "ml/a", "ml/z"]
    assert lower[3].text.split() == ["ml/a", "-", "-", "aliyun.com/gpu-mem:", "3", *"---", "waits"]
    assert "ml/a" not in "".join(texts(queue=[waits]))

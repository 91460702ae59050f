"""One picture of the cluster that fits a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.report.rules.columns import Tone, columns
from gpu_device_plugin.report.rules.terminal_tables import SORTS, Picture, frame
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


def texts(height: int | None = None, namespace: str = "") -> list[str]:
    return [line.text for line in frame(replace(PICTURE, namespace=namespace), 80, height)]


def test_the_head_says_what_is_shown_and_since_when() -> None:
    head = texts()
    assert head[0] == "GPU shares, read at 12:00:00; 2 pods wait"
    assert head[1] == "node d: its annotation is no JSON"
    assert head[2].startswith("3 nodes, 3 GPUs   given 24G of 60G (40%)")
    assert "(figures of use read up to 5 min ago)" in head
    assert frame(replace(PICTURE, waiting=0), 80, None)[0].text.endswith("; no pod waits")


def test_why_it_is_not_current_is_told_in_red() -> None:
    lines = frame(PICTURE, 80, None, "kubectl could not read /api/v1/nodes")
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


@pytest.mark.parametrize("height", [5, 10, 14, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_terminal(height: int, width: int) -> None:
    many = Picture(
        tuple(
            node_view(f"n{at}", (15,) * 8, *(pod_on(f"p{at}-{g}", {g: g + 1}) for g in range(8))) for at in range(30)
        ),
        0,
        "12:00:00",
    )
    lines = frame(many, width, height)
    assert len(lines) <= max(height, 13)
    assert max(columns(line.text) for line in lines) <= max(width, 60)
    shown = [line.text for line in lines]
    assert any(line.endswith("more rows of GPUs") for line in shown)
    assert any(line.endswith("more rows of pods") for line in shown)


def test_what_is_little_is_not_cut_off() -> None:
    assert not [line for line in texts(height=30) if line.startswith("...")]

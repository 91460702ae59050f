"""What pictures of simulations show is what was simulated."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch

from gpu_device_plugin.cli import parse
from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import REJECTED, Plan, simulate
from gpu_device_plugin.programs.simulate.model import Inputs, Workload
from gpu_device_plugin.programs.simulate.plot import (
    Course,
    GpuState,
    courses,
    show_burst,
    show_courses,
    show_needed,
)
from gpu_device_plugin.programs.simulate.simulate_program import main
from tests.builders import container, node, pod


def of(
    nodes: str, pods: str, *policies: str, until: float | str | None = None, leave: float | None = None
) -> list[Course]:
    inputs = Inputs(nodes_in(nodes), Workload.of(pods_in(pods)), ordered=True)
    plan = Plan(policies or ("binpack",), seeds=1, until=until, departures=leave)
    return courses(plan, inputs, simulate(plan, inputs, lambda _what, _part: None))


def test_a_course_says_what_is_allocated_and_stranded_after_each_pod() -> None:
    """Pods of 6 on two GPUs of 10: each strands 4 that the next cannot have, and the third finds no room."""
    (course,) = of("gpus=2 mem=10", "3x mem=6")
    assert course.x == pytest.approx((0, 30, 60, 90))
    assert course.allocated == pytest.approx((0, 30, 60, 60))
    assert course.stranded == pytest.approx((0, 20, 40, 40))
    assert course.nodes == (("'gpus=2 mem=10'-1", (GpuState(0.6, 0.4),) * 2),)


def test_where_nothing_is_free_nothing_is_allocated(tmp_path: Path) -> None:
    full = node("a", mem=10, count=1)
    full["metadata"]["uid"] = "a"
    placed = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    holder = pod("r", container(mem=10), uid="r", node="a", phase="Running", annotations=placed)
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [full, holder]}), encoding="utf-8")
    assert "GPUs at the end: fit" in texts_of(tmp_path, "--nodes", str(tmp_path / "cluster.json"), "--pods", "mem=4")


def test_whole_gpus_are_allocated_whole() -> None:
    (course,) = of("gpus=2 mem=10", "count=1; mem=5")
    assert course.allocated == pytest.approx((0, 50, 75))
    assert course.nodes[0][1][0].allocated == 1.0


def test_a_course_ends_with_the_first_pod_that_finds_no_room() -> None:
    (course,) = of("gpus=2 mem=10", "1x mem=6", until=REJECTED)
    assert course.allocated[-2:] == pytest.approx((60, 60))
    assert len(course.x) == 4


def test_where_pods_leave_a_course_counts_those_that_came() -> None:
    (course,) = of("gpus=2 mem=10", "4x mem=4", leave=0.8)
    assert course.x == (0, 1, 2, 3, 4, *range(5, len(course.x)))
    assert min(after - before for before, after in zip(course.allocated, course.allocated[1:], strict=False)) < 0


def test_a_long_course_has_a_hundred_moments_and_its_end() -> None:
    (course,) = of("50x gpus=8 mem=10", "777x mem=4")
    assert 100 <= len(course.x) <= 112
    assert course.x[-1] == pytest.approx(100 * 777 * 4 / 4000)


def test_nodes_of_a_cluster_stand_in_the_order_of_their_names(tmp_path: Path) -> None:
    listed = [node(f"gpu-{n}", mem=20, count=2) for n in (10, 9, 2)]
    for each in listed:
        each["metadata"]["uid"] = each["metadata"]["name"]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": listed}), encoding="utf-8")
    texts = texts_of(tmp_path, "--nodes", str(tmp_path / "cluster.json"), "--pods", "mem=4")
    assert [text for text in texts if text.startswith("gpu-")] == ["gpu-2", "gpu-9", "gpu-10"] * 2


# --- What is drawn ----------------------------------------------------------------------------------------------------


def boxes(axes: Axes, label: str) -> list[tuple[float, float]]:
    """Return the bottom and the height of each box of a kind."""
    (patch,) = [each for each in axes.patches if each.get_label() == label]
    assert isinstance(patch, PathPatch)
    corners = [tuple(map(float, corner)) for corner in patch.get_path().vertices.tolist()]  # type: ignore[union-attr]
    return [(corners[at][1], round(corners[at + 2][1] - corners[at][1], 6)) for at in range(0, len(corners), 5)]


def points(line: Line2D) -> list[tuple[float, float]]:
    return [*zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist(), strict=True)]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for each in figure.legends for text in each.get_texts()]


def test_each_policy_has_two_lines_and_its_gpus() -> None:
    found = of("gpus=2 mem=10", "2x mem=6; mem=2", "fit", "spread")
    figure = Figure()
    show_courses(figure, found)
    lines, *gpus = figure.axes
    assert [str(line.get_label()) for line in lines.lines] == [
        "fit: allocated",
        "fit: stranded",
        "spread: allocated",
        "spread: stranded",
        "all that was requested",
    ]
    for course, (allocated, stranded) in zip(found, (lines.lines[:2], lines.lines[2:4]), strict=True):
        assert points(allocated) == [*zip(course.x, course.allocated, strict=True)]
        assert points(stranded) == [*zip(course.x, course.stranded, strict=True)]
    assert lines.get_xlabel() == "GPU memory requested so far, in % of what was free at the start"
    assert lines.get_ylabel() == "% of GPU memory free at the start"
    assert [axes.get_title() for axes in gpus] == ["GPUs at the end: fit", "GPUs at the end: spread"]
    assert [axes.get_ylabel() for axes in gpus] == ["GPU", "GPU"]
    assert legend(figure) == ["free", "allocated", "stranded"]
    for axes, course in zip(gpus, found, strict=True):
        states = course.nodes[0][1]
        assert boxes(axes, "free") == [(0, 0.84), (1, 0.84)]
        assert boxes(axes, "allocated") == [(n, round(0.84 * each.allocated, 6)) for n, each in enumerate(states)]
        lost = [each for each in states if each.stranded]
        bottoms, heights = zip(*boxes(axes, "stranded"), strict=True)
        assert [*heights] == pytest.approx([0.84 * each.stranded for each in lost])
        assert [low % 1 for low in bottoms] == pytest.approx([0.84 * each.allocated for each in lost])


def test_lines_are_told_apart_without_colours() -> None:
    figure = Figure()
    show_courses(figure, of("gpus=2 mem=10", "2x mem=6", "fit", "binpack", "spread"))
    looks = [
        (line.get_marker(), line.get_linestyle(), line.get_markerfacecolor() == "white", line.get_linewidth())
        for line in figure.axes[0].lines[:6]
    ]
    assert len(set(looks)) == 6
    hatched = [patch.get_hatch() for patch in figure.axes[1].patches if patch.get_label() == "stranded"]
    assert hatched == ["xxxx"]


def test_a_small_part_of_a_large_cluster_is_seen() -> None:
    figure = Figure()
    show_courses(figure, of("50x gpus=8 mem=10", "4x mem=5"))
    assert figure.axes[0].get_ylim() == (0, 1.0)
    figure = Figure()
    show_courses(figure, of("gpus=8 mem=10", "9x mem=10"))
    assert figure.axes[0].get_ylim() == (0, 103)


def test_of_many_nodes_the_first_are_drawn_and_the_rest_is_told() -> None:
    figure = Figure()
    show_courses(figure, of("45x mem=10", "mem=4"))
    assert len(boxes(figure.axes[1], "free")) == 40
    assert figure.axes[1].get_xlabel() == "node: the first 40 of 45"


def test_nodes_that_are_needed_are_bars_beside_the_least() -> None:
    figure = Figure()
    show_needed(figure, [{"policy": "fit", "nodes": 4, "atLeast": 3}, {"policy": "spread", "nodes": 1, "atLeast": 3}])
    (axes,) = figure.axes
    assert [bar.get_width() for bar in rectangles(axes)] == [4, 1]
    assert [text.get_text() for text in axes.texts] == ["4 nodes", "1 node"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fit", "spread"]
    assert axes.get_xlabel() == "nodes"
    assert legend(figure) == ["no policy needs fewer than 3"]


def rectangles(axes: Axes) -> Sequence[Any]:
    return [bar for bars in axes.containers for bar in bars]


def test_guarantees_are_bars_of_pods_that_stay_and_are_evicted() -> None:
    choices: list[dict[str, Any]] = [
        {"percent": None, "run": 17, "evicted": 0, "short": 0},
        {"percent": 95, "run": 21.33, "evicted": 1, "short": 0.012},
    ]
    figure = Figure()
    show_burst(figure, choices)
    above, below = figure.axes
    stay, evicted = above.containers
    assert [bar.get_height() for bar in stay] == pytest.approx([17, 20.33])
    assert [(bar.get_y(), bar.get_height()) for bar in evicted] == [(17, 0), (pytest.approx(20.33), 1)]
    assert [bar.get_height() for bar in rectangles(below)] == pytest.approx([0, 1.2])
    assert [text.get_text() for text in (*above.texts, *below.texts)] == ["17", "21.3", "0.0 %", "1.2 %"]
    assert [label.get_text() for label in below.get_xticklabels()] == ["as\nrequested", "95 %"]
    assert (above.get_ylabel(), below.get_ylabel()) == ("pods", "% of GPU time")


# --- From the command line --------------------------------------------------------------------------------------------


def texts_of(tmp_path: Path, *words: str) -> list[str]:
    """Return what can be read in the picture of a simulation."""
    path = tmp_path / "plot.svg"
    assert main(parse(["simulate", *words, "--plot", str(path)]), {}) == 0
    return re.findall(r">([^<>\n]+)</text>", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        ((), "GPU memory allocated and stranded as pods arrive"),
        (("--until", "rejected"), "GPU memory allocated and stranded as pods arrive"),
        (("--departures", "80"), "GPU memory allocated and stranded as pods arrive"),
        (("--nodes-needed",), "Nodes needed for all pods, by policy"),
    ],
)
def test_every_question_has_a_picture_that_says_what_it_shows(
    flags: tuple[str, ...], title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = texts_of(tmp_path, "--nodes", "gpus=2 mem=10", "--pods", "3x mem=6", "--seeds", "1", *flags)
    assert title in texts
    assert capsys.readouterr().out.splitlines()[0] in texts


def test_a_picture_of_several_seeds_says_that_it_shows_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = texts_of(tmp_path, "--nodes", "gpus=2 mem=10", "--pods", "3x mem=6", "--seeds", "2")
    printed = capsys.readouterr().out.splitlines()[0]
    assert printed.endswith("2 seeds")
    assert f"{printed}, of which this is the first" in texts

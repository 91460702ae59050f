"""Each node's GPUs with the pods on them, in tables that fit a terminal."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.telling.podtable import folded_details
from gpu_device_plugin.core.telling.tables import columns
from tests.reports import part, report
from tests.views import node_view, pod_on


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


def test_without_nodes_there_are_sums_of_nothing() -> None:
    assert [line.text for line in folded_details([], 200)] == [
        "0 nodes, 0 GPUs   given 0G of 0G   free 0G   largest pod now 0G   whole GPUs free 0"
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    pods = [pod_on(f"{'p' * 200}{at}", {at: at + 1}) for at in range(8)]
    node = node_view("n" * 253, (140,) * 8, *pods, model="NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert max(columns(line.text) for line in folded_details([node], width)) <= width

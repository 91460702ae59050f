"""Each node's GPUs with the pods on them, in tables that fit a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.folded import folded_rows, totals
from gpu_device_plugin.core.telling.podtable import SORTS, pod_rows, pod_table
from gpu_device_plugin.core.telling.tones import Line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.nodeview import NodeView


def folded_details(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return for each node a table of its GPUs and one of their pods, and a sum below all of them.

    Args:
        nodes: in the order in which they are shown; those that share no GPU are left out.
        width: the columns of the terminal.
    """
    listed = [node for node in nodes if node.total or node.candidate.gpus.instances]
    lines: list[Line] = []
    for node in listed:
        lines += folded_rows([node], width)
        if rows := sorted(pod_rows([node]), key=SORTS["name"]):
            lines += [Line(""), *pod_table(rows, width)]
        lines += [Line("-" * width), Line("")]
    return [*lines, *totals(listed, width)]

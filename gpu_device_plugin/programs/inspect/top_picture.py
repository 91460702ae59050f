"""What `top` shows at one moment: the sums of the cluster, its GPUs and their pods, sorted and sought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.report.rules.columns import Line, Row, Tone, fitted, table
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.printing import counted
from gpu_device_plugin.report.rules.terminal_tables import (
    OF_GPUS,
    OF_PODS,
    SORTS,
    PodRow,
    by_name,
    figures_age,
    gpu_rows,
    pod_row,
    pod_rows,
    totals,
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What was read, when, and how it is shown."""

    nodes: Sequence[NodeView]
    waiting: int
    """Pods that wait for a GPU."""
    at: str
    """The time of day at which it was read."""
    notes: Sequence[str] = ()
    """What could not be read, in sentences."""
    sort: str = "name"
    """A key of `SORTS`."""
    namespace: str = ""
    """Only pods of it; empty: of all."""
    problem: str = ""
    """Why the newest state could not be read; empty: it could."""
    backwards: bool = False
    """Whether what `sort` has first comes last."""
    sought: str = ""
    """Only rows that have this text somewhere, and the nodes of such pods."""
    queue: Sequence[PodRow] = ()
    """Pods that wait, to be listed among the others."""


def frame(picture: Picture, width: int) -> list[Line]:
    """Return the picture within `width` columns."""
    upper, lower, _ = tables(replace(picture, queue=()), width)
    return [*head(picture, width), Line(""), *upper, Line(""), *lower]


def head(picture: Picture, width: int) -> list[Line]:
    """Return what is said above the tables."""
    waiting = counted(picture.waiting, "pod is pending", "pods are pending") if picture.waiting else "no pod is pending"
    of = f" of namespace {picture.namespace}" if picture.namespace else ""
    lines = [
        Line(fitted(f"GPU shares{of}, read at {picture.at}; {waiting}", width), Tone.HEADING),
        *([Line(fitted(f"Not current: {picture.problem}", width), Tone.BAD)] if picture.problem else []),
        *(Line(fitted(note, width), Tone.WARNING) for note in picture.notes),
        *totals(picture.nodes, width),
    ]
    if old := figures_age(picture.nodes):
        lines.append(Line(fitted(f"({old})", width), Tone.FAINT))
    return lines


def tables(picture: Picture, width: int) -> tuple[list[Line], list[Line], list[str]]:
    """Return the table of GPUs and that of pods, each with its heading, and whose row each of the latter is.

    Without a pod to show the latter is a sentence.
    """
    node_key, pod_key = SORTS[picture.sort]
    nodes = sorted(picture.nodes, key=lambda node: (node_key(node), node.name), reverse=picture.backwards)
    pods = [*pod_rows(nodes, picture.namespace), *picture.queue]
    pods.sort(key=lambda row: (pod_key(row), by_name(row)), reverse=picture.backwards)
    lower = [row for row in map(pod_row, pods) if _has(picture.sought, row)]
    there = {row.cells[1] for row in lower}
    upper = [
        row
        for rows in ([*gpu_rows(node)] for node in nodes)
        if any(row.cells[0] in there or _has(picture.sought, row) for row in rows)
        for row in rows
    ]
    said = f"No row has {picture.sought!r}." if picture.sought else "No pod has a GPU here."
    below = table(OF_PODS, lower, width) if lower else [Line(said, Tone.FAINT)]
    return table(OF_GPUS, upper, width), below, [row.cells[0] for row in lower]


def _has(sought: str, row: Row) -> bool:
    return any(sought.casefold() in cell.casefold() for cell in row.cells)

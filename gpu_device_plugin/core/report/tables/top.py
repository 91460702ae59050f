"""One picture of the cluster's GPUs and pods that fits a terminal, for a command that draws it again and again."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.node_report import sums_of
from gpu_device_plugin.core.contract.nodereport import exceeds, trespasses
from gpu_device_plugin.core.report.tables.folded_table import figures_age, folded_rows, totals
from gpu_device_plugin.core.report.tables.pod_table import SORTS, pod_rows, pod_table
from gpu_device_plugin.core.report.text.columns import Line, Tone, fitted
from gpu_device_plugin.core.report.text.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.node_report import NodeView


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
    """A key of `NODE_SORTS`."""
    namespace: str = ""
    """Only pods of it; empty: of all."""


def _over(node: NodeView) -> int:
    return sum(exceeds(part) or trespasses(part) for part in node.report.current)


NODE_SORTS: Mapping[str, Callable[[NodeView], tuple[object, ...]]] = MappingProxyType(
    {
        "name": lambda node: (node.name,),
        "given": lambda node: (-sums_of([node]).given, node.name),
        "free": lambda node: (-sums_of([node]).free, node.name),
        "used": lambda node: (-(sums_of([node]).used_mib or 0), node.name),
        "percent": lambda node: (-sums_of([node]).part, node.name),
        "over": lambda node: (-_over(node), node.name),
    }
)
"""How nodes are sorted, by the words of ``--sort-by``; pods are sorted by the same word."""


def frame(picture: Picture, width: int, height: int | None, problem: str = "") -> list[Line]:
    """Return the picture for a terminal of this size; a height of None: any.

    `problem` is the sentence why the newest state could not be read; empty: it could.
    """
    nodes = sorted(picture.nodes, key=NODE_SORTS[picture.sort])
    waiting = f"{counted(picture.waiting, 'pod waits', 'pods wait')}" if picture.waiting else "no pod waits"
    of = f" of namespace {picture.namespace}" if picture.namespace else ""
    head = [
        Line(fitted(f"GPU shares{of}, read at {picture.at}; {waiting}", width), Tone.HEADING),
        *([Line(fitted(f"Not current: {problem}", width), Tone.BAD)] if problem else []),
        *(Line(fitted(note, width), Tone.WARNING) for note in picture.notes),
        *totals(nodes, width),
    ]
    if old := figures_age(nodes):
        head.append(Line(fitted(f"({old})", width), Tone.FAINT))
    upper = folded_rows(nodes, width)
    pods = sorted(pod_rows(nodes, picture.namespace), key=SORTS[picture.sort])
    lower = pod_table(pods, width) if pods else [Line("No pod has a GPU here.", Tone.FAINT)]
    if height is None:
        return [*head, Line(""), *upper, Line(""), *lower]
    # Pods get what nodes leave, and half of the screen at least.
    left = max(4, height - len(head) - 2)
    for_nodes = min(len(upper), max(2, left - min(len(lower), left // 2)))
    for_pods = max(2, left - for_nodes)
    return [*head, Line(""), *_cut(upper, for_nodes, "rows of GPUs"), Line(""), *_cut(lower, for_pods, "rows of pods")]


def _cut(lines: Sequence[Line], most: int, what: str) -> list[Line]:
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], Line(f"... {len(lines) - most + 1} more {what}", Tone.FAINT)]

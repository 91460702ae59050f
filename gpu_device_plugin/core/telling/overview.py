"""Print the GPU memory of a cluster in the format of gpushare's own `kubectl inspect gpushare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.core.telling.columns import aligned
from gpu_device_plugin.core.telling.miginstances import instance_lines
from gpu_device_plugin.core.telling.reported import at_a_glance, memory_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.core.cluster.nodeview import NodeView

_UNKNOWN = "unknown"
_LARGE = 100
"""A GPU with more shares than this is assumed to have shares of 1 MiB, where no agent states their size."""


def summary(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table with one line for each node: the allocated memory of each GPU.

    Lines below it have the MIG instances, if there are some. Another says that containers use more than they were
    granted, or that limits do not hold, if so.

    Args:
        nodes: by name. One without shares has no line in the table, as in the original.
    """
    every = list(nodes)
    nodes = [node for node in every if node.total]
    unit, amount = _unit(nodes)
    places = range(max((gpu.position + 1 for node in nodes for gpu in node.candidate.gpus.gpus), default=0))
    pending = any(node.loose() for node in nodes)
    rows = []
    for node in nodes:
        cells = {
            view.gpu.position: f"{amount(node, view.used)}/{amount(node, view.gpu.shares)}" for view in node.gpus()
        }
        rows.append(
            [
                node.name,
                node.address or _UNKNOWN,
                *(cells.get(position, "0/0") for position in places),
                *([str(amount(node, node.unplaced)) if node.loose() else ""] if pending else []),
                f"{amount(node, node.used)}/{amount(node, node.total)}",
            ]
        )
    heading = [
        "NAME",
        "IPADDRESS",
        *(f"GPU{position}(Allocated/Total)" for position in places),
        *(["PENDING(Allocated)"] if pending else []),
        f"GPU Memory({unit})" if unit else "GPU Memory",
    ]
    # The original's rule has the length of the first row in bytes, with one separator for each cell.
    rule = sum(len(cell.encode()) + 1 for cell in rows[0]) + 20 if rows else 0
    return [
        *aligned([heading, *rows]),
        "-" * rule,
        "Allocated/Total GPU Memory In Cluster:",
        *aligned([[_share_of_total(nodes, amount), ""]]),
        *instance_lines(every, amount),
        *at_a_glance(nodes),
    ]


def details(nodes: Iterable[NodeView]) -> list[str]:
    """Return one table for each node: the memory of each pod on each GPU. A star marks a GPU that is taken whole.

    Below all of them are the MIG instances, with the pods that have whole ones, and another table for each node whose
    agent reports it: the memory that is really in use.

    Args:
        nodes: by name. One without shares has no table, as in the original.
    """
    every = list(nodes)
    nodes = [node for node in every if node.total]
    _, amount = _unit(nodes)
    lines: list[list[str]] = []
    rule = 0
    starred = False
    for node in nodes:
        rows = _pod_rows(node, amount)
        starred = starred or any(cell.endswith("*") for row in rows for cell in row)
        used, total = amount(node, node.used), amount(node, node.total)
        # The original's rule has the length of all rows of the first node in bytes, with tabs and line ends.
        rule = rule or sum(len(cell.encode()) + 1 for row in rows for cell in row) + 10
        lines += [
            [""],
            ["NAME:", node.name],
            ["IPADDRESS:", node.address or _UNKNOWN],
            [""],
            [
                "NAME",
                "NAMESPACE",
                *(f"GPU{gpu.position}(Allocated)" for gpu in node.candidate.gpus.gpus),
                *(["Pending(Allocated)"] if node.loose() else []),
                "",
            ],
            *rows,
            ["Allocated :", f"{used} ({_percent(used, total)}%)", ""],
            ["Total :", f"{total} ", ""],
            ["-" * rule],
        ]
    lines += [[""], [""], ["Allocated/Total GPU Memory In Cluster:", _share_of_total(nodes, amount), ""]]
    table = aligned([*lines, *([["* the whole GPU"]] if starred else [])])
    return [*table, *instance_lines(every, amount, pods=True), *memory_in_use(every)]


def _pod_rows(node: NodeView, amount: Callable[[NodeView, int], int]) -> list[list[str]]:
    views, loose, sizes = node.gpus(), node.loose(), node.candidate.gpus.sizes
    rows = []
    for pod in sorted(node.pods, key=lambda pod: pod in loose):  # pods on unknown GPUs come last
        cells = []
        for view in views:
            held = [each for each in view.held if each.pod == pod]
            star = "*" if any(each.whole for each in held) else ""
            cells.append(f"{amount(node, sum(each.shares for each in held))}{star}")
        if loose:
            cells.append(str(amount(node, loose[pod].size(sizes) if pod in loose else 0)))
        rows.append([pod.name, pod.namespace, *cells, ""])
    return rows


def _unit(nodes: Sequence[NodeView]) -> tuple[str, Callable[[NodeView, int], int]]:
    """Return the name of the unit in which memory is printed, and a function that converts shares of a node to it.

    Without nodes there is no unit.

    Agents state the size of a share. If it is the same in the whole cluster, it is the unit; else the unit is MiB, so
    that sums are right. Where no agent states it, it is guessed by the first node's GPUs, as in the original.
    """
    if not nodes:
        return "", lambda _node, shares: shares
    first = nodes[0].candidate.gpus.gpus
    guessed = 1 if nodes[0].total // len(first) > _LARGE else MIB_PER_GIB
    sizes = {size for node in nodes if (size := node.candidate.gpus.share_mib) is not None} or {guessed}
    if len(sizes) == 1:
        return _unit_name(sizes.pop()), lambda _node, shares: shares
    return "MiB", lambda node, shares: shares * (node.candidate.gpus.share_mib or guessed)


def _unit_name(share_mib: int) -> str:
    names = {1: "MiB", MIB_PER_GIB: "GiB"}
    return names.get(share_mib) or f"{format_mib(share_mib).replace(' ', '')} units"


def _share_of_total(nodes: Iterable[NodeView], amount: Callable[[NodeView, int], int]) -> str:
    pairs = [(amount(node, node.used), amount(node, node.total)) for node in nodes]
    used, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    # Truncated floating point, as in the original: 29 of 100 are 28 %.
    return int(used / total * 100) if total else 0

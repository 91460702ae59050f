"""Print the GPUs of a cluster in the format of gpushare's own `kubectl inspect gpushare`, or with one line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpu_device_plugin.features.claims.report import CLAIMS
from gpu_device_plugin.features.mig.report import holders
from gpu_device_plugin.features.use.report import at_a_glance, memory_in_use
from gpu_device_plugin.model.contract.node_use import not_held
from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.report.rules.columns import aligned
from gpu_device_plugin.report.rules.finding import grouped
from gpu_device_plugin.report.rules.node_view import GpuView, NodeView
from gpu_device_plugin.report.rules.printing import age, mib, place, short_uuid

_UNKNOWN = "unknown"
_NOTHING = "-"
_LARGE = 100
"""A GPU with more shares than this is assumed to have shares of 1 MiB, where no agent states their size."""


def summary(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table with one line for each node: the allocated memory of each GPU.

    A node without shares has no line, as in the original. Lines below the table have the MIG instances, if there are
    some. Another says that containers use more than they were granted, or that limits do not hold, if so.
    """
    every = list(nodes)
    nodes = [node for node in every if node.total]
    unit, amount = _unit(nodes)
    places = range(max((gpu.position + 1 for node in nodes for gpu in node.candidate.gpus.gpus), default=0))
    pending = any(node.unassigned_usage() for node in nodes)
    rows = []
    for node in nodes:
        cells = {
            view.gpu.position: _cell(view, f"{amount(node, view.used)}/{amount(node, view.gpu.shares)}")
            for view in node.gpus()
        }
        rows.append(
            [
                node.name,
                node.record.address or _UNKNOWN,
                *(cells.get(position, "0/0") for position in places),
                *([str(amount(node, node.unplaced)) if node.unassigned_usage() else ""] if pending else []),
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
        *_instances(every, amount),
        *at_a_glance(nodes),
    ]


def _cell(view: GpuView, allocated: str) -> str:
    """Return the allocated memory of a GPU; of one that is unhealthy that it is, as its total offers nothing."""
    return ("unhealthy" if not view.used else f"{allocated} unhealthy") if view.gpu.unhealthy else allocated


def details(nodes: Iterable[NodeView]) -> list[str]:
    """Return one table for each node with shares: the memory of each pod on each GPU. A star marks a GPU taken whole.

    Below all of them are the MIG instances, with the pods that have whole ones, and another table for each node whose
    agent reports it: the memory that is really in use.
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
        failed = [f"GPU{view.gpu.position}" for view in node.gpus() if view.gpu.unhealthy]
        # The original's rule has the length of all rows of the first node in bytes, with tabs and line ends.
        rule = rule or sum(len(cell.encode()) + 1 for row in rows for cell in row) + 10
        lines += [
            [""],
            ["NAME:", node.name],
            ["IPADDRESS:", node.record.address or _UNKNOWN],
            [""],
            [
                "NAME",
                "NAMESPACE",
                *(f"GPU{gpu.position}(Allocated)" for gpu in node.candidate.gpus.gpus),
                *(["Pending(Allocated)"] if node.unassigned_usage() else []),
                "",
            ],
            *rows,
            ["Allocated :", f"{used} ({_percent(used, total)}%)", ""],
            ["Total :", f"{total} ", ""],
            *([["Unhealthy :", ", ".join(failed), ""]] if failed else []),
            ["-" * rule],
        ]
    lines += [[""], [""], ["Allocated/Total GPU Memory In Cluster:", _share_of_total(nodes, amount), ""]]
    table = aligned([*lines, *([["* the whole GPU"]] if starred else [])])
    return [*table, *_instances(every, amount, pods=True), *memory_in_use(every)]


def _pod_rows(node: NodeView, amount: Callable[[NodeView, int], int]) -> list[list[str]]:
    views, unassigned_usage, sizes = node.gpus(), node.unassigned_usage(), node.candidate.gpus.sizes
    rows = []
    for pod in sorted(node.pods, key=lambda pod: pod in unassigned_usage):  # pods on unknown GPUs come last
        cells = []
        for view in views:
            held = [each for each in view.held if each.pod == pod]
            star = "*" if any(each.whole for each in held) else ""
            cells.append(f"{amount(node, sum(each.shares for each in held))}{star}")
        if unassigned_usage:
            cells.append(str(amount(node, unassigned_usage[pod].size(sizes) if pod in unassigned_usage else 0)))
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
        size = sizes.pop()
        name = {1: "MiB", MIB_PER_GIB: "GiB"}.get(size) or f"{format_mib(size).replace(' ', '')} shares"
        return name, lambda _node, shares: shares
    return "MiB", lambda node, shares: shares * (node.candidate.gpus.share_mib or guessed)


def _share_of_total(nodes: Iterable[NodeView], amount: Callable[[NodeView, int], int]) -> str:
    pairs = [(amount(node, node.used), amount(node, node.total)) for node in nodes]
    used, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    # Truncated floating point, as in the original: 29 of 100 are 28 %.
    return int(used / total * 100) if total else 0


def _instances(nodes: Iterable[NodeView], amount: Callable[[NodeView, int], int], *, pods: bool = False) -> list[str]:
    """Return the MIG instances of some nodes: the shared ones by GPU, then the whole ones by resource."""
    lines = [line for node in nodes for line in _instance_lines(node, amount, pods=pods)]
    return ["", "MIG instances:", *lines] if lines else []


def _instance_lines(node: NodeView, amount: Callable[[NodeView, int], int], *, pods: bool) -> Iterator[str]:
    """Yield the lines of one node; `pods`: with the pods that hold whole instances."""
    cards = grouped((view.gpu.instance.gpu, view) for view in node.gpus() if view.gpu.instance is not None)
    for index, views in sorted(cards.items()):
        shared = []
        for view in views:
            named = "" if (of := view.gpu.instance) is None else f"{of.label} {of.profile} "
            # Out of service or put aside, or a container has it whole since before the way was changed.
            closed = " (not available)" if view.gpu.closed else ""
            used = f"{amount(node, view.used)}/{amount(node, view.gpu.shares)}"
            shared.append(f"{named}(GPU{view.gpu.position}) {used}{closed}")
        yield f"{node.name}: GPU {index} (MIG): {', '.join(shared)}"
    for each in node.instances():
        held = f": {holders(each)}" if pods and each.by_pod else ""
        closed = f", {len(each.closed)} not available" if each.closed else ""
        yield f"{node.name}: {each.resource}: {each.used}/{len(each.instances)} in use{closed}{held}"


# --- One line for each GPU --------------------------------------------------------------------------------------------

_HEADING = (
    *("NODE", "GPU", "UUID", "MODEL", "MEMORY", "ALLOCATED", "USED", "LIMITS", "SHARE", "POLICY", "DRIVER", "HEALTH"),
    "PODS",
)


def wide(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table with one line for each GPU. Usage of unknown GPUs has lines of its own, with `?` for the GPU.

    A node whose GPUs are unknown has a line with the reason. Sentences stand at the end of their lines, where they make
    no column wider.
    """
    return aligned([_HEADING, *(row for node in nodes for row in _rows(node))])


def _rows(node: NodeView) -> Iterable[tuple[str, ...]]:
    gpus = node.candidate.gpus
    if gpus.fault:
        yield (node.name, *(_NOTHING,) * 12, gpus.fault)
    share = format_mib(gpus.share_mib) if gpus.share_mib is not None else _NOTHING
    policy = ", ".join(filter(None, (gpus.policy, CLAIMS if gpus.claims else ""))) or _NOTHING
    for view in node.gpus():
        allocated = f"{view.used}/{view.gpu.shares}" + (" whole" if view.whole else "")
        yield _row(node, view, allocated, share, policy)
    for offer in node.instances():
        for view in node.instance_views(offer):
            yield _row(node, view, "whole" if view.held else "free", _NOTHING, offer.resource)
        for holder, number in offer.unassigned_usage:
            whole = f"{number} whole"
            dashes = (_NOTHING,) * 3
            yield (node.name, "?", *dashes, whole, *dashes, offer.resource, *dashes[1:], f"{holder}: {whole}")
    for pod, usage in node.unassigned_usage().items():
        used = " + ".join(map(str, node.amounts(usage)))
        yield (node.name, "?", *(_NOTHING,) * 3, used, *(_NOTHING,) * 6, f"{pod}: {used}")


def _row(node: NodeView, view: GpuView, allocated: str, share: str, policy: str) -> tuple[str, ...]:
    gpu = view.gpu
    return (
        node.name,
        place(gpu),
        short_uuid(gpu.uuid),
        short_model(gpu.model) or _NOTHING,
        format_mib(gpu.memory_mib) if gpu.memory_mib is not None else _NOTHING,
        allocated,
        _in_use(node, gpu.position),
        _limits(node, gpu.position),
        share,
        policy,
        node.candidate.gpus.driver or _NOTHING,
        "unhealthy" if gpu.unhealthy else "cordoned" if gpu.cordon else "healthy",
        ", ".join(f"{held.pod}: {'whole' if held.whole else node.amount(held.shares)}" for held in view.held)
        or _NOTHING,
        *([gpu.closed] if gpu.closed else []),
    )


def _in_use(node: NodeView, position: int) -> str:
    used = node.report.used(position).used_mib
    if used is None:
        return _NOTHING
    return mib(used) + (f" ({age(node.report.use_age_s)})" if node.report.old else "")


def _limits(node: NodeView, position: int) -> str:
    enforcement = node.report.enforcement(position)
    if enforcement is None:
        return _NOTHING
    if enforcement.refusal:
        return f"{enforcement.enforcement}, shares refused"
    unassigned_usage = sum(not_held(part) for part in node.report.parts(position))
    return enforcement.enforcement + (f", {unassigned_usage} differ" if unassigned_usage else "")

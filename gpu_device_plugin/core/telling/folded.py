"""The GPUs of a cluster in a table that fits a terminal: equal GPUs of a node share one row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodereport import exceeds, not_held, trespasses
from gpu_device_plugin.core.telling.printing import ranges
from gpu_device_plugin.core.telling.reported import age
from gpu_device_plugin.core.telling.tables import Layout, Row, table
from gpu_device_plugin.core.telling.tones import Line, Tone, columns, fitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.cluster.instances import Instances
    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu

_NOTHING = "-"
CLAIMS = "claims"
"""The word for a node whose GPUs are given to ResourceClaims."""
_LAYOUT = Layout(
    ("NODE", "GPU", "MODEL", "GIVEN", "USED", "FREE", "LIMITS", "STATE"),
    right=frozenset({"USED", "FREE"}),
    shrink=MappingProxyType({"STATE": 9, "MODEL": 8, "NODE": 8}),
)


def gib(mib: int | None) -> str:
    """Format an amount for a narrow column, rounded to a tenth of a GiB; None: unknown."""
    if mib is None:
        return _NOTHING
    return f"{mib / 1024:.1f}G" if mib % 1024 else f"{mib // 1024}G"


def folded(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return a table with a row for each group of equal GPUs, and a sum below it.

    Args:
        nodes: in the order in which they are shown.
        width: the columns of the terminal.
    """
    listed = list(nodes)
    return [*folded_rows(listed, width), Line(""), *totals(listed, width)]


def folded_rows(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return the same without the sum."""
    return table(_LAYOUT, [row for node in nodes for row in _rows(node)], width)


def _rows(node: NodeView) -> Iterable[Row]:
    state = _node_state(node)
    if node.candidate.gpus.fault:
        yield Row((node.name, *(_NOTHING,) * 6, node.candidate.gpus.fault), Tone.BAD)
    name = node.name
    for _, group in groupby(node.gpus(), lambda view: _alike(node, view)):
        yield _group_row(node, name, state, list(group))
        name, state = "", ""
    for offer in node.instances():
        yield _offer_row(node, name, state, offer)
        name, state = "", ""
    if node.loose():
        sizes = node.candidate.gpus.sizes
        amount = sum(usage.size(sizes) for usage in node.loose().values())
        yield Row((name, "?", _NOTHING, _shares(node, amount), *(_NOTHING,) * 3, "on GPUs not known yet"), Tone.WARNING)


def _node_state(node: NodeView) -> str:
    words = ["not ready"] * (not node.ready) + ["cordoned"] * node.unschedulable
    return ", ".join([*words, *([CLAIMS] if node.candidate.gpus.claims else [])])


def _alike(node: NodeView, view: GpuView) -> tuple[object, ...]:
    """Return what GPUs of one row have in common."""
    gpu = view.gpu
    whole = any(held.whole for held in view.held)
    return gpu.model, gpu.shares, view.used, view.free, whole, gpu.unhealthy, _rung(node, view), _trouble(node, view)


def _rung(node: NodeView, view: GpuView) -> str:
    rung = node.report.rung(view.gpu.position)
    return _NOTHING if rung is None else f"{rung.rung}, refused" if rung.refusal else rung.rung.value


def _trouble(node: NodeView, view: GpuView) -> str:
    """Return what somebody should look at on a GPU, from figures of the present."""
    parts = [] if node.report.stale else node.report.parts(view.gpu.position)
    over = sum(exceeds(part) and not trespasses(part) for part in parts)
    strangers, loose = sum(map(trespasses, parts)), sum(map(not_held, parts))
    words = [
        *([f"{over} over"] if over else []),
        *([f"{strangers} not given"] if strangers else []),
        *([f"{loose} not held"] if loose else []),
    ]
    return ", ".join(words)


def _group_row(node: NodeView, name: str, state: str, group: Sequence[GpuView]) -> Row:
    first = group[0]
    positions = [view.gpu.position for view in group]
    used = [node.report.used(position).used_mib for position in positions]
    known = [amount for amount in used if amount is not None] if not node.report.stale else []
    most = max(known, default=None)
    differs = len(known) > 1 and min(known) != most
    whole = any(held.whole for held in first.held)
    trouble = _trouble(node, first)
    bad = f"unhealthy: {first.gpu.unhealthy}" if first.gpu.unhealthy else ""
    words = [*filter(None, (state, bad, trouble)), *(["whole"] if whole else [])]
    tone = Tone.BAD if bad or trouble else Tone.WARNING if state not in {"", CLAIMS} else Tone.PLAIN
    model = first.gpu.model.removeprefix("NVIDIA ") or _NOTHING
    return Row(
        (
            name,
            ranges(positions),
            f"{len(group)}x {model}" if len(group) > 1 else model,
            f"{_shares(node, first.used)}/{_shares(node, first.gpu.shares)}" + (" each" if len(group) > 1 else ""),
            f"{'≤' if differs else ''}{gib(most)}",
            _shares(node, first.free),
            _rung(node, first),
            "; ".join(words),
        ),
        tone,
    )


def _offer_row(node: NodeView, name: str, state: str, offer: Instances) -> Row:
    """Return the row of all whole MIG instances of one resource."""
    ill = f"{len(offer.ill)} unhealthy: {offer.ill[0].unhealthy}" if offer.ill else ""
    used = [node.report.used(gpu.position).used_mib for gpu in offer.instances]
    known = [amount for amount in used if amount is not None] if not node.report.stale else []
    return Row(
        (
            name,
            ranges(gpu.position for gpu in offer.instances),
            f"{len(offer.instances)}x MIG {offer.profile}",
            f"{offer.used}/{len(offer.instances)} whole",
            gib(sum(known) if known else None),
            str(offer.free),
            "partition",
            "; ".join(filter(None, (state, ill))),
        ),
        Tone.BAD if ill else Tone.WARNING if state not in {"", CLAIMS} else Tone.PLAIN,
    )


def _shares(node: NodeView, shares: int) -> str:
    share_mib = node.candidate.gpus.share_mib
    return str(shares) if share_mib is None else gib(shares * share_mib)


# --- Sums -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a cluster, in MiB where the size of shares is known, else in shares."""

    nodes: int
    gpus: int
    given: int
    total: int
    used: int | None
    """None: of no GPU is the use known."""
    free: int
    """On GPUs that take pods now."""
    largest: int
    """The largest part of one GPU that a pod could get now."""
    whole: int
    """GPUs that a pod could get whole now."""
    sized: bool
    """Amounts are MiB."""
    instances: int = 0
    """MIG instances that are given out whole."""
    free_instances: int = 0
    """Those that a pod could get now."""


def totals_of(nodes: Iterable[NodeView]) -> Totals:
    """Return the sums of some nodes."""
    listed = list(nodes)
    sized = all(node.candidate.gpus.share_mib is not None for node in listed)
    units = [(node, (node.candidate.gpus.share_mib or 1) if sized else 1) for node in listed]
    open_now = [(node, unit) for node, unit in units if node.ready and not node.unschedulable]
    views = [(view, unit) for node, unit in open_now for view in node.gpus()]
    offers = [each for node in listed for each in node.instances()]
    used = [
        amount
        for node in listed
        if not node.report.stale
        for gpu in node.candidate.gpus.all
        if (amount := node.report.used(gpu.position).used_mib) is not None
    ]
    return Totals(
        nodes=len(listed),
        gpus=sum(len({_card(gpu) for gpu in node.candidate.gpus.all}) for node in listed),
        instances=sum(len(each.instances) for each in offers),
        free_instances=sum(each.free for node, _ in open_now for each in node.instances()),
        given=sum(node.used * unit for node, unit in units),
        total=sum(node.total * unit for node, unit in units),
        used=sum(used) if used else None,
        free=sum(view.free * unit for view, unit in views),
        largest=max((view.free * unit for view, unit in views), default=0),
        whole=sum(view.room.unused and view.gpu.instance is None for view, _ in views),
        sized=sized,
    )


def _card(gpu: ListedGpu) -> str | int:
    """Return what the MIG instances of one GPU have in common, and nothing else."""
    return gpu.position if gpu.instance is None else gpu.instance.parent


def totals(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return the sums of some nodes in words, in as many lines as the width needs."""
    sums = totals_of(nodes)

    def amount(value: int) -> str:
        return gib(value) if sums.sized else str(value)

    percent = f" ({int(sums.given / sums.total * 100)}%)" if sums.total else ""
    facts = [
        f"{sums.nodes} {'node' if sums.nodes == 1 else 'nodes'}, {sums.gpus} {'GPU' if sums.gpus == 1 else 'GPUs'}",
        f"given {amount(sums.given)} of {amount(sums.total)}{percent}",
        *([] if sums.used is None else [f"used {gib(sums.used)}"]),
        f"free {amount(sums.free)}",
        f"largest pod now {amount(sums.largest)}",
        f"whole GPUs free {sums.whole}",
        *([f"MIG instances free {sums.free_instances} of {sums.instances}"] if sums.instances else []),
    ]
    return [Line(text) for text in wrapped(facts, width)]


def wrapped(facts: Iterable[str], width: int) -> list[str]:
    """Return facts side by side, in as few lines of `width` columns as hold them; a longer one is cut off."""
    lines: list[str] = []
    for fact in facts:
        joined = f"{lines[-1]}   {fact}" if lines else fact
        if lines and columns(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(fitted(fact, width))
    return lines


def figures_age(nodes: Iterable[NodeView]) -> str:
    """Return how old the oldest figures of use are, if a reader should know; else nothing."""
    ages = [node.report.use_age_s or 0.0 for node in nodes if node.report.old]
    return f"figures of use read up to {age(max(ages))}" if ages else ""

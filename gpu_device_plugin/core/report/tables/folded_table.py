"""The GPUs of a cluster in a table that fits a terminal: equal GPUs of a node share one row."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.node_report import sums_of
from gpu_device_plugin.core.contract.nodereport import exceeds, not_held, trespasses
from gpu_device_plugin.core.report.text.columns import Layout, Line, Row, Tone, columns, fitted, table
from gpu_device_plugin.core.report.text.printing import counted, ranges
from gpu_device_plugin.core.report.text.use_texts import age

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.cluster.held_instances import Instances
    from gpu_device_plugin.core.cluster.node_report import GpuView, NodeView

_NOTHING = "-"
CLAIMS = "claims"
"""The word for a node whose GPUs are given to ResourceClaims."""
_LAYOUT = Layout(
    ("NODE", "GPU", "MODEL", "GIVEN", "USED", "FREE", "LIMITS", "STATE"),
    right=frozenset({"USED", "FREE"}),
    shrink={"STATE": 9, "MODEL": 8, "NODE": 8},
)


def gib(mib: int | None) -> str:
    """Format an amount for a narrow column, rounded to a tenth of a GiB; None: unknown."""
    if mib is None:
        return _NOTHING
    return f"{mib / 1024:.1f}G" if mib % 1024 else f"{mib // 1024}G"


def folded(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return a table `width` columns wide with a row for each group of equal GPUs, and a sum below it."""
    listed = list(nodes)
    return [*folded_rows(listed, width), Line(""), *totals(listed, width)]


def folded_rows(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return the same without the sum."""
    return table(_LAYOUT, [row for node in nodes for row in _rows(node)], width)


def _rows(node: NodeView) -> Iterable[Row]:
    words = ["not ready"] * (not node.ready) + ["cordoned"] * node.unschedulable + [CLAIMS] * node.candidate.gpus.claims
    state = ", ".join(words)
    if node.candidate.gpus.fault:
        yield Row((node.name, *(_NOTHING,) * 6, node.candidate.gpus.fault), Tone.BAD)
    name = node.name
    for _, group in groupby(node.gpus(), lambda view: _alike(node, view)):
        yield _group_row(node, name, state, list(group))
        name, state = "", ""
    for offer in node.instances():
        yield _offer_row(node, name, state, offer)
        name, state = "", ""
    if amount := node.unplaced:
        yield Row((name, "?", _NOTHING, _shares(node, amount), *(_NOTHING,) * 3, "on GPUs not known yet"), Tone.WARNING)


def _alike(node: NodeView, view: GpuView) -> tuple[object, ...]:
    """Return what GPUs of one row have in common."""
    gpu = view.gpu
    return (
        gpu.model,
        gpu.shares,
        view.used,
        view.free,
        view.whole,
        gpu.unhealthy,
        _enforcement(node, view),
        _trouble(node, view),
    )


def _enforcement(node: NodeView, view: GpuView) -> str:
    enforcement = node.report.enforcement(view.gpu.position)
    if enforcement is None:
        return _NOTHING
    return enforcement.enforcement.value + (", refused" if enforcement.refusal else "")


def _trouble(node: NodeView, view: GpuView) -> str:
    """Return what somebody should look at on a GPU, from figures of the present."""
    parts = [] if node.report.stale else node.report.parts(view.gpu.position)
    over = sum(exceeds(part) and not trespasses(part) for part in parts)
    strangers, usage_outside_grants = sum(map(trespasses, parts)), sum(map(not_held, parts))
    words = ((over, "over"), (strangers, "not given"), (usage_outside_grants, "not held"))
    return ", ".join(f"{number} {word}" for number, word in words if number)


def _group_row(node: NodeView, name: str, state: str, group: Sequence[GpuView]) -> Row:
    first = group[0]
    positions = [view.gpu.position for view in group]
    used = [node.report.used(position).used_mib for position in positions]
    known = [amount for amount in used if amount is not None] if not node.report.stale else []
    most = max(known, default=None)
    differs = len(known) > 1 and min(known) != most
    trouble = _trouble(node, first)
    bad = f"unhealthy: {first.gpu.unhealthy}" if first.gpu.unhealthy else ""
    words = [*filter(None, (state, bad, trouble)), *(["whole"] if first.whole else [])]
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
            _enforcement(node, first),
            "; ".join(words),
        ),
        tone,
    )


def _offer_row(node: NodeView, name: str, state: str, offer: Instances) -> Row:
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


def totals(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return the sums of some nodes in words, in as many lines as the width needs."""
    sums = sums_of(nodes)

    def amount(value: int) -> str:
        return gib(value) if sums.sized else str(value)

    percent = f" ({int(sums.part * 100)}%)" if sums.total else ""
    facts = [
        f"{counted(sums.nodes, 'node')}, {counted(sums.gpus, 'GPU')}",
        f"given {amount(sums.given)} of {amount(sums.total)}{percent}",
        *([] if sums.used_mib is None else [f"used {gib(sums.used_mib)}"]),
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

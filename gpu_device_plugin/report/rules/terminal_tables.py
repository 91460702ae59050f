"""Tables that fit a terminal: GPUs (equal ones of a node share a row) and pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.model.contract.node_use import ContainerUse, idle, trespasses
from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.columns import Layout, Line, Row, Tone, columns, fitted, table
from gpu_device_plugin.report.rules.held_instances import Instances, asked_instances
from gpu_device_plugin.report.rules.node_answers import asked_amounts
from gpu_device_plugin.report.rules.node_view import GpuView, NodeView, PodShare, State, sums_of
from gpu_device_plugin.report.rules.printing import age, counted, gib, limit, place, ranges
from gpu_device_plugin.scheduler.rules.usage import Usage

_NOTHING = "-"
OF_GPUS = Layout(
    ("NODE", "GPU", "MODEL", "GIVEN", "USED", "FREE", "LIMITS", "STATE"),
    right=frozenset({"USED", "FREE"}),
    shrink={"STATE": 9, "MODEL": 8, "NODE": 8},
)


def folded(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return a table `width` columns wide with a row for each group of equal GPUs, and a sum below it."""
    listed = list(nodes)
    return [*folded_rows(listed, width), Line(""), *totals(listed, width)]


def folded_rows(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return the same without the sum."""
    return table(OF_GPUS, [row for node in nodes for row in gpu_rows(node)], width)


def gpu_rows(node: NodeView) -> Iterable[Row]:
    """Yield the rows of one node, of which only the first has its name."""
    states = [each for each in node.states() if each.word]
    if node.candidate.gpus.fault:
        yield Row((node.name, *(_NOTHING,) * 6, node.candidate.gpus.fault), Tone.BAD)
    name = node.name
    for _, group in groupby(node.gpus(), lambda view: _alike(node, view)):
        yield _group_row(node, name, states, list(group))
        name, states = "", []
    for offer in node.instances():
        yield _offer_row(node, name, states, offer)
        name, states = "", []
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
        gpu.closed,
        _enforcement(node, view),
        _trouble(node, view),
    )


def _enforcement(node: NodeView, view: GpuView) -> str:
    enforcement = node.report.enforcement(view.gpu.position)
    if enforcement is None:
        return _NOTHING
    return enforcement.enforcement.value + (", refused" if enforcement.refusal else "")


def _trouble(node: NodeView, view: GpuView) -> tuple[str, str]:
    """Return how many containers on a GPU are in bad states, by figures of the present, and how many in others."""
    parts = [] if node.report.stale else node.report.parts(view.gpu.position)
    found = [state for part in parts for state in node.part_states([part]) if state.counted]
    numbers = Counter((state.rank, state.counted, state.tone is Tone.BAD) for state in found)
    words = [(bad, f"{number} {word}") for (_, word, bad), number in sorted(numbers.items())]
    return ", ".join(word for bad, word in words if bad), ", ".join(word for bad, word in words if not bad)


def _looked_at(states: Sequence[State]) -> bool:
    return any(each.tone is not Tone.PLAIN for each in states)


def _group_row(node: NodeView, name: str, states: Sequence[State], group: Sequence[GpuView]) -> Row:
    first = group[0]
    positions = [view.gpu.position for view in group]
    used = [node.report.used(position).used_mib for position in positions]
    known = [amount for amount in used if amount is not None] if not node.report.stale else []
    most = max(known, default=None)
    differs = len(known) > 1 and min(known) != most
    trouble, others = _trouble(node, first)
    own = [each for each in node.gpu_states(first) if each.word]
    said = [", ".join(each.word for each in states), *(each.word for each in own), trouble, others]
    words = [*filter(None, said), *(["whole"] if first.whole else [])]
    bad = trouble or any(each.tone is Tone.BAD for each in own)
    tone = Tone.BAD if bad else Tone.WARNING if others or _looked_at([*states, *own]) else Tone.PLAIN
    model = short_model(first.gpu.model) or _NOTHING
    return Row(
        (
            name,
            ranges(positions),
            f"{len(group)}x {model}" if len(group) > 1 else model,
            f"{_shares(node, first.used)}/{_shares(node, first.gpu.shares)}" + (" each" if len(group) > 1 else ""),
            f"{'≤' if differs else ''}{gib(most)}",
            "unhealthy" if first.gpu.unhealthy else _shares(node, first.free),
            _enforcement(node, first),
            "; ".join(words),
        ),
        tone,
    )


def _offer_row(node: NodeView, name: str, states: Sequence[State], offer: Instances) -> Row:
    bad = any(gpu.unhealthy for gpu in offer.closed)
    closed = f"{len(offer.closed)} {offer.closed[0].closed}" if offer.closed else ""
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
            "; ".join(filter(None, (", ".join(each.word for each in states), closed))),
        ),
        Tone.BAD if bad else Tone.WARNING if closed or _looked_at(states) else Tone.PLAIN,
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
    return f"use read up to {age(max(ages))}" if ages else ""


# --- Pods -------------------------------------------------------------------------------------------------------------

OF_PODS = Layout(
    ("POD", "NODE", "GPU", "GIVEN", "USED", "%", "LIMIT", "STATE"),
    right=frozenset({"GIVEN", "USED", "%"}),
    shrink={"STATE": 8, "LIMIT": 8, "NODE": 8, "POD": 16},
)


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod on one GPU."""

    pod: str
    """``namespace/name``."""
    node: str
    gpu: str
    """Its position, of a MIG instance with its number; ``?`` for one that is not known, ``-`` for a pod that waits."""
    given: str
    given_mib: int
    """0: unknown, or nothing."""
    used_mib: int | None = None
    limit: str = ""
    state: str = ""
    bad: bool = False
    idle_s: float | None = None
    """Seconds since which it has left its GPUs idle; None: it has not, or unknown."""

    @property
    def percent(self) -> int | None:
        """The part of what it was given that it uses; None: unknown."""
        return None if self.used_mib is None or not self.given_mib else int(100 * self.used_mib / self.given_mib)


def by_name(row: PodRow) -> tuple[object, ...]:
    """Return the key by which rows of pods are sorted, unless a person wishes otherwise."""
    return row.pod, row.node, row.gpu


SORTS: Mapping[str, tuple[Callable[[NodeView], float], Callable[[PodRow], tuple[object, ...]]]] = {
    "name": (lambda _: 0, by_name),
    "node": (lambda _: 0, lambda row: (row.node,)),
    "given": (lambda node: -sums_of([node]).given, lambda row: (-row.given_mib,)),
    "free": (lambda node: -sums_of([node]).free, by_name),
    "used": (lambda node: -(sums_of([node]).used_mib or 0), lambda row: (-(row.used_mib or 0),)),
    "percent": (lambda node: -sums_of([node]).part, lambda row: (-(row.percent or 0),)),
    "over": (
        lambda node: -sum(bool(part.over_since) or trespasses(part) for part in node.report.current),
        lambda row: (not row.bad, -(row.percent or 0)),
    ),
    "idle": (lambda node: -(idle(node.report, node.report.current) or 0), lambda row: (-(row.idle_s or 0),)),
}
"""How nodes and pods are sorted, by the words of ``--sort-by``: the largest first, and equal ones by name."""


def pod_rows(nodes: Iterable[NodeView], namespace: str = "") -> list[PodRow]:
    """Return the pods on some nodes, also those that use a GPU without a grant; of one namespace, if it is given."""
    rows = [row for node in nodes for row in _on(node)]
    return [row for row in rows if not namespace or row.pod.startswith(f"{namespace}/")]


def _on(node: NodeView) -> Iterable[PodRow]:
    share_mib = node.candidate.gpus.share_mib
    for view in node.gpus():
        for held in view.held:
            mib = held.shares * (share_mib or 0)
            if held.whole:
                yield _row(node, view, held, "whole", view.gpu.memory_mib or mib)
            else:
                yield _row(node, view, held, str(held.shares) if share_mib is None else gib(mib), mib)
        for parts in view.strangers:
            row = PodRow(f"{parts[0].namespace}/{parts[0].pod}", node.name, place(view.gpu), "nothing", 0)
            yield _with_use(row, node, parts)
    for offer in node.instances():
        for view in node.instance_views(offer):
            for held in view.held:
                yield _row(node, view, held, "whole", view.gpu.memory_mib or 0)
        for pod, number in offer.unassigned_usage:
            yield PodRow(str(pod), node.name, "?", f"{number}x {offer.profile}", 0, state="instance not known yet")
    for occupant, usage in node.unassigned_usage().items():
        given = " + ".join(map(str, node.amounts(usage)))
        yield PodRow(str(occupant), node.name, "?", given, 0, state="GPU not known yet")


def _row(node: NodeView, view: GpuView, held: PodShare, given: str, given_mib: int) -> PodRow:
    row = PodRow(str(held.pod), node.name, place(view.gpu), given, given_mib)
    return _with_use(row, node, held.use, ending=held.pod.terminating)


def _with_use(row: PodRow, node: NodeView, parts: Sequence[ContainerUse], *, ending: bool = False) -> PodRow:
    amounts = [part.used_mib for part in parts]
    known = [amount for amount in amounts if amount is not None]
    used = sum(known) if known and len(known) == len(amounts) else None
    states = node.part_states(parts, ending=ending)
    limits = sorted({limit(part) for part in parts if part.enforcement is not None})
    if any(part.limit_mib is not None for part in parts):
        limits.append(f"up to {gib(sum(part.most_mib for part in parts))}")
    return replace(
        row,
        used_mib=used,
        limit=", ".join(limits),
        state="; ".join(each.word for each in states if each.word),
        bad=any(each.tone is Tone.BAD for each in states),
        idle_s=idle(node.report, parts),
    )


def rows_alone(pods: Iterable[tuple[Pod, Usage]]) -> list[PodRow]:
    """Return pods whose nodes are not known, each with its usage as its annotations tell it."""
    rows = []
    for pod, usage in pods:
        name, over = str(pod), bool(pod.annotations.get(OVER_USE))
        state = "over" if over else pod.phase
        places = [(str(at), counted(shares, "share")) for at, shares in usage.shares]
        places += [(str(at), "whole") for at in usage.whole]
        if usage.unplaced_shares:
            places.append(("?", counted(usage.unplaced_shares, "share")))
        if usage.unplaced_gpus:
            places.append(("?", f"{usage.unplaced_gpus} whole"))
        places += [
            ("?", f"{number}x {resource.partition('/')[2]}") for resource, number in asked_instances(pod).items()
        ]
        rows += [PodRow(name, pod.node_name, gpu, given, 0, state=state, bad=over) for gpu, given in places]
    return rows


def row_waiting(name: str, asked: str) -> PodRow:
    """Return what waits for GPUs, ``namespace/name``, with what it asks for."""
    return PodRow(name, "", _NOTHING, asked, 0, state="waits")


def rows_waiting(pods: Iterable[Pod], resources: Iterable[Resource]) -> list[PodRow]:
    """Return pods without a node with what they ask for."""
    names = tuple(resources)
    return [row_waiting(str(pod), " and ".join(asked_amounts(pod, names))) for pod in pods]


def pod_table(rows: Iterable[PodRow], width: int) -> list[Line]:
    """Return a table of pods, in their order, within `width` columns."""
    return table(OF_PODS, [pod_row(row) for row in rows], width)


def pod_row(row: PodRow) -> Row:
    """Return the cells of a pod on a GPU."""
    return Row(
        (
            row.pod,
            row.node or _NOTHING,
            row.gpu,
            row.given,
            gib(row.used_mib),
            _NOTHING if row.percent is None else str(row.percent),
            row.limit or _NOTHING,
            row.state,
        ),
        Tone.BAD if row.bad else Tone.PLAIN,
    )


def folded_details(nodes: Iterable[NodeView], width: int) -> list[Line]:
    """Return for each node that shares GPUs a table of its GPUs and one of their pods, and a sum below all of them."""
    listed = [node for node in nodes if node.total or node.candidate.gpus.instances]
    lines: list[Line] = []
    for node in listed:
        lines += folded_rows([node], width)
        if rows := sorted(pod_rows([node]), key=by_name):
            lines += [Line(""), *pod_table(rows, width)]
        lines += [Line("-" * width), Line("")]
    return [*lines, *totals(listed, width)]

"""Explain node by node why a pod does not run, and which pods would have to end for it to fit; at length or briefly."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import Fit, Unfit, fit, gpu_policy_of
from gpu_device_plugin.core.cluster.victims import ends_needed
from gpu_device_plugin.core.report.text.columns import aligned
from gpu_device_plugin.core.report.text.printing import counted, ranges, short_uuid, shortened
from gpu_device_plugin.core.report.text.printing import place as place_of
from gpu_device_plugin.core.report.why.pod_causes import scheduler_says, scheduler_silent
from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import FIT, POLICIES, Demand, Obstacle, Unplaceable, fits_kind, place
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.node_report import GpuView, NodeView, PodShare
    from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.cluster.victims import Ends
    from gpu_device_plugin.core.report.finding import Finding
    from gpu_device_plugin.core.report.why.pod_causes import SchedulingStatus
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource

_WEIGHED = 20
"""For this many of the nodes that lack least, the pods that would have to end are computed; the best come first."""

_MOST_REASONS = 3
_MOST_PODS = 5
_LONGEST = 300
"""Characters of a scheduler's message."""
_NUMBER = re.compile(r"\d+(\.\d+)?")

_WORDS = {
    Obstacle.SMALL: "too small",
    Obstacle.WHOLE: "in whole use",
    Obstacle.SHARED: "shares in use",
    Obstacle.FULL: "too little free",
    Obstacle.OTHER_KIND: "only a MIG instance",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """The reasons other than GPUs that keep a pod from a node, as clauses about the node."""

    excluded: tuple[Finding, ...] = ()
    """Why kube-scheduler does not consider the node at all."""
    besides: tuple[Finding, ...] = ()
    """The other reasons."""

    def __str__(self) -> str:
        return "; ".join(map(str, (*self.excluded, *self.besides)))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node, and whether the pod fits there."""

    node: NodeView
    ask: Ask
    """The demand in shares of this node."""
    found: Fit | Unfit
    kept: Kept
    learned: bool = False
    """The extender chooses among its GPUs by what it has learned of the pods that come, which is not known here."""
    ends: Ends | None = None
    """The pods that would have to end for its GPUs to have room; None: even the end of all makes none."""


def answers(asked: Iterable[tuple[NodeView, Ask, Kept]], policy: str, most: int) -> list[NodeAnswer]:
    """Return an answer for every node, the nearest to having room first; excluded nodes last, even with room.

    `asked` has with each node the demand, not empty and in shares of that node, and the reasons other than GPUs that
    keep the pod away. `policy`, a name in `POLICIES`, says which GPU is preferred where neither pod nor node does. Only
    of `most` nodes, those that will be explained, are the pods computed that would have to end.
    """
    weigh = max(most, _WEIGHED)
    found = [
        NodeAnswer(node, ask, fit(ask, at := node.candidate, policy), kept, gpu_policy_of(ask, at, policy) == FIT)
        for node, ask, kept in asked
    ]
    first = sorted(found, key=lambda answer: (*_rank(answer), _lacking(answer.ask, answer.node), answer.node.name))
    weighed = [replace(answer, ends=ends_needed(answer.ask, answer.node)) for answer in first[:weigh]]

    def loss(answer: NodeAnswer) -> tuple[float, ...]:
        return (inf,) if answer.ends is None else (len(answer.ends.pods), answer.ends.shares)

    return sorted(weighed, key=lambda answer: (*_rank(answer), *loss(answer))) + first[weigh:]


def _rank(answer: NodeAnswer) -> tuple[bool, ...]:
    """Return a sort key: nodes with room first, then nodes that could have it; of each, those without other reasons."""
    refused = isinstance(answer.found, Unfit)
    unresolvable = isinstance(answer.found, Unfit) and answer.found.unresolvable
    return bool(answer.kept.excluded), unresolvable, refused, bool(answer.kept.besides)


def _lacking(ask: Ask, node: NodeView) -> int:
    """Return roughly how many shares a node lacks."""
    numbers = node.candidate.summary
    largest = max(numbers.sizes, default=0)
    return sum(
        max(0, _each(part.demand) - numbers.best)
        if part.demand.kind is Kind.MEMORY
        else largest * max(0, part.demand.amount - len(numbers.unused))
        for part in ask.parts
    )


# --- Text -------------------------------------------------------------------------------------------------------------


def describe(ask: Ask, resources: Iterable[Resource], nodes: Iterable[NodeView]) -> str:
    """Return the demand of a pod as the end of a sentence. Shares of one size on all nodes are written as memory."""
    sizes = {node.candidate.gpus.share_mib for node in nodes if node.total}
    (share_mib,) = sizes if len(sizes) == 1 else (None,)
    names = {resource.kind: resource.name for resource in resources}
    return " and ".join(_part(part, names, share_mib) for part in ask.parts)


def _part(part: Part, names: Mapping[Kind, str], share_mib: int | None) -> str:
    demand = part.demand
    if demand.kind is Kind.COUNT:
        return "one whole GPU" if demand.amount == 1 else f"{demand.amount} whole GPUs"
    memory = f"{names[Kind.MEMORY]}: {demand.amount}" if share_mib is None else format_mib(demand.amount * share_mib)
    return f"{memory} {'of one GPU' if demand.gpus == 1 else f'in equal parts of {demand.gpus} GPUs'}"


def explain(found: Sequence[NodeAnswer], most: int) -> list[str]:
    """Return the number of nodes for each reason, then explain the `most` nearest of `answers` one by one."""
    lines: list[str] = []
    if len(found) > most:
        rows = [(f"  {number}", kind) for kind, number in _kinds(map(headline, found))]
        lines += ["", f"{len(found)} nodes share GPUs:", *aligned(rows), "", f"The nearest {most} of them:"]
    for answer in found[:most]:
        lines += ["", *_block(answer, _gpus(answer))]
    return lines


def explain_briefly(found: Sequence[NodeAnswer], height: int) -> list[str]:
    """Return the explanation in about `height` lines: the number of nodes for each reason, then the nearest nodes.

    Of each node only that is told which differs between its GPUs: equal verdicts share a line. At least one node and
    one reason are told, however small the height.
    """
    kinds = _kinds(map(headline, found))
    shown = max(1, min(len(kinds), height // 3))
    rows = [(f"  {number}", kind) for kind, number in kinds[:shown]]
    if len(kinds) > shown:
        rows.append((f"  {sum(number for _, number in kinds[shown:])}", "for other reasons"))
    lines = [] if len(found) == 1 else ["", f"{len(found)} nodes share GPUs:", *aligned(rows)]
    told = 0
    for answer in found:
        block = ["", *_block(answer, _gpus_briefly(answer))]
        if told and len(lines) + len(block) + 2 > height:
            break
        lines += block
        told += 1
    if left := len(found) - told:
        lines += ["", f"{counted(left, 'more node')}: --all-nodes shows each, GPU by GPU."]
    return lines


def _kinds(sentences: Iterable[str]) -> list[tuple[str, int]]:
    """Count sentences that differ at most in their numbers as one, the most frequent first."""
    alike: dict[str, Counter[str]] = {}
    for sentence in sentences:
        alike.setdefault(_NUMBER.sub("…", sentence), Counter())[sentence] += 1
    counts = [(next(iter(each)) if len(each) == 1 else kind, each.total()) for kind, each in alike.items()]
    return sorted(counts, key=lambda kind: (-kind[1], kind[0]))


def headline(answer: NodeAnswer) -> str:
    """Return whether the GPUs of a node have room, or why not, and what else keeps the pod away."""
    if isinstance(answer.found, Unfit):
        return "; ".join((*map(str, answer.kept.excluded), answer.found.sentence))
    room = (
        "kube-scheduler gives out its GPUs, by a ResourceClaim (DRA)"
        if answer.node.candidate.gpus.claims
        else "its GPUs have room"
    )
    why = str(answer.kept)
    return room + (f", but {why}" if why else "")


def _block(answer: NodeAnswer, gpus: Sequence[str]) -> Iterator[str]:
    node = answer.node
    yield f"{node.name}: {headline(answer)}"
    if isinstance(answer.found, Unfit):
        yield from (f"  Besides, {why}." for why in answer.kept.besides)
    yield from gpus
    for pod, usage in node.usage_outside_grants().items():
        amount = " and ".join(node.amounts(usage))
        yield f"  {pod} has {amount} on an unknown GPU, and counts on every GPU that it may be on."
    if isinstance(answer.found, Unfit):
        yield f"  {_what_would_help(answer)}"


def _gpus_briefly(answer: NodeAnswer) -> list[str]:
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for view in answer.node.gpus():
        model, free, verdict = _gpu_facts(answer, view)
        kinds.setdefault((model, f"{free} free", verdict), []).append(view.gpu.position)
    return aligned([(f"  GPU {ranges(positions)}", *kind) for kind, positions in kinds.items()])


def _gpus(answer: NodeAnswer) -> list[str]:
    rows = [
        (
            f"  {place_of(view.gpu)}",
            short_uuid(view.gpu.uuid),
            *_gpu_facts(answer, view),
            ", ".join(_held(answer.node, held) for held in view.held) or "-",
        )
        for view in answer.node.gpus()
    ]
    return aligned([("  GPU", "UUID", "MODEL", "FREE", "FOR THIS POD", "HELD BY"), *rows]) if rows else []


def _gpu_facts(answer: NodeAnswer, view: GpuView) -> tuple[str, str, str]:
    node = answer.node
    free = f"{node.amount(view.free) if view.free else 'none'} of {node.amount(view.gpu.shares)}"
    return short_model(view.gpu.model) or "-", free, _verdict(answer, view)


def _held(node: NodeView, held: PodShare) -> str:
    ending = ", being deleted" if held.pod.terminating else ""
    return f"{held.pod} ({'whole' if held.whole else node.amount(held.shares)}{ending})"


def _verdict(answer: NodeAnswer, view: GpuView) -> str:
    """Return why one GPU cannot serve even the smallest part of the pod, or that it can."""
    ask = answer.ask
    placements = answer.found.placements if isinstance(answer.found, Fit) else ()
    chosen = {position for placement in placements for position in placement.positions}
    if view.gpu.position in chosen and not (answer.learned and len(_open(answer)) > len(chosen)):
        return "would be chosen"
    if not _allowed(ask, view):
        return "not allowed by its annotations"
    if view.gpu.closed:
        return view.gpu.closed
    obstacles = [obstacle for part in ask.parts if (obstacle := _obstacle(part, view)) is not None]
    if len(obstacles) == len(ask.parts):
        return _WORDS[obstacles[0]]
    return "has room" if not obstacles else "has room for a part of it"


def _open(answer: NodeAnswer) -> list[GpuView]:
    """Return the GPUs that have room for some part of the pod."""
    ask, gpus = answer.ask, answer.node.gpus()
    return [view for view in gpus if _allowed(ask, view) and not all(_obstacle(part, view) for part in ask.parts)]


def _allowed(ask: Ask, view: GpuView) -> bool:
    return ask.wishes.allow_model(view.gpu.model) and ask.wishes.allow_uuid(view.gpu.uuid, view.gpu.card)


def _obstacle(part: Part, view: GpuView) -> Obstacle | None:
    """Return why one GPU cannot serve its share of a part, None if it can."""
    kind = part.demand.kind
    if not fits_kind(part.demand, view.room):
        return Obstacle.OTHER_KIND
    demand = Demand(kind, 1 if kind is Kind.COUNT else _each(part.demand))
    answer = place(demand, [view.room], next(iter(POLICIES.values())))
    return answer.reasons[0][1] if isinstance(answer, Unplaceable) else None


def _each(demand: Demand) -> int:
    return demand.amount // demand.gpus


def _what_would_help(answer: NodeAnswer) -> str:
    if answer.ends is None:
        return "Even if all its pods ended, there would be no room."
    pods = answer.ends.pods
    names = ", ".join(_ending(answer.node, pod) for pod in pods)
    return f"There would be room if {_these(pods)} ended: {names}."


def _these(pods: Sequence[Occupant]) -> str:
    return "this pod" if len(pods) == 1 else f"these {len(pods)} pods"


def _ending(node: NodeView, pod: Occupant) -> str:
    ending = ["being deleted"] if pod.terminating else []
    facts = [*node.amounts(pod.usage), f"priority {pod.priority}", *ending]
    return f"{pod} ({', '.join(facts)})"


# --- In one sentence each ---------------------------------------------------------------------------------------------


def asked_amounts(pod: Pod, resources: Iterable[Resource]) -> str:
    """Return the limits of a pod as they are written; for a demand that no node can ever meet."""
    sums: Counter[str] = Counter()
    for container in pod.containers:
        sums.update(container.limits)
    names = [resource.name for resource in resources]
    names += sorted(name for name in sums if name not in names)  # those of MIG profiles
    return " and ".join(f"{name}: {sums[name]}" for name in names if sums[name])


def why_waits(status: SchedulingStatus, facts: Sequence[Finding], found: Sequence[NodeAnswer]) -> str:
    """Return why a pod waits: the most frequent reasons of the nodes with their numbers, if nodes are the reason."""
    if status.gates or not found:
        return shortened(str(facts[0]), _LONGEST) if facts else "It is not known yet why it waits."
    fitting = sum(map(_takes, found))
    if fitting:
        (says,) = scheduler_says(status) or [scheduler_silent(status)]
        return f"{counted(fitting, 'node has', 'nodes have')} room for it now; {shortened(str(says), _LONGEST)}"
    kinds = _kinds(map(headline, found))
    if len(found) == 1:
        return f"The only node that shares GPUs, {found[0].node.name}, does not take it: {kinds[0][0]}."
    reasons = [f"{why} ({number})" for why, number in kinds[:_MOST_REASONS]]
    more = sum(number for _, number in kinds[_MOST_REASONS:])
    others = [f"other reasons ({more})"] if more else []
    return f"None of {len(found)} nodes takes it: {'; '.join([*reasons, *others])}."


def _takes(answer: NodeAnswer) -> bool:
    return isinstance(answer.found, Fit) and answer.kept == Kept()


def what_makes_room(found: Sequence[NodeAnswer], may_see: Callable[[str], bool]) -> str:
    """Return what would make room for a pod, by the nearest of the answers; empty if a node takes it, or none is known.

    Pods of namespaces that the reader may not see are counted only.
    """
    if not found or any(map(_takes, found)):
        return ""
    for answer in found:
        kept = str(answer.kept)
        if isinstance(answer.found, Fit):
            return f"The GPUs of {answer.node.name} have room, but {kept}."
        if answer.ends is not None and answer.ends.pods:
            besides = f", but for the pod: {kept}" if kept else ""
            return f"{_ends(answer.node, answer.ends.pods, may_see)}{besides}."
    if all(not isinstance(answer.found, Fit) and answer.found.unresolvable for answer in found):
        return "Even if all pods of the nodes ended, none would have room."
    return "Pods would have to end; see the node's GPUs."


def _ends(node: NodeView, pods: Sequence[Occupant], may_see: Callable[[str], bool]) -> str:
    named = [_ending(node, pod) for pod in pods if may_see(pod.namespace)]
    more = len(pods) - min(len(named), _MOST_PODS)
    what = ("other pod", "") if named else ("pod that you may not see", "pods that you may not see")
    names = [*named[:_MOST_PODS], *([counted(more, *what)] if more else [])]
    return f"There would be room on {node.name} if {_these(pods)} ended: {', '.join(names)}"

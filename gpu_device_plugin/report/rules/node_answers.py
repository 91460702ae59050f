"""Explain node by node why a pod does not run, and which pods would have to end for it to fit; at length or briefly."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import FIT, POLICIES, Demand, Obstacle, Unplaceable, fits_kind, place
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.columns import aligned
from gpu_device_plugin.report.rules.extension import Kept
from gpu_device_plugin.report.rules.finding import Finding, grouped, note
from gpu_device_plugin.report.rules.pod_causes import refusals, scheduler_says, scheduler_silent
from gpu_device_plugin.report.rules.printing import counted, ranges, short_uuid, shortened
from gpu_device_plugin.report.rules.printing import place as place_of
from gpu_device_plugin.scheduler.rules.fitting import FilterFailure, Fit, fit, gpu_policy_of
from gpu_device_plugin.scheduler.rules.node_constraints import obstacles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.rules.extension import ReportFeature, SchedulingStatus
    from gpu_device_plugin.report.rules.finding import Finding
    from gpu_device_plugin.report.rules.node_view import Ends, GpuView, NodeView
    from gpu_device_plugin.scheduler.rules.node_constraints import Terms
    from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest


_WEIGHED = 20
"""For this many of the nodes that lack least, the pods that would have to end are computed; the best come first."""

_MOST_REASONS = 3
_MOST_PODS = 5
_LONGEST = 300
"""Characters of a scheduler's message."""
_NUMBER = re.compile(r"\d+(\.\d+)?")

_WORDS = {
    Obstacle.SMALL: "too small",
    Obstacle.WHOLE: "exclusively allocated",
    Obstacle.SHARED: "shares in use",
    Obstacle.FULL: "too little free",
    Obstacle.OTHER_KIND: "only a MIG instance",
}
_NOT_ALLOWED = "not allowed by its annotations"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node, and whether the pod fits there."""

    node: NodeView
    ask: GpuRequest
    """The demand in shares of this node."""
    found: Fit | FilterFailure
    kept: Kept
    learned: bool = False
    """The extender chooses among its GPUs by what it has learned of the pods that come, which is not known here."""
    ends: Ends | None = None
    """The pods that would have to end for its GPUs to have room; None: not known."""


def answers(
    asked: Iterable[tuple[NodeView, GpuRequest, Kept]], policy: str, most: int, features: Sequence[ReportFeature]
) -> list[NodeAnswer]:
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
    weighed = [replace(answer, ends=_ends(answer, features)) for answer in first[:weigh]]

    def loss(answer: NodeAnswer) -> tuple[float, ...]:
        return (inf,) if not answer.ends or answer.ends.none else (len(answer.ends.pods), answer.ends.shares)

    return sorted(weighed, key=lambda answer: (*_rank(answer), *loss(answer))) + first[weigh:]


def _ends(answer: NodeAnswer, features: Sequence[ReportFeature]) -> Ends | None:
    found = (feature.ending(answer.ask, answer.node) for feature in features)
    return next((ends for ends in found if ends is not None), None)


def _rank(answer: NodeAnswer) -> tuple[bool, ...]:
    """Return a sort key: nodes with room first, then nodes that could have it; of each, those without other reasons."""
    refused = isinstance(answer.found, FilterFailure)
    unresolvable = isinstance(answer.found, FilterFailure) and answer.found.unresolvable
    return bool(answer.kept.excluded), unresolvable, refused, bool(answer.kept.besides)


def _lacking(ask: GpuRequest, node: NodeView) -> int:
    """Return roughly how many shares a node lacks."""
    numbers = node.candidate.summary
    largest = max(numbers.sizes, default=0)
    return sum(
        max(0, part.demand.amount // part.demand.gpus - numbers.best)
        if part.demand.kind is Kind.MEMORY
        else largest * max(0, part.demand.amount - len(numbers.unused))
        for part in ask.parts
    )


# --- Text -------------------------------------------------------------------------------------------------------------


def describe(ask: GpuRequest, resources: Iterable[Resource], nodes: Iterable[NodeView]) -> str:
    """Return the demand of a pod as the end of a sentence. Shares of one size on all nodes are written as memory."""
    sizes = {node.candidate.gpus.share_mib for node in nodes if node.total}
    (share_mib,) = sizes if len(sizes) == 1 else (None,)
    names = {resource.kind: resource.name for resource in resources}
    parts = []
    for amount, gpus, kind in ((part.demand.amount, part.demand.gpus, part.demand.kind) for part in ask.parts):
        if kind is Kind.COUNT:
            parts.append("one whole GPU" if amount == 1 else f"{amount} whole GPUs")
        else:
            memory = f"{names[Kind.MEMORY]}: {amount}" if share_mib is None else format_mib(amount * share_mib)
            parts.append(f"{memory} {'of one GPU' if gpus == 1 else f'in equal parts of {gpus} GPUs'}")
    return " and ".join(parts)


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
        alike = grouped((_gpu_facts(answer, view), view.gpu.position) for view in answer.node.gpus())
        gpus = [(f"  GPU {ranges(at)}", model, f"{free} free", said) for (model, free, said), at in alike.items()]
        block = ["", *_block(answer, aligned(gpus))]
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
    if isinstance(answer.found, FilterFailure):
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
    if isinstance(answer.found, FilterFailure):
        yield from (f"  Besides, {why}." for why in answer.kept.besides)
    yield from gpus
    for pod, usage in node.unassigned_usage().items():
        amount = " and ".join(node.amounts(usage))
        yield f"  {pod} has {amount} on an unknown GPU, and counts on every GPU that it may be on."
    if isinstance(answer.found, FilterFailure) and answer.ends is not None:
        none = "Even if all its pods ended, there would be no room"
        yield f"  {none if answer.ends.none else _room_without(node, answer.ends)}."


def _gpus(answer: NodeAnswer) -> list[str]:
    rows = [
        (
            f"  {place_of(view.gpu)}",
            short_uuid(view.gpu.uuid),
            *_gpu_facts(answer, view),
            ", ".join(
                f"{held.pod} ({'whole' if held.whole else answer.node.amount(held.shares)}"
                f"{', being deleted' if held.pod.terminating else ''})"
                for held in view.held
            )
            or "-",
        )
        for view in answer.node.gpus()
    ]
    return aligned([("  GPU", "UUID", "MODEL", "FREE", "FOR THIS POD", "HELD BY"), *rows]) if rows else []


def _gpu_facts(answer: NodeAnswer, view: GpuView) -> tuple[str, str, str]:
    node = answer.node
    free = f"{node.amount(view.free) if view.free else 'none'} of {node.amount(view.gpu.shares)}"
    return short_model(view.gpu.model) or "-", free, _verdict(answer, view)


def _verdict(answer: NodeAnswer, view: GpuView) -> str:
    """Return why one GPU cannot serve even the smallest part of the pod, or that it can."""
    ask = answer.ask
    placements = answer.found.placements if isinstance(answer.found, Fit) else ()
    chosen = {position for placement in placements for position in placement.positions}
    obstacles = _obstacles(ask, view)
    if view.gpu.position in chosen:
        able = [each for each in answer.node.gpus() if len(_obstacles(ask, each)) < len(ask.parts)]
        if not answer.learned or len(able) <= len(chosen):
            return "would be chosen"
    if len(obstacles) < len(ask.parts):
        return "has room for a part of it" if obstacles else "has room"
    return _NOT_ALLOWED if obstacles[0] == _NOT_ALLOWED else view.gpu.closed or obstacles[0]


def _obstacles(ask: GpuRequest, view: GpuView) -> list[str]:
    """Return for each part of a pod that one GPU cannot serve why."""
    if not (ask.selector.allow_model(view.gpu.model) and ask.selector.allow_uuid(view.gpu.uuid, view.gpu.card)):
        return [_NOT_ALLOWED] * len(ask.parts)
    obstacles = []
    for demand in (part.demand for part in ask.parts):
        each = Demand(demand.kind, 1 if demand.kind is Kind.COUNT else demand.amount // demand.gpus)
        found = place(each, [view.room], next(iter(POLICIES.values())))
        if not fits_kind(demand, view.room):
            obstacles.append(_WORDS[Obstacle.OTHER_KIND])
        elif isinstance(found, Unplaceable):
            obstacles.append(_WORDS.get(found.reasons[0][1], view.gpu.closed))
    return obstacles


def _room_without(
    node: NodeView, ends: Ends, where: str = "", may_see: Callable[[str], bool] | None = None, most: int | None = None
) -> str:
    """Say which pods would have to end; those that the reader may not see are counted, and those beyond `most`."""
    named = [
        f"{pod} ({', '.join(facts)})"
        for pod in ends.pods
        if may_see is None or may_see(pod.namespace)
        for facts in [
            [*node.amounts(pod.usage), f"priority {pod.priority}", *(["being deleted"] if pod.terminating else [])]
        ]
    ][:most]
    what = ("other pod", "") if named else ("pod that you may not see", "pods that you may not see")
    more = len(ends.pods) - len(named)
    these = "this pod" if len(ends.pods) == 1 else f"these {len(ends.pods)} pods"
    names = ", ".join([*named, *([counted(more, *what)] if more else [])])
    return f"There would be room{where} if {these} ended: {names}"


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
            where = f" on {answer.node.name}"
            return f"{_room_without(answer.node, answer.ends, where, may_see, _MOST_PODS)}{besides}."
    if all(not isinstance(answer.found, Fit) and answer.found.unresolvable for answer in found):
        return "Even if all pods of the nodes ended, none would have room."
    return "Pods would have to end; see the node's GPUs."


_EXCLUSIONS: Mapping[str, str] = {
    "cordoned": "it is cordoned",
    "not-ready": "it is not ready",
    "taint": "the pod does not tolerate its taint {taint}",
    "label": "the pod requires the node label {label}",
    "affinity": "the pod's node affinity requires {condition}",
    "affinity-terms": "it matches none of the {terms} terms of the pod's node affinity",
}


def exclusions(node: NodeView, pod: Terms) -> Iterator[Finding]:
    """Yield why kube-scheduler does not consider a node for a pod at all, as clauses about the node."""
    for code, parameters in obstacles(node.record, pod):
        yield note(code, _EXCLUSIONS[code], **parameters)


def besides(node: NodeView, ask: GpuRequest, resources: Iterable[Resource]) -> tuple[Finding, ...]:
    """Return further reasons against a node that kube-scheduler considers, as clauses about the node.

    Compares only the GPU resources that its kubelet knows; neither CPU nor memory.
    """
    shares = any(part.demand.kind is Kind.MEMORY for part in ask.parts)
    return (
        *(why for resource in resources for why in _too_little(node, ask, resource)),
        *(refusals(node.report) if shares else ()),
    )


def _too_little(node: NodeView, ask: GpuRequest, resource: Resource) -> Iterator[Finding]:
    """Yield why the kubelet's amounts are too small for the pod, unless the GPUs show it."""
    asked = sum(part.demand.amount for part in ask.parts if part.demand.kind is resource.kind)
    if not asked or node.candidate.gpus.problem:
        return
    if resource.name not in node.record.capacity:
        text = "its kubelet knows no {resource}: no agent has registered there since it started"
        yield note("not-registered", text, resource=resource.name)
        return
    offered = node.record.allocatable.get(resource.name, 0)
    memory = resource.kind is Kind.MEMORY
    # The agent withholds a GPU that is in use as the other resource, as intended.
    rooms = [
        room
        for room in node.candidate.rooms
        if room.healthy and not (room.whole if memory else room.shared or room.card is not None)
    ]
    if not offered:
        if rooms:
            text = "its agent offers no {resource} at the moment; see the agent's log"
            yield note("not-offered", text, resource=resource.name)
        return
    taken = sum(
        usage.unplaced_shares + sum(shares for _, shares in usage.shares)
        if memory
        else usage.unplaced_gpus + len(usage.whole)
        for usage in (pod.usage for pod in node.pods)
    )
    free = sum(room.free for room in rooms) if memory else sum(not room.whole for room in rooms)
    if offered - taken < asked <= free:  # with less free the GPUs show the reason
        text = "{taken} of {offered} allocatable {resource} are in use"
        yield note("in-use", text, taken=taken, offered=offered, resource=resource.name)

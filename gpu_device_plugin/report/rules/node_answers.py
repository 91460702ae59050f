"""Explain node by node why a pod does not run, and which pods would have to end for it to fit; at length or briefly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import FIT, POLICIES, Demand, Obstacle, Unplaceable, fits_kind, place
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.columns import aligned
from gpu_device_plugin.report.rules.extension import ReportPoints
from gpu_device_plugin.report.rules.finding import Finding, Parameter, grouped, literal, note
from gpu_device_plugin.report.rules.node_view import Ends, GpuView, NodeView
from gpu_device_plugin.report.rules.pod_causes import Kept, scheduler_says, scheduler_silent, told
from gpu_device_plugin.report.rules.printing import counted, ranges, short_uuid, shortened
from gpu_device_plugin.report.rules.printing import place as place_of
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure, cordoned
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, gpu_policy_of
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

_WEIGHED = 20
"""For this many of the nodes that lack least, the pods that would have to end are computed; the best come first."""

_MOST_REASONS = 3
_MOST_PODS = 5
_LONGEST = 300
"""Characters of a scheduler's message."""
_NUMBER = re.compile(r"\d+(\.\d+)?")

_WORDS = {
    Obstacle.SMALL: note("too-small", "too small"),
    Obstacle.WHOLE: note("in-whole-use", "exclusively allocated"),
    Obstacle.SHARED: note("shares-in-use", "shares in use"),
    Obstacle.FULL: note("too-little-free", "too little free"),
    Obstacle.OTHER_KIND: note("only-an-instance", "only a MIG instance"),
}
_NOT_ALLOWED = note("not-allowed", "not allowed by its annotations")
_HAS_ROOM = note("its-gpus-have-room", "its GPUs have room")
_CLAIMS_GIVE = note("claims-give-its-gpus", "kube-scheduler allocates its GPUs through ResourceClaims (DRA)")


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
    asked: Iterable[tuple[NodeView, GpuRequest, Kept]], policy: str, most: int, features: ReportPoints
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
    weighed = first[:weigh]
    for ending in features.ending:
        weighed = [replace(answer, ends=ending(answer.ask, answer.node)) for answer in weighed]

    def loss(answer: NodeAnswer) -> tuple[float, ...]:
        return (inf,) if not answer.ends or answer.ends.none else (len(answer.ends.pods), answer.ends.shares)

    return sorted(weighed, key=lambda answer: (*_rank(answer), *loss(answer))) + first[weigh:]


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


def describe(ask: GpuRequest, resources: Iterable[Resource], nodes: Iterable[NodeView]) -> tuple[Finding, ...]:
    """Return the parts of a pod's demand, as ends of a sentence. Shares of one size on all nodes are memory."""
    sizes = {node.candidate.gpus.share_mib for node in nodes if node.total}
    (share_mib,) = sizes if len(sizes) == 1 else (None,)
    names = {resource.kind: resource.name for resource in resources}
    parts = []
    for amount, gpus, kind in ((part.demand.amount, part.demand.gpus, part.demand.kind) for part in ask.parts):
        if kind is Kind.COUNT:
            parts.append(whole_gpus(amount))
        else:
            memory = f"{names[Kind.MEMORY]}: {amount}" if share_mib is None else format_mib(amount * share_mib)
            parts.append(memory_of(memory, gpus))
    return tuple(parts)


def whole_gpus(number: int) -> Finding:
    """Return a number of whole GPUs, as the end of a sentence."""
    return note("whole-gpus", "one whole GPU" if number == 1 else "{n} whole GPUs", n=number)


def memory_of(memory: str | Finding, gpus: int) -> Finding:
    """Return memory of one GPU, or in equal parts of several."""
    if gpus == 1:
        return note("memory-of-one-gpu", "{memory} of one GPU", memory=memory)
    return note("memory-of-gpus", "{memory} split evenly over {n} GPUs", memory=memory, n=gpus)


def explain(found: Sequence[NodeAnswer], most: int) -> list[Finding]:
    """Return the number of nodes for each reason, then explain the `most` nearest of `answers`, line by line."""
    lines: list[Finding] = []
    if len(found) > most:
        rows = [(f"  {number}", kind) for kind, number in _kinds(found)]
        lines += [_EMPTY, _number_of(found), *_rows("nodes", ("n", "why"), rows)]
        lines += [_EMPTY, note("nearest", "The nearest {n} of them:", n=most)]
    for answer in found[:most]:
        lines += [_EMPTY, *_block(answer, _gpus(answer))]
    return lines


_EMPTY = note("empty", "")


def _number_of(found: Sequence[NodeAnswer]) -> Finding:
    return note("nodes-share", "{n} nodes share GPUs:", n=len(found))


def _rows(code: str, names: Sequence[str], rows: Sequence[Sequence[str | Finding]]) -> list[Finding]:
    """Return rows of a table, whose `line` has its columns aligned."""
    lines = aligned([tuple(map(str, row)) for row in rows])
    cells = (dict(zip(names, row, strict=True)) for row in rows)
    return [note(code, literal(line), **each) for line, each in zip(lines, cells, strict=True)]


def explain_briefly(found: Sequence[NodeAnswer], height: int) -> list[str]:
    """Return the explanation in about `height` lines: the number of nodes for each reason, then the nearest nodes.

    Of each node only that is told which differs between its GPUs: equal verdicts share a line. At least one node and
    one reason are told, however small the height.
    """
    kinds = _kinds(found)
    shown = max(1, min(len(kinds), height // 3))
    rows = [(f"  {number}", str(kind)) for kind, number in kinds[:shown]]
    if len(kinds) > shown:
        rows.append((f"  {sum(number for _, number in kinds[shown:])}", "for other reasons"))
    lines = [] if len(found) == 1 else ["", str(_number_of(found)), *aligned(rows)]
    told = 0
    for answer in found:
        facts = ((tuple(map(str, _gpu_facts(answer, view))), view.gpu.position) for view in answer.node.gpus())
        gpus = [
            (f"  GPU {ranges(at)}", model, f"{free} of {total} free", said)
            for (model, free, total, said), at in grouped(facts).items()
        ]
        block = ["", *map(str, _block(answer, [note("gpus", literal(line)) for line in aligned(gpus)]))]
        if told and len(lines) + len(block) + 2 > height:
            break
        lines += block
        told += 1
    if left := len(found) - told:
        lines += ["", f"{counted(left, 'more node')}: --all-nodes shows each, GPU by GPU."]
    return lines


def _kinds(found: Iterable[NodeAnswer]) -> list[tuple[Finding, int]]:
    """Count headlines that differ at most in their numbers as one, the most frequent first."""
    known: dict[FilterFailure, tuple[Finding, str]] = {}  # thousands of nodes have few reasons
    alike: dict[str, Counter[str]] = {}
    by_text: dict[str, Finding] = {}
    for answer in found:
        why = None if answer.kept.excluded or isinstance(answer.found, Fit) else answer.found
        if why is None or why not in known:
            said = headline(answer)
            text = str(said)
            by_text[text] = said
        if why is not None:
            said, text = known.setdefault(why, (said, text))
        alike.setdefault(_NUMBER.sub("…", text), Counter())[text] += 1
    counts = []
    for each in alike.values():
        said = by_text[next(iter(each))]
        counts.append((said if len(each) == 1 else _blurred(said), each.total()))
    return sorted(counts, key=lambda kind: (-kind[1], str(kind[0])))


def _blurred(said: Finding) -> Finding:
    """Return a finding without its numbers."""
    parameters = {name: _without_numbers(each) for name, each in said.parameters.items()}
    return replace(said, text=_NUMBER.sub("…", said.text), parameters=parameters)


def _without_numbers(value: Parameter) -> Parameter:
    if isinstance(value, tuple):
        return tuple(_blurred(each) if isinstance(each, Finding) else _NUMBER.sub("…", each) for each in value)
    return _blurred(value) if isinstance(value, Finding) else _NUMBER.sub("…", str(value))


def headline(answer: NodeAnswer) -> Finding:
    """Return whether the GPUs of a node have room, or why not, and what else keeps the pod away."""
    kept = answer.kept
    if isinstance(answer.found, FilterFailure):
        why = told(answer.found)
        return note("reasons", "{why:+; }", why=(*kept.excluded, why)) if kept.excluded else why
    room = _CLAIMS_GIVE if answer.node.candidate.gpus.claims else _HAS_ROOM
    return note("room-but", "{room}, but {why:+; }", room=room, why=kept.all) if kept.all else room


def _block(answer: NodeAnswer, gpus: Sequence[Finding]) -> Iterator[Finding]:
    node = answer.node
    yield note("of-node", "{node}: {why}", node=node.name, why=headline(answer))
    if isinstance(answer.found, FilterFailure):
        yield from (note("besides", "  Besides, {why}.", why=why) for why in answer.kept.besides)
    yield from gpus
    for pod, usage in node.unassigned_usage().items():
        text = "  {pod} has {amounts:+ and } on an unknown GPU, and counts on every GPU that it may be on."
        yield note("on-unknown-gpu", text, pod=str(pod), amounts=node.amounts(usage))
    if isinstance(answer.found, FilterFailure) and answer.ends is not None:
        if answer.ends.none:
            yield note("no-room-without", "  Even if all its pods ended, there would be no room.")
        else:
            yield note("room-without", "  {room}.", room=_room_without(node, answer.ends))


def _gpus(answer: NodeAnswer) -> list[Finding]:
    rows = []
    for view in answer.node.gpus():
        model, free, total, said = _gpu_facts(answer, view)
        held = []
        for each in view.held:
            code, text = "held", "{pod} ({amount})"
            if each.pod.terminating:
                code, text = "held-ending", "{pod} ({amount}, being deleted)"
            amount = note("whole-gpu", "whole") if each.whole else answer.node.amount(each.shares)
            held.append(note(code, text, pod=str(each.pod), amount=amount, shares=each.shares))
        holders = note("holders", "{pods:+, }", pods=tuple(held)) if held else "-"
        room = note("free-of", "{free} of {total}", free=free, total=total, shares=view.gpu.shares)
        rows.append((f"  {place_of(view.gpu)}", short_uuid(view.gpu.uuid), model, room, said, holders))
    names = ("gpu", "uuid", "model", "free", "verdict", "held")
    heading = ("  GPU", "UUID", "MODEL", "FREE", "FOR THIS POD", "HELD BY")
    lines = _rows("gpu-row", names, [heading, *rows])
    return [note("gpu-heading", lines[0].text), *lines[1:]] if rows else []


def _gpu_facts(answer: NodeAnswer, view: GpuView) -> tuple[str, str | Finding, str, Finding]:
    node = answer.node
    free = node.amount(view.free) if view.free else note("none", "none")
    return short_model(view.gpu.model) or "-", free, node.amount(view.gpu.shares), _verdict(answer, view)


def _verdict(answer: NodeAnswer, view: GpuView) -> Finding:
    """Return why one GPU cannot serve even the smallest part of the pod, or that it can."""
    ask = answer.ask
    placements = answer.found.placements if isinstance(answer.found, Fit) else ()
    chosen = {position for placement in placements for position in placement.positions}
    obstacles = _obstacles(ask, view)
    if view.gpu.position in chosen:
        able = [each for each in answer.node.gpus() if len(_obstacles(ask, each)) < len(ask.parts)]
        if not answer.learned or len(able) <= len(chosen):
            return note("would-be-chosen", "would be chosen")
    if len(obstacles) < len(ask.parts):
        return note("has-room-for-part", "has room for some of it") if obstacles else note("has-room", "has room")
    return obstacles[0] if obstacles[0] is _NOT_ALLOWED or not view.gpu.closed else closed(view.gpu)


def closed(gpu: ListedGpu) -> Finding:
    """Return why a GPU takes no new pods."""
    unhealthy = (note("gpu-unhealthy", "unhealthy: {why}", why=gpu.unhealthy),) if gpu.unhealthy else ()
    cordon = () if gpu.cordon is None else (told(cordoned(gpu.cordon)),)
    return note("reasons", "{why:+; }", why=(*unhealthy, *cordon))


def _obstacles(ask: GpuRequest, view: GpuView) -> list[Finding]:
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
            obstacles.append(_WORDS.get(found.reasons[0][1]) or closed(view.gpu))
    return obstacles


def _room_without(
    node: NodeView, ends: Ends, where: str = "", may_see: Callable[[str], bool] | None = None, most: int | None = None
) -> Finding:
    """Say which pods would have to end; those that the reader may not see are counted, and those beyond `most`."""
    named = []
    for pod in [pod for pod in ends.pods if may_see is None or may_see(pod.namespace)][:most]:
        code, text = "pod-to-end", "{pod} ({amounts:+, }, priority {priority})"
        if pod.terminating:
            code, text = "pod-ending", "{pod} ({amounts:+, }, priority {priority}, being deleted)"
        named.append(note(code, text, pod=str(pod), amounts=node.amounts(pod.usage), priority=pod.priority))
    if more := len(ends.pods) - len(named):
        hidden = note("pods-unseen", "{n:pod that you may not see|pods that you may not see}", n=more)
        named.append(note("pods-more", "{n:other pod}", n=more) if named else hidden)
    code, these = ("room-if-one-ended", "this pod") if len(ends.pods) == 1 else ("room-if-ended", "these {n} pods")
    text = f"There would be room{' on {node}' if where else ''} if {these} ended: {{pods:+, }}"
    return note(code, text, node=where, n=len(ends.pods), pods=tuple(named))


# --- In one sentence each ---------------------------------------------------------------------------------------------


def asked_amounts(pod: Pod, resources: Iterable[Resource]) -> tuple[str, ...]:
    """Return the limits of a pod as they are written; for a demand that no node can ever meet."""
    sums: Counter[str] = Counter()
    for container in pod.containers:
        sums.update(container.limits)
    names = [resource.name for resource in resources]
    names += sorted(name for name in sums if name not in names)  # those of MIG profiles
    return tuple(f"{name}: {sums[name]}" for name in names if sums[name])


def why_waits(status: SchedulingStatus, facts: Sequence[Finding], found: Sequence[NodeAnswer]) -> Finding:
    """Return why a pod waits: the most frequent reasons of the nodes with their numbers, if nodes are the reason."""
    if status.gates or not found:
        return _shortened(facts[0]) if facts else note("why-unknown", "Why it is pending is not known yet.")
    fitting = sum(map(_takes, found))
    if fitting:
        (says,) = scheduler_says(status) or [scheduler_silent(status)]
        text = "{nodes:node has|nodes have} room for it now; {says}"
        return note("nodes-have-room", text, nodes=fitting, says=_shortened(says))
    kinds = _kinds(found)
    if len(found) == 1:
        text = "Does not fit on {node}, the only node that shares GPUs: {why}."
        return note("only-node", text, node=found[0].node.name, why=kinds[0][0])
    reasons = [note("reason-of", "{why} ({n})", why=why, n=number) for why, number in kinds[:_MOST_REASONS]]
    if more := sum(number for _, number in kinds[_MOST_REASONS:]):
        reasons.append(note("other-reasons", "other reasons ({n})", n=more))
    return note("no-node-takes-it", "Fits on none of {n} nodes: {why:+; }.", n=len(found), why=tuple(reasons))


def _shortened(said: Finding) -> Finding:
    """Return a finding of at most so many characters."""
    text = str(said)
    if len(text) <= _LONGEST:
        return said
    parameters = {
        name: shortened(each, _LONGEST) if isinstance(each, str) else each for name, each in said.parameters.items()
    }
    return replace(said, text=literal(shortened(text, _LONGEST)), parameters=parameters)


def _takes(answer: NodeAnswer) -> bool:
    return isinstance(answer.found, Fit) and answer.kept == Kept()


def what_makes_room(found: Sequence[NodeAnswer], may_see: Callable[[str], bool]) -> Finding | None:
    """Return what would make room for a pod, by the nearest of the answers; None if a node takes it, or none is known.

    Pods of namespaces that the reader may not see are counted only.
    """
    if not found or any(map(_takes, found)):
        return None
    for answer in found:
        kept, node = answer.kept.all, answer.node
        if isinstance(answer.found, Fit):
            return note("room-on-but", "The GPUs of {node} have room, but {why:+; }.", node=node.name, why=kept)
        if answer.ends is not None and answer.ends.pods:
            room = _room_without(node, answer.ends, node.name, may_see, _MOST_PODS)
            if kept:
                return note("makes-room-but", "{room}; however, {why:+; }.", room=room, why=kept)
            return note("makes-room", "{room}.", room=room)
    if all(not isinstance(answer.found, Fit) and answer.found.unresolvable for answer in found):
        return note("nothing-makes-room", "Even if all pods of the nodes ended, none would have room.")
    return note("ending-makes-room", "Pods would have to end; see the node's GPUs.")

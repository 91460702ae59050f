"""What came of a simulation, policy by policy, for people and for machines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gpu_device_plugin.features.learning.rules.arrivals import ByFullness, Start, asked
from gpu_device_plugin.features.learning.rules.marginal_value import FreeCapacity
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.programs.simulate.experiment import REJECTED, Needed, Plan
from gpu_device_plugin.programs.simulate.model import (
    Inputs,
    SimulationOutcome,
    Workload,
    class_of,
    counted,
    order,
    unit_of,
)
from gpu_device_plugin.report.rules import columns
from gpu_device_plugin.report.rules.columns import Line, Tone, fitted
from gpu_device_plugin.report.rules.printing import printable
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.packing import Packer

Json = dict[str, Any]

VERSION = 1
"""Of the JSON document."""
_MOST_ROWS = 24
_MOST_MODELS = 3


# --- For machines -----------------------------------------------------------------------------------------------------


def document(inputs: Inputs, plan: Plan, policies: Sequence[Json]) -> Json:
    """Return everything as JSON has it, given what came of each policy."""
    gpus, instances = _hardware(inputs.nodes)
    return {
        "version": VERSION,
        "nodes": len(inputs.nodes),
        "gpus": gpus,
        "migInstances": instances,
        "shares": sum(sum(node.shape.sizes) for node in inputs.nodes),
        "freeShares": sum(node.left.shares for node in inputs.nodes),
        "pods": len(inputs.workload.pods),
        "kinds": len(inputs.workload.kinds),
        "until": plan.until,
        "departures": plan.departures,
        "notes": list(inputs.notes),
        "policies": list(policies),
    }


def policy_document(outcomes: Sequence[SimulationOutcome], inputs: Inputs, plan: Plan) -> Json:
    """Return what came of one policy, given its outcome with each seed.

    Parts are means over the seeds, 1.0 being all: the GPU allocated as a part of what was free when as much had been
    asked for (None: that never happened, or pods left again) and after the last pod (None where pods leave), and the
    part of the GPU asked for that found no room. Pods are those of the first seed, by what the user calls them; by size
    where that would be more than `_MOST_ROWS`. Classes are sizes, over all seeds.
    """
    unit, workload, leaving = unit_of(inputs.nodes), inputs.workload, plan.departures is not None
    sizes = [class_of(kind, unit) for kind in workload.kinds]
    names = [workload.name(at) for at in range(len(workload.kinds))]
    by_size = len(set(names)) > _MOST_ROWS
    full = not leaving and all(sum(outcome.shares) >= outcome.capacity > 0 for outcome in outcomes)
    first = _counts(outcomes[:1], sizes if by_size else names)
    rows = {name: first[name] for name in sorted(first, key=order)} if by_size else first
    classes = _counts(outcomes, sizes)
    return {
        "policy": outcomes[0].policy,
        "allocatedAt100": _mean(outcome.allocated_at(1.0) for outcome in outcomes) if full else None,
        "allocatedAtEnd": None if leaving else _mean(outcome.allocated for outcome in outcomes),
        "rejected": _mean(outcome.rejected for outcome in outcomes),
        "answer": _answer(outcomes, workload, plan),
        "pods": [{"name": name, "came": came, "accepted": accepted} for name, (came, accepted) in rows.items()],
        "cpuSeconds": round(fmean(outcome.cpu_s for outcome in outcomes), 3),
        "classes": [
            {"class": name, "pods": classes[name][0], "accepted": classes[name][1]}
            for name in sorted(classes, key=order)
        ],
        "seeds": [
            {"accepted": round(outcome.allocated, 5), "rejected": round(outcome.rejected, 5)} for outcome in outcomes
        ],
    }


def needed_document(needed: Needed, inputs: Inputs) -> Json:
    """Return how many nodes one policy needs."""
    return {
        "policy": needed.policy,
        "answer": _answer_of_needed(needed, inputs),
        "nodes": needed.nodes,
        "seeds": list(needed.by_seed),
        "atLeast": needed.least,
        "pods": needed.pods,
    }


def _counts(outcomes: Sequence[SimulationOutcome], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return how many pods came and how many were accepted, given the name of each kind; in the order of the kinds."""
    came: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for outcome in outcomes:
        came.update(names[pod] for pod in outcome.pods)
        accepted.update(names[pod] for pod, ok in zip(outcome.pods, outcome.accepted, strict=True) if ok)
    return {name: (came[name], accepted[name]) for name in dict.fromkeys(names) if came[name]}


def _mean(parts: Iterable[float]) -> float:
    return round(fmean(parts), 5)


# --- For people -------------------------------------------------------------------------------------------------------


def heading(inputs: Inputs, plan: Plan) -> Line:
    """Return a line on what was simulated."""
    nodes, workload = inputs.nodes, inputs.workload
    gpus, instances = _hardware(nodes)
    there = [counted(gpus, "GPU"), *([counted(instances, "MIG instance")] if instances else [])]
    said = f"{counted(len(nodes), 'node')}, {', '.join(there)}{_sizes(nodes)}; {counted(len(workload.pods), 'pod')} of "
    return Line(f"{said}{counted(len(workload.kinds), 'kind')}; {counted(plan.seeds, 'seed')}", Tone.FAINT)


def _sizes(nodes: Iterable[Start]) -> str:
    """Return the shares and the models of the GPUs in brackets; nothing where they are of many kinds."""
    kinds = dict.fromkeys(gpu for shape in dict.fromkeys(node.shape for node in nodes) for gpu in shape.gpus)
    each = [f"{gpu.model}, {counted(gpu.size, 'share')} each".removeprefix(", ") for gpu in kinds]
    return f" ({'; '.join(each)})" if len(each) <= _MOST_MODELS else ""


def _hardware(nodes: Sequence[Start]) -> tuple[int, int]:
    gpus = sum(node.shape.whole for node in nodes)
    return gpus, sum(len(node.shape.sizes) for node in nodes) - gpus


def table(policies: Sequence[Json], plan: Plan) -> list[Line]:
    """Return the answers for people, and how many pods of each entry run, the policies beside each other."""
    answers = [Line(each["answer"]) for each in policies]
    return (
        answers
        if "allocatedAtEnd" not in policies[0]
        else [*answers, Line(""), *_means(policies, plan), *_rows(policies)]
    )


def _rows(policies: Sequence[Json]) -> list[Line]:
    rows = []
    counts = [{pods["name"]: pods for pods in each["pods"]} for each in policies]
    for name in dict.fromkeys(name for each in counts for name in each):
        # Where the first rejected pod ends a run, policies see different numbers of pods.
        pods = [each.get(name, {"came": 0, "accepted": 0}) for each in counts]
        came = max(each["came"] for each in pods)
        rows.append((fitted(printable(name), 48), f"{came:,}", *(f"{each['accepted']:,}" for each in pods)))
    return aligned(("PODS", "CAME", *(each["policy"] for each in policies)), rows)


def _means(policies: Sequence[Json], plan: Plan) -> list[Line]:
    """Return how policies compare over all seeds, where pods come again and again."""
    if plan.until is None and plan.departures is None:
        return []
    keys = {"AT 100 %": "allocatedAt100", "AT END": "allocatedAtEnd"} if plan.departures is None else {}
    keys["REJECTED"] = "rejected"
    rows = [
        (each["policy"], *("-" if each[key] is None else f"{100 * each[key]:.1f}" for key in keys.values()))
        for each in policies
    ]
    about = "rejected: of the GPU that pods asked for, in %; means of all seeds"
    if plan.departures is None:
        about = f"at 100 %, at end: GPU allocated, in % of what was free at first; {about}"
    return [*aligned(("POLICY", *keys), rows), Line(about, Tone.FAINT), Line("")]


def aligned(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[Line]:
    """Return a table whose columns of numbers, all but the first, end at the same place."""
    return columns.table(columns.Layout(heading, frozenset(heading[1:])), list(map(columns.Row, rows)), sys.maxsize)


# --- The answer in words, a line for each policy ---------------------------------------------------------------------

_MOST_REASONS = 3


def _answer(outcomes: Sequence[SimulationOutcome], workload: Workload, plan: Plan) -> str:
    if plan.departures is not None:
        return _answer_of_departures(outcomes)
    return (_answer_of_first_rejected if plan.until == REJECTED else answer)(outcomes, workload)


def answer(outcomes: Sequence[SimulationOutcome], workload: Workload) -> str:
    """Return the answer where pods stay: of the first seed, and what other orders of pods and nodes made of it."""
    first = outcomes[0]
    said = f"{first.policy}: {_how_many_run(outcomes, workload)}"
    allocated = 100 * _mean(_allocated_part(outcome.nodes) for outcome in outcomes)
    return f"{said}; {allocated:.1f} % of the GPUs are allocated{' on average' * bool(_spread(outcomes))}"


def _answer_of_first_rejected(outcomes: Sequence[SimulationOutcome], workload: Workload) -> str:
    first = outcomes[0]
    if all(first.accepted):
        return answer(outcomes, workload)
    ran = sum(first.accepted)
    before = "no pod runs" if not ran else f"{counted(ran, 'pod')} {_run(ran)}"
    allocated = f"{100 * _mean(outcome.allocated for outcome in outcomes):.1f} % of the GPUs that were free"
    asked, spread = workload.name(first.pods[-1]), _spread(outcomes)
    said = f"{first.policy}: {before} before one of {asked} finds no room{spread}; {allocated} are allocated"
    return said + " on average" * bool(spread)


def _answer_of_departures(outcomes: Sequence[SimulationOutcome]) -> str:
    first = outcomes[0]
    came, ran = len(first.pods), sum(first.accepted)
    of = f"all {came:,}" if came == ran else f"{ran:,} of {came:,}"
    rejected = f"{100 * _mean(outcome.rejected for outcome in outcomes):.1f} % of the GPU asked for was rejected"
    spread = _spread(outcomes)
    return f"{first.policy}: {of} pods that came found room{spread}; {rejected}{' on average' * bool(spread)}"


def _answer_of_needed(needed: Needed, inputs: Inputs) -> str:
    """Return how many nodes are needed, besides those that are there if some may be added."""
    number, low, pods = needed.nodes, min(needed.by_seed), len(inputs.workload.pods)
    these = f"all {counted(pods, 'pod')}" if needed.pods == pods else f"{needed.pods:,} of {counted(pods, 'pod')}"
    least = f"no policy needs fewer than {needed.least:,}, by the sums of GPU, CPU and memory"
    if not number:
        return f"{needed.policy}: no more nodes are needed: {these} run on those that are there"
    nodes = counted(number, "more node" if inputs.added is not None else "node")
    orders = f" ({low:,} in the best order)" if low < number else ""
    return f"{needed.policy}: {these} run on {nodes}{orders}; {least}"


def _allocated_part(nodes: Sequence[Start]) -> float:
    """Return which part of all shares of the GPUs in service pods have; 0.0 without such GPUs."""
    shares = [
        (size, free)
        for node in nodes
        for size, free in zip(node.shape.sizes, node.left.frees, strict=True)
        if free >= 0
    ]
    total = sum(size for size, _ in shares)
    return 1 - sum(free for _, free in shares) / total if total else 0.0


def _how_many_run(outcomes: Sequence[SimulationOutcome], workload: Workload) -> str:
    first = outcomes[0]
    came, ran = len(first.pods), sum(first.accepted)
    came_kinds = set(first.pods)
    of = f" of {workload.name(next(iter(came_kinds)))}" if len(came_kinds) == 1 else ""
    if ran == came:
        every = f"the pod{of} runs" if came == 1 else f"all {came:,} pods{of} run"
        return f"{every}{_spread(outcomes)}"
    refused = Counter(pod for pod, accepted in zip(first.pods, first.accepted, strict=True) if not accepted)
    some = f"{'none' if not ran else f'{ran:,}'} of {counted(came, 'pod')}{of} {_run(ran)}"
    return f"{some}{_spread(outcomes)}, {_reasons(refused, workload, first.nodes)}"


def _run(number: int) -> str:
    return "runs" if number == 1 else "run"


def _spread(outcomes: Sequence[SimulationOutcome]) -> str:
    """Return how many pods ran in all orders, in brackets, if these differ."""
    ran = [sum(outcome.accepted) for outcome in outcomes]
    return f" ({min(ran):,} to {max(ran):,} by their order)" if min(ran) < max(ran) else ""


def _reasons(refused: Mapping[int, int], workload: Workload, nodes: Sequence[Start]) -> str:
    shapes = list({node.shape: None for node in nodes})
    policy, reasons = ByFullness("binpack"), Counter[str]()
    there = [policy.appraise(node.shape, node.left) for node in nodes]
    nowhere = 0
    for kind, number in refused.items():
        if any(shape.hosts(workload.kinds[kind]) for shape in shapes):
            reasons[_lacking(workload.kinds[kind], there)] += number
        else:
            nowhere += number
    most = reasons.most_common(_MOST_REASONS)
    rest = reasons.total() - sum(number for _, number in most)
    waiting = [(number, why) for why, number in most] + [(rest, "for something else")] * bool(rest)
    verbs = (f" {'waits' if number == 1 else 'wait'}" * (not at) for at, (number, _) in enumerate(waiting))
    parts = [f"{number:,}{verb} {why}" for (number, why), verb in zip(waiting, verbs, strict=True)]
    if nowhere:
        parts.append(f"{nowhere:,} {'fits' if nowhere == 1 else 'fit'} on no node, not even on an empty one")
    return ", ".join(parts)


def _lacking(kind: PodKind, nodes: Sequence[tuple[Candidate, FreeCapacity]]) -> str:
    """Return what a pod waits for that fits on one of the nodes while that is empty."""
    ask = asked(kind)
    packer = Packer(ask.demands)
    room = [left for node, left in nodes if unfit(ask, node, packer) is None]
    if not room:
        return f"for {_gpu_room(kind)}"
    beside = f" beside {_gpu_room(kind)}" if kind.gpus else ""
    cpu = any(left.cpu_milli >= kind.cpu_milli for left in room)
    memory = any(left.memory_mib >= kind.memory_mib for left in room)
    if memory and not cpu:
        return f"for CPU{beside}"
    if cpu and not memory:
        return f"for memory{beside}"
    return f"for CPU and memory{beside}"


def _gpu_room(kind: PodKind) -> str:
    use, avoid = kind.selector.use_models, kind.selector.avoid_models
    which = f" of model {'|'.join(use)}" * bool(use) + f" of no model {'|'.join(avoid)}" * bool(avoid)
    if kind.shares:
        return f"room on one GPU{which}" if kind.gpus == 1 else f"room on {kind.gpus} GPUs{which} of one node"
    return f"a free GPU{which}" if kind.gpus == 1 else f"{kind.gpus} free GPUs{which} on one node"

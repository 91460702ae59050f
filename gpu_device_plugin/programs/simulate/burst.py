"""Guarantee pods less than they ask for, let them borrow the rest, and see who would be asked to return memory.

A pod asks for its limit. Its guarantee is the amount that it did not exceed for a given part of its recorded time. The
scheduler extender's policies place pods by their guarantees, and the rules of the node's agent
(`features.elastic.rules.reclaiming`) decide at each step of the recordings. What a pod used is taken as given: it
returns memory when its recorded use falls.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from operator import sub
from statistics import fmean
from typing import Any

from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimState
from gpu_device_plugin.features.eviction.rules import next_victims
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.programs.simulate.experiment import Plan, arrivals_of, run
from gpu_device_plugin.programs.simulate.model import Inputs, SimulationOutcome, Workload, counted
from gpu_device_plugin.programs.simulate.results import aligned
from gpu_device_plugin.report.rules.columns import Line, Tone
from gpu_device_plugin.settings.knobs import UsageError

Json = dict[str, Any]

_SHARE_MIB = 1024
_GPU = "gpu"
_MOMENT_S = 0.001
"""Between two evictions in one step."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of borrowing on one GPU, or on all."""

    asked: int = 0
    """How many times a pod was asked to return memory."""
    evicted: int = 0
    """Pods that still borrowed memory that was needed at the first step after the grace."""
    short: int = 0
    """Steps at which a GPU had less free memory than was guaranteed, counted for each GPU."""

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(self.asked + other.asked, self.evicted + other.evicted, self.short + other.short)


@dataclass(frozen=True, slots=True)
class Borrower:
    """A pod on one GPU."""

    guaranteed_mib: int
    limit_mib: int
    use_mib: Sequence[int]
    """At each step."""
    priority: int = 0


def simulate_burst(plan: Plan, inputs: Inputs, progress: Callable[[str, float], None]) -> Json:
    """Return what came of each choice of guarantees, beginning with what the pods ask for; means over the seeds.

    With each choice the same pods come in the same order.

    Raises:
        UsageError: the pods have no recorded use, or the nodes have MIG instances.
    """
    workload = inputs.workload
    if not workload.recordings:
        raise UsageError("--burst: the pods have no recorded use; give a file with it as --pods (docs/simulate.md)")
    if any(node.shape.whole < len(node.shape.sizes) for node in inputs.nodes):
        raise UsageError("--burst: MIG instances neither lend nor borrow; give nodes without them")
    policy = plan.policies[0]
    steps = max(len(each.use_gib) for each in workload.recordings)
    gpus = sum(node.shape.whole for node in inputs.nodes)
    choices: list[Json] = []
    for percent in (None, *plan.burst):
        chosen = replace(workload, kinds=guarantees(workload, percent))
        ran, replayed = list[int](), list[Replayed]()
        for seed in range(plan.seeds):
            progress(policy, (len(choices) + seed / plan.seeds) / (1 + len(plan.burst)))
            outcome = run(policy, inputs.nodes, chosen, arrivals_of(plan, inputs, seed), seed)
            ran.append(sum(outcome.accepted))
            replayed.append(_replay_all(outcome, chosen, workload.kinds, plan.return_grace_s, seed))
        choices.append(
            {
                "percent": percent,
                "guaranteedShares": round(
                    sum(chosen.kinds[pod].shares for pod in workload.pods) / len(workload.pods), 2
                ),
                "run": round(fmean(ran), 2),
                "asked": round(fmean(each.asked for each in replayed), 2),
                "evicted": round(fmean(each.evicted for each in replayed), 2),
                "short": round(fmean(each.short for each in replayed) / (steps * gpus), 5),
            }
        )
    return {
        "policy": policy,
        "answer": _answer(policy, choices, steps * workload.step_s),
        "seconds": steps * workload.step_s,
        "stepSeconds": workload.step_s,
        "returnGraceSeconds": plan.return_grace_s,
        "choices": choices,
    }


def guarantees(workload: Workload, percent: int | None) -> tuple[PodKind, ...]:
    """Return the kinds of pods with their guarantees for shares; `percent` None: as they are."""
    if percent is None:
        return workload.kinds
    found = []
    for kind, recording in zip(workload.kinds, workload.recordings, strict=True):
        # The least whole number of shares that it did not exceed for this part of the time.
        values = sorted(recording.use_gib)
        least = values[-(-percent * len(values) // 100) - 1]
        found.append(replace(kind, shares=min(kind.shares, max(1, -int(-least // 1)))))
    return tuple(found)


def _replay_all(
    outcome: SimulationOutcome, chosen: Workload, limits: Sequence[PodKind], grace_s: float, seed: int
) -> Replayed:
    """Let the pods that were placed use what they used, GPU by GPU."""
    rng = random.Random(seed)  # noqa: S311 - the same steps every time
    steps = max(len(each.use_gib) for each in chosen.recordings)
    came: set[int] = set()
    gpus: dict[tuple[int, int], list[Borrower]] = defaultdict(list)
    for kind, place in zip(outcome.pods, outcome.places, strict=True):
        if place is None:
            continue
        recording = chosen.recordings[kind]
        # The first pod of a recording plays it as it was; the others are not in step with it.
        begin = 0 if kind not in came else rng.randrange(len(recording.use_gib))
        came.add(kind)
        limit = limits[kind].shares * _SHARE_MIB
        use = islice(cycle([min(limit, round(gib * _SHARE_MIB)) for gib in recording.use_gib]), begin, begin + steps)
        row, (gpu, *_) = place
        guaranteed = chosen.kinds[kind].shares * _SHARE_MIB
        gpus[row, gpu].append(Borrower(guaranteed, limit, list(use), recording.priority))
    total = Replayed()
    for (row, gpu), pods in gpus.items():
        # Other pods on the GPU count as using exactly what they were granted.
        capacity = outcome.nodes[row].left.frees[gpu] * _SHARE_MIB + sum(pod.guaranteed_mib for pod in pods)
        total += replay(pods, capacity, grace_s, chosen.step_s)
    return total


def replay(pods: Sequence[Borrower], capacity_mib: int, grace_s: float, step_s: float) -> Replayed:
    """Let the pods of one GPU use what they used, and ask and evict them as the node's agent does.

    A pod that is evicted does not come again.
    """
    members = [Pod(f"{at}", "simulated", f"{at}", priority=pod.priority) for at, pod in enumerate(pods)]
    there = set(range(len(pods)))
    # By the rules of reclaiming a GPU is short where what is used, and what of the guarantees is not, exceeds it.
    needs = [[max(pod.guaranteed_mib, use) for use in pod.use_mib] for pod in pods]
    needed = [sum(step) for step in zip(*needs, strict=True)]
    state, asked, evictions, short_steps, last = ReclaimState(), 0, 0, 0, -1
    for step in range(len(needed)):
        if needed[step] <= capacity_mib:
            continue
        short_steps += 1
        if 0 <= last < step - 1:  # the shortage before was over with the next step
            over = UseReading((last + 1) * step_s)
            state = state.after(over, {}, {}, grace_s=grace_s, evicts=True)
        last = step
        for moment in range(len(pods) + 1):
            in_use = {_GPU: sum(pods[at].use_mib[step] for at in there)}
            reading = UseReading(step * step_s + moment * _MOMENT_S, (), in_use)
            uses = {_GPU: _uses(pods, members, there, step)}
            before = state
            state = before.after(reading, uses, {_GPU: capacity_mib}, grace_s=grace_s, evicts=True)
            asked += sum(each.mib > 0 and place not in before.requests for place, each in state.requests.items())
            victims = next_victims(state.candidates(), most_grace_s=0, going={})
            if not victims:
                break
            evictions += len(victims)
            for victim in map(int, victims):
                there.remove(victim)
                needed = list(map(sub, needed, needs[victim]))
    return Replayed(asked, evictions, short_steps)


def _uses(
    pods: Sequence[Borrower], members: Sequence[Pod], there: Collection[int], step: int
) -> tuple[AttributedUse, ...]:
    return tuple(
        AttributedUse(member.uid, "", _GPU, pod.guaranteed_mib, pod.use_mib[step], pod=member, limit_mib=pod.limit_mib)
        for at, (pod, member) in enumerate(zip(pods, members, strict=True))
        if at in there
    )


# --- What it gains and costs, for people ------------------------------------------------------------------------------


def _answer(policy: str, choices: Sequence[Json], seconds: float) -> str:
    """Return the most pods that run without an eviction."""
    asked_for, *others = choices
    best = max((each for each in others if not each["evicted"]), key=lambda each: each["run"], default=asked_for)
    if best["run"] <= asked_for["run"]:
        return (
            f"{policy}: no more than {_told(asked_for['run'])} pods run without evictions, with any of these guarantees"
        )
    return (
        f"{policy}: {_told(best['run'])} pods run instead of {_told(asked_for['run'])}, with a guarantee of what each "
        f"did not exceed for {best['percent']} % of the time; in {_time(seconds)} none is evicted, and "
        f"pods are asked {counted(round(best['asked']), 'time')} to return memory"
    )


def _time(seconds: float) -> str:
    days, hours = seconds / 86_400, seconds / 3600
    return f"{days:.1f} days" if days >= 2 else f"{hours:.1f} hours"


def _told(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


_COLUMNS: dict[str, Callable[[Json, Json], str]] = {
    "GUARANTEE": lambda each, _: "as requested" if each["percent"] is None else f"{each['percent']} % of the time",
    "SHARES": lambda each, _: f"{each['guaranteedShares']:.1f}",
    "RUN": lambda each, _: _told(each["run"]),
    "MORE": lambda each, first: "-" if each is first else f"{each['run'] - first['run']:+,.1f}".removesuffix(".0"),
    "ASKED": lambda each, _: _told(each["asked"]),
    "EVICTED": lambda each, _: _told(each["evicted"]),
    "SHORT": lambda each, _: f"{100 * each['short']:.1f} %",
}


def burst_table(document: Json) -> list[Line]:
    """Return the answer, and a row for each choice of guarantees."""
    choices = document["choices"]
    rows = [tuple(cell(each, choices[0]) for cell in _COLUMNS.values()) for each in choices]
    about = "guarantee: what a pod did not exceed in that fraction of the time; short: fraction of the GPUs' time"
    return [Line(document["answer"]), Line(""), *aligned(tuple(_COLUMNS), rows), Line(about, Tone.FAINT)]

"""What came of a simulation, policy by policy: means over the seeds, for people and for machines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.telling.tones import Line, Tone
from gpu_device_plugin.programs.simulate.classes import class_of, order
from gpu_device_plugin.programs.simulate.model import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.programs.simulate.experiment import Needed, Plan
    from gpu_device_plugin.programs.simulate.model import Outcome, Start
    from gpu_device_plugin.programs.simulate.sources import Inputs

VERSION = 1
"""Of the JSON document."""
_POINTS = 200
"""Of a curve."""


@dataclass(frozen=True, slots=True)
class Count:
    """Pods of one class, in all seeds together."""

    pods: int
    accepted: int

    @property
    def part(self) -> float:
        """The accepted part."""
        return self.accepted / self.pods


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one policy. Parts are means over the seeds, 1.0 being all."""

    policy: str
    at_100: float | None
    """GPU allocated, as a part of what was free, when as much had been asked for; None: that never happened, or pods
    left again."""
    at_end: float | None
    """The same after the last pod; None where pods leave."""
    rejected: float
    """The part of the GPU asked for that found no room."""
    cpu_s: float
    """Mean CPU time to place the pods of one seed, seconds."""
    classes: Mapping[str, Count]
    curve: tuple[tuple[float, float], ...]
    """Of the first seed: how much had been asked for, and how much of that was allocated, as parts of the GPUs."""
    by_seed: tuple[tuple[float, float], ...]
    """The accepted part of the capacity, and the rejected part of the demand, of each seed."""


def result_of(outcomes: Sequence[Outcome], inputs: Inputs, *, leaving: bool) -> Result:
    """Return the means over the outcomes of one policy; `leaving`: pods leave again."""
    unit = unit_of(inputs.nodes)
    names = [class_of(kind, unit) for kind in inputs.workload.kinds]
    pods: dict[str, int] = defaultdict(int)
    accepted: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        kinds = np.array(outcome.pods, np.int64)
        came = np.bincount(kinds, minlength=len(names)).tolist()
        ok = np.bincount(kinds[outcome.accepted], minlength=len(names)).tolist()
        for name, all_, some in zip(names, came, ok, strict=True):
            pods[name] += all_
            accepted[name] += some
    full = [outcome for outcome in outcomes if outcome.shares.sum() >= outcome.capacity > 0]
    reached = not leaving and len(full) == len(outcomes)
    return Result(
        outcomes[0].policy,
        _mean(outcome.allocated_at(1.0) for outcome in outcomes) if reached else None,
        None if leaving else _mean(outcome.allocated for outcome in outcomes),
        _mean(outcome.rejected for outcome in outcomes),
        _mean(outcome.cpu_s for outcome in outcomes),
        {name: Count(pods[name], accepted[name]) for name in sorted(pods, key=order) if pods[name]},
        _curve(outcomes[0]),
        tuple((outcome.allocated, outcome.rejected) for outcome in outcomes),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _curve(outcome: Outcome) -> tuple[tuple[float, float], ...]:
    if not outcome.capacity or not len(outcome.shares):
        return ()
    came = outcome.shares.cumsum() / outcome.capacity
    got = (outcome.shares * outcome.accepted).cumsum() / outcome.capacity
    at = np.unique(np.linspace(0, len(came) - 1, _POINTS).astype(np.int64))
    return ((0.0, 0.0), *((float(came[n]), float(got[n])) for n in at))


# --- For people -------------------------------------------------------------------------------------------------------


def heading(inputs: Inputs, plan: Plan) -> Line:
    """Return a line on what was simulated."""
    nodes, workload = inputs.nodes, inputs.workload
    gpus, instances = _hardware(nodes)
    there = [_number(gpus, "GPU"), *([_number(instances, "MIG instance")] if instances else [])]
    said = f"{_number(len(nodes), 'node')}, {', '.join(there)}; {_number(len(workload.pods), 'pod')} of "
    return Line(f"{said}{_number(len(workload.kinds), 'kind')}; {_number(plan.seeds, 'seed')}", Tone.FAINT)


def _hardware(nodes: Sequence[Start]) -> tuple[int, int]:
    """Return the number of GPUs, and that of MIG instances."""
    gpus = sum(node.shape.whole for node in nodes)
    return gpus, sum(len(node.shape.sizes) for node in nodes) - gpus


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def table(results: Sequence[Result], *, leaving: bool) -> list[Line]:
    """Return the table for people: the policies below each other, and then beside each other by class of pods."""
    first = [("POLICY", *(() if leaving else ("AT 100 %", "AT END")), "REJECTED", "SECONDS")]
    for each in results:
        allocated = () if leaving else (_percent(each.at_100), _percent(each.at_end))
        first.append((each.policy, *allocated, _percent(each.rejected), f"{each.cpu_s:.1f}"))
    second = [("ACCEPTED", "PODS", *(each.policy for each in results))]
    names = sorted({name for each in results for name in each.classes}, key=order)
    for name in names:
        # Where the first rejected pod ends a run, policies see different numbers of pods.
        pods = max(each.classes[name].pods if name in each.classes else 0 for each in results)
        parts = (_percent(each.classes[name].part if name in each.classes else None) for each in results)
        second.append((name, f"{pods:,}", *parts))
    about = "rejected: of the GPU that pods asked for, in %"
    if not leaving:
        about = f"at 100 %, at end: GPU allocated, in % of what was free at first; {about}"
    return [*_aligned(first), Line(about, Tone.FAINT), Line(""), *_aligned(second)]


def needed_table(needed: Sequence[Needed]) -> list[Line]:
    """Return the table of how many nodes each policy needs."""
    rows = [("POLICY", "NODES", "BY SEED", "AT LEAST")]
    for each in needed:
        low, high = min(each.by_seed), max(each.by_seed)
        rows.append(
            (each.policy, f"{each.nodes:,}", f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{each.least:,}")
        )
    about = "nodes: enough for every seed; at least: by the sums of GPU, CPU and memory, whatever the policy"
    return [*_aligned(rows), Line(about, Tone.FAINT)]


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[Line]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for at, row in enumerate(rows):
        cells = [
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(Line("  ".join(cells).rstrip(), Tone.PLAIN if at else Tone.HEADING))
    return lines


# --- For machines -----------------------------------------------------------------------------------------------------


def document(inputs: Inputs, plan: Plan, results: Sequence[Result]) -> dict[str, object]:
    """Return everything as JSON has it."""
    return {
        **_about(inputs, plan),
        "policies": [
            {
                "policy": each.policy,
                "allocatedAt100": _rounded(each.at_100),
                "allocatedAtEnd": _rounded(each.at_end),
                "rejected": _rounded(each.rejected),
                "cpuSeconds": round(each.cpu_s, 3),
                "classes": [
                    {"class": name, "pods": count.pods, "accepted": count.accepted}
                    for name, count in each.classes.items()
                ],
                "seeds": [{"accepted": _rounded(got), "rejected": _rounded(refused)} for got, refused in each.by_seed],
            }
            for each in results
        ],
    }


def needed_document(inputs: Inputs, plan: Plan, needed: Sequence[Needed]) -> dict[str, object]:
    """Return how many nodes are needed as JSON has it."""
    return {
        **_about(inputs, plan),
        "policies": [
            {"policy": each.policy, "nodes": each.nodes, "seeds": list(each.by_seed), "atLeast": each.least}
            for each in needed
        ],
    }


def _about(inputs: Inputs, plan: Plan) -> dict[str, object]:
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
        "cold": plan.cold,
        "notes": list(inputs.notes),
    }


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 5)

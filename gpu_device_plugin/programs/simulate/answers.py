"""The answer to the question in words, a line for each policy: how many pods run, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.programs.simulate.model import counted
from gpu_device_plugin.programs.simulate.rooms import rooms_of
from gpu_device_plugin.programs.simulate.states import states_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.programs.simulate.experiment import Needed
    from gpu_device_plugin.programs.simulate.model import Outcome, Start, Workload
    from gpu_device_plugin.programs.simulate.rooms import Rooms

_MOST_REASONS = 3


def answer(outcomes: Sequence[Outcome], workload: Workload) -> str:
    """Return the answer where pods stay: of the first seed, with what other orders of pods and nodes made of it."""
    first = outcomes[0]
    said = f"{first.policy}: {_how_many_run(outcomes, workload)}"
    return f"{said}; {100 * given_out(first.nodes):.1f} % of the GPUs are given out"


def answer_of_first_rejected(outcomes: Sequence[Outcome], workload: Workload) -> str:
    """Return the answer where the first pod that finds no room ends a run."""
    first = outcomes[0]
    if first.accepted.all():
        return answer(outcomes, workload)
    ran = int(first.accepted.sum())
    before = "no pod runs" if not ran else f"{counted(ran, 'pod')} {_run(ran)}"
    allocated = f"{100 * first.allocated:.1f} % of the GPUs that were free"
    asked = workload.name(first.pods[-1])
    return f"{first.policy}: {before} before one of {asked} finds no room{_spread(outcomes)}; {allocated} are given out"


def answer_of_departures(outcomes: Sequence[Outcome]) -> str:
    """Return the answer where pods leave again."""
    first = outcomes[0]
    came, ran = len(first.pods), int(first.accepted.sum())
    found = (
        f"all {came:,} pods that came found room" if came == ran else f"{ran:,} of {came:,} pods that came found room"
    )
    return f"{first.policy}: {found}{_spread(outcomes)}; {100 * first.rejected:.1f} % of the GPU asked for was refused"


def answer_of_needed(needed: Needed, pods: int, *, beside: bool) -> str:
    """Return how many nodes are needed for so many pods; `beside`: besides those that are there."""
    number, low = needed.nodes, min(needed.by_seed)
    these = f"all {counted(pods, 'pod')}" if needed.pods == pods else f"{needed.pods:,} of {counted(pods, 'pod')}"
    least = f"by the sums of GPU, CPU and memory no policy needs fewer than {needed.least:,}"
    if not number:
        return f"{needed.policy}: no more nodes are needed: {these} run on those that are there"
    nodes = counted(number, "more node" if beside else "node")
    orders = f" in every order of pods and nodes that was tried, {low:,} in the best" if low < number else ""
    return f"{needed.policy}: {these} run on {nodes}{orders}; {least}"


def given_out(nodes: Sequence[Start]) -> float:
    """Return which part of all shares of the GPUs in service pods have; 0.0 without such GPUs."""
    shares = [
        (size, free)
        for node in nodes
        for size, free in zip(node.shape.sizes, node.left.frees, strict=True)
        if free >= 0
    ]
    total = sum(size for size, _ in shares)
    return 1 - sum(free for _, free in shares) / total if total else 0.0


# --- Parts of sentences -----------------------------------------------------------------------------------------------


def _how_many_run(outcomes: Sequence[Outcome], workload: Workload) -> str:
    first = outcomes[0]
    came, ran = len(first.pods), int(first.accepted.sum())
    came_kinds = set(first.pods)
    of = f" of {workload.name(next(iter(came_kinds)))}" if len(came_kinds) == 1 else ""
    if ran == came:
        every = f"the pod{of} runs" if came == 1 else f"all {came:,} pods{of} run"
        return f"{every}{_spread(outcomes)}"
    refused = Counter(pod for pod, accepted in zip(first.pods, first.accepted.tolist(), strict=True) if not accepted)
    some = f"{'none' if not ran else f'{ran:,}'} of {counted(came, 'pod')}{of} {_run(ran)}"
    return f"{some}{_spread(outcomes)}, {_reasons(refused, workload, first.nodes)}"


def _run(number: int) -> str:
    return "runs" if number == 1 else "run"


def _spread(outcomes: Sequence[Outcome]) -> str:
    """Return how many pods ran in all orders, in brackets, if these differ."""
    ran = [int(outcome.accepted.sum()) for outcome in outcomes]
    return f" ({min(ran):,} to {max(ran):,} by their order)" if min(ran) < max(ran) else ""


def _reasons(refused: Mapping[int, int], workload: Workload, nodes: Sequence[Start]) -> str:
    """Return how many pods wait for what, the most first."""
    rooms = rooms_of([(node.shape, node.left) for node in nodes])
    shapes = list({node.shape: None for node in nodes})
    reasons: Counter[str] = Counter()
    nowhere = 0
    for kind, number in refused.items():
        if any(shape.hosts(workload.kinds[kind]) for shape in shapes):
            reasons[_lacking(workload.kinds[kind], rooms)] += number
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


def _lacking(kind: PodKind, rooms: Rooms) -> str:
    """Return what a pod waits for that fits on one of the nodes while that is empty."""
    room = states_after(kind, rooms, np.arange(len(rooms)))[1].any(1)
    cpu, memory = rooms.cpu >= kind.cpu_milli, rooms.memory >= kind.memory_mib
    if not room.any():
        return f"for {_gpu_room(kind)}"
    beside = f" beside {_gpu_room(kind)}" if kind.gpus else ""
    if (room & memory).any() and not (room & cpu).any():
        return f"for CPU{beside}"
    if (room & cpu).any() and not (room & memory).any():
        return f"for memory{beside}"
    return f"for CPU and memory{beside}"


def _gpu_room(kind: PodKind) -> str:
    use, avoid = kind.wishes.use_models, kind.wishes.avoid_models
    which = f" of model {'|'.join(use)}" * bool(use) + f" of no model {'|'.join(avoid)}" * bool(avoid)
    if kind.shares:
        return f"room on one GPU{which}" if kind.gpus == 1 else f"room on {kind.gpus} GPUs{which} of one node"
    return f"a free GPU{which}" if kind.gpus == 1 else f"{kind.gpus} free GPUs{which} on one node"

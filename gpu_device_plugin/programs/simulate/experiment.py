"""Let several policies place the same pods in the same orders, or find how many nodes each of them needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.worth.appraising import Left
from gpu_device_plugin.core.worth.shapes import needs_gpus
from gpu_device_plugin.programs.simulate.arrivals import as_listed, departing, until
from gpu_device_plugin.programs.simulate.model import Arrivals, Start, shares_of
from gpu_device_plugin.programs.simulate.run import run
from gpu_device_plugin.programs.simulate.sources import told
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.core.worth.shapes import Shape
    from gpu_device_plugin.programs.simulate.model import Outcome, Workload
    from gpu_device_plugin.programs.simulate.sources import Inputs

REJECTED = "rejected"
_BEYOND = 1.01
"""Pods that ask for more than there is: one of them must be rejected."""
MOST_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the pods."""

    policies: tuple[str, ...]
    seeds: int = 3
    until: float | str | None = None
    """How much the pods ask for, as a part of the GPUs; `REJECTED`: to the first that finds no room; None: each pod of
    the list comes once."""
    departures: float | None = None
    """The load under which pods come and leave, as a part of the GPUs; None: nobody leaves."""
    cold: bool = False


def simulate(plan: Plan, inputs: Inputs, progress: Callable[[str, float], None]) -> Mapping[str, tuple[Outcome, ...]]:
    """Return the outcome of each seed, by policy; `progress` gets the policy, and which part of all is done.

    Raises:
        EndlessError: the pods ask for too little.
    """
    found: dict[str, tuple[Outcome, ...]] = {}
    total = len(plan.policies) * plan.seeds
    for policy in plan.policies:
        outcomes: list[Outcome] = []
        for seed in range(plan.seeds):
            arrivals = _arrivals(plan, inputs, seed)
            done = len(found) * plan.seeds + seed

            def advance(came: int, all_: int = len(arrivals.pods), done: int = done, policy: str = policy) -> None:
                progress(policy, (done + came / max(1, all_)) / total)

            outcome = run(policy, inputs.nodes, inputs.workload, arrivals, seed, cold=plan.cold, progress=advance)
            outcomes.append(_to_first_rejected(outcome) if plan.until == REJECTED else outcome)
        found[policy] = tuple(outcomes)
    return found


def _arrivals(plan: Plan, inputs: Inputs, seed: int) -> Arrivals:
    workload, nodes = inputs.workload, inputs.nodes
    if plan.departures is not None:
        return departing(workload, nodes, seed, plan.departures)
    if plan.until is not None:
        over = _BEYOND if isinstance(plan.until, str) else plan.until
        return until(workload, nodes, seed, over)
    return as_listed(workload) if inputs.ordered else shuffled(workload, seed)


def shuffled(workload: Workload, seed: int) -> Arrivals:
    """Return each pod of the list once, in an order by the seed."""
    pods: list[int] = np.random.default_rng(seed).permutation(np.array(workload.pods, np.int64)).tolist()
    return Arrivals(pods)


def _to_first_rejected(outcome: Outcome) -> Outcome:
    """Return what came before the first pod that found no room, and this pod."""
    accepted = outcome.accepted
    end = len(accepted) if accepted.all() else int(accepted.argmin()) + 1
    return replace(outcome, pods=outcome.pods[:end], accepted=accepted[:end], shares=outcome.shares[:end])


@dataclass(frozen=True, slots=True)
class Needed:
    """How many nodes a policy needs, so that no pod is rejected."""

    policy: str
    by_seed: tuple[int, ...]
    least: int
    """No policy could do with fewer: the sums of GPUs, CPU or memory alone need so many."""

    @property
    def nodes(self) -> int:
        """Enough for every seed."""
        return max(self.by_seed)


def nodes_needed(plan: Plan, inputs: Inputs, progress: Callable[[str, float], None]) -> tuple[Needed, ...]:
    """Return how many nodes of the kind given each policy needs for all pods, on empty nodes.

    The number is found by doubling and then halving the interval, as if more nodes were never worse. That nearly always
    holds, and a smaller number that happens to be enough too is not looked for.

    Raises:
        UsageError: the nodes are of several kinds, a pod fits on none, or more than `MOST_NODES` would be needed.
    """
    shape = _only_shape(inputs)
    workload = inputs.workload
    for kind in workload.kinds:
        if not shape.hosts(kind):
            raise UsageError(
                f"--nodes-needed: a pod that asks for {told(kind)} does not fit on an empty node; take it out of "
                "--pods, or give larger nodes"
            )
    least = _least(shape, workload)
    total = len(plan.policies) * plan.seeds
    found: list[Needed] = []
    for policy in plan.policies:
        numbers: list[int] = []
        for seed in range(plan.seeds):
            progress(policy, (len(found) * plan.seeds + seed) / total)
            arrivals = as_listed(workload) if inputs.ordered else shuffled(workload, seed)

            def enough(number: int, policy: str = policy, seed: int = seed, arrivals: Arrivals = arrivals) -> bool:
                nodes = [_empty(shape, at) for at in range(number)]
                return bool(run(policy, nodes, workload, arrivals, seed, cold=plan.cold).accepted.all())

            numbers.append(fewest(enough, least))
        found.append(Needed(policy, tuple(numbers), least))
    progress(plan.policies[-1], 1.0)
    return tuple(found)


def fewest(enough: Callable[[int], bool], least: int) -> int:
    """Return the fewest that are enough, at least `least`.

    Raises:
        UsageError: `MOST_NODES` are not.
    """
    low, high = least - 1, least
    while not enough(min(high, MOST_NODES)):
        if high >= MOST_NODES:
            raise UsageError(f"--nodes-needed: {MOST_NODES:,} nodes are not enough; give fewer pods, or larger nodes")
        low, high = high, high * 2
    high = min(high, MOST_NODES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _only_shape(inputs: Inputs) -> Shape:
    shapes = {node.shape for node in inputs.nodes}
    if len(shapes) > 1:
        raise UsageError(
            f"--nodes-needed: the nodes are of {len(shapes)} kinds; give one kind, "
            "as in --nodes '1x gpus=4 mem=24 cpu=64'"
        )
    return next(iter(shapes))


def _empty(shape: Shape, at: int) -> Start:
    return Start(f"node-{at + 1}", shape, Left(shape.sizes, shape.cpu_milli, shape.memory_mib))


def _least(shape: Shape, workload: Workload) -> int:
    whole = min((gpu.size for gpu in shape.gpus if not gpu.instance), default=0)
    kinds = [workload.kinds[pod] for pod in workload.pods]
    wanted = (
        (sum(shares_of(kind, whole) for kind in kinds), sum(shape.sizes)),
        (sum(shares_of(kind, whole) for kind in kinds if needs_gpus(kind)), shape.whole_shares),
        (sum(kind.gpus for kind in kinds if not kind.shares), shape.whole),
        (sum(kind.cpu_milli for kind in kinds), shape.cpu_milli),
        (sum(kind.memory_mib for kind in kinds), shape.memory_mib),
    )
    least = max(-(-int(asked) // there) for asked, there in wanted if there)
    if least > MOST_NODES:
        raise UsageError(
            f"--nodes-needed: {least:,} nodes are needed by the sums alone; give fewer pods, or larger nodes"
        )
    return max(1, least)

"""Let several policies place the same pods in the same orders, or find how many nodes each of them needs."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from gpu_device_plugin.features.learning.rules.arrivals import ByFullness, Placer, Policy, Start
from gpu_device_plugin.features.learning.rules.marginal_value import Appraiser, FreeCapacity
from gpu_device_plugin.features.learning.rules.price_learning import learning
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, needs_gpus
from gpu_device_plugin.programs.simulate.model import (
    Inputs,
    SimulationOutcome,
    Workload,
    capacity_of,
    demand_of,
    departing,
    shares_of,
    told,
    until,
)
from gpu_device_plugin.scheduler.rules.packing import finished
from gpu_device_plugin.settings.knobs import UsageError

POLICIES = ("fit", "binpack", "spread")
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
    skip_misfits: bool = False
    """The nodes needed are those for the pods that fit on them; others may find no room."""
    burst: tuple[int, ...] = ()
    """The guarantees to try, in % of the recorded time."""
    return_grace_s: float = 30.0
    """How long a borrower has to return memory."""


def policy_of(name: str, nodes: Sequence[Start], workload: Workload) -> Policy:
    """Return one of `POLICIES`; `fit` knows which pods will come."""
    return Appraiser(finished(learning(workload.mix(), gpu_nodes(nodes)))) if name == "fit" else ByFullness(name)


def gpu_nodes(nodes: Iterable[Start]) -> Mapping[NodeType, int]:
    """Return how many nodes with GPUs there are of each type."""
    return Counter(node.shape for node in nodes if node.shape.sizes)


def run(
    policy: str,
    nodes: Sequence[Start],
    workload: Workload,
    pods: Sequence[int],
    seed: int,
    *,
    stays: Sequence[int] = (),
    placing: Callable[[Sequence[Start]], Placer] | None = None,
    progress: Callable[[int], None] = lambda _done: None,
    watch: Callable[[int, Sequence[FreeCapacity]], None] = lambda _came, _lefts: None,
) -> SimulationOutcome:
    """Let pods come, and return which of them found room; a pod that finds none does not come again.

    `policy` is a name in `POLICIES`, unless `placing` is given, which makes the placer for nodes. `pods` are places in
    `Workload.kinds`. `seed` is that of the order of nodes: of equal ones the first is chosen. `stays` says how long
    each pod stays, counted in arrivals: with 1 it has left when the next one comes. Without it nobody leaves.
    `progress` is called now and then with how many pods have come; `watch` after each pod, with what nodes have left.
    """
    ordered = random.Random(seed).sample(nodes, len(nodes))  # noqa: S311 - the same order every time
    began = time.process_time()
    placer = placing(ordered) if placing else Placer(ordered, workload.kinds, policy_of(policy, ordered, workload))
    leaving: dict[int, list[int]] = defaultdict(list)
    for n, stay in enumerate(stays):
        leaving[n + stay].append(n)
    for n, kind in enumerate(pods):
        if not n % 100:
            progress(n)
        for gone in leaving.get(n, ()):
            placer.leave(gone)
        placer.come(kind)
        watch(n + 1, placer.lefts)
    progress(len(pods))
    places = [place for _, place in placer.came]
    demand = demand_of(workload, nodes)
    return SimulationOutcome(
        policy,
        pods,
        [place is not None for place in places],
        [demand[kind] for kind in pods],
        capacity_of(nodes),
        time.process_time() - began,
        tuple([replace(node, left=left) for node, left in zip(ordered, placer.lefts, strict=True)]),
        places,
    )


def simulate(
    plan: Plan, inputs: Inputs, progress: Callable[[str, float], None]
) -> Mapping[str, tuple[SimulationOutcome, ...]]:
    """Return the outcome of each seed, by policy; `progress` gets the policy, and which part of all is done.

    Raises:
        UsageError: the pods ask for too little.
    """
    found: dict[str, tuple[SimulationOutcome, ...]] = {}
    total = len(plan.policies) * plan.seeds
    for policy in plan.policies:
        outcomes: list[SimulationOutcome] = []
        for seed in range(plan.seeds):
            pods, stays = pods_and_stays(plan, inputs, seed)
            done = len(found) * plan.seeds + seed

            def advance(came: int, all_: int = len(pods), done: int = done, policy: str = policy) -> None:
                progress(policy, (done + came / max(1, all_)) / total)

            outcome = run(policy, inputs.nodes, inputs.workload, pods, seed, stays=stays, progress=advance)
            outcomes.append(_to_first_rejected(outcome) if plan.until == REJECTED else outcome)
        found[policy] = tuple(outcomes)
    return found


def pods_and_stays(plan: Plan, inputs: Inputs, seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the pods in the order in which they come with this seed, and how long each stays, as `run` takes both.

    Raises:
        UsageError: the pods ask for too little.
    """
    if plan.departures is None:
        return arrivals_of(plan, inputs, seed), ()
    return departing(inputs.workload, inputs.nodes, seed, plan.departures)


def arrivals_of(plan: Plan, inputs: Inputs, seed: int) -> Sequence[int]:
    """Return the pods in the order in which they come with this seed, as places in `Workload.kinds`; they stay.

    Raises:
        UsageError: the pods ask for too little.
    """
    workload = inputs.workload
    if plan.until is not None:
        return until(workload, inputs.nodes, seed, _BEYOND if isinstance(plan.until, str) else plan.until)
    if inputs.ordered:
        return workload.pods
    return random.Random(seed).sample(workload.pods, len(workload.pods))  # noqa: S311 - the same order every time


def _to_first_rejected(outcome: SimulationOutcome) -> SimulationOutcome:
    """Return what came before the first pod that found no room, and this pod."""
    end = [*outcome.accepted, False].index(False) + 1
    columns = ("pods", "accepted", "shares", "places")
    return replace(outcome, **{name: getattr(outcome, name)[:end] for name in columns})


@dataclass(frozen=True, slots=True)
class Needed:
    """How many nodes a policy needs, so that no pod is rejected."""

    policy: str
    by_seed: tuple[int, ...]
    least: int
    """No policy could do with fewer: the sums of GPUs, CPU or memory alone need so many."""
    pods: int
    """How many pods run then, with the first seed."""

    @property
    def nodes(self) -> int:
        """Enough for every seed."""
        return max(self.by_seed)


def nodes_needed(plan: Plan, inputs: Inputs, progress: Callable[[str, float], None]) -> tuple[Needed, ...]:
    """Return how many nodes each policy needs for all pods: of the kind that may be added, beside those that are there.

    Without such a kind the nodes must be of one kind, and only empty ones of it count. The number is found by doubling
    and then halving the interval, as if more nodes were never worse. That nearly always holds, and a smaller number
    that happens to be enough too is not looked for.

    Raises:
        UsageError: the nodes are of several kinds, a pod fits on none, or more than `MOST_NODES` would be needed.
    """
    search = _Search(plan, inputs)
    found: list[Needed] = []
    for policy in plan.policies:
        numbers: list[int] = []
        for seed in range(plan.seeds):
            done = (len(found) + seed / plan.seeds) / len(plan.policies)

            def trying(number: int, done: float = done, policy: str = policy) -> None:
                progress(f"{policy}, {number:,} nodes", done)

            numbers.append(search.fewest(policy, seed, trying))
        found.append(Needed(policy, tuple(numbers), search.least, search.runs(policy, numbers[0])))
    progress(plan.policies[-1], 1.0)
    return tuple(found)


class _Search:
    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self._plan, self._inputs, workload = plan, inputs, inputs.workload
        self._there = inputs.nodes if inputs.added is not None else ()
        shapes = {node.shape for node in (inputs.nodes if inputs.added is None else (inputs.added,))}
        if len(shapes) > 1:
            raise UsageError(
                f"--nodes-needed: the nodes are of {len(shapes)} kinds; name the kind that you would add to them, "
                "as in --nodes-needed '4x H100 cpu=64'"
            )
        (self._shape,) = shapes
        fits = [self._shape.hosts(kind) for kind in workload.kinds]
        self._misfits = [kind for kind, fit in zip(workload.kinds, fits, strict=True) if not fit]
        if self._misfits and not self._there:
            raise _misfit("does not fit on an empty node", self._misfits)
        self._may_fail = [plan.skip_misfits and not fit for fit in fits]
        self.least = _least(self._shape, self._there, [workload.kinds[pod] for pod in workload.pods if fits[pod]])
        # With a node for each pod no pod is rejected but those that fit on no such node.
        self._most = min(MOST_NODES, max(self.least, len(workload.pods)))

    def fewest(self, policy: str, seed: int, trying: Callable[[int], None]) -> int:
        def enough(number: int) -> bool:
            trying(number)
            outcome = self._run(policy, seed, number)
            return all(ok or self._may_fail[pod] for ok, pod in zip(outcome.accepted, outcome.pods, strict=True))

        number = fewest(enough, self.least, self._most)
        if number is None and self._misfits:
            raise _misfit("finds no room on the nodes that are there, and fits on none that is added", self._misfits)
        if number is None:
            raise UsageError(f"--nodes-needed: {self._most:,} nodes are not enough; give fewer pods, or larger nodes")
        return number

    def runs(self, policy: str, number: int) -> int:
        return sum(self._run(policy, 0, number).accepted)

    def _run(self, policy: str, seed: int, number: int) -> SimulationOutcome:
        nodes = [*self._there, *[Start.empty(f"node-{at + 1}", self._shape) for at in range(number)]]
        pods = arrivals_of(self._plan, self._inputs, seed)
        return run(policy, nodes, self._inputs.workload, pods, seed)


def _misfit(why: str, kinds: Sequence[PodKind]) -> UsageError:
    return UsageError(
        f"--nodes-needed: a pod that asks for {told(kinds[0])} {why}; take it out of --pods, name larger nodes, or "
        "leave such pods out with --skip-misfits"
    )


def fewest(enough: Callable[[int], bool], least: int, most: int = MOST_NODES) -> int | None:
    """Return the fewest that are enough, from `least` to `most`; None: these are not enough."""
    low, high = least - 1, least
    while not enough(min(high, most)):
        if high >= most:
            return None
        low, high = high, max(1, high * 2)
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least(shape: NodeType, there: Sequence[Start], kinds: Sequence[PodKind]) -> int:
    """Return how many nodes of a shape the sums alone need for pods of these kinds, beside the room that is there."""
    whole = min((gpu.size for gpu in shape.gpus if not gpu.instance), default=0)
    none, each = (0,) * 5, _room(Start.empty("", shape))
    asked = map(sum, zip(none, *[_amounts(kind, whole) for kind in kinds], strict=True))
    room = map(sum, zip(none, *map(_room, there), strict=True))
    missing = [wanted - has for wanted, has in zip(asked, room, strict=True)]
    least = max([0, *[ceil(lacking / more) for lacking, more in zip(missing, each, strict=True) if more]])
    if least > MOST_NODES:
        raise UsageError(
            f"--nodes-needed: {least:,} nodes are needed by the sums alone; give fewer pods, or larger nodes"
        )
    return least if there else max(1, least)


def _amounts(kind: PodKind, whole: int) -> tuple[float, ...]:
    """Return what a pod takes of everything that `_room` counts."""
    shares = shares_of(kind, whole)
    of_gpus, gpus = shares if needs_gpus(kind) else 0, 0 if kind.shares else kind.gpus
    return shares, of_gpus, gpus, kind.cpu_milli, kind.memory_mib


def _room(node: Start) -> tuple[float, ...]:
    """Return the free shares of a node, those of its GPUs, the number of free GPUs, its CPU and its memory."""
    left = node.left
    of_gpus = [(free, gpu.size) for free, gpu in zip(left.frees, node.shape.gpus, strict=True) if not gpu.instance]
    shares = sum(free for free, _ in of_gpus if free > 0)
    return left.shares, shares, sum(free == size for free, size in of_gpus), left.cpu_milli, left.memory_mib

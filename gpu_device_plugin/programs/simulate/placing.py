"""Let pods come to nodes, and go, under one of the policies of the scheduler extender."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.cluster.packing import finished
from gpu_device_plugin.core.value.placing import ByFullness, ByValue, Placer
from gpu_device_plugin.core.value.price_learning import learning
from gpu_device_plugin.programs.simulate.model import SimulationOutcome, capacity_of, demand_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.value.placing import Policy, Start
    from gpu_device_plugin.core.value.workload_mix import NodeType
    from gpu_device_plugin.programs.simulate.model import Workload

POLICIES = ("fit", "binpack", "spread")


def policy_of(name: str, nodes: Sequence[Start], workload: Workload) -> Policy[Any]:
    """Return one of `POLICIES`; `fit` knows which pods will come."""
    return ByValue(finished(learning(workload.mix(), gpu_nodes(nodes)))) if name == "fit" else ByFullness(name)


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
) -> SimulationOutcome:
    """Let pods come, and return which of them found room; a pod that finds none does not come again.

    `policy` is a name in `POLICIES`, unless `placing` is given, which makes the placer for nodes. `pods` are places in
    `Workload.kinds`. `seed` is that of the order of nodes: of equal ones the first is chosen. `stays` says how long
    each pod stays, counted in arrivals: with 1 it has left when the next one comes. Without it nobody leaves.
    `progress` is called now and then with how many pods have come.
    """
    ordered = random.Random(seed).sample(nodes, len(nodes))  # noqa: S311 - the same order every time
    began = time.process_time()
    placer = placing(ordered) if placing else Placer(ordered, workload.kinds, policy_of(policy, ordered, workload))
    leaving: dict[int, list[int]] = defaultdict(list)
    for n, stay in enumerate(stays):
        leaving[n + stay].append(n)
    for n, kind in enumerate(pods):
        if not n % 500:
            progress(n)
        for gone in leaving.get(n, ()):
            placer.leave(gone)
        placer.come(kind)
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

"""How long the active extender takes to work out which nodes waiting pods need, and which nodes may go.

``python -m bench.need [--nodes 5000] [--pods 1000]`` prints a table. All nodes are full, GPU by GPU, and the waiting
pods are of as many kinds as those of bench.synthetic's cluster.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.features.capacity.rules.leaving import leaving
from gpu_device_plugin.features.capacity.rules.movable import PlannedPod
from gpu_device_plugin.features.capacity.rules.node_kinds import Needs, kind_of, needed
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from gpu_device_plugin.scheduler.rules.candidate import Candidate

T = TypeVar("T")

_TYPES = (("A10", 4, 22), ("A100", 8, 80), ("H200", 8, 140), ("T4", 1, 15), ("L4", 2, 23))
_SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40)


def nodes_of(number: int, rng: random.Random) -> tuple[dict[str, Candidate], dict[str, list[PlannedPod]]]:
    """Return nodes on which pods take about three quarters of each GPU, and these pods."""
    nodes: dict[str, Candidate] = {}
    pods: dict[str, list[PlannedPod]] = {}
    for at in range(number):
        model, gpus, size = _TYPES[at % len(_TYPES)]
        name = f"node-{at}"
        listed = NodeGpus(tuple(ListedGpu(n, size, f"GPU-{at}-{n}", model) for n in range(gpus)), share_mib=1024)
        there: list[PlannedPod] = []
        for gpu in range(gpus):
            left = round(size * rng.uniform(0.6, 0.9))
            while left > 0:
                part = min(left, rng.choice(_SIZES))
                left -= part
                usage = Usage(((gpu, part),))
                asked = GpuRequest((Part(Demand(Kind.MEMORY, part)),))
                there.append(PlannedPod(GpuConsumer(f"{name}-{len(there)}", usage, name=f"p{len(there)}"), asked))
        usages = [pod.pod.usage for pod in there]
        nodes[name] = candidate(name, listed, usages, Amounts(96_000, 400_000))
        pods[name] = there
    return nodes, pods


def steps(work: Generator[None, None, T]) -> tuple[T, float, float]:
    """Return the result, the time of all steps and that of the longest, in ms."""
    longest = total = 0.0
    while True:
        began = time.perf_counter()
        try:
            next(work)
            done = None
        except StopIteration as end:
            done = end
        took = (time.perf_counter() - began) * 1000
        longest, total = max(longest, took), total + took
        if done is not None:
            return done.value, total, longest


def waiting(number: int, rng: random.Random) -> Mapping[Needs, int]:
    """Return pods of every size, and some of whole GPUs, each with CPU and memory of its own."""
    found: dict[Needs, int] = {}
    for _ in range(number):
        whole = rng.random() < 0.15
        demand = Demand(Kind.COUNT, rng.choice((1, 2, 4))) if whole else Demand(Kind.MEMORY, rng.choice(_SIZES))
        amounts = Amounts(rng.choice((500, 1000, 4000)), rng.choice((1024, 8192)))
        needs = Needs(GpuRequest((Part(demand),)), NO_TERMS, amounts)
        found[needs] = found.get(needs, 0) + 1
    return found


def with_room(kinds: Iterable[Needs], evaluator: NodeEvaluator, names: list[str]) -> Generator[None, None, int]:
    """Return how many kinds of pods have room on a node, as the extender looks at it before it asks for any."""
    found = 0
    for kind in kinds:
        found += None in evaluator.verdicts(kind.ask, names)
        yield
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    given = parser.parse_args()
    gc.disable()  # as rarely as the extender has it collect
    rng = random.Random(0)  # noqa: S311 - repeatable
    nodes, pods = nodes_of(given.nodes, rng)
    types = {node.gpus.gpus[0].model: kind_of(node, {}, (), frozenset()) for node in nodes.values()}
    kinds = waiting(given.pods, rng)
    view = View(lambda: None)
    for name, node in nodes.items():
        view.put(name, node)
    evaluator = NodeEvaluator(view)
    evaluator.prepare()
    roomy, total, longest = steps(with_room(kinds, evaluator, list(nodes)))
    print(f"| {given.nodes:,} nodes judged for {len(kinds)} kinds of pods, {roomy} of which have room |"
          f" {total:.0f} ms | {longest:.1f} ms |")  # fmt: skip
    need, total, longest = steps(needed(kinds, list(types.values())))
    running = sum(map(len, pods.values()))
    print(f"| {given.pods:,} pods of {len(kinds)} kinds need {len(need)} nodes, of {len(types)} types |"
          f" {total:.0f} ms | {longest:.1f} ms |")  # fmt: skip
    found, total, longest = steps(leaving(nodes, pods, {}))
    print(f"| of {given.nodes:,} nodes with {running:,} pods {len(found.may_go):,} may go |"
          f" {total:.0f} ms | {longest:.1f} ms |")  # fmt: skip


if __name__ == "__main__":
    main()

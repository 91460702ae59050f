"""Measure what a decision waits for while an extender learns from hostile pods: ``python -m bench.learning``.

1,000 nodes of 200 shapes and as many models, and bound pods of 16 containers whose wishes for models take 8 KB. A
harmless pod is scored again and again meanwhile, with as many turns of the event loop as a call over HTTP takes. All
times are CPU time of the event loop: what else runs on the machine is not in them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from bench import synthetic
from bench.node_agent import Row, machine, percentiles, show
from gpu_device_plugin.features.learning.scheduler import Learner
from gpu_device_plugin.model.contract.keys import AVOID_MODEL, USE_MODEL
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.scheduler.contexts import context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BAR_MS = 50.0
STEP_BAR_MS = 5.0
_TURNS = 4
"""Of the event loop, for one call: connection, body, answer."""


def nodes(number: int, node_types: int) -> View:
    """Return nodes with 8 GPUs of 80 shares or a few less, half full."""
    view = View(lambda: None)
    for at in range(number):
        kind = at % node_types
        gpus = tuple(ListedGpu(n, 80 - kind % 8, f"GPU-{at}-{n}", f"NVIDIA model {kind}") for n in range(8))
        name = synthetic.node_name(at)
        there = candidate(name, NodeGpus(gpus, share_mib=1024), (), Amounts(64_000 + 2048 * kind, 1 << 20))
        view.put(name, there)
    return view


def hostile(number: int) -> Pod:
    """Return a pod with as many and as long names as its annotations may have, and 16 containers."""
    rng = random.Random(number)  # noqa: S311 - repeatable
    avoid = ",".join(f"avoid-{number}-{at}".ljust(60, "x") for at in range(64))
    use = ",".join(f"use-{number}-{at}".ljust(60, "y") for at in range(63)) + ",model"
    containers = tuple(
        Container(f"c{at}", ContainerKind.APP, at, {synthetic.MEMORY: rng.randint(1, 72)}) for at in range(16)
    )
    annotations = {USE_MODEL: use, AVOID_MODEL: avoid}
    amounts = Amounts(rng.randrange(100, 60_000), 1024)
    return Pod(f"u{number}", "other", f"p{number}", containers=containers, annotations=annotations, amounts=amounts)


async def measure(node_types: int, pods: int) -> tuple[Sequence[float], Sequence[float], float]:
    """Return the times of decisions and of turns of the loop while it learns, in ms, and of all the learning, in s."""
    view = nodes(1000, node_types)
    learner = Learner(context(SimpleNamespace(now=view), resources=synthetic.RESOURCES))
    evaluator = learner.nodes.evaluator
    evaluator.ranker = learner.nodes
    for number in range(pods):
        learner.bound(hostile(number))
    names = list(view.candidates)
    harmless = GpuRequest((Part(Demand(Kind.MEMORY, 4)),))
    evaluator.scores(harmless, names, "fit", "fit")
    began = time.thread_time()
    learning = asyncio.create_task(learner.learn(), name="learn")
    decisions, turns = list[float](), list[float]()
    while not learning.done():
        since = time.thread_time()
        for _ in range(_TURNS):
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append((time.thread_time() - before) * 1000)
        evaluator.scores(harmless, names, "fit", "fit")
        decisions.append((time.thread_time() - since) * 1000)
    return decisions, turns, time.thread_time() - began


def rows() -> Iterator[Row]:
    """Yield the lines of the table."""
    for node_types, pods in ((200, 600), (8, 70)):
        decisions, turns, took_s = asyncio.run(measure(node_types, pods))
        of = f"{node_types} shapes, {pods} hostile pods"
        p50, _ = percentiles(decisions)
        yield Row(
            f"a decision while it learns, {of}, p50", p50, note=f"{len(decisions):,} of them in {took_s:.1f} s of CPU"
        )
        yield Row(f"a decision while it learns, {of}, worst", max(decisions), bar=BAR_MS)
        yield Row(f"a step of learning, {of}, worst", max(turns), bar=STEP_BAR_MS)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table."""
    argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__).parse_args(argv)
    logging.disable(logging.WARNING)  # what the learner tells an administrator is no row of the table
    print(machine("1,000 nodes") + "\n")
    show(rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())

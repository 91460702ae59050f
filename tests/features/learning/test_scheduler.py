"""The extender learns from the pods that come, once each, and goes on answering meanwhile."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from gpu_device_plugin.features.learning.node_scores import NodeScores
from gpu_device_plugin.features.learning.rules.price_learning import Tables
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType
from gpu_device_plugin.features.learning.scheduler import Learner
from gpu_device_plugin.model.contract.keys import USE_MODEL
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.cluster_state import FleetEntry
from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.names import COUNT, MEM
from tests.patience import patience
from tests.resources import RESOURCES
from tests.scheduler.contexts import context

SHAPE = NodeType((16, 16), ("T4", "T4"), 32_000, 131_072)
LARGE = NodeType((80,) * 8, ("H100",) * 8, 256_000, 1 << 20)
HONEST = [{MEM: shares} for shares in (8, 16, 24, 40, 80)]


@dataclass
class Nodes:
    """The scores of two nodes of one shape, which keeps the tables that it got."""

    outdated: bool = False
    there: Mapping[NodeType, int] = field(default_factory=lambda: {SHAPE: 2})
    tables: list[Tables | None] = field(default_factory=list)
    got: asyncio.Event = field(default_factory=asyncio.Event)
    scores: NodeScores = field(default_factory=lambda: NodeScores(NodeEvaluator(View(lambda: None))))
    """Goes by these tables."""

    def node_types(self) -> Mapping[NodeType, int]:
        return self.there

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        yield from self.scores.learned(tables)
        self.tables.append(tables)
        self.got.set()

    async def next_tables(self) -> None:
        async with patience():
            await self.got.wait()
        self.got.clear()


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def learner_of(
    nodes: Nodes,
    clock: Clock | None = None,
    entries: Callable[[], Collection[FleetEntry]] = tuple,
    others: Collection[Amounts] = (),
) -> Learner:
    fleet = SimpleNamespace(now=View(lambda: None), entries=SimpleNamespace(values=entries), others=others)
    learner = Learner(context(fleet, clock=clock or Clock()), look_s=0.0)
    learner.nodes = cast("NodeScores", nodes)
    return learner


def pod(number: int, limits: Mapping[str, int], model: str = "", namespace: str = "default") -> Pod:
    containers = (Container("main", ContainerKind.APP, 0, limits),)
    annotations = {USE_MODEL: model} if model else {}
    created = f"2026-11-20T12:{number // 60:02}:{number % 60:02}Z"
    return Pod(
        f"u{number}", namespace, f"p{number}", created=created, containers=containers, annotations=annotations,
        amounts=Amounts(4000, 16_384),
    )  # fmt: skip


def come(learner: Learner, number: int, limits: Sequence[Mapping[str, int]], namespace: str = "default") -> None:
    """Have so many pods come, which have these limits in turn."""
    for n in range(number):
        learner.bound(pod(n, limits[n % len(limits)], namespace=namespace))


@asynccontextmanager
async def running(learner: Learner) -> AsyncIterator[None]:
    task = asyncio.create_task(learner.run())
    try:
        yield
    finally:
        task.cancel()


async def settled() -> None:
    """Let the learner look twenty times."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_after_twenty_pods_there_are_tables_and_again_after_thirty() -> None:
    nodes = Nodes()
    learner = learner_of(nodes)
    async with running(learner):
        come(learner, 19, [{MEM: 5}])
        await settled()
        assert nodes.tables == []
        come(learner, 1, [{MEM: 5}])
        await nodes.next_tables()
        (tables,) = nodes.tables
        assert tables is not None
        assert tables.prices == {(16, False): {5: 1 / 3}}
        come(learner, 9, [{MEM: 5}])
        await settled()
        assert len(nodes.tables) == 1
        come(learner, 1, [{MEM: 5}])
        await nodes.next_tables()
    assert repr(learner) == "<Learner: 30 pods of 1 kinds, learned from 30>"


async def test_a_new_kind_of_node_is_a_reason_to_learn_at_once() -> None:
    nodes = Nodes()
    learner = learner_of(nodes)
    come(learner, 25, [{MEM: 5}])
    await learner.learn()
    nodes.got.clear()
    nodes.outdated = True
    async with running(learner):
        await nodes.next_tables()


async def test_every_demand_counts_by_its_size_its_models_and_its_requests() -> None:
    nodes = Nodes()
    learner = learner_of(nodes)
    learner.bound(pod(0, {MEM: 5}, "T4"))
    learner.bound(pod(1, {COUNT: 2}))
    learner.bound(pod(2, {MEM: 10**9}))  # impossible, so that it says nothing
    learner.bound(pod(3, {MEM: 0}))
    learner.bound(OtherPod("o", "1", "n", Amounts(500, 64), created="2026-11-20T12:05:00Z"))
    await learner.learn()
    (tables,) = nodes.tables
    assert tables is not None
    assert repr(learner) == "<Learner: 3 pods of 3 kinds, learned from 3>"
    assert tables.levels == (500, 4000)
    assert tables.prices == {(16, False): {5: 1 / 3}}
    assert tables.cpu_per_share == pytest.approx(8000 / (5 + 2 * 16), rel=1e-4)  # the second pod came a second later


async def test_calls_are_answered_while_it_learns() -> None:
    """The prices alone take a hundred steps, and others run between them."""
    learner = learner_of(Nodes())
    come(learner, 40, [{MEM: 1 + number % 16} for number in range(40)])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await learner.learn()
    beside.cancel()
    assert turns > 100


async def test_binding_takes_the_gpu_that_costs_least_once_something_is_learned() -> None:
    """Pods of 5 and of 11 come. A rest of 5 on GPU 1 serves a pod of 5 only; binpack takes the 6 of GPU 0."""
    nodes = Nodes()
    learner = learner_of(nodes)
    gpus = NodeGpus(tuple(ListedGpu(at, 16, f"GPU-{at}", "T4") for at in range(2)), share_mib=1024, policy="fit")
    node = candidate("n", gpus, [Usage(((0, 11), (1, 5)))], Amounts(32_000, 131_072))
    assert nodes.scores.ranks(node, Amounts(4000)) is None
    come(learner, 30, [{MEM: 11}, {MEM: 5}])
    await learner.learn()
    assert chosen(nodes, node, 5) == 0
    other = candidate("n", gpus, [Usage(((0, 10), (1, 11)))], Amounts(32_000, 131_072))
    assert chosen(nodes, other, 5) == 1
    larger = NodeGpus((ListedGpu(0, 80),), share_mib=1024)
    assert nodes.scores.ranks(candidate("m", larger, []), Amounts(4000)) is None


def chosen(nodes: Nodes, node: Candidate, shares: int) -> int:
    wanting = pod(0, {MEM: shares})
    asked = ask(wanting, RESOURCES)
    assert isinstance(asked, GpuRequest)
    found = fit(asked, node, "binpack", nodes.scores.ranks(node, wanting.amounts))
    assert isinstance(found, Fit)
    return found.placements[0].positions[0]


def entry(number: int, namespace: str, usage: Usage) -> FleetEntry:
    return FleetEntry(f"u{number}", namespace, f"p{number}", "n", usage)


async def test_pods_of_a_namespace_that_holds_little_teach_little_however_many_come() -> None:
    """A team holds 99 GPUs; 800 pods of 41 of 80 shares came from elsewhere, of which one is left."""
    entries = [entry(number, "team", Usage(((0, 40),), (1,))) for number in range(66)]
    entries.append(entry(99, "other", Usage(((0, 41),))))
    nodes = Nodes(there={LARGE: 60})
    learner = learner_of(nodes, entries=lambda: entries)
    come(learner, 800, [{MEM: 41}], "other")
    come(learner, 300, HONEST, "team")
    async with running(learner):
        await nodes.next_tables()
    assert (learner.in_force, learner.distrusted) == (True, ())


async def test_pods_count_by_the_resource_of_which_they_take_most() -> None:
    """A pod of 1 share and 64 of 256 CPUs, and pods without GPUs, hold as much as their CPU."""
    entries = [entry(number, "team", Usage(((0, 40),), (1,))) for number in range(30)]
    entries += [replace(entry(99, "other", Usage(((0, 1),))), amounts=Amounts(64_000, 0))]
    learner = learner_of(Nodes(there={LARGE: 60}), entries=lambda: entries, others=[Amounts(32_000, 0)])
    await learner._look_at_holdings()
    assert learner._mix.held == {"team": 3600, "other": 160, "": 80}


async def test_fit_is_binpack_while_too_few_of_the_pods_run_that_came_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = [entry(0, "team", Usage(((0, 40),)))]
    learner = learner_of(Nodes(there={LARGE: 60}), entries=lambda: entries)
    come(learner, 300, HONEST, "team")
    await learner._look_at_holdings()
    await learner.learn()
    assert not learner.in_force
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warned.message.startswith(
        "the policy fit acts as binpack until it learns again: too few of the pods that came run"
    )
    assert vars(warned)["running"] == pytest.approx(0.001)


async def test_a_namespace_that_would_cost_the_others_gpus_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of(Nodes(there={LARGE: 60}))
    come(learner, 200, [{MEM: 41}], "other")
    come(learner, 300, HONEST, "team")
    for _ in range(2):
        await learner.learn()
    assert (learner.in_force, learner.distrusted) == (True, ("other",))
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert vars(warned)["namespaces"] == "other"


async def test_fit_is_binpack_where_that_gives_out_more_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """On nodes of one GPU, until other pods come."""
    nodes = Nodes(there={NodeType((80,), ("T4",), 128_000, 1 << 18): 61})
    learner = learner_of(nodes)
    come(learner, 100, [{COUNT: 1}, {MEM: 53}, {MEM: 24}, {COUNT: 1}, {MEM: 4}])
    with caplog.at_level(logging.INFO):
        await learner.learn()
        in_force = [learner.in_force]
        await learner.learn()
        assert nodes.tables == [None, None]
        come(learner, 3000, [{MEM: 40}])
        await learner.learn()
    assert [*in_force, learner.in_force] == [False, True]
    assert [record.message for record in caplog.records] == [
        "learned the prices of room",
        "the policy fit acts as binpack until it learns again: binpack allocated more GPUs to the pods that come",
        "the policy fit uses the prices that it learned again",
    ]


async def test_holdings_are_read_once_a_minute_and_others_run_meanwhile() -> None:
    entries = [entry(number, "team", Usage(((0, 1),))) for number in range(2500)]
    asked, clock = 0, Clock()

    def all_entries() -> list[FleetEntry]:
        nonlocal asked
        asked += 1
        return entries

    async with running(learner_of(Nodes(), clock, entries=all_entries)):
        await settled()
        assert asked == 1
        clock.now += 60
        await settled()
        assert asked == 2

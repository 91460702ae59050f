"""The extender learns from the pods that come, once each, and goes on answering meanwhile."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import Fit, fit
from gpu_device_plugin.core.cluster.other_pods import OtherPod
from gpu_device_plugin.core.cluster.pod_demand import Ask, ask
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.keys import USE_MODEL
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.core.contract.wishes import Wishes
from gpu_device_plugin.core.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.core.model.resources import Amounts
from gpu_device_plugin.core.value.node_types import GpuKind, NodeType
from gpu_device_plugin.core.value.workload_mix import PodKind
from gpu_device_plugin.fleet import FleetEntry
from gpu_device_plugin.programs.extender.workload_learning import Learner
from tests.names import COUNT, MEM
from tests.patience import patience
from tests.resources import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.value.price_learning import Tables

SHAPE = NodeType((16, 16), ("T4", "T4"), 32_000, 131_072)


@dataclass
class Nodes:
    """Two nodes of one shape, which keep the tables that they got."""

    outdated: bool = False
    there: Mapping[NodeType, int] = field(default_factory=lambda: {SHAPE: 2})
    tables: list[Tables | None] = field(default_factory=list)
    got: asyncio.Event = field(default_factory=asyncio.Event)

    def node_types(self) -> Mapping[NodeType, int]:
        return self.there

    def learned(self, tables: Tables | None) -> Generator[None, None, None]:
        yield
        self.tables.append(tables)
        self.got.set()


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def pod(number: int, limits: Mapping[str, int], model: str = "", namespace: str = "default") -> Pod:
    containers = (Container("main", ContainerKind.APP, 0, limits),)
    annotations = {USE_MODEL: model} if model else {}
    created = f"2026-11-20T12:{number // 60:02}:{number % 60:02}Z"
    return Pod(
        f"u{number}", namespace, f"p{number}", created=created, containers=containers, annotations=annotations,
        amounts=Amounts(4000, 16_384),
    )  # fmt: skip


async def settled() -> None:
    """Let the learner look twenty times."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_after_twenty_pods_there_are_tables_and_again_after_thirty() -> None:
    nodes = Nodes()
    learner = Learner(nodes, RESOURCES, Clock(), look_s=0.0)
    running = asyncio.create_task(learner.run())
    for number in range(19):
        learner.observe(pod(number, {MEM: 5}))
    await settled()
    assert nodes.tables == []
    learner.observe(pod(19, {MEM: 5}))
    async with patience():
        await nodes.got.wait()
    (tables,) = nodes.tables
    assert tables is not None
    assert tables.prices == {(16, False): {5: 1 / 3}}
    nodes.got.clear()
    for number in range(20, 29):
        learner.observe(pod(number, {MEM: 5}))
    await settled()
    assert len(nodes.tables) == 1
    learner.observe(pod(29, {MEM: 5}))
    async with patience():
        await nodes.got.wait()
    assert repr(learner) == "<Learner: 30 pods of 1 kinds, learned from 30>"
    running.cancel()


async def test_a_new_kind_of_node_is_a_reason_to_learn_at_once() -> None:
    nodes = Nodes()
    learner = Learner(nodes, RESOURCES, Clock(), look_s=0.0)
    for number in range(25):
        learner.observe(pod(number, {MEM: 5}))
    await learner.learn()
    nodes.got.clear()
    nodes.outdated = True
    running = asyncio.create_task(learner.run())
    async with patience():
        await nodes.got.wait()
    running.cancel()


async def test_an_hour_is_the_longest_that_a_few_more_pods_wait_to_be_learned_from() -> None:
    nodes, clock = Nodes(), Clock()
    learner = Learner(nodes, RESOURCES, clock, look_s=0.0)
    for number in range(25):
        learner.observe(pod(number, {MEM: 5}))
    await learner.learn()
    nodes.got.clear()
    learner.observe(pod(25, {MEM: 5}))
    running = asyncio.create_task(learner.run())
    clock.now += 3599
    await settled()
    assert len(nodes.tables) == 1
    clock.now += 1
    async with patience():
        await nodes.got.wait()
    running.cancel()


async def test_every_demand_counts_by_its_size_its_models_and_its_requests() -> None:
    nodes = Nodes()
    learner = Learner(nodes, RESOURCES, Clock())
    learner.observe(pod(0, {MEM: 5}, "T4"))
    learner.observe(pod(1, {COUNT: 2}))
    learner.observe(pod(2, {MEM: 10**9}))  # impossible, so that it says nothing
    learner.observe(pod(3, {MEM: 0}))
    learner.observe_other(OtherPod("o", "1", "n", Amounts(500, 64), created="2026-11-20T12:05:00Z"))
    await learner.learn()
    (tables,) = nodes.tables
    assert tables is not None
    assert repr(learner) == "<Learner: 3 pods of 3 kinds, learned from 3>"
    assert tables.levels == (500, 4000)
    assert tables.prices == {(16, False): {5: 1 / 3}}
    assert tables.cpu_per_share == pytest.approx(8000 / (5 + 2 * 16), rel=1e-4)  # the second pod came a second later


async def test_calls_are_answered_while_it_learns() -> None:
    """The prices alone take a hundred steps, and others run between them."""
    nodes = Nodes()
    learner = Learner(nodes, RESOURCES, Clock())
    for number in range(40):
        learner.observe(pod(number, {MEM: 1 + number % 16}))
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


async def test_the_first_lesson_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    learner = Learner(Nodes(), RESOURCES, Clock())
    learner.observe(pod(0, {MEM: 5}))
    with caplog.at_level(logging.INFO):
        await learner.learn()
        await learner.learn()
    assert [record.message for record in caplog.records] == ["learned what room is worth"]


async def test_binding_takes_the_gpu_that_costs_least_once_something_is_learned() -> None:
    """Pods of 5 and of 11 come. A rest of 5 on GPU 1 serves a pod of 5 only; binpack takes the 6 of GPU 0."""
    learner = Learner(Nodes(), RESOURCES, Clock())
    gpus = NodeGpus(tuple(ListedGpu(at, 16, f"GPU-{at}", "T4") for at in range(2)), share_mib=1024, policy="fit")
    node = candidate("n", gpus, [Usage(((0, 11), (1, 5)))], Amounts(32_000, 131_072))
    small = pod(0, {MEM: 5})
    assert learner.ranks(node, small.amounts) is None
    for number in range(30):
        learner.observe(pod(number, {MEM: 5 if number % 2 else 11}))
    await learner.learn()
    assert chosen(learner, node, 5) == 0
    other = candidate("n", gpus, [Usage(((0, 10), (1, 11)))], Amounts(32_000, 131_072))
    assert chosen(learner, other, 5) == 1
    larger = NodeGpus((ListedGpu(0, 80),), share_mib=1024)
    assert learner.ranks(candidate("m", larger, []), small.amounts) is None


HONEST = (8, 16, 24, 40, 80)
LARGE = NodeType((80,) * 8, ("H100",) * 8, 256_000, 1 << 20)


def entry(number: int, namespace: str, usage: Usage) -> FleetEntry:
    return FleetEntry(f"u{number}", namespace, f"p{number}", "n", usage)


async def test_pods_that_hold_little_teach_little_however_many_come(caplog: pytest.LogCaptureFixture) -> None:
    """A team holds 99 GPUs; 800 pods of 41 of 80 shares came from elsewhere, of which one is left."""
    entries = [entry(number, "team", Usage(((0, 40),), (1,))) for number in range(66)]
    entries.append(entry(99, "other", Usage(((0, 41),))))
    nodes = Nodes(there={LARGE: 60})
    learner = Learner(nodes, RESOURCES, Clock(), entries=lambda: entries, look_s=0.0)
    for number in range(800):
        learner.observe(pod(number, {MEM: 41}, namespace="other"))
    for number in range(800, 1100):
        learner.observe(pod(number, {MEM: HONEST[number % 5]}, namespace="team"))
    running = asyncio.create_task(learner.run())
    async with patience():
        await nodes.got.wait()
    running.cancel()
    assert nodes.tables[0] is not None
    assert learner.in_force
    assert learner.distrusted == ()
    # As for the team alone, 39 shares are worth no more than the 24 and 8 that fit there, beside whatever is left.
    alone = Nodes(there={LARGE: 60})
    honest = Learner(alone, RESOURCES, Clock())
    for number in range(800, 1100):
        honest.observe(pod(number, {MEM: HONEST[number % 5]}, namespace="team"))
    await honest.learn()
    assert alone.tables[0] is not None
    placement_value = [each.packed[GpuKind(80, "H100")][-1] for each in (nodes.tables[0], alone.tables[0])]
    assert placement_value[0] == pytest.approx(placement_value[1], abs=4)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_namespace_that_would_cost_the_others_gpus_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(there={LARGE: 60})
    learner = Learner(nodes, RESOURCES, Clock())
    for number in range(200):
        learner.observe(pod(number, {MEM: 41}, namespace="other"))
    for number in range(200, 500):
        learner.observe(pod(number, {MEM: HONEST[number % 5]}, namespace="team"))
    for _ in range(2):
        await learner.learn()
    assert learner.distrusted == ("other",)
    assert learner.in_force
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert vars(warned)["namespaces"] == "other"


async def test_fit_is_binpack_where_that_gives_out_more_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """On nodes of one GPU, until other pods come."""
    nodes = Nodes(there={NodeType((80,), ("T4",), 128_000, 1 << 18): 61})
    learner = Learner(nodes, RESOURCES, Clock())
    for number in range(100):
        learner.observe(pod(number, ({COUNT: 1}, {MEM: 53}, {MEM: 24}, {COUNT: 1}, {MEM: 4})[number % 5]))
    with caplog.at_level(logging.INFO):
        await learner.learn()
        in_force = [learner.in_force]
        await learner.learn()
        assert nodes.tables == [None, None]
        for number in range(3000):
            learner.observe(pod(number, {MEM: 40}))
        await learner.learn()
    assert [*in_force, learner.in_force] == [False, True]
    assert [record.message for record in caplog.records] == [
        "learned what room is worth",
        "the policy fit is binpack until it learns again: binpack gave out more GPUs to the pods that come",
        "the policy fit goes by what it has learned again",
    ]


async def test_holdings_are_read_once_a_minute_and_others_run_meanwhile() -> None:
    entries = [entry(number, "team", Usage(((0, 1),))) for number in range(2500)]
    asked, clock = 0, Clock()

    def all_entries() -> list[FleetEntry]:
        nonlocal asked
        asked += 1
        return entries

    learner = Learner(Nodes(), RESOURCES, clock, entries=all_entries, look_s=0.0)
    running = asyncio.create_task(learner.run())
    await settled()
    assert asked == 1
    clock.now += 60
    await settled()
    assert asked == 2
    running.cancel()


def chosen(learner: Learner, node: Candidate, shares: int) -> int:
    wanting = pod(0, {MEM: shares})
    asked = ask(wanting, RESOURCES)
    assert isinstance(asked, Ask)
    found = fit(asked, node, "binpack", learner.ranks(node, wanting.amounts))
    assert isinstance(found, Fit)
    return found.placements[0].positions[0]


def test_a_kind_is_what_decides_where_a_pod_fits() -> None:
    assert PodKind(5, 1, 4000, 16_384, Wishes(("T4",))) != PodKind(5, 1, 4000, 16_384)

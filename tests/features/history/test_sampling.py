"""Samples are taken of what is known at the moment, and served within a bound, one answer after the other."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.aio.http import JSON, Page, Request
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.history.contract import STEPS, NodeHistory
from gpu_device_plugin.features.history.rules.ring import ROOM, GpuSample, Ring
from gpu_device_plugin.features.history.sampling import History, encoded
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.model.contract.keys import LARGEST_ANSWER
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.model.telemetry import GpuTelemetry, TelemetryGroup
from tests.node.contexts import context
from tests.nodes import inventory
from tests.patience import eventually

UID = "8dbc6bd1-07c9-4f21-a4f4-3b4fd6e0c6a1"
ID = "ab" * 32
POD = Pod(UID, "team", "web", container_ids={"main": ID})
HOLDING = ContainerGpus(UID, "main", {"GPU-0": 4096}, pod=POD)
USE = AttributedUse(UID, "main", "GPU-0", 4096, 3000, 40, HOLDING, POD)
SHARES = Shares(1024).with_inventory(inventory(16, 16))


@dataclass
class Desk:
    """A node whose clock, driver and cgroups a test moves; it has what a history reads of `Use` and of the settings."""

    folder: Path
    interval_s: float = 15.0
    now: float = 1000.0
    reading: Observable[UseReading] = field(default_factory=lambda: Observable(UseReading()))
    telemetry: tuple[GpuTelemetry, ...] | None = ()
    asked: list[tuple[str, ...]] = field(default_factory=list)
    condition: tuple[str, ...] = tuple(TelemetryGroup)
    """The setting."""

    def __post_init__(self) -> None:
        node = context(
            settings=Observable(SimpleNamespace(of=lambda _: self)),
            hardware=SimpleNamespace(condition=self._condition),
            cgroups=CgroupTree(self.folder),
            features=SimpleNamespace(of=lambda _: self),
        )
        self.history = History(node)
        self.history.clock = lambda: self.now

    def shares(self) -> Shares:
        return SHARES

    def holders(self) -> tuple[ContainerGpus, ...]:
        return (HOLDING, replace(HOLDING, pod=None))

    async def _condition(self, groups: Sequence[str]) -> tuple[GpuTelemetry, ...] | None:
        self.asked.append(tuple(groups))
        return self.telemetry

    def read(self, *uses: AttributedUse) -> None:
        self.reading.set(UseReading(self.now, uses, {"GPU-0": 3100}))

    async def sample(self, *uses: AttributedUse) -> None:
        """Read the use, and take a sample a moment later, in the next step."""
        self.now += 15
        self.read(*uses)
        await self.history.sample()

    def cgroup(self, periods: int, throttled: int, kills: int = 0) -> None:
        leaf = self.folder / "kubepods" / f"pod{UID}" / ID
        leaf.mkdir(parents=True, exist_ok=True)
        (leaf / "cpu.stat").write_text(f"nr_periods {periods}\nnr_throttled {throttled}\n")
        (leaf / "memory.events").write_text(f"oom_kill {kills}\n")

    async def get(self, rest: str, **query: str) -> Page:
        (route,) = self.history.routes()
        page = await route.answer(Request(f"{route.path}{rest}", rest, query=query))
        assert isinstance(page, Page)
        return page

    async def shown(self, rest: str = "gpus/0", **query: str) -> NodeHistory:
        page = await self.get(rest, **query)
        assert (page.status, page.content_type) == (200, JSON), page.body
        return msgspec.json.decode(page.body, type=NodeHistory)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def condition(**fields: Any) -> GpuTelemetry:
    return GpuTelemetry("GPU-0", **fields)


# --- Samples ----------------------------------------------------------------------------------------------------------


async def test_condition_and_use_are_sampled_and_the_condition_is_published(desk: Desk) -> None:
    desk.telemetry = (condition(temperature_c=70, power_mw=250_000, sm_percent=88, throttle=4),)
    await desk.sample(USE)
    assert desk.asked == [tuple(TelemetryGroup)]
    assert desk.history.telemetry.value == {"GPU-0": desk.telemetry[0]}
    found = await desk.shown()
    ((gpu,), (container,)) = found.gpus, found.containers
    assert (gpu.used_mib, gpu.power_w, gpu.temperature_c, gpu.sm_percent) == ((3100,), (250,), (70,), (88,))
    assert gpu.condition == desk.telemetry[0]
    assert (container.pod, container.used_mib, container.sm_percent) == ("web", (3000,), (40,))


async def test_the_load_of_the_pcie_link_is_that_between_two_readings(desk: Desk) -> None:
    link = condition(pcie_generation=4, pcie_width=16, pcie_received_bytes=0, pcie_sent_bytes=0)
    for sent in (5, 5 + 15 * 15_752_000_000):
        desk.telemetry = (replace(link, pcie_sent_bytes=sent),)
        await desk.sample(USE)
    desk.telemetry = None
    await desk.sample(USE)
    assert (await desk.shown()).gpus[0].pcie_percent == (None, 50, None)
    assert desk.history.telemetry.value == {}


async def test_groups_that_nobody_wants_are_not_read(desk: Desk) -> None:
    desk.condition = ()
    await desk.sample(USE)
    assert desk.asked == []


async def test_cpu_throttling_is_that_between_two_readings_of_the_containers_own_cgroup(desk: Desk) -> None:
    await desk.sample(USE)
    for periods, throttled in ((100, 50), (250, 80), (250, 80), (10, 9)):
        desk.cgroup(periods, throttled)
        await desk.sample(USE)
    (container,) = (await desk.shown()).containers
    assert container.cpu_throttled_percent == (None, None, 20, 0, 0)


async def test_a_process_killed_for_lack_of_memory_is_published_once(desk: Desk) -> None:
    for kills in (1, 1, 2, 2):
        desk.cgroup(0, 0, kills)
        await desk.sample(USE)
    assert (desk.history.kills.version, desk.history.kills.value) == (1, [HOLDING])


async def test_a_reading_that_is_not_repeated_in_time_tells_nothing_of_now(desk: Desk) -> None:
    await desk.sample(USE)
    for _ in range(2):
        desk.now += 15
        await desk.history.sample()
    found = await desk.shown()
    assert (found.gpus[0].used_mib, found.containers[0].used_mib) == ((3100, 3100, None), (3000, 3000, None))


async def test_the_condition_is_read_where_use_is_not_read(desk: Desk) -> None:
    desk.telemetry = (condition(temperature_c=70),)
    desk.interval_s = 0
    await desk.sample()
    assert (await desk.shown("")).gpus[0].temperature_c == (70,)


async def test_where_neither_is_read_the_answer_says_so(desk: Desk) -> None:
    desk.condition, desk.interval_s = (), 0
    await desk.sample(USE)
    assert (desk.asked, desk.history.telemetry.value) == ([], {})
    page = await desk.get("")
    assert (page.status, "usage_interval" in str(page.body)) == (404, True)


async def test_the_driver_is_asked_until_it_answers_for_the_first_time(desk: Desk) -> None:
    desk.telemetry = None
    task = asyncio.create_task(desk.history.run())
    await eventually(lambda: len(desk.asked) > 1)
    desk.telemetry = (condition(temperature_c=70),)
    await eventually(lambda: desk.history.telemetry.value)
    task.cancel()


async def test_samples_go_on_after_one_that_failed(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0

    async def failing() -> None:
        nonlocal rounds
        rounds += 1
        desk.now += 0.01
        if rounds < 3:
            raise RuntimeError

    desk.read()
    desk.history.ring.step_s = 0.01
    desk.history.sample = failing  # type: ignore[method-assign]
    task = asyncio.create_task(desk.history.run())
    await eventually(lambda: rounds > 3)
    task.cancel()
    assert caplog.messages == ["the history of the GPUs cannot be continued; trying again at every interval"]


# --- Answers ----------------------------------------------------------------------------------------------------------


async def test_each_path_has_its_part(desk: Desk) -> None:
    await desk.sample(USE)
    await desk.sample(USE)
    every = await desk.shown("")
    assert ([gpu.gpu for gpu in every.gpus], every.containers, every.step_s) == ([0, 1], (), 15.0)
    assert ([gpu.gpu for gpu in (await desk.shown("gpus/1")).gpus]) == [1]
    none, team = await desk.shown("namespaces/none"), await desk.shown("namespaces/team")
    assert (none.gpus, none.containers) == ((), ())
    assert ([gpu.gpu for gpu in team.gpus], len(team.containers)) == ([0], 1)
    assert len((await desk.shown("", minutes="0")).gpus[0].used_mib) == 1
    assert len(every.gpus[0].used_mib) == 2


@pytest.mark.parametrize(
    ("rest", "query", "why"),
    [
        ("gpus/2", {}, "this node has no history of a GPU 2\n"),
        ("gpus/x", {}, "/history/ has all GPUs, and below it gpus/NUMBER and namespaces/NAME\n"),
        ("namespaces/", {}, "/history/ has all GPUs, and below it gpus/NUMBER and namespaces/NAME\n"),
        ("", {"minutes": "-1"}, "minutes must be a whole number\n"),
        ("", {"minutes": "12345"}, "minutes must be a whole number\n"),
    ],
)
async def test_what_there_is_not_is_told(desk: Desk, rest: str, query: dict[str, str], why: str) -> None:
    await desk.sample(USE)
    page = await desk.get(rest, **query)
    assert (page.status, page.body) == (404, why)


async def test_before_the_first_sample_there_is_nothing(desk: Desk) -> None:
    for path in ("", "namespaces/team"):
        page = await desk.get(path)
        assert (page.status, page.body) == (404, "this node has no history of a GPU (yet)\n")


def test_an_answer_of_a_full_node_is_bounded_and_has_the_containers_with_the_most_use() -> None:
    ring = Ring()
    uses = [
        AttributedUse(f"{n:036}", "c" * 63, "GPU-0", 4096, 3000 + n, 99, pod=Pod(f"{n}", "n" * 63, f"{n:0253}"))
        for n in range(ROOM)
    ]
    throttled = {use.place[:2]: 100 for use in uses}
    for step in range(STEPS):
        ring.tick(15.0 * step, [GpuSample(SHARES.gpus[0], 9999)], uses, throttled)
    selection = ring.select(uuids=["GPU-0"])
    assert selection is not None
    for most in (LARGEST_ANSWER, 100_000, 1):
        content = encoded(selection, 0.0, most)
        history = msgspec.json.decode(content, type=NodeHistory)
        kept = len(history.containers)
        assert len(content) <= max(most, 10_000)
        assert kept + history.left_out == ROOM
        assert {each.pod for each in history.containers} == {f"{n:0253}" for n in range(ROOM - kept, ROOM)}
        assert [each.pod for each in history.containers] == sorted(each.pod for each in history.containers)
    assert kept == 0

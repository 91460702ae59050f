"""The agent reads who uses what at intervals, says it on its node, and serves containers whatever comes of that."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.use.node import Use, UseReports
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import NOT_READ, AttributedUse, UseReading
from gpu_device_plugin.features.use.rules.use_report import FRESH_S, SELDOM_S, SOON_S
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.contract.keys import NODE_USE
from gpu_device_plugin.model.contract.node_use import SERVED, GpuUse, NodeUse, read_node_use
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from tests.node.contexts import context
from tests.node.recorded_api import RecordedApi
from tests.nodes import ids, uuid
from tests.patience import eventually

UID = "0f5d3a31-9a3b-4c6e-8c5b-6a7b8c9d0e1f"
ID = "5ad9" * 16


def entry(pod_uid: str = UID, *device_ids: str) -> Allocation:
    return Allocation(pod_uid, "main", Kind.MEMORY, frozenset(device_ids or ids(0, [0, 1])))


@dataclass
class World:
    """A node with scripted GPUs and a tree that stands for /proc."""

    proc: Path
    entries: Observable[tuple[Allocation, ...]] = field(default_factory=lambda: Observable(()))
    readings: tuple[GpuReading, ...] | None = ()
    error: Exception | None = None
    read: int = 0
    """How often the GPUs were read."""

    async def read_use(self, *, utilisation: bool) -> tuple[GpuReading, ...] | None:
        assert utilisation
        self.read += 1
        if self.error is not None:
            raise self.error
        return self.readings

    def process(self, pid: int, cgroup: str = f"0::/kubepods/pod{UID}/{ID}\n") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python) S 1 1 1 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 5 9 9\n")
        (folder / "cgroup").write_text(cgroup)

    def use(self, *processes: tuple[int, int], used: int | None = None, gpu: str = uuid(0)) -> None:
        """Let processes, each a PID and its MiB, use the first GPU."""
        self.readings = (GpuReading(gpu, tuple(GpuProcess(pid, mib) for pid, mib in processes), used),)

    @asynccontextmanager
    async def watching(self, interval_s: float = 0.01) -> AsyncIterator[Use]:
        watch = Use(context(self.proc, hardware=SimpleNamespace(use=self.read_use), entries=self.entries))
        watch.interval_s = interval_s
        task = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def rounds(self, count: int = 2) -> None:
        """Wait until the GPUs were read so many times more."""
        until = self.read + count
        await eventually(lambda: self.read >= until)


def amounts(watch: Use) -> list[tuple[str, int, int | None]]:
    return [(use.container, use.granted_mib, use.used_mib) for use in watch.reading.value.containers]


async def test_nothing_is_read_before_the_kubelets_checkpoint(tmp_path: Path) -> None:
    """Every pod would trespass."""
    world = World(tmp_path)
    world.process(11)
    world.use((11, 700))
    async with world.watching() as watch:
        for _ in range(20):
            await asyncio.sleep(0)
        assert (world.read, watch.reading.version) == (0, 0)
        world.entries.set((entry(),))
        await eventually(lambda: amounts(watch) == [("main", 2048, 700)])
        assert [use.trespassing for use in watch.reading.value.containers] == [False]


async def test_gpus_that_are_not_shared_are_not_looked_at(tmp_path: Path) -> None:
    """An administrator has left them to another plugin, whose pods use them rightly."""
    world = World(tmp_path)
    world.entries.set(())
    world.process(11)
    world.use((11, 700), gpu="GPU-excluded")
    async with world.watching() as watch:
        await world.rounds()
        await eventually(lambda: watch.reading.version > 0)
        assert (watch.reading.value.containers, watch.reading.value.used_mib) == ((), {})


async def test_a_driver_that_does_not_answer_leaves_the_newest_reading(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.entries.set((entry(),))
    world.use(used=3)
    async with world.watching() as watch:
        await eventually(lambda: watch.reading.version > 0)
        world.readings = None
        await world.rounds()
        before = watch.reading.version
        await world.rounds()
        assert watch.reading.version == before
        assert amounts(watch) == [("main", 2048, 0)]


async def test_a_fault_is_logged_once_and_reading_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World(tmp_path, error=RuntimeError("can't start new thread"))
    world.entries.set((entry(),))
    async with world.watching() as watch:
        await world.rounds(4)
        assert watch.reading.version == 0
        world.error = None
        world.use(used=3)
        await eventually(lambda: watch.reading.version > 0)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_the_interval_may_change_and_0_switches_off(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.entries.set((entry(),))
    world.process(11)
    world.use((11, 700))
    async with world.watching(interval_s=0.0) as watch:
        await eventually(lambda: watch.reading.value.blind == NOT_READ)
        assert amounts(watch) == [("main", 2048, None)]
        world.entries.set((entry(), entry("b", *ids(1, [0]))))
        await eventually(lambda: len(watch.reading.value.containers) == 2)
        assert world.read == 0
        watch.every(3600.0)
        await eventually(lambda: watch.reading.value.blind == "")
        assert amounts(watch) == [("main", 2048, 700), ("main", 1024, None)]
        watch.every(0.01)
        await world.rounds(2)
        watch.every(0.0)
        await eventually(lambda: watch.reading.value.blind == NOT_READ)
        assert watch.interval_s == 0.0


# --- Reports ----------------------------------------------------------------------------------------------------------

WEB = AttributedUse(UID, "main", uuid(0), 2048, 700, holding=ContainerGpus(UID, "main"), pod=Pod(UID, "shop", "web-0"))
PLACE = (UID, "main", uuid(0))


@dataclass
class Reported:
    """A pod on the first GPU, and what was written of it on the node, by a clock that the test turns."""

    entries: Observable[tuple[Allocation, ...]] = field(default_factory=lambda: Observable((entry(),)))
    limits: Observable[Mapping[Place, LimitState]] = field(default_factory=lambda: Observable({}))
    now: float = 1000.0
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        api = RecordedApi(Pod(UID, "shop", "web-0"))
        published = SimpleNamespace(annotate=lambda annotations: self.written.append(annotations[NODE_USE] or ""))
        cluster = SimpleNamespace(published=published)
        node = context(
            entries=self.entries, limit_states=self.limits, api=api, cluster=cluster, reached_cluster=cluster
        )
        self.watch = Use(node)
        node.features.add(self.watch)
        self.reports = UseReports(node)
        self.reports.clock = lambda: self.now

    def read(self, used: int = 700) -> None:
        self.watch.reading.set(UseReading(self.now, (WEB,), {uuid(0): used}, {uuid(0): 0}))

    @property
    def said(self) -> list[NodeUse]:
        return [read_node_use(text) for text in self.written]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reports.run())
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def settled() -> None:
    """Let every task that can run do so; none of them waits for anything but the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_written_before_the_first_reading() -> None:
    node = Reported()
    async with node.running():
        node.limits.set({})
        await settled()
        assert node.written == []
        node.read()
        await settled()
        assert [part.pod for said in node.said for part in said.parts] == ["web-0"]


async def test_figures_are_written_after_their_minute_and_states_after_seconds() -> None:
    node = Reported()
    node.read()
    async with node.running():
        await settled()
        assert len(node.written) == 1
        node.now += SELDOM_S - 1
        node.read(used=9000)
        await settled()
        assert len(node.written) == 1
        node.limits.set({PLACE: LimitState(Enforcement.MPS, LimitStatus.HELD)})
        await settled()
        assert [(said.gpus[0].used_mib, said.parts[0].held) for said in node.said[1:]] == [(9000, LimitStatus.HELD)]
        node.now += SOON_S
        node.watch.over.set({PLACE: node.now})
        await settled()
        assert bool(node.said[2].parts[0].over_since)
        node.now += SELDOM_S
        node.read(used=9100)
        await settled()
        assert len(node.written) == 3
        node.read(used=10_000)
        await settled()
        assert len(node.written) == 4


async def test_what_was_too_early_is_written_later_without_another_reading() -> None:
    node = Reported()
    node.read()
    async with node.running():
        await settled()
        node.now += SOON_S - 0.01
        node.entries.set(())
        node.read()
        await settled()
        assert len(node.written) == 1
        node.now += 1
        await eventually(lambda: len(node.written) == 2)
        assert node.said[1].parts == ()


async def test_the_page_has_the_report_of_this_moment_and_no_figures_that_are_old() -> None:
    node = Reported()
    node.read()
    pages = await asyncio.gather(*(node.reports.page() for _ in range(3)))
    assert {page.content_type for page in pages} == {"application/json"}
    use = read_node_use(str(pages[0].body), SERVED)
    assert ([part.used_mib for part in use.parts], use.gpus) == ([700], {0: GpuUse(700, 0)})
    node.now += FRESH_S + 1
    use = node.reports.now()
    assert ([part.used_mib for part in use.parts], use.gpus) == ([None], {})
    node.entries.set(())
    assert node.reports.now().parts == ()

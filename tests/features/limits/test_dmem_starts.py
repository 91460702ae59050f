"""The agent's side of limits by dmem: what it tells the helper, for which start it waits, and what it refuses."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitOutcome, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.node import LimitLink, Limits
from gpu_device_plugin.features.limits.rules import dmem_limits as dmem
from gpu_device_plugin.features.limits.rules import running_limits
from gpu_device_plugin.features.limits.rules.helper_limits import NO_LEAF
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.extension import StartRequest
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.ledger import Ledger
from tests.node.contexts import context, settings
from tests.nodes import ids, node
from tests.patience import beside, eventually, rounds, stretched

UID, GPU, C = "0f0e0d0c-1111-2222-3333-0123456789ab", "GPU-0", "c" * 64
POD_KEY, KEY = LimitKey(UID, "", GPU), LimitKey(UID, C, GPU)
FOUR, EIGHT = MemoryLimit(4096), MemoryLimit(8192)
IDS = ids(0, [1, 2, 3, 4])
POLL_S = 0.01
NOW_S = 110.0


def amd() -> NodeState:
    """Return a node with one GPU of AMD's, which holds 16 shares."""
    made = node(16)
    ((shared,), gpu) = made.shares.gpus, made.shares.gpus[0].gpu
    other = replace(shared, gpu=replace(gpu, driver="amdgpu", memory_limits=True))
    return NodeState(replace(made, shares=replace(made.shares, gpus=(other,))))


def held(*names: str, enforcement: Enforcement = Enforcement.DMEM, uid: str = UID) -> Allocation:
    return Allocation(uid, "main", Kind.MEMORY, frozenset(names), enforcement=enforcement)


class World:
    """An agent of a node with GPUs of AMD's, and the directory where it meets the helper."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = amd()
        self.entries = Observable[tuple[Allocation, ...]]((held(*IDS),))
        self.runs = False
        self.named = True
        """The API has told of the pod."""

    def holders(self) -> list[ContainerGpus]:
        pod = Pod(UID, "default", "p", container_ids={"main": C} if self.runs else {}) if self.named else None
        return [ContainerGpus(UID, "main", {GPU: 4096}, enforcement=Enforcement.DMEM, pod=pod)]

    @property
    def wanted(self) -> Mapping[LimitKey, MemoryLimit] | None:
        path = self.directory / LIMIT_FILES.wanted_file
        return LIMIT_FILES.read_wanted(path.read_text()) if path.exists() else None

    def says(self, outcomes: Mapping[LimitKey, LimitOutcome], dmem: str = "", beat_s: float = NOW_S) -> None:
        """Have the helper write its state."""
        new = self.directory / "new"
        new.write_text(LIMIT_FILES.write_state(LimitsState(outcomes, dmem), beat_s))
        new.rename(self.directory / LIMIT_FILES.state_file)

    def link(self, entries: Observable[tuple[Allocation, ...]]) -> LimitLink:
        """Return the link of an agent with these records, whose clock shows 110 s."""
        allowed: Observable[Mapping[Place, int]] = Observable({})
        use: Any = SimpleNamespace(holders=self.holders, allowed_now=allowed)
        there = context(settings=Observable(settings()), entries=entries, state=self.state)
        return LimitLink(self.directory, there, use, poll_s=POLL_S, waiting_poll_s=POLL_S / 2, clock=lambda: NOW_S)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[LimitLink]:
        """Run an agent."""
        link = self.link(self.entries)
        self.entries.set(self.entries.value)  # the kubelet's records have been read
        async with beside(link.run()):
            yield link


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def start(seconds: float = stretched(), kind: Kind = Kind.MEMORY, lost: Any = lambda: "") -> StartRequest:
    return StartRequest(kind, IDS, time.monotonic() + seconds, lost)


async def test_every_container_is_to_be_limited_and_its_pod_before_it(world: World) -> None:
    """Nobody else sets the limits, so nothing is left out that does not change."""
    world.says({})
    async with world.agent() as link:
        await eventually(lambda: world.wanted == {POD_KEY: FOUR})
        world.runs = True
        await eventually(lambda: world.wanted == {POD_KEY: FOUR, KEY: FOUR})
        assert link.pending(world.holders()[0], GPU) == dmem.NOT_YET
        world.says({KEY: LimitOutcome(FOUR)})
        await eventually(lambda: link.pending(world.holders()[0], GPU) == "")
        world.says({KEY: LimitOutcome(FOUR)}, beat_s=NOW_S - running_limits.BEAT_S - 1)
        await eventually(lambda: link.pending(world.holders()[0], GPU) == running_limits.SILENT)
        assert world.wanted == {POD_KEY: FOUR, KEY: FOUR}, "it may only be away"


async def test_a_helper_that_knows_no_dmem_is_told_nothing_that_it_would_refuse(world: World) -> None:
    (world.directory / LIMIT_FILES.state_file).write_text('{"version": 1, "beat": 110, "limits": []}')
    async with world.agent() as link:
        await eventually(lambda: "of a version that knows no dmem" in link.lack_of_dmem.value)
        await rounds(3, POLL_S)
        assert not world.wanted


async def test_what_the_helper_says_of_dmem_is_published(world: World) -> None:
    async with world.agent() as link:
        await rounds(2, POLL_S)
        assert link.lack_of_dmem.value == dmem.NOT_THERE
        world.says({}, "the mount is read-only")
        await eventually(lambda: link.lack_of_dmem.value.endswith(" by dmem: the mount is read-only"))
        world.says({})
        await eventually(lambda: link.lack_of_dmem.value == "")
        world.says({}, beat_s=NOW_S - running_limits.BEAT_S - 1)
        await eventually(lambda: link.lack_of_dmem.value == running_limits.SILENT)


async def test_a_start_waits_for_the_limit_of_the_pod(world: World) -> None:
    world.says({})
    async with world.agent() as link:
        starting = asyncio.create_task(link.before_start(start()))
        await eventually(lambda: world.wanted == {POD_KEY: FOUR})
        world.says({POD_KEY: LimitOutcome(FOUR, "no permission")})
        await rounds(3, POLL_S)
        assert not starting.done()
        world.says({POD_KEY: LimitOutcome(FOUR)})
        assert await starting is None


async def test_a_start_that_does_not_get_its_limit_is_refused_and_names_the_helper(world: World) -> None:
    begin = "the GPU memory of the pod is not limited yet, as it was allocated with limits by dmem: "
    async with world.agent() as link:
        assert await link.before_start(start(0.0)) == Refusal(RefusalCode.NO_LIMIT, begin + dmem.NOT_THERE)
        world.says({POD_KEY: LimitOutcome(FOUR, "no permission")})
        await eventually(lambda: link.lack_of_dmem.value == "")
        await eventually(lambda: world.wanted == {POD_KEY: FOUR})
        assert await link.before_start(start(0.0)) == Refusal(RefusalCode.NO_LIMIT, begin + "no permission")


async def test_the_limit_of_a_pod_stays_when_the_helper_has_gone(world: World) -> None:
    """So a container may start again."""
    world.says({POD_KEY: LimitOutcome(FOUR)})
    async with world.agent() as link:
        await eventually(lambda: world.wanted == {POD_KEY: FOUR})
        world.says({POD_KEY: LimitOutcome(FOUR)}, beat_s=NOW_S - running_limits.BEAT_S - 1)
        await eventually(lambda: link.lack_of_dmem.value == running_limits.SILENT)
        assert await link.before_start(start()) is None


async def test_other_containers_do_not_wait(world: World) -> None:
    async with world.agent() as link:
        assert await link.before_start(start(kind=Kind.COUNT)) is None
        world.entries.set((held(*IDS, enforcement=Enforcement.ADVISORY),))
        assert await link.before_start(start()) is None
    world.state, world.entries = NodeState(node(16)), Observable(())
    async with world.agent() as link:
        assert await link.before_start(start()) is None


async def test_a_container_that_the_records_do_not_show_is_refused(world: World) -> None:
    world.entries = Observable(())
    world.says({})
    async with world.agent() as link:
        refused = await link.before_start(start(0.0))
        assert refused is not None
        assert "records do not show yet which pod has these devices" in refused.sentence
        world.says({}, "the mount is read-only")
        assert await link.before_start(start()) is None, "the pod was told of no such limit"


async def test_nobody_waits_for_a_container_that_has_lost_its_devices(world: World) -> None:
    async with world.agent() as link:
        lost: list[str] = []
        starting = asyncio.create_task(link.before_start(start(lost=lambda: "".join(lost))))
        await rounds(2, POLL_S)
        assert not starting.done()
        lost.append("another has them")
        assert await starting is None


async def test_a_start_waits_until_the_records_show_the_new_owner_of_its_devices(world: World) -> None:
    """Those of the last one may still be shown, whose pod has its limit."""
    other = "b" * 32
    world.entries = Observable((held(*IDS, uid=other),))
    world.state.update(Ledger.granted, IDS, 0.0)
    world.says({LimitKey(other, "", GPU): LimitOutcome(FOUR)})
    async with world.agent() as link:
        starting = asyncio.create_task(link.before_start(start()))
        await rounds(3, POLL_S)
        assert not starting.done()
        world.state.update(Ledger.seen, IDS)
        world.entries.set((held(*IDS),))
        world.says({LimitKey(other, "", GPU): LimitOutcome(FOUR), POD_KEY: LimitOutcome(FOUR)})
        assert await starting is None


async def test_a_pod_without_a_cgroup_yet_is_no_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.says({POD_KEY: LimitOutcome(FOUR, NO_LEAF)})
    async with world.agent() as link:
        await eventually(lambda: link.reasons)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


# --- The means --------------------------------------------------------------------------------------------------------


def limits(tmp_path: Path, state: NodeState, **more: Any) -> Limits:
    there = context(settings=Observable(settings(**more)), state=state, cgroups=SimpleNamespace(mount=str(tmp_path)))
    there.features.add(Use(there))
    return Limits(there)


async def test_a_gpu_has_the_kernels_limits_while_the_helper_sets_them(world: World, tmp_path: Path) -> None:
    feature = limits(tmp_path, world.state, memory_dir=str(tmp_path))
    assert feature.link is not None
    feature.link.clock = lambda: NOW_S
    feature.link._files._clock = lambda: NOW_S

    def chosen() -> tuple[Enforcement, str]:
        found = feature.means(world.state.node.shares, 2, {}).gpus[GPU]
        return found.enforcement, found.why

    assert chosen() == (Enforcement.ADVISORY, dmem.NOT_THERE)
    world.says({})
    assert chosen() == (
        Enforcement.DMEM,
        "the limit helper has the kernel limit the memory of cgroups, by the controller dmem",
    )
    assert [each.value for each in feature.means_follow()] == [""]
    world.says({}, "the mount is read-only")
    assert chosen() == (Enforcement.ADVISORY, "the limit helper sets no limits by dmem: the mount is read-only")


async def test_a_kernel_that_counts_no_memory_is_the_reason(world: World, tmp_path: Path) -> None:
    world.says({})
    gpu = world.state.node.shares.gpus[0]
    shares = replace(world.state.node.shares, gpus=(replace(gpu, gpu=replace(gpu.gpu, memory_limits=False)),))
    feature = limits(tmp_path, world.state, memory_dir=str(tmp_path))
    assert "no cgroup file system of version 2" in feature.means(shares, 2, {}).gpus[GPU].why


async def test_without_a_directory_there_is_no_dmem(world: World, tmp_path: Path) -> None:
    feature = limits(tmp_path, world.state)
    assert "memory_dir names no directory" in feature.means(world.state.node.shares, 2, {}).gpus[GPU].why
    assert tuple(feature.means_follow()) == ()
    assert await feature.before_start(start()) is None


async def test_a_new_agent_lets_stand_what_was_wanted_until_it_knows_containers_and_gpus(world: World) -> None:
    """Its driver may start late, and the API, which tells what a container may use, does not answer yet."""
    (world.directory / LIMIT_FILES.wanted_file).write_text(LIMIT_FILES.write_wanted({POD_KEY: EIGHT}))
    there, unread = world.state.node, Observable[tuple[Allocation, ...]](())
    world.state.refresh_inventory(replace(there.shares, gpus=()), {}, there.links)
    world.says({})
    link = world.link(entries=unread)
    async with beside(link.run()):
        await rounds(3, POLL_S)
        assert world.wanted == {POD_KEY: EIGHT}
        unread.set((held(*IDS),))
        await rounds(3, POLL_S)
        assert world.wanted == {POD_KEY: EIGHT}
        world.named = False
        world.state.refresh_inventory(there.shares, {}, there.links)
        await eventually(lambda: link.lack_of_dmem.value == "")
        await rounds(3, POLL_S)
        assert world.wanted == {POD_KEY: EIGHT}
        world.named = True
        await eventually(lambda: world.wanted == {POD_KEY: FOUR})

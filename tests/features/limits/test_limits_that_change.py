"""The agent's side of the limit helper: it tells which limits running containers are to have, and hears why not."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitOutcome, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.node import LimitLink
from gpu_device_plugin.features.limits.rules import dmem_limits as dmem
from gpu_device_plugin.features.limits.rules import running_limits as setting
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from tests.node.contexts import context, settings
from tests.patience import beside, eventually, rounds

UID, A = "0f0e0d0c-1111-2222-3333-0123456789ab", "GPU-a"
C, D = "c" * 64, "d" * 64
KEY, LATER = LimitKey(UID, C, A), LimitKey(UID, D, A)
PLACE: Place = (UID, "main", A)
FOUR = MemoryLimit(4096)
POLL_S = 0.01


def holding(container_id: str = C) -> ContainerGpus:
    pod = Pod(UID, "default", "p", container_ids={"main": container_id})
    return ContainerGpus(UID, "main", {A: 4096}, enforcement=Enforcement.DRIVER, pod=pod, limits={A: 12288})


class World:
    """An agent's holdings and limits, and the directory where it meets the helper."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.holdings = [holding()]
        self.limits: Observable[Mapping[Place, int]] = Observable({})
        self.settings = Observable(settings())
        self.entries = Observable[tuple[Allocation, ...]](())

    @property
    def wanted(self) -> Mapping[LimitKey, MemoryLimit] | None:
        path = self.directory / LIMIT_FILES.wanted_file
        return LIMIT_FILES.read_wanted(path.read_text()) if path.exists() else None

    def says(self, outcomes: Mapping[LimitKey, LimitOutcome], beat_s: float = 100.0, dmem: str = "no dmem") -> None:
        """Have the helper write its state."""
        new = self.directory / "new"
        new.write_text(LIMIT_FILES.write_state(LimitsState(outcomes, dmem), beat_s))
        new.rename(self.directory / LIMIT_FILES.state_file)

    def limit_softly(self) -> None:
        """Have the settings say that what a container is guaranteed is its soft limit."""
        self.settings.set(settings(soft_limit="share"))

    @asynccontextmanager
    async def agent(self, *, soft: bool = False) -> AsyncIterator[LimitLink]:
        """Run an agent, whose clock shows 110 s."""
        if soft:
            self.limit_softly()
        use: Any = SimpleNamespace(holders=lambda: self.holdings, allowed_now=self.limits)
        node = context(settings=self.settings, entries=self.entries)
        link = LimitLink(self.directory, node, use, poll_s=POLL_S, clock=lambda: 110.0)
        self.entries.set(self.entries.value)  # the kubelet's records have been read
        async with beside(link.run()):
            yield link


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_node_where_no_limit_changes_has_no_file(world: World) -> None:
    async with world.agent() as link:
        world.entries.set(())
        await rounds(3, POLL_S)
        assert (world.wanted, link.reasons) == (None, {})


async def test_the_limit_now_is_told_and_its_outcome_heard(world: World) -> None:
    async with world.agent() as link:
        world.limits.set({PLACE: 4096})
        await eventually(lambda: world.wanted == {KEY: FOUR})
        await eventually(lambda: link.reasons == {PLACE: setting.NOT_THERE})
        world.says({})
        await eventually(lambda: link.reasons == {PLACE: dmem.NOT_YET})
        world.says({KEY: LimitOutcome(FOUR, "no permission")})
        await eventually(lambda: link.reasons == {PLACE: "no permission"})
        world.says({KEY: LimitOutcome(FOUR)})
        await eventually(lambda: link.reasons == {})
        world.says({KEY: LimitOutcome(FOUR)}, beat_s=110.0 - setting.BEAT_S - 1)
        await eventually(lambda: link.reasons == {PLACE: setting.SILENT})


async def test_the_guarantee_is_the_soft_limit_if_it_is_wanted(world: World) -> None:
    async with world.agent(soft=True):
        world.limits.set({PLACE: 8192})
        await eventually(lambda: world.wanted == {KEY: MemoryLimit(8192, 4096)})


async def test_a_changed_setting_of_soft_limits_reaches_the_helper(world: World) -> None:
    world.limits.set({PLACE: 8192})
    async with world.agent():
        await eventually(lambda: world.wanted == {KEY: MemoryLimit(8192)})
        world.limit_softly()
        await eventually(lambda: world.wanted == {KEY: MemoryLimit(8192, 4096)})


async def test_a_container_that_starts_again_is_told_and_an_ended_one_is_dropped(world: World) -> None:
    world.limits.set({PLACE: 4096})
    async with world.agent() as link:
        await eventually(lambda: world.wanted == {KEY: FOUR})
        world.holdings = [holding(D)]
        world.entries.set(())
        await eventually(lambda: world.wanted == {LATER: FOUR})
        world.holdings = []
        await eventually(lambda: world.wanted == {})
        assert link.reasons == {}


async def test_an_agent_that_starts_goes_on_where_the_last_one_was(world: World) -> None:
    """Also for a container that may not change any more: it gets back what it started with."""
    (world.directory / LIMIT_FILES.wanted_file).write_text(LIMIT_FILES.write_wanted({KEY: FOUR, LATER: FOUR}))
    async with world.agent():
        await eventually(lambda: world.wanted == {KEY: MemoryLimit(12288)})


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"version": 1, "limits": [{"pod_uid": "/"}]}'])
async def test_a_file_that_nobody_can_read_is_written_anew(world: World, content: str) -> None:
    (world.directory / LIMIT_FILES.wanted_file).write_text(content)
    async with world.agent():
        await eventually(lambda: (world.directory / LIMIT_FILES.wanted_file).read_text() != content)
        assert world.wanted == {}


async def test_a_file_that_is_removed_is_written_anew(world: World) -> None:
    world.limits.set({PLACE: 4096})
    async with world.agent():
        await eventually(lambda: world.wanted == {KEY: FOUR})
        (world.directory / LIMIT_FILES.wanted_file).unlink()
        await eventually(lambda: world.wanted == {KEY: FOUR})


async def test_a_file_that_cannot_be_written_is_a_reason(world: World) -> None:
    (world.directory / LIMIT_FILES.wanted_file).mkdir()
    world.limits.set({PLACE: 4096})
    async with world.agent() as link:
        await eventually(lambda: "the agent cannot write" in link.reasons.get(PLACE, ""))
        (world.directory / LIMIT_FILES.wanted_file).rmdir()
        await eventually(lambda: world.wanted == {KEY: FOUR})


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be parsed"), (None, "cannot be read")])
async def test_a_state_that_cannot_be_read_is_a_reason(world: World, content: str | None, why: str) -> None:
    path = world.directory / LIMIT_FILES.state_file
    path.mkdir() if content is None else path.write_text(content)
    world.limits.set({PLACE: 4096})
    async with world.agent() as link:
        await eventually(lambda: why in link.reasons.get(PLACE, ""))


async def test_a_reason_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And no more than mentioned where the helper, which is optional, is not there."""
    world.limits.set({PLACE: 4096})
    async with world.agent() as link:
        await eventually(lambda: link.reasons)
        assert caplog.records == []
        world.says({KEY: LimitOutcome(FOUR, "no permission")})
        await eventually(lambda: link.reasons == {PLACE: "no permission"})
        world.holdings = [replace(world.holdings[0], granted={A: 4097})]
        await rounds(3, POLL_S)
    assert [each.getMessage() for each in caplog.records] == ["the limit of a running container is not changed"]

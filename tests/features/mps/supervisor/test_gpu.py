# ruff: noqa: ARG002 - the driver in memory has one GPU
"""One GPU in the hands of its keeper, over a driver in memory, with a clock of the test's own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_daemon import DEFAULT, EXCLUSIVE, QUIT_S
from gpu_device_plugin.features.mps.supervisor.gpu import GpuKeeper, MpsTimings
from gpu_device_plugin.features.mps.supervisor.nvidia import MpsError, Nvidia
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory
from tests.patience import eventually

A = "GPU-a"
FAST = MpsTimings(look_s=0.001, ask_s=0, ask_soon_s=0, mode_s=0, mode_soon_s=0)


@dataclass
class Driver(Nvidia):
    """A GPU with a daemon, and the order of what was done to it."""

    mode: str = DEFAULT
    daemon: bool = False
    waits_for_clients: bool = False
    answer: str = "100.0"
    servers: str = ""
    server_status: str = "ACTIVE"
    refuses: str = ""
    done: list[str] = field(default_factory=list)

    async def start(self, place: GpuDirectory) -> None:
        assert json.loads((place.directory / "gpu.json").read_text())["before"] == DEFAULT, "it is on disk first"
        self.done.append("start")
        self.daemon = True

    async def command(self, place: GpuDirectory, text: str) -> str:
        name = text.partition(" ")[0]
        if not self.daemon or name == self.refuses:
            raise MpsError(f"{name} failed: no")
        if name.startswith("get_server_status"):
            return self.server_status
        if name.startswith(("set", "quit")):
            self.done.append(text)
        if name == "quit" and not self.waits_for_clients:
            self.daemon = False
        return {"get_default_active_thread_percentage": self.answer, "get_server_list": self.servers}.get(name, "70 71")

    async def compute_mode(self, uuid: str) -> str:
        if self.refuses == "compute mode":
            raise MpsError("nvidia-smi failed: Insufficient Permissions")
        return self.mode

    async def set_compute_mode(self, uuid: str, mode: str) -> None:
        self.done.append(mode)
        self.mode = mode

    def alive(self, place: GpuDirectory) -> bool:
        return self.daemon

    def kill(self, place: GpuDirectory) -> None:
        self.done.append("kill")
        self.daemon = False


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """A keeper that runs."""

    def __init__(self, root: Path, driver: Driver, before: str) -> None:
        self.driver = driver
        self.clock = Clock()
        self.changes: list[MpsGpu] = []
        self.keeper = GpuKeeper(
            GpuDirectory(A, root / "a"), driver, self._change, before=before, timings=FAST, clock=self.clock
        )

    def _change(self) -> None:
        self.changes.append(self.keeper.told)

    async def becomes(self, status: MpsStatus) -> MpsGpu:
        await eventually(lambda: self.keeper.told.status is status, f"{status}; {self.keeper}")
        return self.keeper.told


@asynccontextmanager
async def kept(root: Path, driver: Driver, *, wanted: int | None = 4096, before: str = "") -> AsyncIterator[Kept]:
    made = Kept(root, driver, before)
    made.keeper.want(wanted)
    task = asyncio.create_task(made.keeper.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_order_of_steps_closes_the_gpu_first_and_opens_it_last(tmp_path: Path) -> None:
    driver = Driver(servers="70\n")
    async with kept(tmp_path, driver) as made:
        ready = await made.becomes(MpsStatus.READY)
        assert (ready.clients, ready.server_pids, ready.limit_mib) == (2, (70,), 4096)
        made.keeper.want(None)
        await eventually(made.keeper.done.is_set)
    assert driver.done == [
        EXCLUSIVE,
        "start",
        f"set_default_device_pinned_mem_limit {A} 4096M",
        f"set_device_pinned_mem_limit 70 {A} 4096M",
        "quit",
        DEFAULT,
    ]
    statuses = list(dict.fromkeys(each.status for each in made.changes))
    assert statuses == [MpsStatus.STARTING, MpsStatus.READY, MpsStatus.STOPPING, MpsStatus.STOPPED]
    assert json.loads((tmp_path / "a" / "gpu.json").read_text()) == {"uuid": A, "before": ""}


async def test_a_daemon_that_waits_for_its_clients_is_killed_in_the_end(tmp_path: Path) -> None:
    driver = Driver(EXCLUSIVE, daemon=True, waits_for_clients=True)
    async with kept(tmp_path, driver, wanted=None) as made:
        await made.becomes(MpsStatus.STOPPING)
        made.clock.now_s += QUIT_S - 1
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert driver.done == ["quit"]
        made.clock.now_s += 1
        await eventually(made.keeper.done.is_set)
    assert driver.done == ["quit", "kill", DEFAULT]


async def test_a_daemon_that_hangs_is_told_and_then_killed_and_replaced(tmp_path: Path) -> None:
    driver = Driver()
    async with kept(tmp_path, driver) as made:
        await made.becomes(MpsStatus.READY)
        driver.refuses = "get_server_list"
        assert (await made.becomes(MpsStatus.FAILED)).why == "get_server_list failed: no"
        driver.done.clear()
        made.clock.now_s += 60
        await eventually(lambda: "kill" in driver.done)
        driver.refuses = ""
        await made.becomes(MpsStatus.READY)
    assert driver.done[:2] == ["kill", "start"]


async def test_an_answer_that_is_none_is_no_proof(tmp_path: Path) -> None:
    driver = Driver(answer="Cannot connect")
    async with kept(tmp_path, driver) as made:
        found = await made.becomes(MpsStatus.FAILED)
        assert found.why == "the daemon answers what is not understood: Cannot connect"


async def test_a_server_that_ends_between_two_commands_is_no_trouble(tmp_path: Path) -> None:
    driver = Driver(servers="70", refuses="get_client_list")
    async with kept(tmp_path, driver) as made:
        ready = await made.becomes(MpsStatus.READY)
        assert (ready.clients, ready.server_pids) == (0, (70,))


async def test_a_mode_that_somebody_sets_is_set_again(tmp_path: Path) -> None:
    driver = Driver()
    async with kept(tmp_path, driver) as made:
        await made.becomes(MpsStatus.READY)
        driver.mode = DEFAULT
        await eventually(lambda: driver.done.count(EXCLUSIVE) == 2)
        await made.becomes(MpsStatus.READY)
    assert any("could go without a limit" in each.why for each in made.changes)


@pytest.mark.parametrize(("before", "mode"), [("PROHIBITED", "PROHIBITED"), ("", DEFAULT)])
async def test_a_gpu_of_an_earlier_supervisor_gets_its_mode_back(tmp_path: Path, before: str, mode: str) -> None:
    """Where nobody remembers the former mode it is the default."""
    driver = Driver(EXCLUSIVE, daemon=not before)
    async with kept(tmp_path, driver, wanted=None, before=before) as made:
        await eventually(made.keeper.done.is_set)
    assert driver.done[-1] == driver.mode == mode


async def test_a_larger_share_raises_the_limit_of_the_server_that_runs_too(tmp_path: Path) -> None:
    driver = Driver(servers="70")
    async with kept(tmp_path, driver) as made:
        await made.becomes(MpsStatus.READY)
        made.keeper.want(8192)
        await eventually(lambda: made.keeper.told.limit_mib == 8192)
    assert driver.done[-1] == f"set_device_pinned_mem_limit 70 {A} 8192M"
    assert driver.done.count("start") == 1


async def test_a_fault_is_reported_until_the_clients_have_ended(tmp_path: Path) -> None:
    driver = Driver(servers="70")
    async with kept(tmp_path, driver) as made:
        await made.becomes(MpsStatus.READY)
        driver.server_status = "FAULT"
        fault = await made.becomes(MpsStatus.FAULT)
        assert (fault.clients, fault.server_pids, fault.limit_mib) == (2, (70,), 0)
        assert "new ones are refused" in fault.why
        driver.servers = ""
        assert (await made.becomes(MpsStatus.READY)).server_pids == ()
    assert driver.done.count("start") == 1


async def test_a_mode_that_cannot_be_read_is_told_and_tried_again(tmp_path: Path) -> None:
    driver = Driver(refuses="compute mode")
    async with kept(tmp_path, driver) as made:
        assert "the driver does not tell the compute mode" in (await made.becomes(MpsStatus.FAILED)).why
        driver.refuses = ""
        await made.becomes(MpsStatus.READY)


async def test_a_log_that_has_grown_is_emptied(tmp_path: Path) -> None:
    """It is in the node's memory, and MPS never shortens it."""
    log = tmp_path / "a" / "log" / "server.log"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(9 << 20)
    async with kept(tmp_path, Driver()) as made:
        await made.becomes(MpsStatus.READY)
        await eventually(lambda: log.stat().st_size == 0)

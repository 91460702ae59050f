"""All GPUs of a node in one supervisor: what goes wrong with one of them leaves the others alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsStatus
from gpu_device_plugin.features.mps.supervisor.gpu import MpsTimings
from gpu_device_plugin.features.mps.supervisor.mps_program import Supervisor
from gpu_device_plugin.features.mps.supervisor.nvidia import Nvidia
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory
from gpu_device_plugin.model.gpus import MOST_GPUS
from tests.features.mps.supervisor.test_gpu import Driver
from tests.patience import eventually

A, B = "GPU-a", "GPU-b"


class Gpus(Nvidia):
    """A driver in memory for each GPU; that of A has an error in the program itself the first time."""

    def __init__(self) -> None:
        self.drivers = {A: Driver(), B: Driver()}
        self.errors = 0

    async def start(self, place: GpuDirectory) -> None:
        if place.uuid == A and self.errors:
            self.errors -= 1
            raise ZeroDivisionError
        await self.drivers[place.uuid].start(place)

    async def command(self, place: GpuDirectory, text: str) -> str:
        return await self.drivers[place.uuid].command(place, text)

    async def compute_mode(self, uuid: str) -> str:
        return await self.drivers[uuid].compute_mode(uuid)

    async def set_compute_mode(self, uuid: str, mode: str) -> None:
        await self.drivers[uuid].set_compute_mode(uuid, mode)

    def alive(self, place: GpuDirectory) -> bool:
        return self.drivers[place.uuid].alive(place)

    def kill(self, place: GpuDirectory) -> None:
        self.drivers[place.uuid].kill(place)


@asynccontextmanager
async def supervised(root: Path, gpus: Gpus, *wanted: str, errors: int = 0) -> AsyncIterator[Supervisor]:
    """Run a supervisor of which a daemon is wanted for each of these GPUs."""
    gpus.errors = errors
    if wanted:
        want(root, *wanted)
    supervisor = Supervisor(root, gpus, timings=FAST)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def want(root: Path, *uuids: str) -> None:
    (root / WANTED_FILE).write_text(MPS_FILES.write_wanted(dict.fromkeys(uuids, 1024)))


FAST = MpsTimings(look_s=0.001, ask_s=0, ask_soon_s=0, mode_s=0, mode_soon_s=0.001)


async def test_an_error_in_the_program_itself_ends_no_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An end of the program would end them all, in a container."""
    gpus = Gpus()
    async with supervised(tmp_path, gpus, A, B, errors=1) as supervisor:
        await eventually(lambda: B in supervisor.gpus and supervisor.gpus[B].status is MpsStatus.READY)
        assert supervisor.gpus[A].status is MpsStatus.STARTING
        assert "an error in the program itself" in caplog.text
        await eventually(lambda: supervisor.gpus[A].status is MpsStatus.READY)
        assert await supervisor.unready() == ()
        await supervisor.finish()
        assert {gpu.status for gpu in supervisor.gpus.values()} == {MpsStatus.STOPPED}
        assert not any(driver.daemon for driver in gpus.drivers.values())


async def test_as_many_gpus_may_be_wanted_as_a_node_can_have(tmp_path: Path) -> None:
    gpus = Gpus()
    gpus.drivers = {f"GPU-{at}": Driver() for at in range(MOST_GPUS + 1)}
    async with supervised(tmp_path, gpus, *list(gpus.drivers)[:MOST_GPUS]) as supervisor:
        await eventually(lambda: len(supervisor.gpus) == MOST_GPUS)
        want(tmp_path, *gpus.drivers)
        await eventually(lambda: supervisor.files.refused)
        assert f"names more than {MOST_GPUS} GPUs" in supervisor.files.refused


async def test_daemons_run_on_when_the_file_of_what_is_wanted_is_removed(tmp_path: Path) -> None:
    """Somebody cleans up; the agent writes it anew, and an empty one ends the daemons."""
    async with supervised(tmp_path, Gpus(), A) as supervisor:
        await eventually(lambda: A in supervisor.gpus and supervisor.gpus[A].status is MpsStatus.READY)
        (tmp_path / WANTED_FILE).unlink()
        await eventually(lambda: supervisor.files.refused)
        assert "wanted.json is gone, and nothing changes until the agent writes it again" in supervisor.files.refused
        assert supervisor.gpus[A].status is MpsStatus.READY
        want(tmp_path)
        await eventually(lambda: supervisor.gpus[A].status is MpsStatus.STOPPED)
        (tmp_path / WANTED_FILE).unlink()
        await eventually(lambda: not supervisor.files.refused)


async def test_a_supervisor_that_cannot_know_what_is_wanted_touches_nothing(tmp_path: Path) -> None:
    """It reports nothing either: the agent sees that there is no beat."""
    (tmp_path / WANTED_FILE).write_text("{")
    async with supervised(tmp_path, Gpus()) as supervisor:
        await eventually(lambda: "cannot be used" in supervisor.files.refused)
        assert (supervisor.gpus, (tmp_path / STATE_FILE).exists()) == ({}, False)
        want(tmp_path, A)
        await eventually(lambda: A in supervisor.gpus and supervisor.gpus[A].status is MpsStatus.READY)


async def test_a_state_that_cannot_be_written_is_told_and_written_later(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).mkdir()
    async with supervised(tmp_path, Gpus()) as supervisor:
        await eventually(supervisor.unready)
        assert "state.json cannot be written" in (await supervisor.unready())[0]
        (tmp_path / STATE_FILE).rmdir()
        await eventually((tmp_path / STATE_FILE).is_file)
        assert await supervisor.unready() == ()

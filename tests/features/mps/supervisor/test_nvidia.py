"""Programs of the driver that fail, hang or are not there become sentences, and never hold the supervisor up."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.rules.mps_daemon import DEFAULT, EXCLUSIVE
from gpu_device_plugin.features.mps.supervisor.nvidia import MpsError, Nvidia
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory
from tests.features.mps.supervisor.mps_double import MpsPrograms
from tests.patience import eventually

A = "GPU-aaaaaaaa"


class Machine:
    """Doubles of the programs, and what runs them."""

    def __init__(self, root: Path) -> None:
        self.programs = MpsPrograms(root / "bin", (A,))
        self.place = GpuDirectory(A, root / "a")
        environ = {"PATH": str(self.programs.directory), "CUDA_VISIBLE_DEVICES": "all", "GPUSHARE_HTTP": ":1"}
        self.nvidia = Nvidia(environ)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="mps") as root:
        made = Machine(Path(root))
        yield made
        if made.nvidia.alive(made.place):
            made.nvidia.kill(made.place)


async def test_a_daemon_answers_until_it_quits(machine: Machine) -> None:
    await machine.nvidia.start(machine.place)
    assert machine.nvidia.alive(machine.place)
    assert await machine.nvidia.command(machine.place, "get_default_active_thread_percentage") == "100.0"
    assert await machine.nvidia.command(machine.place, "get_server_list") == ""
    await machine.nvidia.command(machine.place, "quit")
    await eventually(lambda: not machine.nvidia.alive(machine.place))
    with pytest.raises(MpsError, match=r"^get_server_list failed: Cannot find MPS control daemon process$"):
        await machine.nvidia.command(machine.place, "get_server_list")


async def test_an_older_mps_has_one_user_at_a_time(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.programs.trouble(one_user="yes")
    await machine.nvidia.start(machine.place)
    assert machine.nvidia.alive(machine.place)
    assert "this driver's MPS has one user at a time" in caplog.text


async def test_the_compute_mode_is_read_and_set(machine: Machine) -> None:
    assert await machine.nvidia.compute_mode(A) == DEFAULT
    await machine.nvidia.set_compute_mode(A, EXCLUSIVE)
    assert await machine.nvidia.compute_mode(A) == EXCLUSIVE
    assert await machine.nvidia.compute_mode("GPU-b") == ""
    machine.programs.trouble(nvidia_smi="Insufficient\nPermissions")
    with pytest.raises(MpsError, match=r"^nvidia-smi -c DEFAULT failed: Insufficient Permissions$"):
        await machine.nvidia.set_compute_mode(A, DEFAULT)
    with pytest.raises(MpsError, match="does not tell the compute mode: Insufficient"):
        await machine.nvidia.compute_mode(A)


async def test_a_mode_that_is_none_is_an_error(machine: Machine) -> None:
    machine.programs.set_mode(A, "[N/A]")
    with pytest.raises(MpsError, match=r"does not tell the compute mode: \[N/A\]"):
        await machine.nvidia.compute_mode(A)


async def test_what_hangs_is_ended(machine: Machine) -> None:
    machine.nvidia.command_s = machine.nvidia.smi_s = 0.3
    machine.programs.trouble(nvidia_smi="hang", quit="hang")
    with pytest.raises(MpsError, match=r"^nvidia-smi did not answer within 0\.3 s$"):
        await machine.nvidia.compute_mode(A)
    with pytest.raises(MpsError, match=r"^nvidia-cuda-mps-control did not answer within 0\.3 s$"):
        await machine.nvidia.command(machine.place, "quit")


async def test_a_program_that_is_no_program_is_told(machine: Machine) -> None:
    (machine.programs.directory / "nvidia-smi").chmod(0o644)
    with pytest.raises(MpsError, match=r"^nvidia-smi cannot be run: Permission denied$"):
        await machine.nvidia.compute_mode(A)


def variables_of(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
    return dict(line.split("=", 1) for line in lines if line)


async def test_a_daemon_sees_its_gpu_alone_and_none_of_our_settings(machine: Machine) -> None:
    await machine.nvidia.start(machine.place)
    ((uuid, pid),) = await eventually(lambda: machine.programs.calls("start"))  # the daemon itself says so
    environ = variables_of(pid)
    assert uuid == A
    assert environ == {
        "PATH": str(machine.programs.directory),
        "CUDA_VISIBLE_DEVICES": A,
        "CUDA_MPS_PIPE_DIRECTORY": str(machine.place.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(machine.place.log),
    }
    # A session of its own: a signal to ours does not reach it.
    assert os.getsid(int(pid)) != os.getsid(0)
    os.kill(int(pid), signal.SIGKILL)

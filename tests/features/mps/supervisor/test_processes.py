"""Which processes are a GPU's daemon and servers, whatever clients call themselves."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.supervisor.nvidia import CONTROL, SERVER, MpsProcesses, Nvidia
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory
from tests.patience import until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process of any name that waits, with a pipe directory."""
    script = "import sys, time; sys.stdout.write('.'); sys.stdout.flush(); time.sleep(600)"
    with ExitStack() as stack:

        def made(name: str, pipe: Path, *arguments: str) -> subprocess.Popen[bytes]:
            path = tmp_path / name
            path.write_text(f"#!{sys.executable}\n{script}\n")
            path.chmod(0o755)
            environ = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
            child = subprocess.Popen([path, *arguments], env=environ, stdout=subprocess.PIPE)
            stack.callback(end, child)
            assert child.stdout is not None
            assert child.stdout.read(1) == b"."
            return child

        yield made


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_daemon_and_its_server_are_found_by_program_and_directory(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    ours, other = tmp_path / "a", tmp_path / "a2"
    daemon, server = start(CONTROL, ours, "-d"), start(SERVER, ours)
    start(CONTROL, ours)  # a command that is given just now
    start(CONTROL, other, "-d")
    start("python-client", ours, "-d")
    daemons, servers = MpsProcesses(Path("/proc")).of(ours)
    assert [each.pid for each in daemons] == [daemon.pid]
    assert [each.pid for each in servers] == [server.pid]


def test_a_process_that_has_ended_or_was_replaced_is_not_there(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    processes = MpsProcesses(Path("/proc"))
    child = start(CONTROL, tmp_path, "-d")
    ((found,), _) = processes.of(tmp_path)
    assert processes.is_there(found)
    assert not processes.is_there(found._replace(started="1"))
    child.kill()
    until(lambda: not processes.is_there(found), "a zombie is not there either")
    assert processes.of(tmp_path) == ((), ())
    child.wait()
    assert not processes.is_there(found)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not on the PATH")
def test_a_containers_process_of_the_same_name_is_not_the_daemon(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """It could otherwise pretend that there is a daemon, and keep ours from being started."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no PID namespace can be made here")
    end(start(CONTROL, tmp_path / "other", "-d"))  # writes the program
    environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    words = ["unshare", "--pid", "--fork", "--kill-child", str(tmp_path / CONTROL), "-d"]
    child = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"."
        assert MpsProcesses(Path("/proc")).of(tmp_path) == ((), ())
    finally:
        end(child)


def test_a_kill_reaches_daemon_and_server_and_nobody_else(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    place = GpuDirectory("GPU-a", tmp_path / "a")
    daemon, server = start(CONTROL, place.pipe, "-f"), start(SERVER, place.pipe)
    client = start("client", place.pipe)
    nvidia = Nvidia({})
    assert nvidia.alive(place)
    nvidia.kill(place)
    assert (daemon.wait(), server.wait()) == (-9, -9)
    assert client.poll() is None
    assert not nvidia.alive(place)


def test_directories_are_short_enough_for_sockets() -> None:
    with tempfile.TemporaryDirectory() as root:
        place = GpuDirectory("GPU-a", Path(root) / ("x" * 90))
        with pytest.raises(OSError, match=r"too long for a socket: choose a shorter mps_dir"):
            place.prepare()

"""The supervisor as it runs on a node: each test starts it as a process, over doubles of NVIDIA's programs."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.contract import MpsStatus
from gpu_device_plugin.features.mps.rules.mps_daemon import DEFAULT, EXCLUSIVE
from tests.features.mps.supervisor.supervised import STOPPED, A, B, Node, node
from tests.patience import until
from tests.ports import free_port


@pytest.fixture
def world() -> Iterator[Node]:
    # Not tmp_path: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mps") as root, node(Path(root)) as made:
        yield made


def test_a_wanted_gpu_gets_a_daemon_and_an_unwanted_one_its_compute_mode_back(world: Node) -> None:
    world.want(a=4096)
    world.start()
    ready = world.becomes(MpsStatus.READY)
    assert (ready.why, ready.clients, ready.server_pids, ready.limit_mib) == ("", 0, (), 4096)
    assert world.programs.modes == {A: EXCLUSIVE, B: DEFAULT}
    assert world.programs.calls("set_default_device_pinned_mem_limit") == [[A, "4096M"]]
    assert len(world.daemons()) == 1
    for path in (Path(ready.pipe_directory), *Path(ready.pipe_directory).parents[:2]):
        assert path.stat().st_mode & 0o777 == 0o755, path
    assert (world.directory / "shm").stat().st_mode & 0o7777 == 0o1777
    world.want()
    world.becomes(MpsStatus.STOPPED)
    assert world.programs.modes == {A: DEFAULT, B: DEFAULT}
    assert world.programs.calls("quit") == [[A]]
    assert world.daemons() == ()


def test_a_daemon_that_is_killed_is_reported_and_started_again(world: Node) -> None:
    world.want(a=4096)
    world.start()
    world.becomes(MpsStatus.READY)
    (old,) = world.daemons()
    # A second start is held up, so that what is reported meanwhile is seen.
    world.programs.trouble(start="no memory")
    os.kill(old, signal.SIGKILL)
    world.becomes(MpsStatus.FAILED, "the daemon has ended by itself")
    world.becomes(MpsStatus.FAILED, "nvidia-cuda-mps-control -d failed: no memory")
    assert world.programs.modes[A] == EXCLUSIVE, "nobody uses the GPU without a limit meanwhile"
    world.programs.trouble()
    world.becomes(MpsStatus.READY)
    assert world.daemons() not in {(), (old,)}


def test_the_daemons_of_a_supervisor_that_was_killed_are_adopted(world: Node) -> None:
    world.want(a=4096)
    world.start()
    world.becomes(MpsStatus.READY)
    before = world.daemons()
    world.end(signal.SIGKILL)
    beat_s = world.state()[1]
    world.start()
    until(lambda: world.state()[1] > beat_s and world.gpu().status is MpsStatus.READY, "it is adopted")
    assert (world.daemons(), len(world.programs.calls("start"))) == (before, 1)
    assert world.programs.calls("quit") == []


def test_the_daemons_that_died_with_their_supervisor_are_started_again(world: Node) -> None:
    """As in a container: its processes end with its first one, and leave sockets and the compute mode behind."""
    world.programs.set_mode(B, "PROHIBITED")
    world.want(a=4096, b=1024)
    world.start()
    world.becomes(MpsStatus.READY)
    world.becomes(MpsStatus.READY, uuid=B)
    world.end(signal.SIGKILL)
    for uuid in (A, B):
        (pid,) = world.daemons(uuid)
        os.kill(pid, signal.SIGKILL)
    until(lambda: not world.daemons(A) and not world.daemons(B), "the daemons have ended")
    world.want(a=4096)
    beat_s = world.state()[1]
    world.start()
    until(lambda: world.state()[1] > beat_s and world.gpu().status is MpsStatus.READY, "it is there again")
    world.becomes(MpsStatus.STOPPED, uuid=B)
    assert world.programs.modes == {A: EXCLUSIVE, B: "PROHIBITED"}


def test_at_sigterm_every_gpu_is_given_back(world: Node) -> None:
    world.want(a=4096, b=4096)
    world.start()
    world.becomes(MpsStatus.READY)
    world.becomes(MpsStatus.READY, uuid=B)
    assert world.end() == 0
    assert world.programs.modes == {A: DEFAULT, B: DEFAULT}
    assert (world.daemons(A), world.daemons(B)) == ((), ())
    assert {uuid: gpu.status for uuid, gpu in world.state()[0].items()} == dict.fromkeys((A, B), MpsStatus.STOPPED)


def test_a_file_that_is_not_understood_changes_nothing(world: Node) -> None:
    world.want(a=4096)
    world.start()
    world.becomes(MpsStatus.READY)
    for text, words in {
        "{": "wanted.json cannot be used, and nothing changes until it can",
        '{"version": 1, "gpus": {"GPU-../../etc": 1}}': "'GPU-../../etc', which is no UUID of a GPU",
        '{"version": 9, "gpus": {}}': "another version",
        "x" * ((1 << 20) + 1): "more than 1048576 bytes",
    }.items():
        world.write(text)
        until(partial(world.said, words), words)
    world.rounds(2)
    assert world.gpu().status is MpsStatus.READY
    world.want()
    world.becomes(MpsStatus.STOPPED)
    assert world.said("wanted.json can be used again")


@pytest.mark.parametrize("program", ["nvidia-cuda-mps-control", "nvidia-smi"])
def test_without_the_drivers_programs_the_remedy_is_told(world: Node, program: str) -> None:
    world.programs.remove(program)
    world.want(a=4096)
    world.start()
    words = (
        f"{program} is not on the PATH: on a node the driver's package brings it, into a container the NVIDIA runtime "
        "with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )
    world.becomes(MpsStatus.FAILED, words if program != "nvidia-smi" else "does not tell the compute mode")
    assert world.said(words)


def test_probes_and_metrics_say_what_runs(world: Node) -> None:
    port = free_port()
    world.want(a=4096)
    world.programs.serve(A, {4000: ("ACTIVE", [4267])})
    world.start(f"--http=127.0.0.1:{port}")
    assert world.becomes(MpsStatus.READY).clients == 1
    assert page(port, "/readyz") == (200, f"ok\n{A}: ready, clients: 1\n")
    _, text = page(port, "/metrics")
    assert f'gpushare_mps_up{{gpu="{A}"}} 1.0' in text
    assert f'gpushare_mps_clients{{gpu="{A}"}} 1.0' in text
    world.programs.serve(A, {4000: ("FAULT", [4267])})
    world.becomes(MpsStatus.FAULT)
    code, text = page(port, "/readyz")
    assert code == 503
    assert text.startswith(f"{A}: fault: a client caused a fatal fault")
    assert page(port, "/healthz") == (200, "ok\n"), "a restart would end the clients"
    assert f'gpushare_mps_up{{gpu="{A}"}} 0.0' in page(port, "/metrics")[1]


def page(port: int, path: str) -> tuple[int, str]:
    import http.client  # noqa: PLC0415 - of this one test

    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_nothing_is_wanted_where_no_agent_was(world: Node) -> None:
    world.start()
    world.rounds()
    assert (world.gpu(), world.state()[0]) == (STOPPED, {})
    assert world.end() == 0
    assert world.programs.calls("mode") == []


def test_a_directory_that_cannot_be_used_is_told_with_the_remedy(world: Node) -> None:
    world.directory.write_text("a file")
    world.start()
    remedy = "the supervisor's container has to be privileged, with a writable directory of the node at mps_dir"
    until(lambda: world.said(remedy), "it is told")
    assert world.said(f"mps_dir: {world.directory}")


def test_outside_of_a_pod_nothing_is_mounted(world: Node) -> None:
    """A tmpfs would stay on the machine. With a size of 0 nothing is mounted anyway."""
    directory = world.directory
    words = [sys.executable, "-m", "gpu_device_plugin", "mps", f"--mps-dir={directory}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 2
    said = f"mps: this is no pod of a cluster, and a tmpfs at {directory}/shm would stay here: "
    assert done.stderr.startswith(f"gpu-device-plugin: {said}deploy/optional/mps.yaml")
    assert done.stderr.endswith("or use --shm-size=0MiB\n")
    assert not directory.exists()

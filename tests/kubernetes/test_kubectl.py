"""kubectl's proxy ends with us, whatever it is, and what keeps it from running is told."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from gpu_device_plugin.kubernetes import kubectl
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError, reaching
from tests.patience import eventually
from tests.programs.conftest import _servers_end  # noqa: F401 - a fixture
from tests.programs.inspect.test_inspect_program import World


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(shutil.which("pkill") is None, reason="pkill is not on the PATH")
async def test_a_proxy_behind_a_script_ends_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    script = world.kubectl.read_text(encoding="utf-8")
    behind = f"sleep 3600 & echo $! > {tmp_path}/behind; wait"
    world.kubectl.write_text(script.replace("exec sleep 3600", behind), encoding="utf-8")
    pid = tmp_path / "behind"
    async with reaching((), str(world.kubectl)):
        await eventually(lambda: pid.exists() and bool(pid.read_text()))  # the script serves before it writes this
        proxy = int(pid.read_text())
        assert runs(proxy)
    await eventually(lambda: not runs(proxy))


async def test_an_error_of_ours_beside_the_proxy_is_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise AttributeError("no such thing here")

    monkeypatch.setattr(kubectl, "_until_it_serves", fails)
    with pytest.raises(AttributeError):
        async with asyncio.timeout(30), reaching((), str(World(tmp_path).kubectl)):
            pass


async def test_without_a_shell_it_is_not_kubectl_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "_SHELL", "/no/sh")
    with pytest.raises(
        ClusterUnreadableError, match=r"^/no/sh: No such file or directory; it is to end kubectl's proxy"
    ):
        async with reaching((), str(World(tmp_path).kubectl)):
            pass


def test_how_a_process_ended_is_told_of_every_signal() -> None:
    ended = [kubectl._how_it_ended(code) for code in (None, 3, -signal.SIGTERM, -40)]
    assert ended == ["exit code None", "exit code 3", "ended by SIGTERM", "ended by signal 40"]

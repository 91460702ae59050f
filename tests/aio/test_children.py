"""A child process that ends in the moment in which it is to be ended keeps its exit code, and nobody is warned."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from gpu_device_plugin.aio import children
from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.hardware.driver_process import DriverProcess
from gpu_device_plugin.programs.demo.world import Agent
from tests.patience import until


@pytest.fixture(autouse=True)
async def _looking_later() -> AsyncIterator[None]:
    """Have asyncio look at children in its loop, as Python does from 3.12 on: while the loop does else, they wait."""
    if sys.version_info >= (3, 12):
        yield
        return
    policy = asyncio.get_event_loop_policy()
    before = policy.get_child_watcher()
    watcher = asyncio.PidfdChildWatcher()
    watcher.attach_loop(asyncio.get_running_loop())
    policy.set_child_watcher(watcher)
    yield
    policy.set_child_watcher(before)


def until_it_has_ended(pid: int) -> None:
    """Wait for a child's end without letting the loop see it."""
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", pause_s=0.001)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


WHEN_TOLD = ("sh", "-c", "read line; exit 7")
"""Ends when it is written to, so that nobody sees its end before that."""


async def test_a_signal_leaves_the_exit_code_to_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    process = await asyncio.create_subprocess_exec(*WHEN_TOLD, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    until_it_has_ended(process.pid)
    signal_child(process.pid, process.returncode, signal.SIGTERM)
    assert await process.wait() == 7
    signal_child(process.pid, process.returncode, signal.SIGTERM)  # may be another process by now
    assert warnings(caplog) == []


async def test_a_signal_ends_a_child_that_runs() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    signal_child(process.pid, process.returncode, signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM


async def test_a_signal_to_a_process_that_is_gone_is_none() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    signal_child(process.pid, None, signal.SIGTERM)


async def test_the_drivers_process_may_end_in_the_moment_in_which_it_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    """As one does that has said why the driver cannot be used."""
    child = DriverProcess(lambda: None)
    transport, _ = await asyncio.get_running_loop().subprocess_exec(lambda: child, *WHEN_TOLD)
    cast("asyncio.WriteTransport", transport.get_pipe_transport(0)).write(b"\n")
    until_it_has_ended(transport.get_pid())
    child.kill()
    assert await child.exits(20)
    assert (transport.get_returncode(), warnings(caplog)) == (7, [])


async def test_the_agent_of_a_demo_may_end_in_the_moment_in_which_it_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent({"gpus": "fake:1xT4", "device_plugin_dir": str(tmp_path), "api": "off"}, tmp_path / "log")
    for number in (signal.SIGTERM, signal.SIGKILL):
        await agent.start()
        process = agent.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until_it_has_ended(process.pid)
        await agent.end(number)
        assert (process.returncode, warnings(caplog)) == (-signal.SIGKILL, [])


def test_every_signal_to_a_child_goes_through_here() -> None:
    package = Path(children.__file__).parents[1]
    senders = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"os\.kill(pg)?\(|\.(send_signal|terminate)\(", path.read_text())
    }
    # The daemons of MPS detach themselves, and outlive their supervisor: they are nobody's children.
    assert senders == {"aio/children.py", "features/mps/supervisor/nvidia.py"}

"""`kubectl inspect gpushare web`: the command as a process, over a kubectl made for the test."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError, reaching
from tests.builders import container, node, pod
from tests.cluster_double.api_server import ApiServer
from tests.patience import eventually, stretched

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        running.add(node("gpu-1", mem=15, count=1))
        yield running


@dataclass
class Home:
    """Where our kubectl stands."""

    path: Path

    @property
    def kubectl(self) -> Path:
        """The program."""
        return self.path / "bin" / "kubectl"

    def write(self, **script: Any) -> None:
        """Say how kubectl behaves."""
        (self.path / "script.json").write_text(json.dumps(script))

    def calls(self) -> list[list[Any]]:
        """Return its calls so far: the process, and the words."""
        found = self.path / "calls"
        return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []

    def proxies(self) -> list[int]:
        """Return the processes of its proxies so far."""
        return [pid for pid, *words in self.calls() if "proxy" in words]

    def folders(self) -> list[Path]:
        """Return the folders that are left of sockets."""
        return list((self.path / "tmp").glob("gpushare-*"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path)
    found.kubectl.parent.mkdir()
    (tmp_path / "tmp").mkdir()
    double = f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.programs.web.kubectl_double {tmp_path} "$@"\n'
    found.kubectl.write_text(double)
    found.kubectl.chmod(0o755)
    return found


@dataclass
class Command:
    """The command, once it has said where the page is."""

    process: asyncio.subprocess.Process
    url: str
    token: str


@asynccontextmanager
async def running(
    home: Home, *words: str, environ: dict[str, str] | None = None, stderr: int = subprocess.PIPE
) -> AsyncIterator[Command]:
    process = await started(home, *words, environ=environ, stderr=stderr)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(stretched()):
            line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+)/#token=(\S+)\n", line)
        assert found is not None, (line, process)
        yield Command(process, found[1], found[2])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def started(
    home: Home,
    *words: str,
    environ: dict[str, str] | None = None,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> asyncio.subprocess.Process:
    graphical = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    environment = {name: value for name, value in os.environ.items() if name not in graphical} | {
        "PATH": f"{home.kubectl.parent}:{os.environ['PATH']}",
        "TMPDIR": str(home.path / "tmp"),
        **(environ or {}),
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_device_plugin", "inspect", "web", *words),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment,
    )


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def session(command: Command) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{command.url}/api/v1/session", headers={"Authorization": f"Bearer {command.token}"}) as answer,
    ):
        return await answer.json()


async def test_the_page_has_the_rights_of_the_kubeconfig_that_the_flags_select(home: Home, api: ApiServer) -> None:
    api.tokens = frozenset({"of-the-kubeconfig"})
    context = {"user": "alice", "namespace": "team"}
    home.write(server=api.url, token="of-the-kubeconfig", context=context)  # noqa: S106 - of a double
    async with running(home, "--no-browser", "--context=prod") as command:
        found = await session(command)
        assert (found["user"], found["context"], found["mode"]) == ("alice", "prod", "kubeconfig")
        await eventually(lambda: api.count("watch", "nodes"))
    assert all("--context=prod" in words for _, *words in home.calls())
    assert {request.token for request in api.requests} == {"of-the-kubeconfig"}
    assert all(command.token not in " ".join(words) for _, *words in home.calls())


async def test_the_socket_is_this_users_alone(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    async with running(home, "--no-browser"):
        (folder,) = home.folders()
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
async def test_a_signal_ends_everything(home: Home, api: ApiServer, number: signal.Signals) -> None:
    home.write(server=api.url)
    async with running(home, "--no-browser") as command:
        command.process.send_signal(number)
        async with asyncio.timeout(stretched()):
            _, said = await command.process.communicate()
        assert (command.process.returncode, said.decode()) == (0, "")
    (proxy,) = home.proxies()
    assert not alive(proxy)
    assert home.folders() == []


async def test_kubectl_ends_even_if_we_are_killed(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    async with running(home, "--no-browser") as command:
        (proxy,) = home.proxies()
        assert alive(proxy)
        command.process.kill()
        await eventually(lambda: not alive(proxy), "kubectl ends")
        await eventually(lambda: home.folders() == [], "its socket is removed")


async def test_a_proxy_that_ends_is_started_again(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    async with running(home, "--no-browser") as command:
        (first,) = home.proxies()
        await eventually(lambda: api.count("watch", "nodes"), "the nodes are followed")
        watches = api.count("watch", "nodes")
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: len(home.proxies()) == 2, "another proxy")
        await eventually(lambda: api.count("watch", "nodes") > watches, "the nodes are followed again")
        assert (await session(command))["mode"] == "kubeconfig"


async def test_what_kubectl_prints_before_it_serves_is_no_matter(home: Home, api: ApiServer) -> None:
    home.write(server=api.url, banner="Welcome!\n" + "x" * 200_000)
    async with running(home, "--no-browser") as command:
        assert (await session(command))["mode"] == "kubeconfig"


async def test_what_kubectl_leaves_behind_is_not_waited_for(home: Home, api: ApiServer) -> None:
    """The browser of a login holds kubectl's output open for days."""
    home.write(server=api.url, leaves=True)
    left: list[int] = []
    said = os.open(home.path / "said", os.O_RDWR | os.O_CREAT)
    try:
        async with running(home, "--no-browser", stderr=said) as command:
            left.append(int((home.path / "left").read_text()))
            (first,) = home.proxies()
            os.kill(first, signal.SIGKILL)
            watches = api.count("watch", "nodes")
            await eventually(lambda: api.count("watch", "nodes") > watches, "the nodes are followed again")
            # The first watch may have come so late that it was taken for this one.
            await eventually(
                lambda: (home.path / "left").read_text() not in {"", str(left[0])}, "there is another proxy"
            )
            left.append(int((home.path / "left").read_text()))
            command.process.terminate()
            async with asyncio.timeout(stretched()):
                await command.process.wait()
            assert (command.process.returncode, (home.path / "said").read_text()) == (0, "")
        assert home.folders() == []
    finally:
        os.close(said)
        for pid in left:
            os.kill(pid, signal.SIGKILL)


async def test_a_signal_ends_a_kubectl_that_is_stuck(home: Home, api: ApiServer) -> None:
    home.write(server=api.url, stuck=True)
    process = await started(home, "--no-browser")
    await eventually(lambda: [words for _, *words in home.calls() if "view" in words], "the kubeconfig is read")
    process.terminate()
    async with asyncio.timeout(stretched()):
        _, said = await process.communicate()
    assert (process.returncode, said.decode()) == (0, "")
    assert not any(alive(pid) for pid, *_ in home.calls())
    assert home.folders() == []


async def test_a_browser_that_stays_is_not_waited_for(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    browser = home.path / "bin" / "browser"
    pid = home.path / "browsing"
    browser.write_text(f"#!/bin/sh\necho $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 600 >/dev/null 2>&1\n")
    browser.chmod(0o755)
    async with running(home, environ={"BROWSER": f"{browser} %s"}) as command:
        await eventually(pid.exists, "the browser is called")
        try:
            os.kill(home.proxies()[0], signal.SIGKILL)
            await eventually(lambda: len(home.proxies()) == 2, "another proxy")
            command.process.terminate()
            async with asyncio.timeout(stretched()):
                await command.process.communicate()
            assert command.process.returncode == 0
        finally:
            os.kill(int(pid.read_text()), signal.SIGKILL)


async def test_what_kubectl_says_is_said_when_it_fails(home: Home) -> None:
    home.write(fail='error: context "nowhere" does not exist')
    process = await started(home, "--context=nowhere")
    async with asyncio.timeout(stretched()):
        printed, said = await process.communicate()
    assert (process.returncode, printed) == (1, b"")
    assert said.decode() == 'gpu-device-plugin inspect: kubectl proxy: context "nowhere" does not exist\n'
    assert home.folders() == []


async def test_a_cluster_that_does_not_answer_is_told(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    await api.stop()
    process = await started(home)
    async with asyncio.timeout(stretched()):
        _, said = await process.communicate()
    assert process.returncode == 1
    (line,) = said.decode().splitlines()
    assert line.startswith(f"gpu-device-plugin inspect: the API server {api.url} (context dev) does not answer: ")


async def test_without_kubectl_the_command_says_what_to_install(home: Home) -> None:
    home.kubectl.unlink()
    process = await started(home, environ={"PATH": str(home.path)})
    async with asyncio.timeout(stretched()):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert "kubectl: is not on the PATH" in said.decode()


async def test_a_port_that_is_taken_is_told(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    async with running(home, "--no-browser") as command:
        port = command.url.rpartition(":")[2]
        second = await started(home, "--no-browser", f"--port={port}")
        async with asyncio.timeout(stretched()):
            _, said = await second.communicate()
    assert second.returncode == 1
    (line,) = said.decode().splitlines()
    assert re.fullmatch(
        rf"gpu-device-plugin inspect: cannot listen on 127\.0\.0\.1:{port}: .*; .*choose another port", line
    )


async def test_an_address_that_nobody_can_read_ends_the_page_in_a_sentence(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = await started(home, "--no-browser", stdout=writing)
    finally:
        os.close(writing)
    async with asyncio.timeout(stretched()):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines() == [
        "gpu-device-plugin inspect: the page ends, since nobody reads its address: the output is closed"
    ]
    assert home.folders() == []


async def test_without_a_folder_for_temporary_files_the_variable_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(home.path / "nowhere"))  # as where all of them are read-only
    with pytest.raises(ClusterUnreadableError, match=r"No such file or directory.*written to in TMPDIR"):
        async with reaching([], str(home.kubectl)):
            pass
    assert home.proxies() == []


async def test_the_browser_is_opened_at_the_address(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    opened = home.path / "opened"
    browser = home.path / "bin" / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    async with running(home, environ={"BROWSER": f"{browser} %s"}) as command:
        await eventually(opened.exists, "the browser is called")
        assert opened.read_text() == f"{command.url}/#token={command.token}\n"


async def test_a_foreign_name_and_a_wrong_token_get_nothing(home: Home, api: ApiServer) -> None:
    home.write(server=api.url)
    api.add(pod("a", container(mem=3)))
    async with running(home, "--no-browser") as command, aiohttp.ClientSession() as http:
        bearer = {"Authorization": f"Bearer {command.token}"}
        for headers, status in (
            (bearer | {"Host": "rebound.example"}, 403),
            ({"Authorization": "Bearer wrong"}, 401),
            ({}, 401),
            (bearer, 200),
        ):
            async with http.get(f"{command.url}/api/v1/session", headers=headers) as answer:
                assert answer.status == status

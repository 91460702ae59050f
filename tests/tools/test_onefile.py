"""The kubectl plugin in one file runs alone: no checkout, no packages, an empty folder."""

import ast
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gpu_device_plugin.model.contract.keys import ALLOCATION
from tests.builders import container, node, pod
from tests.cluster_double.api_server import ApiServer
from tests.patience import stretched
from tests.programs.inspect import test_inspect_program as inspected
from tests.programs.inspect.test_inspect_program import World
from tests.programs.inspect.test_terminal import terminal
from tests.sharing import made_once
from tools.onefile import archive

ROOT = Path(__file__).parents[2]
TIME_S = 1_700_000_000
MOST_BYTES = 4 << 20

KUBECTL = """\
#!{python} -IS
import json, socketserver, sys
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit
words = sys.argv[1:]
if "config" in words:
    print("{{}}", end="")
    sys.exit(0)
lists, objects = json.load(open({cluster!r}))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # and nothing may be changed here
        path = urlsplit(self.path).path
        found = objects.get(path, {{"metadata": {{}}, "items": lists[path]}} if path in lists else None)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found or {{"reason": "NotFound"}}).encode())
    def log_message(self, *_):
        pass
(socket,) = [word.partition("=")[2] for word in words if word.startswith("--unix-socket=")]
socketserver.ThreadingUnixStreamServer.request_queue_size = 128
socketserver.ThreadingUnixStreamServer(socket, Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        (folder / archive.NAME).write_bytes(archive.archive(ROOT, TIME_S))
        (folder / archive.NAME).chmod(0o755)

    return made_once(tmp_path_factory, "plugin", make) / archive.NAME


RUN_ALL = """
import json, os, runpy, sys
plugin, folder, commands = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, plugin)
import gpu_device_plugin.programs.inspect.inspect_program  # compiled once for all
for number, words in enumerate(commands):
    if not os.fork():
        for stream, name in enumerate(("out", "err"), 1):
            os.dup2(os.open(f"{folder}/{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv = [plugin, *words]
        runpy.run_path(plugin, run_name="__main__")
    with open(f"{folder}/{number}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""
"""Runs commands of the plugin in processes that begin alike: a Python that has nothing but the archive."""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


COMMANDS: tuple[tuple[str, ...], ...] = (
    *((), ("-o", "json"), ("-o", "yaml")),
    *(("why", "waits"), ("doctor",), ("uninstall", "--dry-run"), ("why",)),
)


def answer_all(plugin: Path, folder: Path) -> None:
    """Run all commands of the plugin, and leave their answers in files of the folder."""
    (home := folder / "empty").mkdir()
    (tools := folder / "bin").mkdir()
    waiting = pod("waits", container(mem=9), uid="uid-waits", created="2026-11-22T10:00:00Z", phase="Pending")
    annotations = {ALLOCATION: json.dumps({"0": {"0": 10}})}
    holding = pod("web-0", container(mem=10), node="gpu-1", uid="uid-web", annotations=annotations, phase="Running")
    gpu = node("gpu-1", mem=15, count=1)
    gpu["metadata"]["uid"] = "uid-node"
    lists = {"/api/v1/nodes": [gpu], "/api/v1/pods": [holding, waiting], "/api/v1/namespaces/default/events": []}
    lists["/api/v1/namespaces/gpushare/pods"] = []
    objects = {"/api/v1/namespaces/default/pods/waits": waiting, "/version": {"gitVersion": "v1.36.2"}}
    cluster = folder / "cluster.json"
    cluster.write_text(json.dumps([lists, objects]), encoding="utf-8")
    (tools / "kubectl").write_text(KUBECTL.format(python=sys.executable, cluster=str(cluster)), encoding="utf-8")
    (tools / "kubectl").chmod(0o755)
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUN_ALL, str(plugin), str(folder), json.dumps(COMMANDS)],
        cwd=home,
        env={"PATH": str(tools), "HOME": str(home)},
        check=True,
        timeout=stretched(120),
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, plugin: Path) -> Mapping[tuple[str, ...], Said]:
    """What each of the commands answers on a machine with Python and a kubectl, and nothing else."""
    folder = made_once(tmp_path_factory, "machine", partial(answer_all, plugin))
    answers = {}
    for number, words in enumerate(COMMANDS):
        code, out, err = ((folder / f"{number}.{name}").read_text("utf-8") for name in ("code", "out", "err"))
        answers[words] = Said(int(code), out, err)
    return answers


def test_the_overview_is_gpushares(said: Mapping[tuple[str, ...], Said]) -> None:
    done = said[()]
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].split() == ["gpu-1", "unknown", "10/15", "10/15"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_all_data_are_written_for_machines(said: Mapping[tuple[str, ...], Said], form: str) -> None:
    done = said["-o", form]
    assert (done.code, done.err) == (0, "")
    read: Any = yaml.safe_load(done.out)  # JSON is YAML
    assert read["nodes"][0]["gpus"][0]["pods"][0]["name"] == "web-0"


def test_a_pod_is_explained_the_doctor_examines_and_uninstall_lists(said: Mapping[tuple[str, ...], Said]) -> None:
    assert [said[words].code for words in COMMANDS] == [0, 0, 0, 0, 4, 0, 2], said  # no agent runs, no pod is named
    assert "There would be room if this pod ended: default/web-0" in said["why", "waits"].out
    assert "gpu-1" in said["doctor",].out
    assert "required: POD" in said["why",].err


async def test_the_page_is_served_with_what_the_cluster_has(tmp_path: Path, plugin: Path) -> None:
    """From the archive: its files, its HTTP, its watches, all without compiled code."""
    home = tmp_path / "home"
    tools = home / "bin"
    tools.mkdir(parents=True)
    double = f'cd {ROOT} && exec {sys.executable} -m tests.programs.web.kubectl_double {home} "$@"'
    (tools / "kubectl").write_text(f"#!/bin/sh\n{double}\n", encoding="utf-8")
    (tools / "kubectl").chmod(0o755)
    async with ApiServer() as api, aiohttp.ClientSession() as http:
        api.add(node("gpu-1", mem=15, count=1))
        (home / "script.json").write_text(json.dumps({"server": api.url}), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(plugin), "web", "--no-browser"),
            cwd=home,
            env={"PATH": f"{tools}:{os.defpath}", "HOME": str(home), "TMPDIR": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(stretched(60)):
                line = (await process.stdout.readline()).decode()
                found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+)/#token=(\S+)\n", line)
                assert found is not None, (line, await process.communicate())
                for name in ("", "main.js", "page.css", "zh.json", "vendor/lit-html/directives/repeat.js"):
                    async with http.get(f"{found[1]}/{name}") as answer:
                        page = ROOT / "gpu_device_plugin/programs/web/page" / (name or "index.html")
                        assert await answer.read() == page.read_bytes()
                who = {"Authorization": f"Bearer {found[2]}"}
                async with http.get(f"{found[1]}/api/v1/live", headers=who) as answer:
                    assert await answer.content.readline() == b"event: cluster\n"
                    event = json.loads((await answer.content.readline()).removeprefix(b"data: "))
                process.send_signal(signal.SIGTERM)
                _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [each["name"] for each in event["nodes"]] == ["gpu-1"]
    assert (process.returncode, said.decode()) == (0, "")


ALONE = (sys.executable, "-I", "-S")


def test_top_is_drawn_and_used(tmp_path: Path, plugin: Path) -> None:
    """From the archive: what Textual loads at once, and what it loads when it is needed."""
    (world := World(tmp_path)).has(inspected.node("gpu-1", inspected.gpu(0)), inspected.pod("waits", 99))
    with terminal(world, "top", command=(*ALONE, str(plugin)), environ={"HOME": str(tmp_path)}) as shown:
        assert "0G/15G" in shown.until("all rows")
        shown.press("/")
        shown.until("only rows with")
        shown.press("wai\r")
        shown.until("default/waits")
        shown.press("\r")
        shown.until("default/waits waits for 99 GiB of one GPU.")
        shown.press("q")
        assert shown.end() == 0


def test_a_fault_of_top_is_told(tmp_path: Path, plugin: Path) -> None:
    broken = f"import sys; sys.path.insert(0, {str(plugin)!r}); from gpu_device_plugin.__main__ import kubectl_plugin; "
    broken += "import gpu_device_plugin.programs.inspect.top_screen as screen; screen.head = 'none'; kubectl_plugin()"
    (world := World(tmp_path)).has(inspected.node("gpu-1", inspected.gpu(0)))
    with terminal(world, "top", command=(*ALONE, "-c", broken), environ={"HOME": str(tmp_path)}) as shown:
        shown.end()
        assert "object is not callable" in shown.written.rpartition("\x1b[?1049l")[2]
        assert shown.attributes() == shown.before


def test_it_is_small_and_has_no_compiled_part(plugin: Path) -> None:
    assert plugin.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(plugin).namelist()
    assert [
        name
        for name in names
        if not name.endswith((".py", ".html", ".css", ".js", ".json", ".svg")) and "licenses/" not in name
    ] == []
    assert not [name for name in names if "/node/" in name and "/rules/" not in name and "__init__" not in name]
    edges = [name for name in names if "/features/" in name and name.endswith(("/node.py", "/feature.py"))]
    assert not [name for name in names if "testing" in name or "hardware" in name or name in edges]


def test_it_has_the_licence_of_everything_in_it(plugin: Path) -> None:
    names = zipfile.ZipFile(plugin).namelist()
    for distribution in (*archive.DISTRIBUTIONS, archive.PACKAGE, "lit-html"):
        assert [name for name in names if name.startswith(f"licenses/{distribution}/")], distribution


def test_an_old_python_says_which_one_is_needed() -> None:
    text = (ROOT / "tools" / "onefile" / "main.py").read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 4))
    old = "import sys; sys.version_info = (3, 9, 2, 'final', 0); exec(compile(sys.argv[1], 'main', 'exec'))"
    done = subprocess.run([sys.executable, "-c", old, text], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer, and this is 3.9" in done.stderr


def test_it_runs_by_its_own_first_line(tmp_path: Path, plugin: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    environ = {"PATH": f"{tmp_path}:{os.defpath}"}
    done = subprocess.run([plugin, "--help"], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kubectl inspect-gpushare")

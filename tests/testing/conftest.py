"""A scheduler for every test, ours or a real one, in a cluster of its kind, and an extender that says as it is told."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.kubeconfig import kubeconfig
from tests.kubernetes.conftest import (
    RealServer,
    real_server,  # noqa: F401 - a fixture, asked for by its name below
)
from tests.patience import eventually, stretched
from tests.ports import free_port
from tests.scheduler_double.scheduler import ExtenderConfig, Scheduler

Json = dict[str, Any]
Answer = Any
"""JSON to answer with, other bytes, a status, or None to answer nothing at all."""

NAME = "under-test"
TIMEOUT_S = 1.0
WEIGHT = 5


@dataclass
class ScriptedExtender:
    """Answers what the test says, after having bound what it says is bound."""

    url: str = ""
    calls: list[tuple[str, Json]] = field(default_factory=list)
    answers: dict[str, Callable[[Json], Answer]] = field(default_factory=dict)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Verbs whose answers wait."""

    def said(self, verb: str, answer: Answer) -> None:
        """Answer every call of a verb with this."""
        self.answers[verb] = lambda _body: answer

    def bodies(self, verb: str) -> list[Json]:
        return [body for asked, body in self.calls if asked == verb]

    def names(self, verb: str) -> list[list[str]]:
        """Return the nodes that each call of a verb named."""
        return [sorted(body["NodeNames"]) for body in self.bodies(verb)]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        verb, body = request.path.rpartition("/")[2], await request.json()
        self.calls.append((verb, body))
        answer = self.answers[verb](body) if verb in self.answers else 500
        if verb in self.held:
            await self.held[verb].wait()
        if answer is None:
            await asyncio.Event().wait()  # the scheduler gives up, which cancels us
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer)


def passing(*names: str) -> Callable[[Json], Answer]:
    """Answer filter: these of the nodes that are asked about, or all; why not the others, if that is given."""
    return lambda body: {
        "NodeNames": [name for name in body["NodeNames"] if not names or name in names],
        "FailedNodes": {name: "no GPU has room" for name in body["NodeNames"] if names and name not in names},
    }


@dataclass
class SchedulerWorld:
    """What a test acts on and looks at."""

    ask: Callable[..., Any]
    extender: ScriptedExtender
    real: bool
    minor: int
    """The version of the scheduler, 36 for 1.36."""

    async def nodes(self, **shares: int) -> None:
        """Make nodes with so many shares."""
        for name, mem in shares.items():
            made = await self.ask("POST", "/api/v1/nodes", builders.node(name, mem=mem, count=1))
            assert made["kind"] == "Node", made
            # The API server has tainted it as not ready, as every new node.
            await self.patch(f"nodes/{name}", {"spec": {"taints": None}})

    async def patch(self, path: str, body: Json) -> Json:
        made: Json = await self.ask("PATCH", f"/api/v1/{path}", body, "application/merge-patch+json")
        return made

    async def pod(self, name: str, *containers: Json, priority: int = 0, **spec: Any) -> Json:
        body = builders.pod(name, *containers, init=spec.pop("init", ()))
        body["spec"] |= {"schedulerName": NAME, **spec}
        if priority and self.real:
            body["spec"]["priorityClassName"] = f"p{priority}"
        elif priority:
            body["spec"]["priority"] = priority
        made: Json = await self.ask("POST", "/api/v1/namespaces/default/pods", body)
        assert made["kind"] == "Pod", made
        return made

    async def get(self, name: str) -> Json:
        found: Json = await self.ask("GET", f"/api/v1/namespaces/default/pods/{name}")
        return found

    async def delete(self, name: str, grace_s: int = 0) -> None:
        await self.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds={grace_s}")

    async def bind(self, name: str, node: str) -> None:
        """Bind a pod, as an extender does."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "default"},
            "target": {"kind": "Node", "name": node},
        }
        made = await self.ask("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)
        assert made["status"] == "Success", made

    async def placed(self, name: str, node: str, *, mem: int, priority: int = 0) -> Json:
        """Make a pod that is bound, by nobody whom we know."""
        await self.pod(name, builders.container(mem=mem), priority=priority, schedulerName="nobody")
        await self.bind(name, node)
        return await self.get(name)

    async def refused(self, name: str, *, mem: int = 4, **spec: Any) -> tuple[str, str]:
        """Make a pod, and wait until it could not be scheduled; see `told`."""
        await self.pod(name, builders.container(mem=mem), **spec)
        return await self.told(name)

    async def evicted(self, *names: str) -> set[str]:
        """Return which of these pods were told to end."""
        return {name for name in names if "deletionTimestamp" in (await self.get(name))["metadata"]}

    async def nominated(self, name: str) -> str:
        """Return the node that is made free for a pod."""
        return str((await self.get(name))["status"].get("nominatedNodeName", ""))

    async def told(self, name: str) -> tuple[str, str]:
        """Wait until a pod could not be scheduled; return reason and message. What it says of DRA is left out."""
        found: Json = {}

        async def refused() -> bool:
            nonlocal found
            conditions = (await self.get(name))["status"].get("conditions", [])
            found = next((one for one in conditions if one["type"] == "PodScheduled"), {})
            return found.get("status") == "False"

        await eventually(refused)
        return found["reason"], found["message"].replace("no new claims to deallocate, ", "")

    async def bound(self, name: str) -> str:
        """Wait until a pod is bound; return where."""

        async def there() -> bool:
            return bool((await self.get(name))["spec"].get("nodeName"))

        await eventually(there)
        return str((await self.get(name))["spec"]["nodeName"])


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedExtender]:
    extender = ScriptedExtender()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/ext/{verb}", extender.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    extender.url = f"http://127.0.0.1:{runner.addresses[0][1]}/ext"
    try:
        yield extender
    finally:
        await runner.cleanup()


# --- Ours ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def double_world(*, capable: bool) -> AsyncIterator[SchedulerWorld]:
    async with ApiServer() as api, scripted() as extender, aiohttp.ClientSession() as http:

        async def ask(method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
            async with http.request(method, api.url + path, json=body, headers={"Content-Type": content_type}) as said:
                return await said.json()

        config = ExtenderConfig(
            extender.url, weight=WEIGHT, http_timeout_s=stretched(TIMEOUT_S), node_cache_capable=capable
        )
        async with Scheduler(api, config, name=NAME, backoff_s=(0.05, 0.2)) as scheduler:
            running = asyncio.create_task(scheduler.run())
            try:
                yield SchedulerWorld(ask, extender, real=False, minor=36)
            finally:
                running.cancel()
                await asyncio.wait({running})
                assert running.cancelled(), running.exception()


# --- A real one ------------------------------------------------------------------------------------------------------


def _configuration(kubeconfig: Path, extender: str, *, capable: bool) -> Json:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": [{"schedulerName": NAME}],
        "extenders": [
            {
                "urlPrefix": extender,
                **{f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")},
                "weight": WEIGHT,
                "httpTimeout": f"{stretched(TIMEOUT_S):.1f}s",
                "nodeCacheCapable": capable,
                "managedResources": [{"name": builders.GPU_MEM}, {"name": builders.GPU_COUNT}],
            }
        ],
    }


def _minor(binary: str) -> int:
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.split(".")[1])


@asynccontextmanager
async def real_world(server: RealServer, folder: Path, *, capable: bool) -> AsyncIterator[SchedulerWorld]:
    binary = shutil.which("kube-scheduler", path=os.environ["KUBE_BIN"])
    if binary is None:
        pytest.skip("there is no kube-scheduler in KUBE_BIN")
    tls = server.config.tls()
    async with scripted() as extender, aiohttp.ClientSession() as http:

        async def ask(method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
            headers = {"Content-Type": content_type, "Authorization": f"Bearer {server.config.token}"}
            async with http.request(method, server.config.url + path, json=body, headers=headers, ssl=tls) as said:
                return await said.json()

        for priority in (100, 1000):
            await ask(
                "POST",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {"metadata": {"name": f"p{priority}"}, "value": priority},
            )
        file, config = kubeconfig(server.config, folder / "kubeconfig"), folder / "config.yaml"
        config.write_text(json.dumps(_configuration(file, extender.url, capable=capable)))
        with (folder / "scheduler.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                binary, f"--config={config}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}", "-v=4",
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield SchedulerWorld(ask, extender, real=True, minor=_minor(binary))
        finally:
            for plural in ("namespaces/default/pods", "nodes"):
                for each in (await ask("GET", f"/api/v1/{plural}"))["items"]:
                    name = each["metadata"]["name"]
                    await ask("DELETE", f"/api/v1/{plural}/{name}?gracePeriodSeconds=0")
            process.terminate()
            await process.wait()


KINDS = ["double", "real"] if os.environ.get("KUBE_BIN") else ["double"]


@asynccontextmanager
async def _world(request: pytest.FixtureRequest, folder: Path, *, capable: bool) -> AsyncIterator[SchedulerWorld]:
    if request.param == "double":
        async with double_world(capable=capable) as made:
            yield made
    else:
        async with real_world(request.getfixturevalue("real_server"), folder, capable=capable) as made:
            yield made


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SchedulerWorld]:
    """A scheduler whose extender knows the nodes."""
    async with _world(request, tmp_path, capable=True) as made:
        yield made


@pytest.fixture(params=KINDS)
async def whole_nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SchedulerWorld]:
    """One whose extender is sent the nodes themselves."""
    async with _world(request, tmp_path, capable=False) as made:
        yield made

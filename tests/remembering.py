"""A cluster with agents that remember: their answers are read through the API server's proxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from gpu_device_plugin.features.history.contract import IncidentList
from tests.builders import node, pod
from tests.cluster_double.api_server import ApiServer
from tests.histories import gpu, hour, incident, summary, used_by

LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}


@dataclass
class Answers:
    """What agents answer by node and path, below which they are served: documents of msgspec, or bytes."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def answer(self, http: web.Request) -> web.Response:
        """Answer for an agent."""
        path = http.match_info["path"]
        self.asked.append(path)
        found = self.answers.get(path)
        before, of_namespace, _ = path.partition("history/namespaces/")
        if found is None and of_namespace and f"{before}history/" in self.answers:
            found = hour(gpus=())
        if found is None:
            return web.Response(status=404, text="there is no such thing\n")
        return web.Response(body=found if isinstance(found, bytes) else msgspec.json.encode(found))

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[int]:
        """Serve on a port of this machine, which is yielded."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, 0).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def remembered() -> dict[str, Any]:
    """Return what the agent of t4-1 remembers, by path."""
    web_0, train = used_by("default/web-0"), used_by("ml/train-0", most_mib=8192)
    return {
        "history/": hour(),
        "history/gpus/0": hour(web_0, train),
        "history/namespaces/default": hour(web_0),
        "history/namespaces/ml": hour(train),
        "incidents/": IncidentList((summary(), summary("x-ml", namespace="ml", pod="train-0"))),
        f"incidents/{summary().name}": incident(),
    }


@dataclass(kw_only=True)
class Remembering(Answers):
    """The API server, and agents behind it."""

    api: ApiServer
    port: int

    def agent(self, at: str, answers: dict[str, Any]) -> None:
        """Add a node with a running agent, and its answers by path."""
        address = f"10.0.0.{len(self.api.network) + 1}"
        self.api.add(node(at, mem=30, count=2, labels={"gpushare": "true"}))
        self.api.add(agent_pod(at, 9445) | {"status": {"phase": "Running", "podIP": address}})
        self.api.network[f"{address}:9445"] = f"http://127.0.0.1:{self.port}/{at}"
        self.answers |= {f"{at}/{path}": answer for path, answer in answers.items()}


def agent_pod(at: str, port: int) -> dict[str, Any]:
    """Return an agent's pod on a node."""
    body: dict[str, Any] = pod(f"agent-{at}", node=at, namespace="gpushare", labels=LABELS, phase="Running")
    body["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": port}]
    return body


@asynccontextmanager
async def remembering() -> AsyncIterator[Remembering]:
    """Serve a cluster with two agents: of t4-1, which remembers much, and of a100-1, which has nothing but GPUs."""
    async with ApiServer() as api:
        made = Remembering(api=api, port=0)
        async with made.serving() as made.port:
            made.agent("t4-1", remembered())
            made.agent("a100-1", {"history/": hour(gpus=(gpu(2), gpu(1))), "incidents/": IncidentList()})
            yield made

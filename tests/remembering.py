"""A cluster with agents that remember: their answers are read through the API server's proxy."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from gpu_device_plugin.core.contract.history import IncidentList
from gpu_device_plugin.testing.builders import node, pod
from gpu_device_plugin.testing.cluster.api_server import ApiServer
from tests.histories import gpu, hour, incident, summary, used_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}


@dataclass
class Remembering:
    """The API server, and what agents answer by node and path: documents of msgspec, or bytes."""

    api: ApiServer
    port: int = 0
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def agent(self, at: str, **answers: Any) -> None:
        """Add a node with a running agent."""
        address = f"10.0.0.{len(self.api.network) + 1}"
        self.api.add(node(at, mem=30, count=2, labels={"gpushare": "true"}))
        body = pod(f"agent-{at}", node=at, namespace="gpushare", labels=LABELS, phase="Running")
        body["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 9445}]
        body["status"]["podIP"] = address
        self.api.add(body)
        self.api.network[f"{address}:9445"] = f"http://127.0.0.1:{self.port}/{at}"
        self.answers |= {f"{at}/{path}": answer for path, answer in answers.items()}

    async def answer(self, http: web.Request) -> web.Response:
        """Answer for an agent."""
        self.asked.append(http.match_info["path"])
        found = self.answers.get(http.match_info["path"])
        if found is None:
            return web.Response(status=404, text="there is no such thing\n")
        return web.Response(body=found if isinstance(found, bytes) else msgspec.json.encode(found))


@asynccontextmanager
async def remembering() -> AsyncIterator[Remembering]:
    """Serve a cluster with two agents: of t4-1, which remembers much, and of a100-1, which has nothing but GPUs."""
    async with ApiServer() as api:
        made = Remembering(api)
        app = web.Application()
        app.router.add_get("/{path:.*}", made.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            made.port = runner.addresses[0][1]
            web_0, train = used_by("default/web-0"), used_by("ml/train-0", most_mib=8192)
            made.agent(
                "t4-1",
                **{
                    "history/": hour(),
                    "history/gpus/0": hour(web_0, train),
                    "history/namespaces/default": hour(web_0),
                    "history/namespaces/ml": hour(train),
                    "incidents/": IncidentList((summary(), summary("x-ml", namespace="ml", pod="train-0"))),
                    f"incidents/{summary().name}": incident(),
                },
            )
            made.agent("a100-1", **{"history/": hour(gpus=(gpu(2), gpu(1))), "incidents/": IncidentList()})
            yield made
        finally:
            await runner.cleanup()

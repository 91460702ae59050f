"""The page's server over a double of the API server, and a browser's side of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gpu_device_plugin.features.report_features import REPORT, ReportParts
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.programs.web.callers import Callers, LocalCallers
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.programs.web.web_program import PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.forms import Address
from tests.cluster_double.api_server import ApiServer
from tests.patience import QUIET_S, stretched

RESOURCES = ResourceSettings().offered
PATIENT = Timing(connect_s=20, request_s=20, watch_s=30, silence_s=30)


class QuickServer(PageServer):
    """A page's server that waits briefly, but long for the answers of a busy machine."""

    refresh_s, look_s, hear_s = 0.01, 0.05, 0.05

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        streams = self.streams
        streams.pulse_s, streams.between_changes_s, streams.rights_s = 0.2, 0.01, 0.1
        streams.first_s = streams.learn_s = streams.confirm_s = QUIET_S


def in_words(document: Any) -> Any:
    """Return what the server sent as a reader of English sees it: the words of each message in its place."""
    if isinstance(document, dict):
        if document.keys() == {"code", "parameters", "text"}:
            return document["text"]
        return {key: in_words(value) for key, value in document.items()}
    return [*map(in_words, document)] if isinstance(document, list) else document


class Stream:
    """The events of one stream."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._rest = b""
        self.page: dict[str, Any] = {}
        """The page that a browser has made of the events so far; nodes by name."""

    async def next(self) -> tuple[str, Any]:
        """Return the next event; empty at the end."""
        while b"\n\n" not in self._rest:
            async with asyncio.timeout(stretched()):
                chunk = await self._content.readany()
            if not chunk:
                return "", None
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\n\n")
        head, _, data = text.decode().partition("\n")
        name, event = head.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        event = in_words(event)
        self._apply(name, event)
        return name, event

    def _apply(self, name: str, event: dict[str, Any]) -> None:
        nodes = {} if name == "cluster" else self.page.get("nodes", {})
        nodes |= {node["name"]: node for node in event.get("nodes", ())}
        for gone in event.get("gone", ()):
            nodes.pop(gone, None)
        self.page |= {**event, "nodes": nodes}

    async def until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Read events until the page fulfils a condition."""
        async with asyncio.timeout(stretched()):
            while not (self.page and condition(self.page)):
                name, _ = await self.next()
                assert name, f"the stream has ended; the page is {self.page}"
        return self.page


@dataclass
class Page:
    """A served page, as a browser with a token sees it."""

    server: PageServer
    port: int
    http: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict)

    def url(self, path: str) -> str:
        """Return an address of the page."""
        return f"http://127.0.0.1:{self.port}/{path}"

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON, or the text, of an answer."""
        async with self.http.get(self.url(path), headers={**self.headers, **headers}) as answer:
            return answer.status, in_words(
                await (answer.json() if answer.content_type.endswith("json") else answer.text())
            )

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON, or the text, of the answer to a body: bytes, or what becomes JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url(path), data=sent, headers={**self.headers, **headers}) as answer:
            return answer.status, in_words(
                await (answer.json() if answer.content_type.endswith("json") else answer.text())
            )

    @asynccontextmanager
    async def live(self, **headers: str) -> AsyncIterator[Stream]:
        """Open a stream."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.http.get(
            self.url("api/v1/live"), headers={**self.headers, **headers}, timeout=timeout
        ) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            yield Stream(answer.content)


@asynccontextmanager
async def served(api: ApiServer, **more: Any) -> AsyncIterator[Page]:
    """Serve the page of a cluster; see `served_by`."""
    async with Client(ClusterConfig(api.url), timing=PATIENT) as client, served_by(client, **more) as page:
        yield page


@asynccontextmanager
async def served_by(
    client: Client,
    *,
    callers: Callers | None = None,
    figures: AgentFigures | None = None,
    namespace: str = "",
    mode: str = "kubeconfig",
    hosts: bool = False,
    answer_s: float = 20.0,
    parts: ReportParts = REPORT,
    **stream: float,
) -> AsyncIterator[Page]:
    """Serve the page of a cluster; a browser has the right token of local mode.

    `stream` are attributes of the server's `Streams`.
    """
    local = LocalCallers("alice")
    server = QuickServer(
        client,
        RESOURCES,
        local if callers is None else callers,
        about=AboutPage(mode, "dev", frozenset({"127.0.0.1"} if hosts else ())),
        figures=figures,
        namespace=namespace,
        parts=parts,
    )
    server.routes.answer_s = answer_s
    for name, value in stream.items():
        assert hasattr(server.streams, name)
        setattr(server.streams, name, value)
    async with aiohttp.ClientSession() as http, server.serving(Address("127.0.0.1", 0)) as port:
        yield Page(server, port, http, {"Authorization": f"Bearer {local.token}"})

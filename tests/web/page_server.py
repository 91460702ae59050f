"""A server of the page for its tests: its files, and what the API answers from Python objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

import gpu_device_plugin
from tests.web.scenes import Scene, stated

PAGE = Path(gpu_device_plugin.__file__).parent / "programs" / "web" / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
TOKEN = "let-me-in"  # noqa: S105


class _Nonsense:
    """Stands for what is no JSON."""


class PageServer:
    """Serves the page of one scene, which tests change while it runs.

    Everything under api/ wants the token. A stream begins with the whole cluster; `tell` adds events to all streams.
    """

    def __init__(self, scene: Scene, *, login: str = "token") -> None:
        self.scene = scene
        self.login = login
        self.address = ""
        self.silent = False
        """No stream says anything any more, but stays open."""
        self.refused = 0
        """The status that the stream is refused with; 0: it is not."""
        self.stream = ""
        """The name of every stream; empty: as servers that do not ask what is looked at."""
        self.views: list[Any] = []
        """What pages said that they look at."""
        self.asked: list[str] = []
        """The paths of the API that were asked for."""
        self._streams: set[asyncio.Queue[tuple[str, Any] | None]] = set()

    def url(self, query: str = "", token: str | None = TOKEN) -> str:
        """Return the page's address."""
        return f"{self.address}/{query}" + (f"#token={token}" if token else "")

    @property
    def streams(self) -> int:
        """How many pages follow."""
        return len(self._streams)

    def tell(self, event: str, document: Any) -> None:
        """Send an event to every page."""
        for stream in self._streams:
            stream.put_nowait((event, document))

    def change(self, *nodes: Any, gone: tuple[str, ...] = (), **more: Any) -> None:
        """Send nodes that changed."""
        known = {node["name"]: node for node in self.scene.cluster["nodes"]} | {node["name"]: node for node in nodes}
        self.scene.cluster["nodes"] = [node for name, node in known.items() if name not in gone]
        self.scene.cluster.update(more)
        self.tell("change", {"nodes": list(nodes), "gone": list(gone), **more})

    def tell_nonsense(self) -> None:
        """Send what is no JSON to every page."""
        for stream in self._streams:
            stream.put_nowait(("change", _Nonsense()))

    def cut(self) -> None:
        """End every stream."""
        for stream in self._streams:
            stream.put_nowait(None)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[PageServer]:
        """Serve on a port of this machine."""
        app = web.Application(middlewares=[_with_headers, self._with_token])
        app.router.add_get("/api/v1/session", self._session)
        app.router.add_get("/api/v1/live", self._live)
        app.router.add_get("/api/v1/nodes/{name}", self._node)
        app.router.add_get("/api/v1/pods/{ns}/{name}", self._pod)
        app.router.add_get("/api/v1/plans/{ns}/{name}", self._plan)
        app.router.add_get("/api/v1/{kind:history|incidents}/{path:.+}", self._past)
        app.router.add_post("/api/v1/view", self._view)
        app.router.add_get("/{name:[a-z0-9_./-]*}", _file)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            self.cut()
            await runner.cleanup()

    @web.middleware
    async def _with_token(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/api/"):
            self.asked.append(request.path)
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                body = {"error": "the request has no token of this page"} | (
                    {"login": self.login} if self.login else {}
                )
                return web.json_response(body, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _session(self, _request: web.Request) -> web.Response:
        return web.json_response(self.scene.session)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if self.refused:
            return web.json_response({"error": "the API server does not answer"}, status=self.refused)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        answer.headers.update(_HEADERS)
        await answer.prepare(request)
        stream: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        named = {"stream": self.stream} if self.stream else {}
        stream.put_nowait(("cluster", self.scene.cluster | named))
        self._streams.add(stream)
        try:
            while True:
                try:
                    async with asyncio.timeout(1):
                        event = await stream.get()
                except TimeoutError:
                    event = ("pulse", {"read": self.scene.cluster["read"]})
                if event is None:
                    return answer
                if not self.silent:
                    data = "nonsense" if isinstance(event[1], _Nonsense) else _written(event[1])
                    await answer.write(f"event: {event[0]}\ndata: {data}\n\n".encode())
        except ConnectionError:
            return answer
        finally:
            self._streams.discard(stream)

    async def _view(self, request: web.Request) -> web.Response:
        self.views.append(await request.json())
        return web.json_response({})

    async def _node(self, request: web.Request) -> web.Response:
        return web.json_response({"node": {"name": request.match_info["name"], "gpus": []}})

    async def _pod(self, request: web.Request) -> web.Response:
        found = self.scene.pods.get((request.match_info["ns"], request.match_info["name"]))
        if found is None:
            return web.json_response(
                {"error": f"no pod {request.match_info['ns']}/{request.match_info['name']}"}, status=404
            )
        return web.json_response(found)

    async def _plan(self, request: web.Request) -> web.Response:
        pod = request.match_info["ns"], request.match_info["name"]
        if (found := self.scene.plans.get(pod)) is None:
            error = "A plan concerns all nodes and their pods: the right to get pods in the whole cluster is missing."
            return web.json_response({"error": error}, status=403)
        return web.json_response(found)

    async def _past(self, request: web.Request) -> web.Response:
        asked = request.rel_url.path_qs.removeprefix("/api/v1/")
        nothing = {"at": "", "step_s": 15.0, "gpus": [], "containers": [], "left_out": 0, "incidents": [], "dropped": 0}
        return web.json_response(self.scene.past.get(unquote(asked), nothing))


def _written(document: Any) -> str:
    """Return an event with the states of its nodes."""
    if "nodes" in document:
        document = document | {"nodes": [stated(node) for node in document["nodes"]]}
    return json.dumps(document, separators=(",", ":"))


_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@web.middleware
async def _with_headers(request: web.Request, handler: Any) -> web.StreamResponse:
    answer: web.StreamResponse = await handler(request)
    if not answer.prepared:
        answer.headers.update(_HEADERS | {"Cache-Control": "no-store"})
    return answer


async def _file(request: web.Request) -> web.Response:
    path = PAGE / (request.match_info["name"] or "index.html")
    if PAGE not in path.resolve().parents or path.suffix not in TYPES or not path.is_file():
        raise web.HTTPNotFound
    return web.Response(body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8")

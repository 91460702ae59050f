"""The routes of the page: static files for everybody, data for callers with a valid token."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import JSON, Page, Route, Stream
from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.cluster.client.errors import ApiError, Call, ForbiddenError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import UnreadableObjectError
from gpu_device_plugin.core.report.overview_document import node_document
from gpu_device_plugin.programs.web.callers import CallerScope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gpu_device_plugin.aio.http import Request
    from gpu_device_plugin.programs.web.callers import Caller, Callers
    from gpu_device_plugin.programs.web.details import Details
    from gpu_device_plugin.programs.web.page_state import PageState
    from gpu_device_plugin.programs.web.streams import Streams

_TYPES: Mapping[str, str] = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
"""The files that are served, by the end of their names."""


def static_files() -> Mapping[str, Page]:
    """Return the answer for each file by its name, and for the empty path that of the index.

    Works wherever Python imports this package from, a zip file too.
    """
    files = {}
    for file in (resources.files("gpu_device_plugin.programs.web") / "page").iterdir():
        if (content_type := _TYPES.get(file.name.rpartition(".")[2])) is not None:
            files[file.name] = Page(file.read_bytes(), content_type=f"{content_type}; charset=utf-8")
    return files | {"": files["index.html"]}


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

_API = "/api/v1/"
_READ = ("Host", "Authorization")
LARGEST_VIEW = 64 << 10
"""Bytes of a request that says what a reader looks at, the only one with a body."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A name of Kubernetes: nothing else is sent to the API server."""
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LEARN_S = 0.3
"""How long details wait to be told whose pods the caller may see. Names that are not known by then are left out."""


class _View(msgspec.Struct):
    stream: str
    nodes: list[str]


@dataclass(frozen=True, slots=True)
class AboutPage:
    """How the page is served."""

    mode: str
    """``kubeconfig`` or ``cluster``."""
    context: str = ""
    """Of the kubeconfig."""
    hosts: frozenset[str] = frozenset()
    """The names in the header Host that are answered, so that no other site's name can lead here (DNS rebinding);
    empty: all."""


@dataclass(frozen=True, slots=True)
class PageRoutes:
    """Answers requests."""

    callers: Callers
    page_state: PageState
    streams: Streams
    details: Details
    about: AboutPage
    within_s: float
    """How long a request waits for the API server."""
    files: Mapping[str, Page] = field(default_factory=static_files, repr=False)

    def all(self) -> tuple[Route, ...]:
        """Return the routes. None changes anything in the cluster."""
        return (
            self._data("session", self._session),
            self._data("live", self._live),
            self._data("nodes/", self._node),
            self._data("pods/", self._pod),
            self._data("view", self._view, method="POST"),
            Route("GET", "/", self._file, headers=_READ),
        )

    def _data(
        self, path: str, answer: Callable[[Request, Caller], Awaitable[Page | Stream]], *, method: str = "GET"
    ) -> Route:
        async def checked(request: Request) -> Page | Stream:
            if (refusal := self._wrong_host(request)) is not None:
                return refusal
            try:
                async with asyncio.timeout(self.within_s):
                    caller = await self.callers.caller(_token(request))
                    if caller is not None:
                        return await answer(request, caller)
                    if self.about.mode == "cluster":
                        return _error(401, "Give the token of an account of this cluster.", login="token")
                    return _error(401, "Open the page by the address that the command printed; it ends in a token.")
            except TimeoutError:
                return _error(502, f"The API server did not answer within {self.within_s:g} s; try again.")
            except (ApiError, UnreadableObjectError) as error:
                return self._unread(error)

        return Route(method, f"{_API}{path}", checked, headers=_READ)

    def _wrong_host(self, request: Request) -> Page | None:
        host = request.headers.get("Host", "").lower().partition(":")[0]
        if not self.about.hosts or host in self.about.hosts:
            return None
        return _error(403, "This page is served under another address; open the one that the command printed.")

    def _unread(self, error: ApiError | UnreadableObjectError) -> Page:
        match error:
            case NotFoundError(call=Call(verb="get", resource="pods") as call):
                return _error(404, f"There is no pod {call.name} in the namespace {call.namespace}; it may be gone.")
            case NotFoundError():
                return _error(404, f"There is no such object: {error}.")
            case ForbiddenError(call=call) if self.about.mode != "cluster":  # of the user, not of our own account
                return _error(
                    403, f"This is not shown: {call.missing_right}; ask an administrator of the cluster for it."
                )
            case ForbiddenError():
                return _error(403, f"{error}.")
            case ApiError():
                return _error(502, f"The API server does not answer: {error}.")
            case _:
                return _error(502, f"The API server's answer cannot be understood: {error}.")

    # --- Data ---------------------------------------------------------------------------------------------------------

    async def _session(self, _request: Request, caller: Caller) -> Page:
        about = self.about
        return _json({"version": __version__, "mode": about.mode, "user": caller.user, "context": about.context})

    async def _live(self, request: Request, caller: Caller) -> Stream:
        token = _token(request)
        parts = await self.streams.events(caller, lambda: self.callers.caller(token))
        return Stream(parts, "text/event-stream")

    async def _node(self, request: Request, caller: Caller) -> Page:
        name = unquote(request.rest)
        scope = CallerScope(caller)
        await scope.learn()
        if not self.page_state.shows_nodes(scope):
            return _error(403, "Nodes are not shown: the right to list nodes in the whole cluster is missing.")
        if (node := self.page_state.node(name)) is None:
            return _error(404, "There is no such node that shares GPUs.")
        await within(_LEARN_S, scope.learn(node.namespaces))
        return _json({"node": node_document(scope.of(node.view))})

    async def _pod(self, request: Request, caller: Caller) -> Page:
        namespace, _, name = unquote(request.rest).partition("/")
        if not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
            return _error(400, "This is no name of a pod; write NAMESPACE/NAME.")
        scope = CallerScope(caller)
        await scope.learn([namespace])
        if not scope.may_see(namespace):
            return _error(403, f"You have no right to get pods in the namespace {namespace}.")
        await within(_LEARN_S, scope.learn(self.page_state.namespaces))  # why it waits names pods on nodes
        return _json(await self.details.pod(namespace, name, scope, caller.user))

    async def _view(self, request: Request, caller: Caller) -> Page:
        try:
            view = msgspec.json.decode(request.body, type=_View)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _error(400, 'The body names no nodes that are looked at; send {"stream": "...", "nodes": ["..."]}.')
        if not await caller.may_see_nodes():
            return _error(403, "Nodes are not shown: the right to list nodes in the whole cluster is missing.")
        known = [name for name in view.nodes if self.page_state.node(name) is not None]
        if not self.streams.views.show(view.stream, caller.user, known):
            return _error(404, "No such stream is open here; it has ended, or is another replica's.")
        return _json({})

    async def _file(self, request: Request) -> Page:
        found = self.files.get(request.rest)
        return self._wrong_host(request) or found or _error(404, "There is nothing at this address.")


def _token(request: Request) -> str:
    """Return the token of a request, empty without one. Every token consists of ASCII characters (RFC 6750)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""


def _json(document: Any) -> Page:
    return Page(msgspec.json.encode(document), content_type=JSON)


def _error(status: int, sentence: str, **more: str) -> Page:
    return Page(msgspec.json.encode({"error": sentence, **more}), status=status, content_type=JSON)

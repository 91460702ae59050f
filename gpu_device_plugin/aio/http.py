"""A small HTTP server: routes, body limits, and answers that are never cached."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.aio.bodies import Bodies, BodyError
from gpu_device_plugin.aio.connection_limit import Limits
from gpu_device_plugin.aio.waiting import wait_within

if TYPE_CHECKING:
    import ssl
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
        MutableMapping,
    )

    from aiohttp.web_request import BaseRequest
    from aiohttp.web_response import StreamResponse

    LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    LoggerAdapter = logging.LoggerAdapter

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024
LARGEST_BODY = 64 * _MIB
"""Bytes. kube-scheduler sends 42 MB for 5,000 nodes where it sends whole nodes."""
MOST_BODIES = 96 * _MIB
"""Bytes of all bodies together. kube-scheduler waits for one answer before it sends the next pod."""

STRANGERS = Limits(total=128, each=16, few=4)
"""Limits of a port that every client can reach. The kubelet has up to five connections, a Prometheus server one."""

BROWSERS = Limits(total=640, each=512, few=8)
"""Limits of a port for browsers. Each keeps one connection for as long as it is open and has up to six, and all of them
may come from the address of one proxy."""

HANDSHAKES = Limits(total=256, each=256, few=16)
"""Limits of connections with an unfinished TLS handshake: 300 KiB each, so 75 MiB at most. Behind a Service all of them
may come from one address, including the scheduler's, which opens dozens at once."""

_BACKLOG = 1024
"""Connections that the kernel queues until we accept them. When the queue is full, a peer retries after a second."""


class ListenError(OSError):
    """The program cannot listen on an address; the message is a sentence with the address and the remedy."""


JSON = "application/json"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a request."""

    body: str | bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    last: bool = False
    """Whether the connection is closed after it: the client's next request may then reach another replica."""


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer without an end, part by part."""

    parts: AsyncGenerator[bytes, None]
    """It is closed when the client has gone or does not read, or the server stops."""
    content_type: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as far as routes read it."""

    path: str
    rest: str = ""
    """The part after the path of a route that ends in a slash."""
    body: bytes = field(default=b"", repr=False)
    """The body of a POST, of any Content-Type; it is never logged. Bodies of other methods are not read."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those that the route reads, by the route's spelling; missing ones are absent. They may hold secrets."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The parameters after the question mark; the first of each name."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path, and the function that answers them."""

    method: str
    """``GET`` answers HEAD, too."""
    path: str
    """A path that ends in a slash matches all paths below it; the longest match wins."""
    answer: Callable[[Request], Awaitable[Page | Stream]]
    headers: tuple[str, ...] = ()
    """The headers of the request that it reads."""


def page_at(path: str, page: Callable[[], Awaitable[Page]]) -> Route:
    """Return the route of a page that does not depend on the request."""
    return Route("GET", path, lambda _request: page())


@contextlib.asynccontextmanager
async def serving_routes(
    host: str,
    port: int,
    routes: Iterable[Route],
    *,
    tls: ssl.SSLContext | None = None,
    largest_body: int = LARGEST_BODY,
    most_bodies: int = MOST_BODIES,
    body_within_s: float = 30.0,
    finish_within_s: float = 0.5,
    limits: Limits | None = None,
    handshake_within_s: float = 10.0,
    read_within_s: float = 30.0,
    headers: Mapping[str, str] = _NO_HEADERS,
    most_headers: int = 16,
    longest_header: int = 4096,
) -> AsyncIterator[int]:
    """Answer requests for as long as the block runs.

    Other paths are answered with 404, other methods with 405, a body that is too large with 413, an incomplete one with
    408. A route that raises is answered with 500, and its traceback is logged without the error's message, which may
    quote the request. After the block no connection is accepted, and requests in progress are answered. Raises
    ListenError.

    Args:
        host: an IP address, or empty for all addresses of this machine.
        port: 0 chooses a free port.
        routes: the longest path that matches a request answers it.
        tls: see `aio.tls.server_tls`; None: plain HTTP.
        largest_body: bytes.
        most_bodies: bytes of all bodies together; beyond them the largest one that still arrives is answered with 503.
        body_within_s: how long a body may take to arrive; after that it counts as incomplete.
        finish_within_s: how long requests in progress at the end of the block may take.
        limits: for a port that every client can reach; see `ConnectionLimit`. Then a request is cancelled when its peer
            disconnects, and its head has at most `most_headers` of `longest_header` bytes each. None: no limits except
            `HANDSHAKES` with `tls`.
        handshake_within_s: how long a TLS handshake may take.
        read_within_s: how long a part of a `Stream` may wait for its client to read the parts before it.
        headers: further headers of every answer, errors included.
        most_headers: see `limits`. A browser sends 17, and a proxy in between adds its own.
        longest_header: see `limits`. A token of Kubernetes has 1 to 2 KiB, one of OpenID Connect with many groups more.

    Yields:
        The port of the listening socket.
    """
    # Imported here: an agent without probes and API access saves 9 MB. All of aiohttp.web would cost 1 MB more.
    from gpu_device_plugin.aio.accepting import Accepting  # noqa: PLC0415

    listener = _listener(host, port)
    router = _Router(routes, Bodies(largest_body, most_bodies, body_within_s), read_within_s, headers)
    peers = Accepting(
        router.answer,
        listener,
        limits=HANDSHAKES if tls is not None and limits is None else limits,
        tls=tls,
        handshake_within_s=handshake_within_s,
        handshakes_only=limits is None,
        headers={"Cache-Control": "no-store", **headers},
        access_log=None,
        logger=_Terse(_log, {}),
        **(
            {**_OF_STRANGERS, "max_headers": most_headers, "max_field_size": longest_header}
            if limits is not None
            else {}
        ),
    )
    try:
        yield listener.getsockname()[1]
    finally:
        peers.stop()
        # aiohttp would stop reading at once, and a request whose body is still arriving would get no answer.
        await router.close(finish_within_s)
        await peers.close(0.5)


_OF_STRANGERS: Mapping[str, Any] = MappingProxyType({"handler_cancellation": True, "max_line_size": 4096})
"""aiohttp's settings for a port with limits."""


class _Router:
    """Answers requests by a table of routes, and counts the requests in progress."""

    def __init__(
        self,
        routes: Iterable[Route],
        bodies: Bodies,
        read_within_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self._routes: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
            self._routes.setdefault(route.path, {}).update(dict.fromkeys(methods, route))
        self._below = sorted((path for path in self._routes if path.endswith("/")), key=len, reverse=True)
        self._bodies = bodies
        self._read_within_s = read_within_s
        self._headers = headers
        self._busy = 0
        self._closing: asyncio.Event | None = None

    async def answer(self, request: BaseRequest) -> StreamResponse:
        self._busy += 1
        try:
            response = await self._response(request)
        finally:
            self._busy -= 1
            if self._closing is not None and not self._busy:
                self._closing.set()
        if self._closing is not None:
            response.force_close()
        return response

    async def close(self, within_s: float) -> None:
        """Wait for the requests in progress; their connections are closed after the answer."""
        self._closing = asyncio.Event()
        if self._busy:
            await wait_within(within_s, self._closing.wait())

    async def _response(self, request: BaseRequest) -> StreamResponse:
        from aiohttp.web_response import Response  # noqa: PLC0415 - see serving_routes

        path = request.path
        found = path if path in self._routes else next(filter(path.startswith, self._below), None)
        if found is None:
            return Response(status=404, headers=self._headers)
        methods = self._routes[found]
        if request.method not in methods:
            return Response(status=405, headers={"Allow": ",".join(methods), **self._headers})
        with self._bodies.reading() as arriving:
            try:
                body = await self._bodies.read(arriving, request) if request.method == "POST" else b""
            except BodyError as error:
                page: Page | Stream = Page(f"{error}\n", status=error.status)
            else:
                route = methods[request.method]
                headers = {name: request.headers[name] for name in route.headers if name in request.headers}
                query = {name: request.query[name] for name in request.query} if request.query_string else {}
                page = await _made(route, Request(path, path.removeprefix(found), body, headers, query))
        if isinstance(page, Stream):
            return await _streamed(request, page, self._read_within_s, self._headers)
        response = Response(
            body=page.body.encode() if isinstance(page.body, str) else page.body,
            status=page.status,
            headers={"Content-Type": page.content_type, "Cache-Control": "no-store", **self._headers},
        )
        if page.last or request.can_read_body:  # an unread body would precede the next request
            response.force_close()
        return response


async def _streamed(
    request: BaseRequest, stream: Stream, read_within_s: float, headers: Mapping[str, str]
) -> StreamResponse:
    from aiohttp.web_response import StreamResponse  # noqa: PLC0415 - see serving_routes

    response = StreamResponse(headers={"Content-Type": stream.content_type, "Cache-Control": "no-store", **headers})
    response.force_close()
    async with contextlib.aclosing(stream.parts) as parts:
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client has gone, or does not read
            async for part in parts:
                async with asyncio.timeout(read_within_s):
                    await response.write(part)
    return response


async def _made(route: Route, request: Request) -> Page | Stream:
    try:
        return await route.answer(request)
    except Exception as error:  # noqa: BLE001 - the last place where it can become an answer
        redacted = RuntimeError(f"{type(error).__name__}; its message is omitted, it may quote the request")
        _log.error(
            "internal error",
            extra={"method": route.method, "path": route.path},
            exc_info=redacted.with_traceback(error.__traceback__),
        )
        return Page("internal error; see the log\n", status=500)


class _Terse(LoggerAdapter):
    """Logs one line for a peer that does not speak HTTP, instead of a traceback that quotes its input."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Keep only the type of the error."""
        return msg, {"extra": {"error": type(kwargs.get("exc_info")).__name__, "once_per_s": 60}}


def written(host: str, port: int) -> str:
    """Format an address, with brackets around IPv6."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def _listener(host: str, port: int) -> socket.socket:
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"cannot listen on {written(host, port)}: {_why_not(error, port)}") from error


def _why_not(error: OSError, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there already, or this one for another purpose; choose another port"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no such address; choose one of its own, or :{port} for all"
        case errno.EACCES:
            return f"port {port} is reserved for root; choose a port from 1024 on"
        case number:  # the system's message, which `socket` replaces by one with the address
            return os.strerror(number) if number else str(error)

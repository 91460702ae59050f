"""Serve a handful of pages over HTTP, each made anew for every request."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp import web


@dataclass(frozen=True, slots=True)
class Page:
    """What a request is answered with."""

    body: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


@contextlib.asynccontextmanager
async def serving(host: str, port: int, pages: Mapping[str, Callable[[], Awaitable[Page]]]) -> AsyncIterator[int]:
    """Answer GET and HEAD at the paths of `pages` for as long as the block runs.

    Other paths are answered with 404, other methods with 405. A page that raises is a 500 and a logged traceback.

    Args:
        host: an IP address, or empty for all of this machine.
        port: 0 takes any free one.
        pages: by path; what makes the page is awaited for every request.

    Yields:
        The port that is listened on.

    Raises:
        OSError: the address cannot be listened on; the message names it.
    """
    from aiohttp import web  # noqa: PLC0415 - 9 MB that an agent without probes and API access does not pay

    def answering(make: Callable[[], Awaitable[Page]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            page = await make()
            return web.Response(
                body=page.body.encode(),
                status=page.status,
                headers={"Content-Type": page.content_type, "Cache-Control": "no-store"},
            )

        return answer

    app = web.Application()
    app.add_routes([web.get(path, answering(make)) for path, make in pages.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        try:
            listener = _listener(host, port)
        except OSError as error:
            where = f"{f'[{host}]' if ':' in host else host}:{port}"
            raise OSError(error.errno, f"cannot listen on {where} for HTTP: {error.strerror}") from error
        await web.SockSite(runner, listener).start()
        yield listener.getsockname()[1]
    finally:
        await runner.cleanup()


def _listener(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

"""Serve a handful of pages over HTTP, each made anew for every request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp.web_request import BaseRequest


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
    # 9 MB that an agent without probes and API access does not pay, and 1 MB less than aiohttp.web as a whole.
    from aiohttp.web_response import Response  # noqa: PLC0415
    from aiohttp.web_server import Server  # noqa: PLC0415

    async def answer(request: BaseRequest) -> Response:
        make = pages.get(request.path)
        if make is None:
            return Response(status=404)
        if request.method not in {"GET", "HEAD"}:
            return Response(status=405, headers={"Allow": "GET,HEAD"})
        page = await make()
        return Response(
            body=page.body.encode(),
            status=page.status,
            headers={"Content-Type": page.content_type, "Cache-Control": "no-store"},
        )

    try:
        listener = _listener(host, port)
    except OSError as error:
        where = f"{f'[{host}]' if ':' in host else host}:{port}"
        raise OSError(error.errno, f"cannot listen on {where} for HTTP: {error.strerror}") from error
    handlers = Server(answer, access_log=None)
    server = await asyncio.get_running_loop().create_server(handlers, sock=listener)
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()
        await handlers.shutdown(0.5)


def _listener(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

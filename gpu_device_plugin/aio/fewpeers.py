"""An HTTP server that keeps no more than so many connections: a new one ends the one that was opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp.web_server import Server

if TYPE_CHECKING:
    from asyncio import Transport

    from aiohttp.web_protocol import RequestHandler, _RequestHandler


class FewPeers(Server):
    """A server for the port that strangers reach.

    Refusing the newest instead would let strangers shut out the kubelet, by holding connections open.
    """

    def __init__(self, handler: _RequestHandler, most: int | None, **more: Any) -> None:
        """Answer by `handler`, on `most` connections; None: on as many as come."""
        super().__init__(handler, **more)
        self._most = most
        self._open: dict[RequestHandler, Transport] = {}

    def __repr__(self) -> str:
        return f"<FewPeers: {len(self._open)} of {'any number' if self._most is None else self._most}>"

    def connection_made(self, handler: RequestHandler, transport: Transport) -> None:
        """Take up a connection."""
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if self._most is not None and len(self._open) > self._most:
            # Closing would wait for a peer to take what was written to it.
            self._open.pop(next(iter(self._open))).abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)

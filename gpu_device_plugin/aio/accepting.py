"""Accept connections within limits, at almost no cost for silent connections and for those over the limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from gpu_device_plugin.aio.connection_limit import ConnectionLimit, ConnectionStage

if TYPE_CHECKING:
    import ssl

    from aiohttp.web_protocol import _RequestHandler
    from aiohttp.web_request import BaseRequest
    from aiohttp.web_response import StreamResponse

    from gpu_device_plugin.aio.connection_limit import Connection, Limits

_log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Connections that are accepted in a row before the event loop handles requests again."""
_WITHOUT_FILES_S = 1.0
"""How long to accept none after the system has run out of file descriptors."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with timeout 0: closing sends a reset at once, and the kernel keeps no state of the connection."""


class Accepting(Server):
    """An HTTP server that accepts its connections itself."""

    def __init__(
        self,
        handler: _RequestHandler,
        listening: socket.socket,
        *,
        limits: Limits | None,
        tls: ssl.SSLContext | None,
        handshake_within_s: float,
        handshakes_only: bool,
        headers: Mapping[str, str],
        **more: Any,
    ) -> None:
        """Accept from now on, until `stop`.

        Args:
            handler: answers requests.
            listening: this server closes it.
            limits: None: all connections are kept.
            tls: None: plain HTTP.
            handshake_within_s: how long a TLS handshake may take.
            handshakes_only: a connection counts until its TLS handshake is finished.
            headers: further headers of the answers to what is no request.
            more: further arguments for aiohttp.
        """
        super().__init__(self._answering(handler), **more)
        self._headers = headers
        self._listening = listening
        listening.setblocking(False)
        self._limited = limits is not None
        self._handshakes_only = handshakes_only
        self._limit = ConnectionLimit(limits)
        self._tls = tls
        self._handshake_within_s = None if tls is None else handshake_within_s
        self._ways_to_end: dict[Connection, Callable[[], object]] = {}
        self._connection_of: dict[RequestHandler, Connection] = {}
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}
        self._resuming: asyncio.TimerHandle | None = None
        self._listen()

    def __repr__(self) -> str:
        return f"<Accepting: {len(self._connection_of)} connections served, {len(self._ways_to_end)} that may be ended>"

    def __call__(self) -> RequestHandler:
        """Return what reads the requests of one connection."""
        return _Reading(self, self._headers, loop=self._loop, **self._kwargs)

    def stop(self) -> None:
        """Stop accepting. Accepted connections stay open."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    async def close(self, within_s: float) -> None:
        """Close the accepted connections, after `stop`; requests in progress may take up to `within_s`."""
        for connection, end in list(self._ways_to_end.items()):
            if connection.stage is ConnectionStage.SILENT:
                end()
        for peer in self._beginning.values():
            _hang_up(peer)
        await asyncio.gather(*self._beginning, return_exceptions=True)
        self.pre_shutdown()  # closes idle connections; shutdown alone would wait for them
        await self.shutdown(within_s)

    # --- Accepting ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                peer, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # closed by the peer while it was queued
                continue
            except OSError as error:
                _log.error("is not accepting connections for a while", extra={"why": str(error), "once_per_s": 60})
                self._loop.remove_reader(self._listening)
                self._resuming = self._loop.call_later(_WITHOUT_FILES_S, self._listen)
                return
            self._take(peer, address[0])

    def _take(self, peer: socket.socket, address: str) -> None:
        connection, surplus = self._limit.enter(address)
        if surplus is connection:
            _reset(peer)
            return
        if surplus is not None:
            self._ways_to_end[surplus]()
        peer.setblocking(False)
        if not self._limited:
            self._start(connection, peer)
            return
        self._ways_to_end[connection] = lambda: self._turn_away(connection, peer)
        self._loop.add_reader(peer, self._begin, connection, peer)

    def _turn_away(self, connection: Connection, peer: socket.socket) -> None:
        self._loop.remove_reader(peer)
        self._forget(connection)
        _reset(peer)

    def _begin(self, connection: Connection, peer: socket.socket) -> None:
        """Serve a connection that has sent its first data."""
        try:
            gone = not peer.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        if gone:
            self._turn_away(connection, peer)
            return
        self._loop.remove_reader(peer)
        self._start(connection, peer)

    def _start(self, connection: Connection, peer: socket.socket) -> None:
        connection.stage = ConnectionStage.BEGUN
        task = self._loop.create_task(self._serve(connection, peer), name=f"begin with {connection.address}")
        self._beginning[task] = peer
        task.add_done_callback(self._beginning.pop)
        # Not by cancelling the task: asyncio would continue a handshake that it has begun.
        self._ways_to_end[connection] = lambda: _hang_up(peer)

    async def _serve(self, connection: Connection, peer: socket.socket) -> None:
        """Hand a connection to the HTTP handler, after its TLS handshake."""
        handler = self()
        self._connection_of[handler] = connection
        transport = None
        try:
            # An OSError is the peer's fault: it hung up, does not speak TLS, or has no certificate that we trust.
            with contextlib.suppress(OSError):
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: handler, peer, ssl=self._tls, ssl_handshake_timeout=self._handshake_within_s
                )
        finally:
            if transport is None:
                self.connection_lost(handler)
            elif self._handshakes_only:
                self._forget(connection)
            elif connection in self._ways_to_end:  # not yet lost
                self._ways_to_end[connection] = transport.abort

    # --- Closing --------------------------------------------------------------------------------------------------

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Stop counting a connection."""
        connection = self._connection_of.pop(handler, None)
        if connection is not None:
            self._forget(connection)
        super().connection_lost(handler, exc)

    def _forget(self, connection: Connection) -> None:
        self._limit.leave(connection)
        self._ways_to_end.pop(connection, None)

    def _answering(self, handler: _RequestHandler) -> _RequestHandler:
        async def answer(request: BaseRequest) -> StreamResponse:
            connection = self._connection_of.get(request.protocol)
            if connection is None:
                return await handler(request)
            connection.stage = ConnectionStage.ANSWERING
            try:
                return await handler(request)
            finally:
                connection.stage = ConnectionStage.BEGUN

        return answer


class _Reading(RequestHandler):
    """Reads the requests of one connection."""

    __slots__ = ("_headers",)

    def __init__(self, server: Server, headers: Mapping[str, str], **more: Any) -> None:
        super().__init__(server, **more)
        self._headers = headers

    def handle_error(self, *args: Any, **more: Any) -> StreamResponse:
        """Answer what is no request of HTTP, or too large for one: no handler of ours ever sees it."""
        answer = super().handle_error(*args, **more)
        answer.headers.update(self._headers)
        return answer


def _hang_up(peer: socket.socket) -> None:
    """Shut a socket down, so that the transport under construction sees its end."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _reset(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    peer.close()

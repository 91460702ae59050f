"""One gRPC call at a time, with almost nothing between the clock and the socket.

A gRPC library for Python takes as long for its own part as the agent for a whole answer. This is the little of HTTP/2
(RFC 9113) that a unary call needs; errors show as an answer without a message.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_LARGEST_FRAME = 16_384
_WIDE = 1 << 30


class CallFailedError(Exception):
    """The server answered with an error, or not at all."""


class Caller:
    """A connection to one gRPC service over a unix socket."""

    def __init__(self, path: Path, service: str) -> None:
        self._service = service
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")
        self._stream = -1
        self._initial = self._connection = 65_535
        """What the server takes of each stream, and now of all together, before it says that it takes more."""
        self._open = 0
        wide = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WIDE)
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, wide))
        self._send(_frame(_WINDOW, 0, 0, struct.pack(">I", _WIDE)))

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def call(self, method: str, message: bytes) -> tuple[float, bytes]:
        """Return the seconds that one call took, and its answer. CallFailedError: it is none."""
        headers = _headers(f"/{self._service}/{method}")
        body = struct.pack(">?I", False, len(message)) + message
        began = time.perf_counter()
        self._stream += 2
        self._open = self._initial
        self._send(_frame(_HEADERS, _END_HEADERS, self._stream, headers))
        while body:
            size = min(len(body), _LARGEST_FRAME, self._open, self._connection)
            if not size:
                self._receive()
                continue
            self._open, self._connection = self._open - size, self._connection - size
            chunk, body = body[:size], body[size:]
            self._send(_frame(_DATA, 0 if body else _END_STREAM, self._stream, chunk))
        answer, ended = b"", False
        while not ended:
            data, ended = self._receive()
            answer += data
        took = time.perf_counter() - began
        if not answer:
            raise CallFailedError(f"{method}: an error, which the agent's log explains")
        return took, answer[5:]

    def _send(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def _receive(self) -> tuple[bytes, bool]:
        """Take in one frame; return what it holds of the answer, and whether that is all."""
        head = self._file.read(9)
        if len(head) < 9:
            raise CallFailedError("the agent hung up")
        high, low, kind, flags, stream = struct.unpack(">BHBBI", head)
        payload = self._file.read(high << 16 | low)
        if kind in {_RST, _GOAWAY}:
            raise CallFailedError(f"the agent broke off: {payload!r}")
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    self._open, self._initial = self._open + value - self._initial, value
            self._send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW and stream == 0:
            self._connection += struct.unpack(">I", payload)[0]
        elif kind == _WINDOW and stream == self._stream:
            self._open += struct.unpack(">I", payload)[0]
        elif kind == _DATA and stream == self._stream:
            return payload, bool(flags & _END_STREAM)
        return b"", kind == _HEADERS and stream == self._stream and bool(flags & _END_STREAM)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _headers(path: str) -> bytes:
    """Return the headers of a call as HPACK literals (RFC 7541, 6.2.2), which need no table."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) + text.encode() for name, text in pairs.items()
    )

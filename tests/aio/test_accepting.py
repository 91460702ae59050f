"""What is kept of connections, when they are gone and before they have begun."""

import asyncio
import errno
import shutil
import socket
import ssl
from pathlib import Path

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response

from gpu_device_plugin.aio.accepting import Accepting
from gpu_device_plugin.aio.connection_limit import Limits
from gpu_device_plugin.aio.tls import server_tls
from tests.aio.test_http import certificate
from tests.patience import eventually

LIMITS = Limits(total=20, each=20, few=2)
NOTHING = "<Accepting: 0 connections served, 0 that may be ended>"


async def hello(_request: BaseRequest) -> Response:
    return Response(text="hello")


def accepting(listening: socket.socket, tls: ssl.SSLContext | None = None) -> Accepting:
    return Accepting(hello, listening, limits=LIMITS, tls=tls, handshake_within_s=60, handshakes_only=False, headers={})


async def until_nothing_is_left(server: Accepting) -> None:
    await eventually(lambda: repr(server) == NOTHING)


@pytest.mark.parametrize("said", [b"", b"GET / H", b"GET / HTTP/1.0\r\n\r\n", b"no HTTP\r\n\r\n"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_nothing_is_left_of_connections_that_are_gone(tmp_path: Path, said: bytes, *, encrypted: bool) -> None:
    """However many there were, and however far they were: with TLS, whose handshake never was over."""
    tls = None
    if encrypted:
        if shutil.which("openssl") is None:
            pytest.skip("certificates are made with openssl")
        certificate(tmp_path, "server")
        tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "server.crt")
    listening = socket.create_server(("127.0.0.1", 0))
    server = accepting(listening, tls)
    peers = []
    for _ in range(3 * LIMITS.total):
        peers.append(await asyncio.open_connection(*listening.getsockname()))
        peers[-1][1].write(said)
    for _, writer in peers:
        writer.transport.abort()
    await until_nothing_is_left(server)
    server.stop()
    await server.close(0)
    assert repr(server) == NOTHING


class WithoutFiles(socket.socket):
    """A listening socket in a process that has no more file descriptors for a while."""

    refusals = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_file_descriptors_it_waits_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    listening = WithoutFiles()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = accepting(listening)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert (await reader.read()).endswith(b"hello")
    assert [record.why for record in caplog.records] == ["[Errno 24] Too many open files"]  # type: ignore[attr-defined]
    writer.close()
    await until_nothing_is_left(server)
    server.stop()
    await server.close(0)


async def test_an_end_while_it_waits_for_file_descriptors_is_one() -> None:
    listening = WithoutFiles()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = accepting(listening)
    _, writer = await asyncio.open_connection(*listening.getsockname())
    await eventually(lambda: not listening.refusals)
    server.stop()
    await server.close(0)
    writer.transport.abort()
    assert repr(server) == NOTHING

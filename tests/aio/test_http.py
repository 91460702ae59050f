"""HTTP as the scheduler and others speak it: over real sockets, well and badly."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import aiohttp
import pytest

from gpu_device_plugin.aio.http import Json, Page, Request, Route, serving_routes
from gpu_device_plugin.aio.tls import server_tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def echo(request: Request) -> Json:
    return Json(request.body)


async def name(request: Request) -> Page:
    return Page(request.rest)


ROUTES = (
    Route("POST", "/scheduler/filter", echo),
    Route("GET", "/scheduler/inspect", name),
    Route("GET", "/scheduler/inspect/", name),
)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


# --- Routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "answer"),
    [
        ("GET", "/scheduler/inspect", 200, ""),
        ("GET", "/scheduler/inspect/", 200, ""),
        ("GET", "/scheduler/inspect/node-a", 200, "node-a"),
        ("GET", "/scheduler/inspect/node%20a?details=true", 200, "node a"),
        ("GET", "/scheduler/inspect/a/b", 200, "a/b"),
        ("HEAD", "/scheduler/inspect/node-a", 200, ""),
        ("GET", "/scheduler/inspected", 404, ""),
        ("GET", "/scheduler/", 404, ""),
        ("GET", "/", 404, ""),
        ("POST", "/scheduler/filter/x", 404, ""),
    ],
)
async def test_a_path_is_answered_by_the_route_that_fits(
    http: aiohttp.ClientSession, method: str, path: str, status: int, answer: str
) -> None:
    async with (
        serving_routes("127.0.0.1", 0, ROUTES) as port,
        http.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        assert (response.status, await response.text()) == (status, answer)


async def test_the_longest_path_wins(http: aiohttp.ClientSession) -> None:
    routes = [Route("GET", "/", name), Route("GET", "/a/", name), Route("GET", "/a/b/", name)]
    async with serving_routes("127.0.0.1", 0, routes) as port:
        for path, rest in (("/a/b/c", "c"), ("/a/c", "c"), ("/b/c", "b/c")):
            async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                assert await response.text() == rest


async def test_other_methods_are_told_which_there_are(http: aiohttp.ClientSession) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        for method, path, allowed in (("GET", "/scheduler/filter", "POST"), ("PUT", "/scheduler/inspect", "GET,HEAD")):
            async with http.request(method, f"http://127.0.0.1:{port}{path}") as response:
                assert (response.status, response.headers["Allow"]) == (405, allowed)


async def test_one_path_may_have_an_answer_for_each_method(http: aiohttp.ClientSession) -> None:
    async with serving_routes("127.0.0.1", 0, [Route("GET", "/x", name), Route("POST", "/x", echo)]) as port:
        async with http.get(f"http://127.0.0.1:{port}/x") as response:
            assert await response.text() == ""
        async with http.post(f"http://127.0.0.1:{port}/x", data=b"{}") as response:
            assert await response.text() == "{}"


# --- Bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain", "junk"])
async def test_a_body_is_read_whatever_it_calls_itself(http: aiohttp.ClientSession, kind: str) -> None:
    async with (
        serving_routes("127.0.0.1", 0, ROUTES) as port,
        http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=b'{"a":1}', headers={"Content-Type": kind}) as got,
    ):
        assert (got.status, got.headers["Content-Type"], await got.read()) == (200, "application/json", b'{"a":1}')


async def test_a_large_body_comes_back_whole(http: aiohttp.ClientSession) -> None:
    """5 MB, in whatever pieces they come, with their length and without."""
    body = os.urandom(5_000_000)

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 300_000):
            yield body[start : start + 300_000]

    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        for data in (io.BytesIO(body), in_pieces()):
            async with http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=data) as response:
                assert await response.read() == body


async def test_a_body_that_is_too_large_is_refused_with_a_sentence(http: aiohttp.ClientSession) -> None:
    """By its announced length, and where there is none, when it has become too long."""

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(512 * 1024)

    async with serving_routes("127.0.0.1", 0, ROUTES, largest_body=1024 * 1024) as port:
        for data in (io.BytesIO(bytes(1024 * 1024 + 1)), in_pieces()):
            async with http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=data) as response:
                assert (response.status, await response.text()) == (413, "a body of more than 1 MiB is not read\n")
        async with http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=bytes(1024 * 1024)) as response:
            assert response.status == 200


QUICK = b"GET /scheduler/inspect/n HTTP/1.0\r\n\r\n"


async def raw(port: int, request: bytes) -> bytes:
    """Send bytes that need not be HTTP, and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    await close(writer)
    return answer


@pytest.mark.parametrize(
    "rest",
    [
        b"Transfer-Encoding: chunked\r\n\r\nSECRET\r\n\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nSECRET",
    ],
)
async def test_a_body_that_is_not_what_its_head_says_is_refused(caplog: pytest.LogCaptureFixture, rest: bytes) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        answer = await raw(port, b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + rest)
    assert b" 400 Bad Request\r\n" in answer
    assert "SECRET" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_peer_that_goes_away_in_the_middle_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        await close(writer)
        assert (await raw(port, QUICK)).endswith(b"\r\n\r\nn")
    assert caplog.text == ""


async def test_a_body_that_does_not_come_to_its_end_is_not_waited_for() -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES, body_within_s=0.01) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        assert b" 408 Request Timeout\r\n" in await reader.readline()
        await close(writer)


async def test_what_is_no_http_is_one_line_that_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        answer = await raw(port, b"POST / HTTP/1.1\r\nSECRET without a colon\r\n\r\n")
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert "SECRET" not in caplog.text


async def test_what_comes_with_a_question_is_not_read(http: aiohttp.ClientSession) -> None:
    """Its answer does not wait for what was announced, and the rest does not pass for the next request."""
    head = b"GET /scheduler/inspect/n HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"x" * 1000)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK\r\n" in answer
        assert b"Connection: close\r\n" in answer
        await close(writer)
        for data in (b"", b"{}"):
            async with http.get(f"http://127.0.0.1:{port}/scheduler/inspect/n", data=data) as response:
                assert (response.status, await response.text()) == (200, "n")


async def test_an_answer_may_be_the_last_on_its_connection(http: aiohttp.ClientSession) -> None:
    async def last(_request: Request) -> Page:
        return Page("elsewhere", last=True)

    async with serving_routes("127.0.0.1", 0, [Route("GET", "/", last), *ROUTES]) as port:
        for path, connection in (("/", "close"), ("/scheduler/inspect", None)):
            async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                assert response.headers.get("Connection") == connection


async def test_strangers_who_hold_connections_do_not_keep_others_out() -> None:
    """Three connections are kept. A fourth ends the one that was opened first, and no other."""
    async with serving_routes("127.0.0.1", 0, ROUTES, most_peers=3) as port:
        held = []
        for _ in range(3):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(b"GET /scheduler/inspect/n HTTP/1.1\r\nHost: x\r\n\r\n")
            await held[-1][0].readuntil(b"\r\n\r\nn")
        held[0][1].write(b"GET /scheduler/inspect/n HTTP/1.1\r\nHost: ")
        assert (await raw(port, QUICK)).endswith(b"\r\n\r\nn")
        with contextlib.suppress(ConnectionError):
            assert await held[0][0].read() == b""
        for reader, writer in held[1:]:
            writer.write(QUICK)
            assert (await reader.read()).endswith(b"\r\n\r\nn")
        for _, writer in held:
            await close(writer)


# --- Errors ----------------------------------------------------------------------------------------------------------


async def test_an_error_in_a_route_is_a_500_and_a_traceback_without_the_body(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(request: Request) -> Page:
        try:
            int(request.body)
        except ValueError as error:
            raise LookupError(request) from error
        raise AssertionError

    async with serving_routes("127.0.0.1", 0, [Route("POST", "/breaks", breaks), *ROUTES]) as port:
        async with http.post(f"http://127.0.0.1:{port}/breaks", data=b"PASSWORD") as response:
            assert (response.status, await response.text()) == (500, "an error in the program itself; see its log\n")
        async with http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=b"fine") as response:
            assert response.status == 200
    assert "in breaks" in caplog.text
    assert "LookupError" in caplog.text
    assert "PASSWORD" not in caplog.text


def test_a_request_does_not_show_its_body() -> None:
    assert repr(Request("/filter", body=b"PASSWORD")) == "Request(path='/filter', rest='')"


# --- The end ---------------------------------------------------------------------------------------------------------


class Gate:
    """A route that answers when it is let."""

    def __init__(self) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, _request: Request) -> Page:
        self.entered.set()
        await self.opened.wait()
        return Page("at last")


async def until_refused(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        await close(writer)


async def test_requests_that_are_there_at_the_end_are_answered_and_new_ones_are_not(
    http: aiohttp.ClientSession,
) -> None:
    gate, leave = Gate(), asyncio.Event()
    ports: asyncio.Queue[int] = asyncio.Queue()

    async def serve() -> None:
        async with serving_routes("127.0.0.1", 0, [Route("GET", "/", gate)], finish_within_s=60) as port:
            ports.put_nowait(port)
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        served = tasks.create_task(serve())
        port = await ports.get()
        asked = tasks.create_task(http.get(f"http://127.0.0.1:{port}/"))
        await gate.entered.wait()
        leave.set()
        await until_refused(port)
        assert not served.done()
        gate.opened.set()
        response = await asked
        assert (response.status, await response.text()) == (200, "at last")
        assert response.headers["Connection"] == "close"


async def test_a_body_that_is_still_coming_at_the_end_is_answered() -> None:
    leave = asyncio.Event()
    ports: asyncio.Queue[int] = asyncio.Queue()

    async def serve() -> None:
        async with serving_routes("127.0.0.1", 0, ROUTES, finish_within_s=60) as port:
            ports.put_nowait(port)
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        served = tasks.create_task(serve())
        port = await ports.get()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
        await raw(port, QUICK)  # what came before it has arrived
        leave.set()
        await until_refused(port)
        writer.write(b"half")
        assert (await reader.read()).endswith(b"\r\n\r\nhalfhalf")
        await served
        await close(writer)


async def test_a_request_that_takes_too_long_is_dropped_at_the_end(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    async with asyncio.TaskGroup() as tasks:
        async with serving_routes("127.0.0.1", 0, [Route("GET", "/", gate)], finish_within_s=0.01) as port:
            asked = tasks.create_task(gone(http, f"http://127.0.0.1:{port}/"))
            await gate.entered.wait()
        assert await asked


async def gone(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        await http.get(url)
    except aiohttp.ClientConnectionError:
        return True
    return False


# --- TLS -------------------------------------------------------------------------------------------------------------

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


def certificate(folder: Path, who: str) -> None:
    """Write ``who.crt`` and ``who.key``; the certificate signs itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / f"{who}.key", "-out", folder / f"{who}.crt", "-days", "2", "-subj", f"/CN={who}",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip


def client(folder: Path, trusts: str, shows: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / f"{trusts}.crt")
    if shows:
        context.load_cert_chain(folder / f"{shows}.crt", folder / f"{shows}.key")
    return context


async def asked(port: int, tls: ssl.SSLContext) -> str:
    async with (
        aiohttp.ClientSession() as fresh,
        fresh.get(f"https://127.0.0.1:{port}/scheduler/inspect/n", ssl=tls) as got,
    ):
        return await got.text()


@needs_openssl
async def test_with_a_client_authority_only_its_clients_are_served(tmp_path: Path) -> None:
    for who in ("server", "scheduler", "stranger"):
        certificate(tmp_path, who)
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "scheduler.crt")
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=tls) as port:
        assert await asked(port, client(tmp_path, "server", "scheduler")) == "n"
        for shows in ("", "stranger"):
            with pytest.raises(aiohttp.ClientError):
                await asked(port, client(tmp_path, "server", shows))


@needs_openssl
async def test_without_one_every_client_is(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=tls) as port:
        assert await asked(port, client(tmp_path, "server")) == "n"


@needs_openssl
async def test_certificates_that_are_renewed_are_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's own and the clients' authority; half a renewal changes nothing."""
    for who in ("old", "new", "scheduler", "successor"):
        certificate(tmp_path, who)
    cert, key, ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
    cert.write_bytes((tmp_path / "old.crt").read_bytes())
    key.write_bytes((tmp_path / "old.key").read_bytes())
    ca.write_bytes((tmp_path / "scheduler.crt").read_bytes())
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=server_tls(cert, key, ca)) as port:
        assert await asked(port, client(tmp_path, "old", "scheduler")) == "n"
        cert.write_bytes((tmp_path / "new.crt").read_bytes())
        assert await asked(port, client(tmp_path, "old", "scheduler")) == "n"
        assert "goes on with the certificates read before" in caplog.text
        key.write_bytes((tmp_path / "new.key").read_bytes())
        assert await asked(port, client(tmp_path, "new", "scheduler")) == "n"
        ca.write_bytes((tmp_path / "successor.crt").read_bytes())
        assert await asked(port, client(tmp_path, "new", "successor")) == "n"
        with pytest.raises(aiohttp.ClientError):
            await asked(port, client(tmp_path, "new", "scheduler"))


@needs_openssl
def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    certificate(tmp_path, "other")
    cert = tmp_path / "server.crt"
    for key in ("other.key", "none.key"):
        with pytest.raises(OSError, match=f"cannot serve TLS with {cert}, {tmp_path / key}: "):
            server_tls(cert, tmp_path / key)

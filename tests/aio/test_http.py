"""HTTP as the scheduler and others speak it: over real sockets, well and badly."""

import asyncio
import contextlib
import io
import logging
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gpu_device_plugin.aio.connection_limit import Limits
from gpu_device_plugin.aio.http import HANDSHAKES, JSON, STRANGERS, Page, Request, Route, Stream, serving_routes
from gpu_device_plugin.aio.tls import server_tls


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def echo(request: Request) -> Page:
    return Page(request.body, content_type=JSON)


async def name(request: Request) -> Page:
    return Page(request.rest)


ROUTES = (
    Route("POST", "/scheduler/filter", echo),
    Route("GET", "/scheduler/inspect", name),
    Route("GET", "/scheduler/inspect/", name),
    Route("GET", "/scheduler/inspect/longer/", name),
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
        ("GET", "/scheduler/inspect/longer/b", 200, "b"),
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


# --- Many peers ------------------------------------------------------------------------------------------------------

KUBELET, ATTACKER = "127.0.0.2", "127.0.1.3"
FEW = Limits(total=6, each=3, few=2)
HEAD = b"GET /scheduler/inspect/n HTTP/1.1\r\nHost: x\r\n\r\n"

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Come = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def come() -> AsyncIterator[Come]:
    """Connect to a port from an address of this machine, and say something; ends with the test."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(port: int, address: str, said: bytes = b"", tls: ssl.SSLContext | None = None) -> Peer:
        peer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0))
        writers.append(peer[1])
        peer[1].write(said)
        return peer

    yield connect
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def flood(come: Come, port: int, addresses: Iterable[str], said: bytes) -> None:
    """Come from all of these; some may be turned away at once."""
    for address in addresses:
        with contextlib.suppress(ConnectionError):
            await come(port, address, said)


async def ended(peer: Peer) -> bool:
    """Wait until the server ends a connection, without an answer."""
    try:
        return await peer[0].read() == b""
    except ConnectionError:
        return True


async def served(peer: Peer) -> bool:
    """Whether a connection that is there still gets an answer."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        peer[1].write(HEAD)
        return (await peer[0].readuntil(b"\r\n\r\nn")).startswith(b"HTTP/1.1 200 OK")
    return False


@pytest.mark.parametrize("said", [b"", b"GET /sched", HEAD], ids=["nothing", "half a request", "a request"])
async def test_an_address_with_too_many_connections_loses_its_own(come: Come, said: bytes) -> None:
    """Ten times its part, while the kubelet has one that it keeps and comes with another."""
    async with serving_routes("127.0.0.1", 0, ROUTES, limits=FEW) as port:
        kept = await come(port, KUBELET)
        assert await served(kept)
        await flood(come, port, [ATTACKER] * 30, said)
        assert await served(await come(port, KUBELET))
        assert await served(kept)
        assert await served(await come(port, ATTACKER))


async def test_a_request_in_progress_outlives_whatever_comes_from_anywhere(come: Come) -> None:
    """The kubelet waits for an answer, as of /quiet, while more come than the port keeps, from many addresses."""
    gate = Gate()
    routes = [Route("GET", "/quiet", gate), *ROUTES]
    async with serving_routes("127.0.0.1", 0, routes, limits=FEW) as port:
        waiting = await come(port, KUBELET, b"GET /quiet HTTP/1.0\r\n\r\n")
        await gate.entered.wait()
        addresses = [f"127.0.{1 + number % 7}.{number + 1}" for number in range(40)]
        await flood(come, port, addresses, HEAD)
        assert await served(await come(port, KUBELET))
        gate.opened.set()
        assert (await waiting[0].read()).endswith(b"at last")


async def test_a_request_whose_peer_has_gone_is_given_up_where_everybody_can_ask(come: Come) -> None:
    """Whoever asks for long answers and goes away leaves nothing behind."""
    entered, given_up = asyncio.Event(), asyncio.Event()

    async def long(_request: Request) -> Page:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        raise AssertionError

    async with serving_routes("127.0.0.1", 0, [Route("GET", "/quiet", long)], limits=FEW) as port:
        _, writer = await come(port, ATTACKER, b"GET /quiet HTTP/1.0\r\n\r\n")
        await entered.wait()
        await close(writer)
        await given_up.wait()


async def test_a_head_is_read_up_to_a_bound_where_everybody_can_ask() -> None:
    """16 lines with 4 KiB each: room for a token, and 8 MiB for all connections together."""
    line = b"A: " + b"x" * 4000 + b"\r\n"
    async with serving_routes("127.0.0.1", 0, ROUTES, limits=FEW) as port:
        for lines, status in ((line * 15, b" 200 "), (line * 17, b" 400 "), (b"A: " + b"x" * 5000 + b"\r\n", b" 400 ")):
            assert status in await raw(port, QUICK[:-2] + lines + b"\r\n")


async def test_connections_on_which_nothing_came_end_with_the_server(come: Come) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES, limits=FEW) as port:
        peer = await come(port, KUBELET)
        assert await served(await come(port, KUBELET))  # the first one has been accepted
    assert await ended(peer)


async def test_without_limits_dozens_of_connections_of_one_scheduler_are_kept(come: Come) -> None:
    async with serving_routes("127.0.0.1", 0, ROUTES) as port:
        peers = [await come(port, KUBELET) for _ in range(300)]
        for _ in range(2):
            assert all([await served(peer) for peer in peers])


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
            assert (response.status, await response.text()) == (500, "internal error; see the log\n")
        async with http.post(f"http://127.0.0.1:{port}/scheduler/filter", data=b"fine") as response:
            assert response.status == 200
    assert "in breaks" in caplog.text
    assert "LookupError" in caplog.text
    assert "PASSWORD" not in caplog.text


# --- The end ---------------------------------------------------------------------------------------------------------


class Gate:
    """A route that answers when it is let."""

    def __init__(self) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, _request: Request) -> Page:
        self.entered.set()
        await self.opened.wait()
        return Page("at last")


@contextlib.asynccontextmanager
async def leaving(*routes: Route) -> AsyncIterator[tuple[int, Callable[[], Awaitable[None]]]]:
    """Serve, until the block calls what is yielded: then nobody is accepted, and the server waits for the rest."""
    leave, ports = asyncio.Event(), asyncio.Queue[int]()

    async def serve() -> None:
        async with serving_routes("127.0.0.1", 0, routes, finish_within_s=60) as port:
            ports.put_nowait(port)
            await leave.wait()

    async def stop() -> None:
        leave.set()
        with contextlib.suppress(OSError):
            while True:
                await close((await asyncio.open_connection("127.0.0.1", port))[1])
        assert not served.done()

    async with asyncio.TaskGroup() as tasks:
        served = tasks.create_task(serve())
        port = await ports.get()
        yield port, stop


async def test_requests_that_are_there_at_the_end_are_answered_and_new_ones_are_not(
    http: aiohttp.ClientSession,
) -> None:
    gate = Gate()
    async with leaving(Route("GET", "/", gate)) as (port, stop), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(http.get(f"http://127.0.0.1:{port}/"))
        await gate.entered.wait()
        await stop()
        gate.opened.set()
        response = await asked
        assert (response.status, await response.text()) == (200, "at last")
        assert response.headers["Connection"] == "close"


async def test_a_body_that_is_still_coming_at_the_end_is_answered() -> None:
    async with leaving(*ROUTES) as (port, stop):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
        await raw(port, QUICK)  # what came before it has arrived
        await stop()
        writer.write(b"half")
        assert (await reader.read()).endswith(b"\r\n\r\nhalfhalf")
        await close(writer)


async def test_a_request_that_takes_too_long_is_dropped_at_the_end(come: Come) -> None:
    gate = Gate()
    async with serving_routes("127.0.0.1", 0, [Route("GET", "/", gate)], finish_within_s=0.01) as port:
        peer = await come(port, KUBELET, b"GET / HTTP/1.0\r\n\r\n")
        await gate.entered.wait()
    assert await ended(peer)


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
async def test_a_scheduler_is_served_beside_any_number_of_peers_that_shake_no_hands(tmp_path: Path, come: Come) -> None:
    """Of its own address, too: behind a Service all come from one. What it has is kept, and it gets new ones."""
    for who in ("server", "scheduler"):
        certificate(tmp_path, who)
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "scheduler.crt")
    known = client(tmp_path, "server", "scheduler")
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=tls) as port:
        kept = [await come(port, KUBELET, tls=known) for _ in range(40)]
        floods = []
        for said in (b"", b"\x16\x03\x01\x02\x00\x01"):  # the second is the beginning of a ClientHello
            floods += [await come(port, KUBELET, said) for _ in range(HANDSHAKES.total + 20)]
            kept.append(await come(port, KUBELET, tls=known))
            assert all([await served(peer) for peer in kept])
        assert await ended(floods[0])
        assert await ended(floods[HANDSHAKES.total + 20])


@needs_openssl
async def test_where_limits_are_given_those_that_shook_hands_count_too(tmp_path: Path, come: Come) -> None:
    certificate(tmp_path, "server")
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key")
    known = client(tmp_path, "server")
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=tls, limits=FEW) as port:  # without a client authority
        first = await come(port, ATTACKER, tls=known)
        assert await served(first)
        others = [await come(port, ATTACKER, tls=known) for _ in range(FEW.each)]
        assert await served(others[-1])
        assert await ended(first)


@needs_openssl
async def test_a_handshake_has_its_time(tmp_path: Path, come: Come) -> None:
    certificate(tmp_path, "server")
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with serving_routes("127.0.0.1", 0, ROUTES, tls=tls, handshake_within_s=0.01) as port:
        peer = await come(port, KUBELET, b"\x16\x03\x01\x02\x00\x01")
        assert await ended(peer)


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
        assert "keeps using the certificates read before" in caplog.text
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
    (tmp_path / "no.key").write_text("no key")
    cert = tmp_path / "server.crt"
    for key, why in (
        ("other.key", "key values mismatch; give PEM files, and the key that belongs to the certificate"),
        ("no.key", "give PEM files, and the key that belongs to the certificate"),
        ("none.key", f"{tmp_path}/none.key: No such file or directory"),
        (".", "Is a directory"),
    ):
        with pytest.raises(OSError, match="TLS") as caught:
            server_tls(cert, tmp_path / key)
        assert str(caught.value) == f"cannot serve TLS with {cert}, {tmp_path / key}: {why}"


# --- What routes read and send besides -------------------------------------------------------------------------------


async def test_a_route_reads_the_headers_that_it_names_and_the_query(http: aiohttp.ClientSession) -> None:
    seen: list[Request] = []

    async def answer(request: Request) -> Page:
        seen.append(request)
        return Page("")

    routes = [Route("GET", "/a", answer, headers=("Authorization", "Host"))]
    async with serving_routes("127.0.0.1", 0, routes) as port:
        sent = {"authorization": "Bearer secret", "Cookie": "not read"}
        async with http.get(f"http://127.0.0.1:{port}/a?q=1&q=2&empty=", headers=sent) as answered:
            assert answered.headers["Cache-Control"] == "no-store"
    (request,) = seen
    assert request.headers == {"Authorization": "Bearer secret", "Host": f"127.0.0.1:{port}"}
    assert request.query == {"q": "1", "empty": ""}
    assert "secret" not in repr(replace(request, body=b"secret"))


class Streaming:
    """A stream that sends what it is given, and whether it was closed."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield await self.given.get()
        finally:
            self.closed.set()

    async def answer(self, _request: Request) -> Stream:
        return Stream(self.parts(), "text/event-stream")

    @property
    def route(self) -> Route:
        return Route("GET", "/live", self.answer)


async def test_a_stream_arrives_part_by_part(http: aiohttp.ClientSession) -> None:
    stream = Streaming()
    async with (
        serving_routes("127.0.0.1", 0, [stream.route], limits=STRANGERS) as port,
        http.head(f"http://127.0.0.1:{port}/live") as head,
        http.get(f"http://127.0.0.1:{port}/live") as answered,
    ):
        assert await head.read() == b""
        assert head.headers["Content-Type"] == answered.headers["Content-Type"] == "text/event-stream"
        for part in (b"first", b"second"):
            stream.given.put_nowait(part)
            assert await answered.content.readany() == part


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_stream_is_closed_when_one_of_both_has_gone(http: aiohttp.ClientSession, who: str) -> None:
    stream = Streaming()
    async with serving_routes("127.0.0.1", 0, [stream.route], limits=STRANGERS, finish_within_s=0.01) as port:
        answered = await http.get(f"http://127.0.0.1:{port}/live")
        stream.given.put_nowait(b"first")
        await answered.content.readany()
        if who == "client":
            answered.close()
            await stream.closed.wait()
    await stream.closed.wait()
    answered.close()


async def test_a_stream_is_closed_when_its_client_does_not_read() -> None:
    stream = Streaming()
    async with serving_routes("127.0.0.1", 0, [stream.route], limits=STRANGERS, read_within_s=0.05) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        for _ in range(64):
            stream.given.put_nowait(bytes(1 << 20))  # more than the sockets' buffers hold
        await stream.closed.wait()
        assert not stream.given.empty()
        await close(writer)

"""The client over real sockets: what it sends, what it survives, what it says."""
# ruff: noqa: S105, S106 - these tokens are made up

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.answers import WatchEvent
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ForbiddenError,
    GoneError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)
from gpu_device_plugin.kubernetes.objects.decoding import EVENTS, NODES, PODS, NodeReader, read_metadata
from tests.builders import node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Slow, Trouble
from tests.patience import stretched


async def listed(client: Client, **selection: Any) -> list[str]:
    return [read_metadata(raw).name async for page in client.pages(PODS, **selection) for raw in page.items or ()]


def told(event: WatchEvent) -> tuple[str, str]:
    return event.type, read_metadata(event.object).name


@pytest.mark.parametrize("cause", [OSError("the address is taken"), None])
async def test_the_cause_of_an_end_is_told_though_one_is_told_to_end_meanwhile(
    server: ApiServer, cause: OSError | None
) -> None:
    """As by a SIGTERM that comes while connections are being closed; without a cause it is the cause."""
    server.add(node("n"))
    closing = asyncio.Event()

    async def work() -> None:
        async with Client(ClusterConfig(server.url)) as client:
            await client.get(NODES, "n")  # leaves a connection that takes its time to close
            closing.set()
            if cause is not None:
                raise cause

    working = asyncio.create_task(work())
    await closing.wait()
    assert not working.done()
    working.cancel()
    (outcome,) = await asyncio.gather(working, return_exceptions=True)
    assert outcome is cause if cause is not None else isinstance(outcome, asyncio.CancelledError)


async def test_a_page_that_would_fill_our_memory_is_given_up_and_listed_in_smaller_ones(
    server: ApiServer, client: Client
) -> None:
    """70 pods with 250 KB each are 17 MB: pages of 500 and of 125 would hold all of them, pages of 31 do not."""
    names = [f"p{number:02}" for number in range(70)]
    for name in names:
        server.add(pod(name, annotations={"a": "x" * 250_000}))
    assert await listed(client) == names
    assert server.count("list", "pods") == 2 + 3


async def test_one_object_is_read_however_large_it_is(server: ApiServer, client: Client) -> None:
    """As is the answer of a server that ignores the limit."""
    server.add(pod("a", annotations={"a": "x" * (17 << 20)}))
    assert await listed(client) == ["a"]


async def test_the_newest_version_is_the_clusters_and_not_the_caches(server: ApiServer, client: Client) -> None:
    for name in "abc":
        server.add(pod(name))
    server.reads.hold()
    server.add(node("n"))
    assert await client.newest(PODS) == server.store.version
    assert [dict(request.params) for request in server.requests] == [{"limit": "1"}]


@pytest.mark.parametrize("verb", ["get", "create", "replace"])
async def test_less_patience_can_be_had(server: ApiServer, verb: str) -> None:
    server.fail(Hang())
    async with Client(ClusterConfig(server.url)) as client:
        await client.server()  # which opens the connection
        timeout_s = stretched(0.1)
        calls: dict[str, Callable[[], Awaitable[bytes]]] = {
            "get": lambda: client.get(PODS, "a", namespace="default", timeout_s=timeout_s),
            "create": lambda: client.create(PODS, {}, namespace="default", timeout_s=timeout_s),
            "replace": lambda: client.replace(PODS, "a", {}, namespace="default", timeout_s=timeout_s),
        }
        with pytest.raises(UnavailableError, match="no answer in time") as failed:
            await calls[verb]()
    assert failed.value.sent


async def test_a_request_that_never_left_us_says_so(server: ApiServer, client: Client) -> None:
    """Nothing can have come of it, unlike of one whose answer was lost."""
    server.fail(Reset(), times=1)
    with pytest.raises(UnavailableError) as lost:
        await client.create(PODS, {}, namespace="default")
    assert lost.value.sent
    await server.stop()
    with pytest.raises(UnavailableError) as unsent:
        await client.create(PODS, {}, namespace="default")
    assert not unsent.value.sent


async def test_a_page_that_expired_is_gone(server: ApiServer, client: Client) -> None:
    for name in "abc":
        server.add(pod(name))
    pages = client.pages(PODS, limit=1)
    await anext(pages)
    server.add(pod("d"))
    server.store.compact()
    with pytest.raises(GoneError):
        await anext(pages)


async def test_a_watch_from_a_forgotten_version_is_gone(server: ApiServer, client: Client) -> None:
    server.add(pod("a"))
    server.store.compact()
    async with client.watch(PODS, since="1") as events:
        with pytest.raises(GoneError, match="410 Expired: too old resource version"):
            await anext(events)


async def test_a_watch_carries_pods_of_any_size(server: ApiServer, client: Client) -> None:
    """A pod of 1 MiB is far longer than the lines that HTTP libraries like to read."""
    async with client.watch(PODS, since="1") as events:
        server.add(pod("a", annotations={"large": "x" * (1 << 20)}))
        server.add(pod("b"))
        assert [told(await anext(events)) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]


TROUBLES: list[tuple[Trouble, type[ApiError], str]] = [
    (Answer(429, retry_after_s=7), TooManyRequestsError, "429"),
    (Answer(500), UnavailableError, "500"),
    (Answer(503), UnavailableError, "503"),
    (Hang(), UnavailableError, "no answer in time"),
    (Slow(3600), UnavailableError, "no answer in time"),
    (Reset(), UnavailableError, "get nodes n: "),
]


@pytest.mark.parametrize(("trouble", "kind", "words"), TROUBLES, ids=str)
async def test_trouble_has_a_type_and_a_sentence(
    server: ApiServer, trouble: Trouble, kind: type[ApiError], words: str
) -> None:
    server.add(node("n"))
    timing = Timing(request_s=stretched(0.3) if isinstance(trouble, Hang | Slow) else stretched())
    async with Client(ClusterConfig(server.url), timing=timing) as client:
        server.fail(trouble)
        with pytest.raises(kind, match=words) as failed:
            await client.get(NODES, "n")
        assert failed.value.retry_after_s == (7 if isinstance(trouble, Answer) and trouble.code == 429 else 0)
        server.heal()
        assert NodeReader().read(await client.get(NODES, "n")).name == "n"


async def test_an_answer_that_is_no_list_is_no_list(server: ApiServer, client: Client) -> None:
    server.fail(Garbage())
    with pytest.raises(UnavailableError, match="not a list of objects"):
        await listed(client)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>\n</html>\n", "not an event of a watch"),
        (b'{"type":"ADDED","object":{"metadata"', "inside an event"),
    ],
)
async def test_an_answer_that_is_no_watch_is_no_watch(server: ApiServer, client: Client, body: bytes, why: str) -> None:
    server.fail(Garbage(body))
    async with client.watch(PODS, since="1") as events:
        with pytest.raises(UnavailableError, match=why):
            await anext(events)


async def test_a_missing_right_is_named() -> None:
    async with ApiServer(allowed={("get", "nodes")}) as server, Client(ClusterConfig(server.url)) as client:
        with pytest.raises(ForbiddenError, match="grant 'create' on 'events' of the API group events"):
            await client.create(EVENTS, {}, namespace="default")


async def test_a_server_that_was_away_is_starting_for_a_while_before_a_right_is_missing() -> None:
    timing = Timing(starting_s=3600)
    async with ApiServer(allowed=set()) as server, Client(ClusterConfig(server.url), timing=timing) as client:
        with pytest.raises(ForbiddenError, match="grant 'get' on 'nodes'"):
            await client.get(NODES, "n")
        server.fail(Answer(503), times=1)
        for expected in ("503", "the API server is starting", "the API server is starting"):
            with pytest.raises(UnavailableError, match=expected):
                await client.get(NODES, "n")
    async with (
        ApiServer(allowed=set()) as server,
        Client(ClusterConfig(server.url), timing=Timing(starting_s=0)) as client,
    ):
        server.fail(Answer(503), times=1)
        with pytest.raises(UnavailableError):
            await client.get(NODES, "n")
        with pytest.raises(ForbiddenError, match="grant 'get' on 'nodes'"):
            await client.get(NODES, "n")


async def test_a_pod_that_the_proxy_does_not_reach_makes_no_server_start(client: Client, server: ApiServer) -> None:
    server.fail(Answer(503), times=1)
    with pytest.raises(UnavailableError):
        await client.from_pod("default", "p", 9445, "/metrics", most=1000, timeout_s=5)
    server.fail(Answer(403), times=1)
    with pytest.raises(ForbiddenError):
        await client.get(NODES, "n")


async def test_a_redirection_is_not_followed(server: ApiServer, client: Client) -> None:
    """It would carry our token to somebody else."""
    server.fail(Answer(302))
    with pytest.raises(ApiError, match="302"):
        await client.get(NODES, "n")


async def test_the_callers_own_timeout_stays_his(server: ApiServer, client: Client) -> None:
    """Only what happens inside the client is translated."""
    server.add(pod("a"))
    with pytest.raises(TimeoutError):
        async with client.watch(PODS, since="1"), asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_a_client_outside_its_context_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="outside its `async with`"):
        await Client(ClusterConfig("http://127.0.0.1:1")).get(NODES, "n")


async def test_a_token_is_sent_and_never_shown(server: ApiServer) -> None:
    server.tokens = frozenset({"other"})
    async with Client(ClusterConfig(server.url, token="hunter2")) as client:
        with pytest.raises(UnauthorizedError, match="does not accept our token") as refused:
            await client.get(NODES, "n")
    assert server.requests[-1].token == "hunter2"
    assert "hunter2" not in f"{refused.value!r} {refused.value} {client!r} {server.requests[-1]!r}"


async def test_a_missing_token_file_is_named(server: ApiServer, tmp_path: Path) -> None:
    async with Client(ClusterConfig(server.url, token_file=tmp_path / "token")) as client:
        with pytest.raises(UnauthorizedError, match="token file cannot be read"):
            await client.get(NODES, "n")


def certificate(folder: Path, name: str) -> Path:
    pem = folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", pem, "-out", folder / f"{name}.crt", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + (folder / f"{name}.crt").read_text())
    return folder / f"{name}.crt"


async def test_an_authority_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """TLS: a server whose certificate our file does not sign is not talked to, until the file does."""
    ours, theirs = certificate(tmp_path, "ours"), certificate(tmp_path, "theirs")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "ours.pem")
    ca = tmp_path / "ca.crt"
    ca.write_text(theirs.read_text())
    async with ApiServer(tls=tls) as server, Client(ClusterConfig(server.url, ca_file=ca, token="hunter2")) as client:
        server.add(node("n"))
        with pytest.raises(UnavailableError, match="certificate") as caught:
            await client.get(NODES, "n")
        where = f"cannot connect to 127.0.0.1:{server.url.rpartition(':')[2]}: "
        assert str(caught.value).startswith(f"get nodes n: {where}")
        assert " object at 0x" not in str(caught.value)
        assert server.requests == []
        ca.write_text("")
        with pytest.raises(UnavailableError, match="cannot be used"):
            await client.get(NODES, "n")
        ca.write_text(ours.read_text())
        assert NodeReader().read(await client.get(NODES, "n")).name == "n"


async def test_a_client_certificate_from_text_logs_us_in(tmp_path: Path) -> None:
    ours, client_crt = certificate(tmp_path, "ours"), certificate(tmp_path, "client")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_crt)
    tls.load_cert_chain(tmp_path / "ours.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    async with ApiServer(tls=tls) as server:
        server.add(node("n"))
        pem = (tmp_path / "client.pem").read_text()
        begin = pem.index("-----BEGIN CERTIFICATE")
        config = ClusterConfig(server.url, ca_pem=ours.read_text(), cert_pem=pem[begin:], key_pem=pem[:begin])
        async with Client(config) as client:
            assert NodeReader().read(await client.get(NODES, "n")).name == "n"
        async with Client(ClusterConfig(server.url, ca_pem=ours.read_text())) as stranger:
            with pytest.raises(UnavailableError):
                await stranger.get(NODES, "n")


async def test_an_address_where_nobody_listens_and_a_name_that_nobody_knows_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, why in (
        (f"http://127.0.0.1:{port}", f"cannot connect to 127.0.0.1:{port}: Connection refused"),
        ("http://nobody.invalid:1", "cannot connect to nobody.invalid:1: "),
    ):
        async with Client(ClusterConfig(url)) as client:
            with pytest.raises(UnavailableError) as caught:
                await client.get(NODES, "n")
            assert str(caught.value).startswith(f"get nodes n: {why}")
            assert not caught.value.sent

"""Measure the page's server as a browser meets it: ``python -m bench.web``.

The server runs as a process of its own, as ``python -m bench.web --serve API``: it is that of the page, with one token
that the benchmark knows. It follows a cluster that another process makes up (bench.bigcluster).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from bench import hostile, memory, synthetic
from bench.extender import WAITING_BAR_MIB, cluster, peak_mib, wait_in_vain
from bench.node_agent import Row, add_only, machine, percentiles, show
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.programs.web.callers import LocalCallers, ReviewedCallers
from gpu_device_plugin.programs.web.page_state import MOST_WAITING
from gpu_device_plugin.programs.web.web_program import CONNECTIONS, PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.forms import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

FIRST_BAR_MS = 300.0
OTHERS_BAR_MS = 500.0
FILES = 1024
"""File descriptors of the server, as many systems give a process."""
_SHAPES = ("gpu-mem 16", "gpu-mem 12", "gpu-count 8", "gpu-mem 32 over 4 GPUs", "gpu-count 4")
"""What waiting pods ask."""


async def serve(api: str, *, reviewed: bool) -> None:
    """Serve until standard input ends; print the port and the token. With `reviewed` tokens are the API server's."""
    async with Client(ClusterConfig(api), connections=CONNECTIONS) as client:
        local = LocalCallers("bench")
        callers = ReviewedCallers(client) if reviewed else local
        server = PageServer(
            client, ResourceSettings().offered, callers, about=AboutPage("cluster" if reviewed else "kubeconfig")
        )
        async with server.serving(Address("127.0.0.1", 0)) as port:
            print(port, "admin" if reviewed else local.token, flush=True)
            await asyncio.to_thread(sys.stdin.read)


@dataclass(frozen=True, slots=True)
class Reader:
    """A browser, and the server that it meets."""

    http: aiohttp.ClientSession
    url: str
    pid: int
    ready_s: float

    @asynccontextmanager
    async def stream(self, token: str = "") -> AsyncIterator[Events]:
        """Open a stream."""
        headers = {"Authorization": f"Bearer {token}"} if token else None
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.http.get(f"{self.url}/api/v1/live", headers=headers, timeout=timeout) as answer:
            answer.raise_for_status()
            yield Events(answer.content)


@asynccontextmanager
async def reading(api: str, *more: str) -> AsyncIterator[Reader]:
    """Run a server, and have it know the cluster."""
    command = [sys.executable, "-m", "bench.web", "--serve", api, *more]
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port, token = (await process.stdout.readline()).decode().split()
        url = f"http://127.0.0.1:{port}"
        headers, connector = {"Authorization": f"Bearer {token}"}, aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=1 << 20) as http:
            while True:
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.01)
            yield Reader(http, url, process.pid, time.monotonic() - began)
    finally:
        process.terminate()
        await process.wait()


class Events:
    """The events of one stream."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream
        self._rest: list[bytes] = [b""]

    async def next(self) -> tuple[str, bytes]:
        """Return the next event: its name, and its data."""
        while b"\n\n" not in (end := self._rest[-1]):
            chunk = await self._stream.readany()
            # Only the end is searched, whatever came before.
            self._rest[-1:] = [end[:-1], end[-1:] + chunk]
        head, _, rest = self._rest[-1].partition(b"\n\n")
        text = b"".join([*self._rest[:-1], head])
        self._rest = [rest]
        name, _, data = text.partition(b"\n")
        return name.removeprefix(b"event: ").decode(), data.removeprefix(b"data: ")


async def figures(api: str, nodes: int, options: argparse.Namespace) -> list[Row]:
    """Measure one size of a cluster."""
    async with reading(api) as reader:
        rows = [Row(f"start to ready, {nodes} nodes", reader.ready_s * 1000)]
        firsts: list[float] = []
        size = 0
        for _ in range(options.calls):
            began = time.perf_counter()
            async with reader.stream() as stream:
                name, data = await stream.next()
                firsts.append((time.perf_counter() - began) * 1000)
                assert name == "cluster", name
                size = len(data)
        document = json.loads(data)
        pods = sum(len(gpu.get("pods", ())) for node in document["nodes"] for gpu in node["gpus"])
        assert len(document["nodes"]) == nodes
        for what, took in zip(("p50", "p99"), percentiles(firsts), strict=True):
            rows.append(Row(f"first answer, {nodes} nodes, {what}", took, bar=FIRST_BAR_MS if what == "p99" else None))
        rows.append(Row(f"first answer, {nodes} nodes, size", size / 1000, "kB", note=f"{pods} parts of GPUs"))
        await asyncio.sleep(1)
        before = memory.cpu_s([reader.pid])
        async with reader.stream() as stream:
            await stream.next()
            started = memory.cpu_s([reader.pid])
            async with reader.http.post(f"{api}/bench/churn?count={options.events}"):
                pass
            began, changed = time.perf_counter(), 0
            while time.perf_counter() - began < options.seconds:
                name, data = await stream.next()
                changed += len(json.loads(data).get("nodes", ())) if name == "change" else 0
            used = memory.cpu_s([reader.pid]) - started
        assert changed, "no change was told"
        rows.append(
            Row(
                f"a pod that ends or comes, {nodes} nodes, CPU",
                used / options.events * 1e6,
                "µs",
                note=f"{changed} nodes told",
            )
        )
        rows += await waiting(reader, api, nodes, options)
        rows.append(
            Row(f"memory, {nodes} nodes", memory.pss_mib([reader.pid]), "MiB", note=f"CPU before: {before:.1f} s")
        )
        return rows


async def flooded(api: str, characters: int, options: argparse.Namespace) -> list[Row]:
    """Have many pods wait that are as large as the API server takes them; see `bench.extender.flooded`."""
    what = f"growth with {options.waiting:,} pods that wait, four lists of {characters:,} characters"
    bar = WAITING_BAR_MIB
    async with reading(api) as reader:
        before = await _settled_mib(reader)
        await wait_in_vain(api, options.waiting, characters)
        await _told(reader, options.waiting)
        rows = [Row(what, await _settled_mib(reader) - before, "MiB", bar)]
    async with reading(api) as reader:
        await _told(reader, options.waiting)
        grown, most = await _settled_mib(reader) - before, peak_mib(reader.pid) - before
    return [*rows, Row(f"{what}, listed", grown, "MiB", bar, f"at most {most:,.0f} MiB")]


async def _told(reader: Reader, number: int) -> None:
    """Wait until the page shows as many waiting pods as it can."""
    async with reader.stream() as stream:
        while len(json.loads((await stream.next())[1]).get("waiting", ())) < min(number, MOST_WAITING):
            pass


async def _settled_mib(reader: Reader) -> float:
    """Wait until the server has nothing to do, and return its memory."""
    before = -1.0
    while (now := memory.cpu_s([reader.pid])) - before > 0.015:
        before = now
        await asyncio.sleep(0.5)
    return memory.alone_mib([reader.pid])


async def waiting(reader: Reader, api: str, nodes: int, options: argparse.Namespace) -> list[Row]:
    """Measure how long others wait for an answer while waiting pods are explained."""
    for number in range(options.pods):
        pod = synthetic.new_pod(10**8 + number, _SHAPES[number % len(_SHAPES)])
        async with reader.http.post(f"{api}/api/v1/namespaces/default/pods", json=pod) as answer:
            assert answer.status == 201, answer.status
    began = time.perf_counter()
    told: list[dict[str, Any]] = []
    samples: list[float] = []

    async def ask() -> None:
        while True:
            asked = time.perf_counter()
            async with reader.http.get(f"{reader.url}/healthz"):
                samples.append((time.perf_counter() - asked) * 1000)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    async with reader.stream() as stream:
        while len(told) < options.pods and time.perf_counter() - began < 60:
            name, data = await stream.next()
            if name != "pulse" and (found := json.loads(data).get("waiting")):
                told = [each for each in found if each.get("why")]
    took = (time.perf_counter() - began) * 1000
    asking.cancel()
    return [
        Row(f"{options.pods} waiting pods explained, {nodes} nodes", took, note=f"{len(told)} told"),
        Row(f"an answer meanwhile, {nodes} nodes, p99", percentiles(samples)[1], note=f"{len(samples)} requests"),
    ]


async def tenants(api: str, count: int) -> list[Row]:
    """Measure `count` users who open the page at once, each with the right to one of as many namespaces."""
    async with reading(api, "--reviewed") as reader, AsyncExitStack() as stack:
        for number in range(count):
            pod = synthetic.new_pod(2 * 10**8 + number, "gpu-mem 16")
            async with reader.http.post(f"{api}/api/v1/namespaces/space-{number}/pods", json=pod) as answer:
                assert answer.status == 201, answer.status
        async with reader.stream() as admin:
            found: set[str] = set()
            while len(found) < count:
                name, data = await admin.next()
                told = json.loads(data).get("waiting", ()) if name != "pulse" else ()
                found |= {each["namespace"] for each in told if each["namespace"].startswith("space-")}
        began, cpu_s = time.perf_counter(), memory.cpu_s([reader.pid])
        firsts: list[float] = []
        named: list[float] = []

        async def look(number: int) -> None:
            events = await stack.enter_async_context(reader.stream(f"space-{number}"))
            _, data = await events.next()
            firsts.append((time.perf_counter() - began) * 1000)
            mine = f'"namespace":"space-{number}"'.encode()
            while mine not in data:
                _, data = await events.next()
            named.append((time.perf_counter() - began) * 1000)

        newcomers: list[float] = []
        others: list[float] = []

        async def ask(user: Callable[[], str], waited: list[float]) -> None:
            while True:
                asked = time.perf_counter()
                headers = {"Authorization": f"Bearer {user()}"}
                async with reader.http.get(
                    f"{reader.url}/api/v1/nodes/{synthetic.node_name(0)}", headers=headers
                ) as got:
                    got.raise_for_status()
                waited.append((time.perf_counter() - asked) * 1000)
                await asyncio.sleep(0.05)

        asking = [
            asyncio.create_task(ask(lambda: "admin", others)),
            asyncio.create_task(ask(lambda: f"newcomer-{len(newcomers)}", newcomers)),
        ]
        await asyncio.gather(*(look(number) for number in range(count)))
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        async with reader.http.get(f"{api}/bench/reviews") as answer:
            reviews = await answer.json()
        what = f"{count} tenants of {count} namespaces at once"
        return [
            Row(
                f"{what}, the last page", max(firsts), note=f"{len(firsts)} pages, p50 {percentiles(firsts)[0]:.0f} ms"
            ),
            Row(f"{what}, the last name", max(named), note="of pods that a tenant may see"),
            Row(f"{what}, CPU", (memory.cpu_s([reader.pid]) - cpu_s) * 1000, note="of the server, until then"),
            Row(
                f"{what}, a user of the page meanwhile, worst",
                max(others),
                bar=OTHERS_BAR_MS,
                note=f"p50 {percentiles(others)[0]:.0f} ms",
            ),
            # Who comes in the same moment waits in line with the tenants.
            Row(f"{what}, a newcomer meanwhile, worst", max(newcomers), note=f"p50 {percentiles(newcomers)[0]:.0f} ms"),
            Row(f"{what}, reviews that repeat one", reviews["again"], "", bar=0, note=f"of {reviews['all']}"),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000], help="sizes of the cluster")
    parser.add_argument("--calls", type=int, default=20, help="first answers")
    parser.add_argument("--events", type=int, default=2000, help="pods that end or come")
    parser.add_argument("--seconds", type=float, default=5, help="for which changes are read")
    parser.add_argument("--pods", type=int, default=100, help="waiting pods")
    parser.add_argument("--waiting", type=int, default=2000, help="pods that wait, with much written on them")
    parser.add_argument("--tenants", type=int, default=200, help="users who open the page at once")
    add_only(parser, ("sizes", "waiting", "tenants"))
    parser.add_argument("--serve", metavar="API", help="only serve the page of this cluster")
    parser.add_argument("--reviewed", action="store_true", help="with --serve: ask the API server about tokens")
    options = parser.parse_args(argv)
    if options.serve:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        asyncio.run(serve(options.serve, reviewed=options.reviewed))
        return 0
    print(machine(f"{synthetic.GPUS} GPUs of {synthetic.SHARES} GiB a node, 70 % full") + "\n")

    def rows() -> Iterator[Row]:
        for nodes in options.nodes if "sizes" in options.only else ():
            with cluster(nodes) as api:
                yield from asyncio.run(figures(api, nodes, options))
        for characters in hostile.WAITING if "waiting" in options.only else ():
            with cluster(min(options.nodes)) as api:
                yield from asyncio.run(flooded(api, characters, options))
        if "tenants" in options.only:
            with cluster(min(options.nodes)) as api:
                yield from asyncio.run(tenants(api, options.tenants))

    show(rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())

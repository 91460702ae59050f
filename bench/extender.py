"""Measure the scheduler extender as kube-scheduler meets it: ``python -m bench.extender``.

The real command runs as a process of its own, and follows a cluster that a second process makes up (bench.bigcluster).
With kube-apiserver and etcd in KUBE_BIN, pods are scheduled by way of a real API server as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench import hostile, memory, synthetic
from bench.inside import CHANGES, named
from bench.kubeapi import KubeApi, binaries, free_ports
from bench.node_agent import Row, add_only, machine, percentiles, show
from bench.scheduler import PREFIX, Caller, arguments, bind_at_once, create, delete, schedule
from gpu_device_plugin.model.contract.keys import MOVE_TO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.scheduler import Outcome
    from tests.builders import Json

BAR_MS, REBUILD_BAR_MS = 5.0, 8_000.0
HOSTILE_BAR_MS = 50.0
"""For one decision on one pod, whatever stands on it."""
MEMORY_BAR_MIB = 250.0
SCRAPE_BAR_MS = 100.0
WAITING_BAR_MIB = 20.0
"""For 2,000 pods on which their owners have written as much as they can."""
BODIES_BAR_MIB = 200.0
"""While bodies of 60 MiB arrive, of which kube-scheduler sends one at a time; the extender's limit is 512 MiB."""
GROWTH_BAR_MIB = 4.0
"""What a page takes while it is written, and the allocator keeps."""
_UPDATES_PER_S = 1500
"""What the kubelets of 90,000 pods send, each pod once a minute."""
_AT_ONCE, _ROUNDS = 40, 5
"""Binds, and how many times."""
_FOREIGN = ("GPUSHARE_", "KUBERNETES_", "POD_NAME", "PYTHON")
"""Variables that would make another extender of it."""


@dataclass(frozen=True, slots=True)
class Extender:
    """One extender under measurement."""

    url: str
    probes: str
    pid: int
    ready_s: float
    """From starting the process until it said that it is ready."""

    def quiet(self) -> float:
        """Wait until it has nothing to do, and return how many seconds of CPU it has used in all."""
        before = -1.0
        while (now := memory.cpu_s([self.pid])) - before > 0.015:
            before = now
            time.sleep(0.3)
        return now


@contextlib.contextmanager
def running(folder: Path, api: str, *flags: str, until: str = "") -> Iterator[Extender]:
    """Start an extender that follows the cluster behind `api`, an address or a kubeconfig, and have it ready.

    `until` is what it then has to say of its readiness, if it is not to be ready.
    """
    verbs, probes = (f"127.0.0.1:{port}" for port in free_ports(2))
    command: list[str | Path] = [Path(sys.executable).with_name("gpu-device-plugin"), "extender"]
    command += ["--api", api, "--listen", verbs, "--http", probes, *flags]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
    with (folder / f"{verbs}.log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while (said := readiness(f"http://{probes}")) and not (until and said.startswith(until)):
                if process.poll() is not None or time.monotonic() - began > 120:
                    raise SystemExit(f"the extender keeps us waiting; its log:\n{Path(log.name).read_text()}")
                time.sleep(0.01)
            yield Extender(f"http://{verbs}", f"http://{probes}", process.pid, time.monotonic() - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def readiness(probes: str) -> str:
    """Return why an extender is not ready; empty if it is."""
    try:
        with urllib.request.urlopen(f"{probes}/readyz", timeout=5):  # noqa: S310 - our own address
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError as error:
        return str(error)


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Serve the synthetic cluster from another process; yield its address."""
    command = [sys.executable, "-m", "bench.bigcluster", str(nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


# --- What is measured -------------------------------------------------------------------------------------------------


def both(what: str, samples: Sequence[float], bar: float | None = None) -> Iterator[Row]:
    """Yield the median and the 99th percentile of some calls, in ms."""
    for name, each, most in zip(("p50", "p99"), percentiles(samples), (None, bar), strict=True):
        yield Row(f"{what}, {name}", each, bar=most)


def asked(
    extender: Extender, api: str, names: Iterator[list[str]], calls: int, *, churn: bool = True
) -> dict[str, list[float]]:
    """Filter and prioritize pods of all shapes, while others end and come; return the times in ms."""
    rng = random.Random(0)  # noqa: S311 - repeatable
    found: dict[str, list[float]] = {"filter": [], "prioritize": []}
    verbs, world = Caller(extender.url), Caller(api)
    # kube-scheduler prioritizes only for a pod with preferences, which may have room everywhere.
    for number, verb in enumerate(verb for verb in found for _ in range(calls)):
        if churn:
            world.post(f"/bench/churn?count={CHANGES}")
            time.sleep(0.01)  # until the watch has told
        pod = synthetic.new_pod(10**9 + number, rng.choice(list(synthetic.SHAPES)))
        pod["metadata"]["uid"] = str(uuid.uuid4())  # a pod that comes again is offered all nodes
        found[verb].append(verbs.post(f"{PREFIX}/{verb}", arguments(pod, next(names)))[0])
    verbs.close()
    world.close()
    return found


def followed(folder: Path, nodes: int, options: argparse.Namespace) -> Iterator[Row]:
    """Measure an extender of one size of cluster, over HTTP."""
    large = nodes == max(options.nodes)
    with cluster(nodes) as api, running(folder, api) as extender:
        of = f"{nodes:,} nodes"
        note = f"{memory.cpu_s([extender.pid]):.1f} s of CPU"
        yield Row(f"start to ready, {of}", extender.ready_s * 1000, bar=REBUILD_BAR_MS if large else None, note=note)
        yield _memory(f"memory, {of}, at first", extender, large=large)
        names = [synthetic.node_name(node) for node in range(nodes)]
        for many, percentage in {len(next(named(names, each))): each for each in (options.percentage, 100)}.items():
            times = asked(extender, api, named(names, percentage), options.calls)
            for verb, samples in times.items():
                yield from both(f"{verb} over HTTP, {of}, {many:,} named", samples, BAR_MS if large else None)
        if large:
            with updates(api):
                times = asked(extender, api, named(names, options.percentage), options.calls // 2, churn=False)
            yield from both(f"filter over HTTP, {of}, {_UPDATES_PER_S:,} updates a second", times["filter"])
            yield from scraped(extender, api, names, options)
            yield from events(extender, api, options)
            what = f"pods scheduled, {of}, API double"
            yield scheduled(what, extender, api, named(names, options.percentage), options.pods)
        yield _memory(f"memory, {of}, after all this", extender, large=large)


def scraped(extender: Extender, api: str, names: list[str], options: argparse.Namespace) -> Iterator[Row]:
    """Read the page of metrics, at first alone and then again and again while pods are filtered."""
    of = f"{len(names):,} nodes"
    before = memory.alone_mib([extender.pid])
    took, page = zip(*(_scrape(extender) for _ in range(20)), strict=True)
    lines = page[-1].count(b"\n")
    yield Row(f"a page of metrics, {of}", statistics.median(took), bar=SCRAPE_BAR_MS, note=f"{lines:,} lines")
    quiet = asked(extender, api, named(names, options.percentage), options.calls // 2, churn=False)
    with scraping(extender) as pages:
        times = asked(extender, api, named(names, options.percentage), options.calls // 2, churn=False)
    yield from both(f"filter over HTTP, {of}, not scraped", quiet["filter"])
    more = f"{len(pages)} pages"
    for row in both(f"filter over HTTP, {of}, scraped all the time", times["filter"]):
        yield replace(row, note=more)
    grown = memory.alone_mib([extender.pid]) - before
    yield Row(f"growth with scrapes, {of}", grown, "MiB", GROWTH_BAR_MIB)


def _scrape(extender: Extender) -> tuple[float, bytes]:
    """Return how long a page of metrics took in ms, and the page."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"{extender.probes}/metrics", timeout=30) as answer:  # noqa: S310 - our own address
        page: bytes = answer.read()
    return (time.perf_counter() - began) * 1000, page


@contextlib.contextmanager
def scraping(extender: Extender) -> Iterator[list[int]]:
    """Ask for one page of metrics after the other for as long as the block runs; yield their sizes so far."""
    done, sizes = threading.Event(), list[int]()

    def go() -> None:
        while not done.is_set():
            sizes.append(len(_scrape(extender)[1]))

    thread = threading.Thread(target=go, name="scrapes")
    thread.start()
    try:
        yield sizes
    finally:
        done.set()
        thread.join()


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had at any moment, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _memory(what: str, extender: Extender, *, large: bool) -> Row:
    note = f"at most {peak_mib(extender.pid):,.0f} MiB"
    return Row(what, memory.alone_mib([extender.pid]), "MiB", MEMORY_BAR_MIB if large else None, note)


@contextlib.contextmanager
def meanwhile(go: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let `go` run in a thread beside the block, until the event that it is given is set."""
    done = threading.Event()
    thread = threading.Thread(target=go, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def updates(api: str) -> contextlib.AbstractContextManager[None]:
    """Let kubelets update the status of pods for as long as the block runs."""

    def go(done: threading.Event) -> None:
        caller = Caller(api)
        while not done.wait(0.1):
            caller.post(f"/bench/status?count={_UPDATES_PER_S // 10}")
        caller.close()

    return meanwhile(go)


def events(extender: Extender, api: str, options: argparse.Namespace) -> Iterator[Row]:
    """Let much happen in the cluster; what the extender pays is its CPU time."""
    world = Caller(api)
    for what, path, count in (
        ("status update", "status", options.events),
        ("event of pods that end or come", "churn", options.events * 2 // 5),  # each pod has two or three
    ):
        before_s, began = extender.quiet(), time.monotonic()
        _, answer = world.post(f"/bench/{path}?count={count}")
        spent_s = extender.quiet() - before_s
        number = json.loads(answer)["events"] if answer else count
        note = f"{number:,} in {time.monotonic() - began:.1f} s"
        yield Row(f"CPU for one {what}", spent_s / number * 1e6, "µs", note=note)
    world.close()


def load(number: int) -> list[Json]:
    """Return pods as a cluster has them."""
    rng = random.Random(0)  # noqa: S311 - repeatable
    shapes = rng.choices(list(synthetic.SHAPES), [shape.share for shape in synthetic.SHAPES.values()], k=number)
    return [synthetic.new_pod(3 * 10**9 + n, shape) for n, shape in enumerate(shapes)]


def session() -> aiohttp.ClientSession:
    """Return what any number of calls can be made with at once."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False))


def scheduled(
    what: str, extender: Extender, api: str, names: Iterator[list[str]], number: int, *, token: str = ""
) -> Row:
    """Have pods scheduled as kube-scheduler would; the figure is pods a second."""
    pods = load(number)

    async def run() -> Outcome:
        async with session() as http:
            made = await create(http, api, pods, token)
            outcome = await schedule(http, extender.url, made, names)
            await delete(http, api, made, token)
            return outcome

    outcome = asyncio.run(run())
    unbound = f", {number - outcome.bound} not: {max(outcome.refused)}" if outcome.refused else ""
    median = percentiles(outcome.filter_ms)[0]
    return Row(what, outcome.bound / outcome.seconds, "/s", note=f"{outcome.bound} bound{unbound}; filter {median:.1f}")


def bound_at_once(extender: Extender, api: KubeApi, nodes: int) -> Iterator[Row]:
    """Have small pods bound all at the same time, some times over; the figure is pods a second."""

    async def once(begin: int, chosen: Sequence[str]) -> float:
        async with session() as http:
            pods = [synthetic.new_pod(begin + n, "gpu-mem 1") for n in range(len(chosen))]
            made = await create(http, api.url, pods, api.token)
            await asyncio.sleep(0.5)  # until the watch has told
            outcome = await bind_at_once(http, extender.url, made, chosen)
            await delete(http, api.url, made, api.token)
            return outcome.bound / outcome.seconds

    for number, (where, spread) in enumerate((("one node", 1), ("as many nodes", nodes))):
        chosen = [synthetic.node_name(n % spread) for n in range(_AT_ONCE)]
        rates = [asyncio.run(once(4 * 10**9 + (number * _ROUNDS + n) * _AT_ONCE, chosen)) for n in range(_ROUNDS)]
        note = f"{min(rates):,.0f} to {max(rates):,.0f}"
        yield Row(f"{_AT_ONCE} binds at once to {where}, real API server", statistics.median(rates), "/s", note=note)


def flooded(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Have many pods wait on which their owners have written as much as they can, or as much as is read.

    Those that wait when the extender begins come with its list, the others with its watch.
    """
    nodes, number = min(options.nodes), options.waiting
    for characters in hostile.WAITING:
        what, bar = f"growth with {number:,} pods that wait, four lists of {characters:,} characters", WAITING_BAR_MIB
        with cluster(nodes) as api:
            with running(folder, api) as extender:
                before = _settled_mib(extender)
                asyncio.run(wait_in_vain(api, number, characters))
                while (there := counted(extender, "gpushare_extender_pods_waiting")) < number:
                    time.sleep(0.2)
                yield Row(what, _settled_mib(extender) - before, "MiB", bar, f"{there:,} counted")
            with running(folder, api) as extender:
                note = f"at most {peak_mib(extender.pid) - before:,.0f} MiB"
                yield Row(f"{what}, listed", _settled_mib(extender) - before, "MiB", bar, note)


def written_on(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Have many pods, waiting and bound, on which their owners have written as much as is read, or many containers."""
    nodes = min(options.nodes)
    for what, number, make in (
        ("annotations of the readable length", options.waiting, hostile.written),
        ("64 containers", options.waiting // 2, hostile.crowd),
    ):
        for state, node in (("wait", None), ("are bound", synthetic.node_name(0))):
            with cluster(nodes) as api, running(folder, api, "--keep-nodes") as extender:
                before = _settled_mib(extender)
                asyncio.run(_made(api, map(_staying, (make(n, node) for n in range(number)))))
                yield Row(
                    f"growth with {number:,} pods that {state}, {what}",
                    _settled_mib(extender) - before,
                    "MiB",
                    WAITING_BAR_MIB,
                )


def _staying(pod: Json) -> Json:
    """Return a pod without the wish to be moved, which is work for as long as it stands there."""
    pod["metadata"]["annotations"].pop(MOVE_TO, None)
    return pod


async def _made(api: str, pods: Iterator[Json]) -> None:
    async with session() as http:
        while some := list(islice(pods, 50)):
            await create(http, api, some)


def crowded(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Send some bodies at once that are almost as large as one may be."""
    number, size = options.bodies, 60
    with cluster(min(options.nodes)) as api, running(folder, api) as extender:
        before = _settled_mib(extender)
        statuses = asyncio.run(_all_at_once(extender.url, number, size))
        grown = peak_mib(extender.pid) - before
        note = f"{statuses.count('200')} answered"
        yield Row(f"growth with {number} bodies of {size} MiB at once, at most", grown, "MiB", BODIES_BAR_MIB, note)


async def _all_at_once(url: str, number: int, size_mib: int) -> list[str]:
    """Return the status of each body; none has an end before all others have arrived but for theirs."""
    where = urlsplit(url)
    head = f"POST {PREFIX}/filter HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {size_mib << 20}\r\n\r\n"
    left, all_sent = set(range(number)), asyncio.Event()

    async def send(mine: int) -> str:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(head.encode())
            for _ in range(size_mib - 1):
                writer.write(b" " * 2**20)
                await writer.drain()
        except ConnectionError:
            pass  # refused meanwhile
        left.remove(mine)
        if not left:
            all_sent.set()
        await all_sent.wait()
        try:
            writer.write(b" " * 2**20)
            await writer.drain()
            return (await reader.readline()).decode().split()[1]
        except ConnectionError:
            return ""
        finally:
            writer.close()

    return await asyncio.gather(*(send(each) for each in range(number)))


async def wait_in_vain(api: str, number: int, characters: int) -> None:
    """Create pods with lists of names of so many characters each."""
    await _made(api, (hostile.waiting(n, characters) for n in range(number)))


def counted(extender: Extender, metric: str) -> int:
    """Return the sum of a metric over all its labels."""
    families = text_string_to_metric_families(_scrape(extender)[1].decode())
    return int(sum(each.value for family in families for each in family.samples if each.name == metric))


def _settled_mib(extender: Extender) -> float:
    extender.quiet()
    return memory.alone_mib([extender.pid])


def inside(_: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the answers without HTTP."""
    nodes = max(options.nodes)
    with cluster(nodes) as api:
        command = [sys.executable, "-m", "bench.inside", api, *map(str, (nodes, options.calls, options.percentage))]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    shapes = found["shape"]
    again = [shape in shapes[:number] for number, shape in enumerate(shapes)]
    for verb in ("filter", "prioritize"):
        # What other work on the machine adds is in the first two, and not in the others.
        for key, what in ((verb, f"{verb}, {nodes:,} nodes"), (f"{verb} cpu", f"{verb}, {nodes:,} nodes, CPU")):
            yield from both(what, found[key], BAR_MS)
            repeated = [took for took, seen in zip(found[key], again, strict=True) if seen]
            yield from both(f"{what}, not the first of its kind", repeated)
    yield from both("bind, up to the call of the API server", found["bind"])
    what = f"a page of metrics, {nodes:,} nodes, longest piece, CPU"
    yield Row(what, max(found["page"]), bar=BAR_MS, note="calls may wait for it")
    for verb in sorted({verb for _, verb, _ in found["hostile"]}):
        took, _, what = max(one for one in found["hostile"] if one[1] == verb)
        yield Row(f"{verb} the most hostile pod, {nodes:,} nodes, CPU", took, bar=HOSTILE_BAR_MS, note=what)


def real(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Schedule by way of a real API server, where there is one."""
    if not binaries():
        return
    with KubeApi(folder) as api:
        asyncio.run(api.add_nodes([synthetic.new_node(node) for node in range(options.real_nodes)]))
        # No kubelet says of a pod that is deleted that it has ended.
        with running(folder, str(api.kubeconfig), "--vanished-grace", "0s") as extender:
            what = f"pods scheduled, {options.real_nodes:,} nodes, real API server"
            names = named([synthetic.node_name(node) for node in range(options.real_nodes)], options.percentage)
            yield scheduled(what, extender, api.url, names, options.pods, token=api.token)
            yield from bound_at_once(extender, api, options.real_nodes)


def of_sizes(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure an extender in clusters of several sizes."""
    for nodes in options.nodes:
        yield from followed(folder, nodes, options)


PARTS = {
    "sizes": of_sizes,
    "inside": inside,
    "waiting": flooded,
    "written": written_on,
    "bodies": crowded,
    "real": real,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.extender", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000], help="sizes of the cluster")
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind")
    parser.add_argument("--percentage", type=int, default=2, help="of the nodes that the scheduler names, at least 100")
    parser.add_argument("--events", type=int, default=100_000, help="watch events")
    parser.add_argument("--pods", type=int, default=1000, help="pods to schedule")
    parser.add_argument("--waiting", type=int, default=2000, help="pods that wait, with much written on them")
    parser.add_argument("--bodies", type=int, default=10, help="large bodies that are sent at once")
    parser.add_argument("--real-nodes", type=int, default=100, help="nodes where the API server is a real one")
    add_only(parser, PARTS)
    options = parser.parse_args(argv)
    print(machine(f"{synthetic.GPUS} GPUs of {synthetic.SHARES} GiB a node, 70 % full") + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        show(row for part in options.only for row in PARTS[part](Path(name), options))
    if not binaries():
        print("\nWith kube-apiserver and etcd in KUBE_BIN, pods are scheduled by way of a real API server, too.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

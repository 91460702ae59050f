"""Measure the node agent as a kubelet meets it: ``python -m bench.node_agent``.

The real command runs as a process of its own on 8 invented H200 with 1 GiB shares. What gRPC takes for any call tells
the row of one in which there is nothing to do.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_device_plugin
from bench import cluster, memory, series, use
from bench.kubeapi import free_ports
from bench.kubelet import Kubelet, Plugin
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from google.protobuf.message import Message

GPUS = 8
MODEL = f"{GPUS}xH200-141GiB"
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
SIZE = 8
"""Shares of one allocation."""
NODE = "bench"
_FOREIGN = ("GPUSHARE_", "KUBERNETES_", "NODE_NAME", "PYTHON", "MALLOC_")
"""Variables that would make another agent of it."""
IMAGE = {"MALLOC_ARENA_MAX": "1", "PYTHONOPTIMIZE": "2"}
"""What the Dockerfile sets for the sake of memory."""


def as_shipped(compiled: Path) -> dict[str, str]:
    """Return the environment of an agent that runs as in the image, which keeps its byte code in the folder `compiled`.

    The first agent with this folder writes it.
    """
    ours = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**ours, **IMAGE, "PYTHONNODEBUGRANGES": "1", "PYTHONPYCACHEPREFIX": str(compiled)}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and what it should be at most."""

    what: str
    figure: float
    unit: str = "ms"
    bar: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the row for people."""
        digits = 0 if self.figure >= 100 else 1 if self.figure >= 10 else 2
        bar, verdict = "", ""
        if self.bar is not None:
            bar, verdict = f"{self.bar:g} {self.unit}".rstrip(), "met" if self.figure <= self.bar else "MISSED"
        return self.what, f"{self.figure:,.{digits}f} {self.unit}".rstrip(), bar, verdict, self.note


def both(what: str, samples: Sequence[tuple[float, float]], bars: tuple[float | None, float | None]) -> Iterator[Row]:
    """Yield the median and the 99th percentile of some calls, each the median over all agents, in ms."""
    for name, each, bar in zip(("p50", "p99"), zip(*samples, strict=True), bars, strict=True):
        yield Row(f"{what}, {name}", statistics.median(each), "ms", bar)


@dataclass(slots=True)
class Run:
    """One agent under measurement, registered and listened to."""

    kubelet: Kubelet
    process: subprocess.Popen[bytes]
    registered_s: float = 0.0
    """From starting the process until both resources were registered."""

    @property
    def mem(self) -> Plugin:
        """The agent's side of gpu-mem."""
        return self.kubelet.plugins[MEMORY]

    def stop(self) -> float:
        """Stop the agent; return how many seconds it took."""
        for plugin in self.kubelet.plugins.values():
            plugin.stop_calling()
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(timeout=10)
        return time.monotonic() - began

    def pids(self) -> list[int]:
        """Return the agent's processes, the one that speaks to the driver included."""
        return memory.tree(self.process.pid)


@contextlib.contextmanager
def running(
    root: Path,
    *flags: str,
    gpus: str = f"fake:{MODEL}",
    held: Sequence[tuple[str, str]] = (),
    enforcement: str = "",
    proc: Path | None = None,
    awaited: Sequence[str] = (),
) -> Iterator[Run]:
    """Start an agent in the folder `root` and have it registered.

    Args:
        root: its folder.
        flags: its settings.
        gpus: its GPUs.
        held: (pod, share) of pods that run already.
        enforcement: what keeps them within their shares.
        proc: what stands for /proc.
        awaited: resources beside gpu-mem and gpu-count that have to be registered.
    """
    with Kubelet(root) as kubelet, (root / "agent.log").open("wb") as log:
        for pod_uid, share in held:
            kubelet.hold(pod_uid, MEMORY, [share], enforcement)
        kubelet.write_checkpoint([MEMORY, COUNT])
        command: list[str | Path] = [Path(sys.executable).with_name("gpu-device-plugin")]
        if proc is not None:
            command = [sys.executable, "-m", "bench.series", proc]
        command += ["node", "--gpus", gpus]
        command += ["--device-plugin-dir", kubelet.directory, "--pod-resources-socket", kubelet.pod_resources, *flags]
        environment = as_shipped(root.with_name("compiled"))
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        run = Run(kubelet, process)
        try:
            resources = {MEMORY, COUNT, *awaited}
            run.registered_s = max(kubelet.registered.get(timeout=30)[0] for _ in resources) - began
            yield run
        except queue.Empty:
            raise SystemExit(f"the agent keeps us waiting; its log:\n{Path(log.name).read_text()}") from None
        finally:
            run.stop()


# --- What is measured -------------------------------------------------------------------------------------------------


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the median and what 99 of 100 do not exceed."""
    ordered = sorted(samples)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def preferring(free: Sequence[str]) -> Message:
    """Return the request for a preferred allocation out of these IDs."""
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=SIZE)
    return pb.PreferredAllocationRequest(container_requests=[asked])


def allocating(device_ids: Sequence[str]) -> Message:
    """Return the request to allocate these IDs."""
    asked = pb.ContainerAllocateRequest(devices_ids=device_ids)
    return pb.AllocateRequest(container_requests=[asked])


def blocks(ids: Sequence[str]) -> list[Sequence[str]]:
    """Cut each GPU's IDs into as many allocations as it can serve."""
    gpus: dict[str, list[str]] = {}
    for name in ids:
        gpus.setdefault(name.partition("::")[0], []).append(name)
    return [shares[i : i + SIZE] for shares in gpus.values() for i in range(0, len(shares) - SIZE + 1, SIZE)]


def first_list(run: Run) -> tuple[int, list[str]]:
    """Return the size of the first list of gpu-mem in bytes, and its healthy IDs."""
    _, message = run.mem.lists.get(timeout=30)
    devices = pb.ListAndWatchResponse.FromString(message).devices
    return len(message), [device.ID for device in devices if device.health == "Healthy"]


def allocate(run: Run, ids: Sequence[str], calls: int) -> list[float]:
    """Allocate again and again, as pods come and go, and keep the kubelet's records; return the times in ms."""
    wanted = blocks(ids)
    chosen = [wanted[i % len(wanted)] for i in range(calls)]
    samples = [run.mem.call("Allocate", allocating(block)) for block in chosen]
    for i, block in enumerate(chosen):
        run.kubelet.hold(f"block-{i % len(wanted)}", MEMORY, block)
    run.kubelet.write_checkpoint([MEMORY, COUNT])
    return samples


@dataclass(slots=True)
class Calls:
    """(Median, 99th percentile) in ms of the calls to each of some agents."""

    least: list[tuple[float, float]] = field(default_factory=list)
    preferred: list[tuple[float, float]] = field(default_factory=list)
    allocate: list[tuple[float, float]] = field(default_factory=list)
    start: list[tuple[float, float]] = field(default_factory=list)

    def ask(self, run: Run, free: Sequence[str], options: argparse.Namespace) -> None:
        """Ask what the kubelet asks, one call after the other, as it does."""
        warm, calls, question = options.warm, options.warm + options.calls, preferring(free)
        self.least.append(percentiles([run.mem.call("GetDevicePluginOptions") for _ in range(calls)][warm:]))
        asked = [run.mem.call("GetPreferredAllocation", question) for _ in range(calls)]
        self.preferred.append(percentiles(asked[warm:]))
        self.allocate.append(percentiles(allocate(run, free, calls)[warm:]))
        starting = pb.PreStartContainerRequest(devices_ids=blocks(free)[0])
        self.start.append(percentiles([run.mem.call("PreStartContainer", starting) for _ in range(calls)][warm:]))

    def rows(self, how: str) -> Iterator[Row]:
        """Yield what the kubelet waits for."""
        yield from both(f"a call with nothing to do, {how}", self.least, (None, None))
        yield from both(f"GetPreferredAllocation of {SIZE}, {how}", self.preferred, (1.5, 4))
        yield from both(f"Allocate of {SIZE}, {how}", self.allocate, (0.5, 1))
        ratios = [mine / least for (mine, _), (least, _) in zip(self.allocate, self.least, strict=True)]
        yield Row(f"its p50 beside a call with nothing to do, {how}", statistics.median(ratios), "", 2)
        yield from both(f"PreStartContainer of {SIZE}, {how}", self.start, (0.5, 1))


def standalone(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure agents without API access, several one after the other."""
    starts, stops, calls = [], [], Calls()
    for _ in range(options.rounds):
        with running(root) as run:
            starts.append(run.registered_s * 1000)
            size, ids = first_list(run)
            calls.ask(run, ids, options)
            stops.append(run.stop() * 1000)
    yield Row("start of the process to both resources registered", statistics.median(starts), "ms", 700)
    yield Row("the list of gpu-mem", size / 1000, "kB", 70, f"{len(ids):,} shares")
    yield from calls.rows("standalone")
    yield Row("SIGTERM to the end of the process", statistics.median(stops), "ms", 2000)


def footprint(
    run: Run, ids: Sequence[str], options: argparse.Namespace, how: str, bars_mib: tuple[float, float]
) -> Iterator[Row]:
    """Look at one agent's memory, before and after allocations; the bars are those of decision 31."""
    idle_mib, after_mib = bars_mib

    def now(what: str, bar_mib: float) -> Row:
        # Probes, reconciling and everything else that is done now and then has been done once more after it.
        time.sleep(options.settle)
        pids = run.pids()
        # A node's own driver process is smaller: the fake one describes GPUs in ordinary Python.
        parts = f"the agent itself {memory.alone_mib(pids[:1]):.1f}; PSS {memory.pss_mib(pids):.1f}"
        return Row(f"memory, {how}, {what}", memory.alone_mib(pids), "MiB", bar_mib, parts)

    before_s, began = memory.cpu_s(run.pids()), time.monotonic()
    yield now("idle", idle_mib)
    spent_s = memory.cpu_s(run.pids()) - before_s
    yield Row(f"CPU, {how}, idle", spent_s / (time.monotonic() - began) * 100, "%")
    allocate(run, ids, options.calls)
    once = now(f"after {options.calls:,} allocations", after_mib)
    yield once
    for _ in range(3):
        allocate(run, ids, options.calls)
    more = now("", after_mib)
    # Half a MiB is what the same agent differs by from one run to the next.
    yield Row(f"growth with {3 * options.calls:,} allocations more, {how}", more.figure - once.figure, "MiB", 0.5)


def standalone_footprint(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the memory of an agent without API access."""
    with running(root) as run:
        yield from footprint(run, first_list(run)[1], options, "standalone", (52, 55))


def with_api(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure an agent as deploy/daemonset.yaml runs it: with the pods of its node watched, metrics and probes."""
    with running(root) as run:
        _, ids = first_list(run)
    held = [(cluster.uid(number), ids[number]) for number in range(1, options.pods, 2)]
    free = [name for name in ids if name not in {share for _, share in held}]
    command = [sys.executable, "-m", "bench.cluster", NODE, str(options.pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        flags = ("--api", server.stdout.readline().strip(), "--node-name", NODE, "--http", "127.0.0.1:0")
        calls = Calls()
        for _ in range(options.rounds):
            with running(root, *flags, held=held) as run:
                time.sleep(min(options.settle, 1))  # until the pods are known
                calls.ask(run, free, options)
        yield from calls.rows(f"{options.pods} pods watched")
        with running(root, *flags, held=held) as run:
            yield from footprint(run, free, options, f"{options.pods} pods watched", (70, 72))
        server.communicate()


def with_all_series(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure an agent whose page of metrics has every series: each share is another container's, which uses it."""
    with running(root) as run:
        _, ids = first_list(run)
    held = [(cluster.uid(number), share) for number, share in enumerate(ids)]
    with tempfile.TemporaryDirectory(prefix="bench-proc-") as folder:
        gpus: dict[str, list[dict[str, object]]] = {}
        for process, (_, share) in zip(series.processes(Path(folder), [uid for uid, _ in held]), held, strict=True):
            gpus.setdefault(share.partition("::")[0], []).append(process)
        description = root.with_suffix(".series.json")
        description.write_text(
            json.dumps({"gpus": [{"model": "H200", "memory": "141GiB", "processes": each} for each in gpus.values()]})
        )
        (port,) = free_ports(1)
        flags = ("--http", f"127.0.0.1:{port}", "--usage-interval", "5s")
        with running(root, *flags, gpus=str(description), held=held, enforcement="driver", proc=Path(folder)) as run:
            time.sleep(options.settle)
            before = memory.alone_mib(run.pids())
            yield Row("memory, every share in use, not scraped", before, "MiB", note=f"{len(held):,} containers")
            took, pages = zip(*(_scrape(port) for _ in range(20)), strict=True)
            shown = pages[-1].count(b"\ngpushare_container_gpu_")
            note = f"{shown:,} lines of containers"
            yield Row("a page of metrics, every share in use", statistics.median(took), "ms", 200, note)
            grown = memory.alone_mib(run.pids()) - before
            note = f"{len(pages[-1]) / 1000:,.0f} kB a page"
            yield Row("growth with scrapes, every share in use", grown, "MiB", 4, note)


def _scrape(port: int) -> tuple[float, bytes]:
    """Return how long a page of metrics took in ms, and the page."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page: bytes = answer.read()
    return (time.perf_counter() - began) * 1000, page


def flips(root: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Let one GPU after the other fail, and see when the kubelet knows."""
    description = root.with_suffix(".json")
    failures: list[dict[str, object]] = []

    def describe() -> None:
        description.write_text(json.dumps({"gpus": [MODEL], "events": failures}))

    describe()
    delays, updates = [], []
    changed: list[int] = []
    with running(root, gpus=str(description)) as run:
        first_list(run)
        (driver,) = (pid for pid in run.pids() if pid != run.process.pid)
        for gpu in range(GPUS):
            # The invented driver looks at its file twenty times a second. Stopped until the event has happened, it
            # reports it in the moment in which it goes on, as a real driver does.
            os.kill(driver, signal.SIGSTOP)
            failures.append({"at": "0s", "gpu": gpu, "xid": 79})
            describe()
            time.sleep(0.1)
            began = time.monotonic()
            os.kill(driver, signal.SIGCONT)
            at, message = run.mem.lists.get(timeout=10)
            delays.append((at - began) * 1000)
            time.sleep(0.2)
            updates.append(1 + run.mem.lists.qsize())
            unhealthy = sum(
                device.health != "Healthy" for device in pb.ListAndWatchResponse.FromString(message).devices
            )
            changed.append(unhealthy - sum(changed))
    median = f"median {statistics.median(delays):.1f} ms"
    yield Row("GPU failure to the list on the stream, slowest of 8", max(delays), "ms", 20, median)
    yield Row("lists for one failure", max(updates), "", 1, f"with {min(changed)} shares changed")


def usage(_root: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Measure what it costs to know who uses what: once in 15 s, of which 1 % is 150 ms."""
    cold, cached, matching = use.mapping()
    processes = f"{use.PROCESSES:,} processes"
    yield Row(f"a reading of {processes} through the driver's process", use.reading(), "ms", note="a fake driver")
    took, source = use.condition()
    yield Row("a reading of the condition through the driver's process", took, "ms", 10, source)
    yield Row(f"pods of {processes}, cold", cold, "ms", 150, f"matching names {matching:.1f} ms")
    yield Row(f"pods of {processes}, cached", cached, "ms", 50)
    figures, text, size = map(statistics.median, zip(*(use.attributing() for _ in range(5)), strict=True))
    yield Row(f"a reading of {processes} to figures", figures, "ms", 30, f"{use.PODS} pods, {use.GPUS} GPUs")
    yield Row("the figures to the node's annotation", text, "ms", 30, f"{size / 1000:.0f} kB")
    mib, sample, answer, size = use.remembering()
    yield Row("an hour of every container, values and names", mib, "MiB", 2, "1,120 containers")
    yield Row("a sample of it", sample, "ms", 30)
    yield Row("an answer with all of it, in a thread", answer, "ms", note=f"{size / 1000:,.0f} kB")


PARTS = {
    "usage": usage,
    "standalone": standalone,
    "flips": flips,
    "memory": standalone_footprint,
    "api": with_api,
    "series": with_all_series,
}


# --- What is shown ----------------------------------------------------------------------------------------------------


def machine(what: str = MODEL) -> str:
    """Return on what it was measured, where and when."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf", "aiohttp", "msgspec"))
    return (
        f"gpu-device-plugin {gpu_device_plugin.__version__} on {what}, {dt.datetime.now(dt.UTC):%Y-%m-%d}; "
        f"{os.cpu_count()} cores ({cpu[1] if cpu else platform.machine()}) with a load of {os.getloadavg()[0]:.1f}, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}"
    )


def show(rows: Iterator[Row]) -> None:
    """Print each row as soon as it is known; the result is a Markdown table."""
    widths = (57, 9, 7, 7, 23)

    def line(cells: Sequence[str]) -> None:
        print(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |", flush=True
        )

    line(("What", "Measured", "At most", "Verdict", "Note"))
    line(tuple("-" * width for width in widths))
    for row in rows:
        line(row.cells())


def add_only(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Let the user choose parts of what a program measures."""
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to measure; default: all")


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program that measures agents."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{program}", description=description)
    parser.add_argument("--rounds", type=int, default=5, help="agents started; figures are medians over them")
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind")
    parser.add_argument("--warm", type=int, default=20, help="calls before those that count")
    parser.add_argument("--settle", type=float, default=11, help="seconds before memory is looked at")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = parser_of("node_agent", __doc__)
    parser.add_argument("--pods", type=int, default=200, help="pods of the node, with API access")
    add_only(parser, PARTS)
    options = parser.parse_args(argv)
    print(machine() + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder, "node")
        with running(root):
            pass  # whatever is compiled, or read from disk, for the first time
        show(row for part in options.only for row in PARTS[part](root, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())

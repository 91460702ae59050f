"""Measure the DRA driver as kubelet, API server and kube-scheduler meet it: ``python -m bench.dra``.

The real command serves the claims of 8 invented H200. With etcd, kube-apiserver, kube-scheduler and
kube-controller-manager in KUBE_BIN, pods with claims are scheduled too, and the same pods by way of our extender.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from bench import dra_scheduling, memory
from bench.kubeapi import binaries, free_ports
from bench.kubelet import Kubelet
from bench.node_agent import (
    COUNT,
    MEMORY,
    MODEL,
    NODE,
    Row,
    add_only,
    as_shipped,
    both,
    first_list,
    machine,
    percentiles,
    show,
)
from bench.node_agent import allocate as allocate_devices
from bench.node_agent import running as running_plugin
from bench.wire import Caller
from gpu_device_plugin.kubelet._proto import dra_v1_pb2 as pb
from gpu_device_plugin.kubelet._proto import pluginregistration_pb2 as registration

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

_PATIENCE_S = 30.0
_PREPARE, _FILES = "NodePrepareResources", "files of a claim"
"""Labels of the agent's metric of times."""
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it


class World:
    """The API server, in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._line()

    def tell(self, command: str) -> Any:
        """Return the answer to a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the API server has ended")
        return line.strip()


@contextlib.contextmanager
def world(pods: int) -> Iterator[World]:
    """Serve a node and its pods."""
    command = [sys.executable, "-m", "bench.dra_cluster", NODE, str(pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield World(server)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()  # an agent that was not stopped keeps its watches open


@dataclass(frozen=True, slots=True)
class Driver:
    """The agent as a kubelet knows its driver."""

    process: subprocess.Popen[bytes]
    calls: Caller
    http: str
    ready_s: float
    """From starting the process until the kubelet knew it and its GPUs were offered."""

    def pids(self) -> list[int]:
        """Return the agent's processes, the one that speaks to the driver included."""
        return memory.tree(self.process.pid)

    def took(self, method: str) -> float:
        """Return how many seconds the agent has spent on a kind of work until now, by its metrics."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=30) as answer:  # noqa: S310 - our own address
            page = answer.read().decode()
        found = re.search(rf'rpc_duration_seconds_sum{{method="{method}"}} ([0-9.e+-]+)', page)
        return float(found[1]) if found else 0.0


@contextlib.contextmanager
def running(folder: Path, there: World) -> Iterator[Driver]:
    """Start an agent that serves claims, and register it."""
    registry = folder / "plugins_registry"
    registry.mkdir(parents=True, exist_ok=True)
    # As on a node: /var/run is in memory, the kubelet's directory on disk.
    fleeting = _MEMORY_DISK if os.access(_MEMORY_DISK, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=fleeting) as cdi,
        Kubelet(folder / "kubelet") as kubelet,
        (folder / "agent.log").open("wb") as log,
    ):
        kubelet.write_checkpoint([MEMORY, COUNT])
        command: list[str | Path] = [Path(sys.executable).with_name("gpu-device-plugin"), "node", "--serve", "dra"]
        command += ["--gpus", f"fake:{MODEL}", "--cdi-dir", cdi, "--api", there.url, "--node-name", NODE]
        command += ["--device-plugin-dir", kubelet.directory, "--pod-resources-socket", kubelet.pod_resources]
        (port,) = free_ports(1)
        command += ["--http", f"127.0.0.1:{port}"]
        environment = as_shipped(folder.with_name("compiled"))
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            with contextlib.ExitStack() as stack:
                calls = _registered(registry, process, Path(log.name), stack)
                there.tell("offered")
                yield Driver(process, calls, f"http://127.0.0.1:{port}", time.monotonic() - began)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _registered(registry: Path, process: subprocess.Popen[bytes], log: Path, stack: contextlib.ExitStack) -> Caller:
    """Do as the kubelet with the sockets in its directory; return the connection for calls."""
    began = time.monotonic()
    while not (found := [path for path in registry.glob("*-reg.sock") if path.is_socket()]):
        if process.poll() is not None or time.monotonic() - began > _PATIENCE_S:
            raise SystemExit(f"the agent keeps us waiting; its log:\n{log.read_text()}")
        time.sleep(0.005)
    entry = _answering(found[0])
    _, answer = entry.call("GetInfo", b"")
    endpoint = Path(registration.PluginInfo.FromString(answer).endpoint)
    entry.call("NotifyRegistrationStatus", registration.RegistrationStatus(plugin_registered=True).SerializeToString())
    entry.close()
    channel = stack.enter_context(grpc.insecure_channel(f"unix:{endpoint}"))
    threading.Thread(target=_follow_health, args=(channel,), daemon=True).start()
    calls = Caller(endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin")
    stack.callback(calls.close)
    return calls


def _answering(socket: Path) -> Caller:
    """Connect to a socket that may be a moment older than the server behind it, as the kubelet does."""
    began = time.monotonic()
    while True:
        try:
            return Caller(socket, "pluginregistration.Registration")
        except ConnectionRefusedError:
            if time.monotonic() - began > _PATIENCE_S:
                raise
            time.sleep(0.005)


def _follow_health(channel: grpc.Channel) -> None:
    stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
        "/v1alpha1.DRAResourceHealth/NodeWatchResources"
    )
    with contextlib.suppress(grpc.RpcError, ValueError):  # the agent stopped, or we hung up
        for _ in stream(b"", wait_for_ready=True):
            pass


# --- What is measured -------------------------------------------------------------------------------------------------


def _claim(number: int, uid: str) -> pb.Claim:
    return pb.Claim(uid=uid, namespace="default", name=f"claim-{number}")


def prepare(driver: Driver, claims: Sequence[str]) -> list[float]:
    """Prepare all claims, one after the other; return the times in ms."""
    took = []
    for number, uid in enumerate(claims):
        request = pb.NodePrepareResourcesRequest(claims=[_claim(number, uid)]).SerializeToString()
        seconds, said = driver.calls.call("NodePrepareResources", request)
        answer = pb.NodePrepareResourcesResponse.FromString(said).claims[uid]
        if answer.error or not answer.devices:
            raise SystemExit(f"a claim is not prepared: {answer.error or 'it has no device'}")
        took.append(seconds * 1000)
    return took


def unprepare(driver: Driver, claims: Sequence[str]) -> list[float]:
    """Undo it; return the times in ms."""
    took = []
    for number, uid in enumerate(claims):
        request = pb.NodeUnprepareResourcesRequest(claims=[_claim(number, uid)]).SerializeToString()
        seconds, said = driver.calls.call("NodeUnprepareResources", request)
        if error := pb.NodeUnprepareResourcesResponse.FromString(said).claims[uid].error:
            raise SystemExit(f"a claim is still prepared: {error}")
        took.append(seconds * 1000)
    return took


def calls(driver: Driver, there: World, claims: Sequence[str], rounds: int) -> Iterator[Row]:
    """Prepare and unprepare all claims several times over."""
    prepared, own, reads, unprepared = [], [], [], []
    handler_s = files_s = 0.0
    prepare(driver, claims)
    unprepare(driver, claims)
    there.tell("reads")
    cpu_s = memory.cpu_s(driver.pids())
    for _ in range(rounds):
        handler_s, files_s = handler_s - driver.took(_PREPARE), files_s - driver.took(_FILES)
        prepared.append(prepare(driver, claims))
        handler_s, files_s = handler_s + driver.took(_PREPARE), files_s + driver.took(_FILES)
        reads.append(there.tell("reads"))
        own.append([all_ms - api_ms for all_ms, api_ms in zip(prepared[-1], reads[-1], strict=True)])
        unprepared.append(unprepare(driver, claims))
    cpu_s = memory.cpu_s(driver.pids()) - cpu_s

    def row(what: str, found: list[list[float]], bars: tuple[float | None, float | None]) -> Iterator[Row]:
        return both(what, [percentiles([each for one in found for each in one])], bars)

    yield from row("NodePrepareResources of a claim", prepared, (None, None))
    yield from row("the read of the claim in the API", reads, (None, None))
    yield from row("NodePrepareResources without that read", own, (5, 20))
    number = rounds * len(claims)
    yield Row(
        "NodePrepareResources by the agent's metric, mean", handler_s / number * 1000, "ms", note="with that read"
    )
    yield Row("of it the claim's two files, mean", files_s / number * 1000, "ms")
    yield from row("NodeUnprepareResources of a claim", unprepared, (5, 20))
    each_ms = cpu_s / number * 1000
    yield Row("CPU for a claim, from Prepare to Unprepare", each_ms, "ms", note="with its status")


def published_again(there: World, times: int) -> Iterator[Row]:
    """Delete all slices, as a kubelet does that starts, and see when they are back."""
    took = []
    for _ in range(times):
        took.append(there.tell("wipe"))
        time.sleep(0.3)  # until the agent has seen its own writes
    note = f"median {statistics.median(took):.1f} ms"
    yield Row(f"deleted slices to 8 GPUs published again, slowest of {times}", max(took), "ms", 100, note)


def of_claims(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure an agent that serves claims."""
    with world(options.pods) as there, running(folder, there) as driver:
        yield Row("start of the process to claims served", driver.ready_s * 1000, "ms")
        claims: list[str] = there.tell("allocate")
        yield from calls(driver, there, claims, options.rounds)
        yield from published_again(there, options.wipes)


def footprints(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Compare the memory of an agent that serves claims with that of one that serves the device plugin."""
    with world(options.pods) as there:
        flags = ("--api", there.url, "--node-name", NODE, "--http", "127.0.0.1:0", "--serve", "device-plugin")
        with running_plugin(folder / "plugin", *flags) as run:
            _, ids = first_list(run)
            plugin = [_footprint(run.pids(), options.settle)]
            for _ in range(options.rounds):
                allocate_devices(run, ids, options.pods)
            plugin.append(_footprint(run.pids(), options.settle))
    with world(options.pods) as there, running(folder / "claims", there) as driver:
        claims: list[str] = there.tell("allocate")
        dra = [_footprint(driver.pids(), options.settle)]
        for _ in range(options.rounds):
            prepare(driver, claims)
            unprepare(driver, claims)
        dra.append(_footprint(driver.pids(), options.settle))
    for what, (of_plugin, plugin_pss), (of_claims, dra_pss) in zip(
        ("idle", f"after {options.rounds * options.pods:,} of them"), plugin, dra, strict=True
    ):
        yield Row(f"memory, device plugin, {what}", of_plugin, "MiB", note=f"PSS {plugin_pss:.1f}")
        # Half a MiB is what the same agent differs by from one run to the next.
        bar = round(of_plugin + 0.5, 1)
        yield Row(f"memory, claims, {what}", of_claims, "MiB", bar, f"PSS {dra_pss:.1f}")


def _footprint(pids: list[int], settle_s: float) -> tuple[float, float]:
    # Probes, reconciling and everything else that is done now and then has been done once more after it.
    time.sleep(settle_s)
    return memory.alone_mib(pids), memory.pss_mib(pids)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.dra", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often all claims are prepared and unprepared")
    parser.add_argument("--pods", type=int, default=100, help="pods of the node, each with a claim")
    parser.add_argument("--wipes", type=int, default=20, help="how often all slices are deleted")
    parser.add_argument("--settle", type=float, default=11, help="seconds before memory is looked at")
    parser.add_argument("--nodes", type=int, default=125, help="nodes where the API server is a real one")
    parser.add_argument("--scheduled", type=int, default=1000, help="pods that are scheduled there")
    add_only(parser, ("claims", "memory", "cluster"))
    options = parser.parse_args(argv)
    print(machine() + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with world(1) as there, running(folder / "first", there):
            pass  # whatever is compiled, or read from disk, for the first time

        def rows() -> Generator[Row]:
            if "claims" in options.only:
                yield from of_claims(folder / "second", options)
            if "memory" in options.only:
                yield from footprints(folder, options)
            if "cluster" in options.only and binaries():
                yield from dra_scheduling.rows(options.nodes, options.scheduled)

        with contextlib.closing(rows()) as each:
            show(each)
    if not binaries():
        print("\nWith the programs of Kubernetes' control plane in KUBE_BIN, pods with claims are scheduled as well.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure what it costs the node agent to know who uses what on its GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.features.history.contract import STEP_S, STEPS
from gpu_device_plugin.features.history.rules.ring import ROOM, GpuSample, Ring
from gpu_device_plugin.features.history.sampling import encoded
from gpu_device_plugin.features.use.rules.container_gpus import container_gpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, attribute
from gpu_device_plugin.features.use.rules.use_report import names, node_use
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of_process
from gpu_device_plugin.kubelet.procfs import ProcessOwners
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import LARGEST_ANSWER
from gpu_device_plugin.model.contract.node_use import write_node_use
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading, TelemetryGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

GPUS = 8
PROCESSES = 1000
PODS = 200
CGROUP = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f5d3a31_9a3b_4c6e_8c5b_6a7b8c9d0e1f.slice/"
    f"cri-containerd-{'5ad9' * 16}.scope\n"
)


@contextmanager
def sleeping(count: int) -> Iterator[Sequence[int]]:
    """Run processes that do nothing, and yield their PIDs."""
    command = ["sleep", "600"]
    pids = [os.posix_spawnp(command[0], command, {}) for _ in range(count)]
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def node() -> tuple[Shares, tuple[Allocation, ...], tuple[Pod, ...], dict[int, CgroupOwner | None]]:
    """Return a node full of pods with one share each, and the owners of processes that are spread over them."""
    gpus = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", 143_771) for n in range(GPUS))
    shares = Shares(1024).with_inventory(Inventory(gpus))
    ids = {f"uid-{n}": f"{n:064x}" for n in range(PODS)}
    given = tuple(
        Allocation(uid, "main", Kind.MEMORY, frozenset({share_id(f"GPU-{n % GPUS}", n // GPUS)}))
        for n, uid in enumerate(ids)
    )
    pods = tuple(Pod(uid, "default", uid, container_ids={"main": name}) for uid, name in ids.items())
    places = list(ids.items())
    return shares, given, pods, {pid: CgroupOwner(*places[pid % PODS]) for pid in range(PROCESSES)}


def reading(rounds: int = 30) -> float:
    """Return how long it takes to read processes through the process that speaks to the driver, in ms.

    The driver is fake: what NVML itself takes comes on top of it.
    """
    gpus = [
        {"model": "H200", "processes": [{"pid": pid, "used": "500MiB", "sm": 5} for pid in range(n, PROCESSES, GPUS)]}
        for n in range(GPUS)
    ]

    async def listed(hardware: Hardware) -> bool:
        found = await hardware.use(utilisation=True)
        return found is not None and sum(len(each.processes or ()) for each in found) == PROCESSES

    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder) / "gpus.json"
        description.write_text(json.dumps({"gpus": gpus}))
        return asyncio.run(_read(Hardware(str(description)), listed, rounds))


def condition(rounds: int = 100) -> tuple[float, str]:
    """Return how long it takes to read the condition of 8 GPUs through that process, in ms, and what they are.

    They are those of the library in the directory NVML_LIB_DIR, NVIDIA's mock as a rule, or else fake.
    """
    library = os.environ.get("NVML_LIB_DIR")

    async def told(hardware: Hardware) -> bool:
        found = await hardware.condition([*TelemetryGroup])
        return found is not None and len(found) == GPUS and all(each.temperature_c for each in found)

    source = f"fake:{GPUS}xH200" if library is None else "nvml"
    hardware = Hardware(source, library_dir=None if library is None else Path(library))
    return asyncio.run(_read(hardware, told, rounds)), f"{source.partition(':')[0]}, {GPUS} GPUs"


async def _read(hardware: Hardware, read: Callable[[Hardware], Awaitable[bool]], rounds: int) -> float:
    watch = asyncio.create_task(hardware.run())
    try:
        async with asyncio.timeout(30):
            async for view in hardware.view.values():
                if view.state is State.WATCHING:
                    break
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            complete = await read(hardware)
            took.append((time.perf_counter() - began) * 1000)
            if not complete:
                raise SystemExit(f"the driver's process did not tell all of {PROCESSES} processes and {GPUS} GPUs")
        return statistics.median(took)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


def mapping(rounds: int = 5) -> tuple[float, float, float]:
    """Return how long it takes to find the owners of processes, in ms: at first, once more, and without /proc."""
    cold, cached, matching = [], [], []
    with sleeping(PROCESSES) as pids:
        for _ in range(rounds):
            processes = ProcessOwners()
            cold.append(_ms(lambda processes=processes: processes.owners(pids)))  # type: ignore[misc]
            cached.append(_ms(lambda processes=processes: processes.owners(pids)))  # type: ignore[misc]
            matching.append(_ms(lambda: [owner_of_process(CGROUP) for _ in range(PROCESSES)]))
    return statistics.median(cold), statistics.median(cached), statistics.median(matching)


def _ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def attributing() -> tuple[float, float, int]:
    """Return how long it takes to make figures of a reading, and the annotation of them, in ms; and its bytes."""
    shares, given, pods, owners = node()
    readings = [
        GpuReading(f"GPU-{n}", tuple(GpuProcess(pid, 500) for pid in range(n, PROCESSES, GPUS)), 70_000)
        for n in range(GPUS)
    ]
    began = time.perf_counter()
    held = container_gpus(given, pods, shares)
    reading = attribute(readings, owners, held, pods=pods)
    middle = time.perf_counter()
    text = write_node_use(node_use(held, reading, {}, {}, shares, named=names({}, held, reading), epoch=0.0))
    return (middle - began) * 1000, (time.perf_counter() - middle) * 1000, len(text)


def remembering() -> tuple[float, float, float, int]:
    """Return the MiB of an hour of a full node, the ms of a sample and of an answer with all containers, its bytes."""
    gpus = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", 143_771) for n in range(GPUS))
    samples = [GpuSample(shared, 70_000) for shared in Shares(1024).with_inventory(Inventory(gpus)).gpus]
    pods = [Pod(f"uid-{n}", "default", f"pod-{n}") for n in range(ROOM)]
    readings = [
        [
            AttributedUse(pod.uid, "main", f"GPU-{n % GPUS}", 1024, (37 * t + n) % 1024, n % 100, pod=pod)
            for n, pod in enumerate(pods)
        ]
        for t in range(3)
    ]
    throttled = {(pod.uid, "main"): n % 100 for n, pod in enumerate(pods)}

    def filled() -> tuple[Ring, float]:
        ring = Ring()
        took = [
            _ms(lambda step=step: ring.tick(STEP_S * step, samples, readings[step % 3], throttled))  # type: ignore[misc]
            for step in range(STEPS)
        ]
        return ring, statistics.median(took)

    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    ring, _ = filled()
    mib = (tracemalloc.get_traced_memory()[0] - before) / (1 << 20)
    tracemalloc.stop()
    ring, sample = filled()
    answers: list[bytes] = []

    def answer() -> None:
        selection = ring.select(namespace="default")
        if selection is not None:
            answers.append(encoded(selection, 0.0, LARGEST_ANSWER))

    took = statistics.median(_ms(answer) for _ in range(3))
    return mib, sample, took, len(answers[-1])

"""Measure what a reading of use costs an agent whose containers borrow GPU memory, and what it keeps others waiting."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.elastic.borrowing import Borrowing
from gpu_device_plugin.features.use.node import Use, UseReports
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.kubelet.procfs import ProcessOwners
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import ELASTIC, LONGEST, MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.model.contract.node_use import write_node_use
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.node import Node
from tests.node.contexts import context, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GPUS, CONTAINERS, EACH = 8, 48, 16
"""And the GiB that each container is guaranteed."""
_MEMORY = "aliyun.com/gpu-mem"


class _Api(NodeApi):
    def __init__(self, pods: Mapping[str, Pod]) -> None:
        super().__init__()
        self._pods = pods

    @property
    def pods(self) -> Mapping[str, Pod]:
        return self._pods


class _Owners(ProcessOwners):
    """Knows each process by its number, without /proc: what that takes is measured in `use`."""

    def owners(self, pids: Iterable[int], *, named_at: float | None = None) -> Mapping[int, CgroupOwner | None]:  # noqa: ARG002
        return {pid: CgroupOwner(f"uid-{pid}", f"{pid:064x}") for pid in pids}


def selector(*, longest: bool) -> Mapping[str, str]:
    """Return the annotations of a pod that may borrow: short ones, or as long as they are read."""
    if not longest:
        return {MEMORY_LIMIT: "40"}
    texts = {}
    for key in sorted(ELASTIC):
        amounts = {"main": 40 if key == MEMORY_LIMIT else EACH}
        answer = key not in {MEMORY_LIMIT, MEMORY_GUARANTEE}
        if answer:
            amounts |= {f"c{number:03}".ljust(63, "x"): 1 for number in range(MOST_CONTAINERS - 1)}
        else:
            amounts |= {f"c{number}": 1 for number in range((LONGEST[key] - 20) // len('"c00": 1, '))}
        texts[key] = json.dumps({"guarantees": amounts} if answer else amounts)
    return texts


def reading(*, longest: bool, rounds: int = 30) -> tuple[float, float, float]:
    """Return what a reading costs in ms of CPU, the longest part in which nothing else runs, and the files written.

    Every second reading finds all GPUs full, so that the borrowers are asked to return memory, and every file changes.
    """
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_read(Path(folder), selector(longest=longest), rounds))


async def _read(folder: Path, annotations: Mapping[str, str], rounds: int) -> tuple[float, float, float]:
    gpus = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", 143_771) for n in range(GPUS))
    shares = Shares(1024).with_inventory(Inventory(gpus))
    app = (Container("main", ContainerKind.APP, 0, {_MEMORY: EACH}),)
    pods = {
        f"uid-{n}": Pod(
            f"uid-{n}", "default", f"pod-{n}", phase="Running", annotations=annotations, containers=app,
            container_ids={"main": f"{n:064x}"},
        )
        for n in range(CONTAINERS)
    }  # fmt: skip
    allocations = tuple(
        Allocation(uid, "main", Kind.MEMORY,
                   frozenset(share_id(f"GPU-{n % GPUS}", n // GPUS * EACH + each) for each in range(EACH)))
        for n, uid in enumerate(pods)
    )  # fmt: skip
    full = False

    async def use(*, utilisation: bool) -> tuple[GpuReading, ...]:
        assert utilisation
        # One of each GPU uses nothing of its part, and the others borrow.
        used = {n: 0 if n < GPUS else (EACH + 5) * 1024 for n in range(CONTAINERS)}
        return tuple(
            GpuReading(
                f"GPU-{gpu}",
                tuple(GpuProcess(n, used[n]) for n in range(gpu, CONTAINERS, GPUS)),
                143_771 if full else 110_000,
            )
            for gpu in range(GPUS)
        )

    api = _Api(pods)
    given = Observable(settings(memory_dir=str(folder)))
    hardware, state, entries = SimpleNamespace(use=use), NodeState(Node(shares)), Observable(allocations)
    node = context(folder, hardware=hardware, state=state, entries=entries, settings=given, api=api, cluster=api)
    watch = Use(node)
    watch._owners = _Owners()
    node.features.add(watch)
    borrowing, reports = Borrowing(node), UseReports(node)
    borrowing.publish_allowed()
    for allocation, _, memory in borrowing._memories(borrowing._uses()):
        assert borrowing._files is not None
        borrowing._files.make(allocation.device_ids, memory)
    costs, longest, changed = [], [], []
    for number in range(rounds):
        full = number % 2 == 1
        before = {path: path.stat().st_ino for path in folder.glob("*/memory.json")}  # noqa: ASYNC240
        pieces: list[float] = []
        began = time.thread_time()
        await watch._read()  # its one part without an await is the attribution
        pieces.append(time.thread_time() - began)
        for act in (lambda: borrowing.act_on(watch.reading.value), lambda: write_node_use(reports.now())):
            began = time.thread_time()
            act()
            pieces.append(time.thread_time() - began)
        assert bool(borrowing.reclaiming.value.requests) is full
        costs.append(sum(pieces) * 1000)
        longest.append(max(pieces) * 1000)
        changed.append(sum(path.stat().st_ino != inode for path, inode in before.items()))
    return statistics.median(costs), max(longest[1:]), max(changed)

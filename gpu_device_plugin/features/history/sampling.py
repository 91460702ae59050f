"""Read the condition of the GPUs at intervals, keep the last hour of GPUs and containers, and serve it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, cast

import msgspec

from gpu_device_plugin.aio.http import JSON, Page, Request, Route
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import Attempts, wait_within
from gpu_device_plugin.features.history import HistorySettings
from gpu_device_plugin.features.history.contract import HISTORY_PATH, STEP_S, STEPS, ContainerHistory
from gpu_device_plugin.features.history.rules.ring import GpuSample, Ring, Selection, condition_gauges, pcie_percent
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import NOT_READ
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.contract.keys import LARGEST_ANSWER
from gpu_device_plugin.model.gauges import Gauges
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Until the driver answers for the first time it is asked so often."""
_HEAD = 4096
"""Bytes of a document beside its containers and GPUs."""


class History(NodeFeature):
    """Fills the ring with the readings of use, the condition of the GPUs, and what cgroups count; see `run`."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        self._node, self._use = node, node.features.of(Use)
        self.ring = Ring()
        self.clock: Callable[[], float] = time.monotonic
        self.telemetry: Observable[Mapping[str, GpuTelemetry]] = Observable({})
        """The condition of each GPU as last read, by UUID; empty while it is not read."""
        self.kills: Observable[Sequence[ContainerGpus]] = Observable(())
        """The containers on GPUs of which the kernel killed a process for lack of main memory, by the last sample."""
        self._read_at = -math.inf
        self._counters: Mapping[CgroupOwner, Mapping[str, int]] = {}
        self._attempts = Attempts(_log, "the history of the GPUs cannot be continued; trying again at every interval")
        self._answering = asyncio.Lock()

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.run()]

    def routes(self) -> tuple[Route, ...]:  # noqa: D102
        return (Route("GET", HISTORY_PATH, self._answer),)

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: D102
        return condition_gauges(metrics, self.telemetry.value)

    @property
    def _groups(self) -> Sequence[str]:
        """The groups of telemetry to read, see `model.telemetry.TelemetryGroup`; none: conditions are not read."""
        return self._node.settings.value.of(HistorySettings).condition

    async def run(self) -> NoReturn:
        """Take a sample after the first reading of use, then in the middle of every step. No failure ends it."""
        while await self._read_conditions() is None:  # noqa: ASYNC110 - a driver process that starts answers, no more
            await asyncio.sleep(_AGAIN_S)
        step_s = self.ring.step_s
        await wait_within(step_s, self._use.reading.after(0))
        while True:
            await self._attempts.make(self.sample(), None)
            now = self.clock()
            await asyncio.sleep((math.floor(now / step_s + 0.5) + 0.5) * step_s - now)

    async def sample(self) -> None:
        """Add the present moment to the ring, as far as it is read."""
        pcie = await self._read_conditions() or {}
        throttled = await self._read_cgroups(self._use.holders()) if self._use.interval_s else {}
        now, reading = self.clock(), self._use.reading.value
        # A reading that is not repeated in time tells of the past: the driver hangs, or the agent is paused.
        known = now - reading.at < max(self._use.interval_s, self.ring.step_s) + self.ring.step_s / 2
        used, uses, telemetry = reading.used_mib if known else {}, reading.containers, self.telemetry.value
        gpus = [
            GpuSample(shared, used.get(shared.gpu.uuid), telemetry.get(shared.gpu.card), pcie.get(shared.gpu.card))
            for shared in self._use.shares().gpus
            if not shared.gone
        ]
        self.ring.tick(now, gpus, uses if known else (), throttled)

    async def _read_conditions(self) -> Mapping[str, int | None] | None:
        """Publish the conditions; return the load of each GPU's PCIe link since the last reading, in percent.

        None: the driver does not answer.
        """
        before, was_at, groups = self.telemetry.value, self._read_at, self._groups
        self._read_at = self.clock()
        read = await self._node.hardware.condition(groups) if groups else ()
        after = {telemetry.uuid: telemetry for telemetry in read or ()}
        self.telemetry.set(after)
        seconds = self._read_at - was_at
        loads = {uuid: pcie_percent(before[uuid], now, seconds) for uuid, now in after.items() if uuid in before}
        return None if read is None else loads

    async def _read_cgroups(self, holders: Sequence[ContainerGpus]) -> Mapping[tuple[str, str], int]:
        """Return in how many percent of the CPU's periods each container was held back since the last reading."""
        owners = {CgroupOwner(holder.pod_uid, holder.container_id): holder for holder in holders if holder.container_id}
        before = self._counters
        # In a thread: a thousand containers take 0.1 s.
        self._counters = after = await asyncio.to_thread(self._read_counters, tuple(owners)) if owners else {}
        found, killed = {}, []
        for owner, now in after.items():
            then, holder = before.get(owner, {}), owners[owner]
            grown = {name: value - then[name] for name, value in now.items() if name in then}
            if grown.get("oom_kill", 0) > 0:
                killed.append(holder)
            if "nr_periods" in grown and "nr_throttled" in grown:
                periods, held = grown["nr_periods"], grown["nr_throttled"]
                found[holder.pod_uid, holder.container] = round(100 * held / periods) if periods > 0 else 0
        if killed:
            self.kills.set(killed)
        return found

    def _read_counters(self, owners: Sequence[CgroupOwner]) -> Mapping[CgroupOwner, Mapping[str, int]]:
        cgroups = self._node.cgroups
        leaves = cgroups.leaves(owners) or {}
        return {owner: cgroups.counters(leaf) for owner, leaf in leaves.items()}

    # --- What is served -----------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Page:
        """Answer with a `NodeHistory`; one is encoded after the other, however many clients ask."""
        if not (self._use.interval_s or self._groups):
            return _no(f"{NOT_READ}; the condition of the GPUs is not read either, see the setting condition")
        minutes = request.query.get("minutes", str(round(STEPS * STEP_S / 60)))
        if not (minutes.isascii() and minutes.isdigit() and len(minutes) < 4):
            return _no("minutes must be a whole number")
        async with self._answering:
            selection, why = self._selected(request.rest, 60.0 * int(minutes))
            if selection is None:
                return _no(why)
            content = await asyncio.to_thread(encoded, selection, time.time() - self.clock(), LARGEST_ANSWER)
            return Page(content, content_type=JSON)

    def _selected(self, rest: str, last_s: float) -> tuple[Selection | None, str]:
        """Return what a path names below that of the history, or why there is no such thing."""
        kind, _, name = rest.partition("/")
        if kind == "gpus" and name.isascii() and name.isdigit():
            uuids = [each.gpu.uuid for each in self._use.shares().gpus if str(each.position) == name]
            return self.ring.select(uuids=uuids, last_s=last_s), f"this node has no history of a GPU {name}"
        namespace = name if kind == "namespaces" and name else None
        if rest and namespace is None:
            return None, f"{HISTORY_PATH} has all GPUs, and below it gpus/NUMBER and namespaces/NAME"
        return self.ring.select(namespace=namespace, last_s=last_s), "this node has no history of a GPU (yet)"


def encoded(selection: Selection, epoch: float, most: int) -> bytes:
    """Return a `NodeHistory` as JSON of at most `most` bytes; the containers with the least use are left out first.

    Monotonic time was 0 at `epoch`, in seconds since the epoch.
    """
    room = most - len(msgspec.json.encode(selection.history(epoch, ()))) - _HEAD
    kept: list[tuple[int, str, str, str, bytes]] = []
    for container in selection.containers():
        content = msgspec.json.encode(container)
        room -= len(content) + 1
        if room < 0:
            break
        kept.append((container.gpu, container.namespace, container.pod, container.container, content))
    containers = cast("list[ContainerHistory]", [msgspec.Raw(content) for *_, content in sorted(kept)])
    return msgspec.json.encode(selection.history(epoch, containers))


def _no(why: str) -> Page:
    return Page(f"{why}\n", status=404)

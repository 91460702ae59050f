"""Read at intervals which containers use what on the node's GPUs, and publish it: on the node, page and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from gpu_device_plugin.aio.http import JSON, Page, Route, page_at
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import Attempts, together
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.use import UseSettings
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus, LimitsOf, container_gpus, no_limits
from gpu_device_plugin.features.use.rules.process_use import NOT_READ, UseReading, attribute, blindness
from gpu_device_plugin.features.use.rules.use_report import (
    SELDOM_S,
    SOON_S,
    AskedToReturn,
    Names,
    due_in_s,
    longest_pause_s,
    names,
    node_use,
    use_gauges,
)
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.kubelet.procfs import ProcessOwners, boot_time, in_nodes_namespace
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.keys import NODE_USE
from gpu_device_plugin.model.contract.node_use import SERVED, USE_PATH, NodeUse, write_node_use
from gpu_device_plugin.model.gauges import Gauges
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.model.telemetry import GpuReading
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)


class Use(NodeFeature):
    """Reads at intervals who uses what; other features follow the readings, and say here what they know of containers.

    Nothing is read before `tasks` run.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare to read the GPUs of `node`."""
        self._node = node
        self._worker = Worker(self._step)
        self.read_now = self._worker.wake
        """Reads at once."""
        self.interval_s = node.settings.value.of(UseSettings).usage_interval_s
        """Seconds between two readings; 0: the use is not read. See `every`."""
        self._hurry_s: float | None = None
        self._attempts = Attempts(_log, "the use of the GPUs cannot be read; trying again at every interval")
        self._owners = ProcessOwners(node.proc)
        self._blind = ""
        self._excused: frozenset[str] = frozenset()
        """UIDs of the pods that used GPUs while another plugin handed them out: they keep them when it has left."""
        self.processes_read: tuple[Sequence[GpuReading], Mapping[int, CgroupOwner | None]] = ((), {})
        """The processes on the GPUs as last read, and whose they are."""
        self.reading: Observable[UseReading] = Observable(UseReading())
        """Who uses what, as last read; not set before the first reading. While the use is not read, it lists the
        containers only, whenever the kubelet's checkpoint was read."""
        # What other features know.
        self.limits: Callable[[Shares], LimitsOf] = lambda _: no_limits
        """Returns the limits of containers that may use something else than they are guaranteed."""
        self.mps_servers: Callable[[], Collection[int]] = frozenset
        """Returns the PIDs of MPS servers."""
        self.measured_by_driver: Observable[Mapping[Place, int]] = Observable({})
        """What the driver itself says that containers use, see `attribute`."""
        self.allowed_now: Observable[Mapping[Place, int]] = Observable({})
        """The MiB that each container may use now, of those that may use something else than when they started."""
        self.over: Observable[Mapping[Place, float]] = Observable({})
        """Since when containers have exceeded what they may use, in monotonic seconds."""
        self.asked: Observable[Mapping[Place, AskedToReturn]] = Observable({})
        """The containers that are to return memory."""
        self.idle: Observable[Mapping[str, str]] = Observable({})
        """Since when pods are idle, RFC 3339 by UID."""

    def every(self, seconds: float) -> None:
        """Change the interval, at once."""
        if seconds != self.interval_s:
            self.interval_s = seconds
            self.read_now()

    def hurry(self, seconds: float | None) -> None:
        """Read at once, and then at least so often; None: as often as the interval says."""
        if seconds != self._hurry_s:
            self._hurry_s = seconds
            if seconds is not None:
                self.read_now()

    def shares(self) -> Shares:
        """Return the shares of the node's GPUs now."""
        return self._node.state.node.shares

    def holders(self) -> tuple[ContainerGpus, ...]:
        """Return which container holds how much of which GPU now."""
        node, pods = self._node.state.node, self._node.api.pods.values()
        known = self._node.entries.value, pods, node.shares, self._node.records.over, node.ledger.reservations
        return container_gpus(*known, limits=self.limits(node.shares))

    def tasks(self) -> Tasks:  # noqa: D102
        of_settings = self._node.settings.follow(lambda now: self.every(now.of(UseSettings).usage_interval_s))
        return [self.run(), of_settings]

    async def run(self) -> NoReturn:
        """Read until cancelled. No failure of a reading ends it."""
        # Without the checkpoint every pod on a GPU would seem to use what it was not given.
        await self._node.entries.after(0)
        await together(self._worker.run(), self._node.entries.follow(self._entries_changed))

    def _entries_changed(self, _: object) -> None:
        if not self.interval_s:
            self.read_now()

    async def _step(self) -> float | None:
        await self._attempts.make(self._read(), None)
        pauses = filter(None, (self.interval_s, self._hurry_s if self.interval_s else None))
        return min(pauses, default=None)

    async def _read(self) -> None:
        if not self.interval_s:
            self.reading.set(attribute((), {}, self.holders(), at=time.monotonic(), blind=NOT_READ))
            return
        node, at = self._node, time.monotonic()
        found = await node.hardware.use(utilisation=True)
        if found is None:
            return  # the newest reading stays, and its time tells its age
        shares = self.shares()
        # GPUs that are not shared are other plugins' to give.
        readings = [reading for reading in found if shares.by_uuid(reading.uuid) is not None]
        pids = {process.pid for reading in readings for process in reading.processes or ()}
        named_at = boot_time()
        # In a thread: a thousand processes take 0.1 s, in which the kubelet would wait for its answers.
        owners = await asyncio.to_thread(self._owners.owners, pids, named_at=named_at) if pids else {}
        self.processes_read = readings, owners
        # Whether the checkpoint's entries show everything that we granted.
        complete = all(state.granted_at is None for state in node.state.node.ledger.id_states.values())
        alone = node.other_plugins.alone()
        self._excused &= {owner.pod_uid for owner in owners.values() if owner is not None}
        blind = blindness(readings, owners, host_pids=in_nodes_namespace(node.proc))
        if blind and blind != self._blind:
            _log.warning("GPU use by container is unknown: %s", blind)
        self._blind = blind
        self.reading.set(
            attribute(
                readings,
                owners,
                self.holders(),
                pods=node.api.pods.values(),
                mps_servers=self.mps_servers(),
                measured=self.measured_by_driver.value,
                at=at,
                blind=blind,
                complete=complete and alone,
                excused=self._excused
                | {allocation.pod_uid for allocation in node.entries.value if allocation.gpus is not None},
            )
        )
        if not alone:
            self._excused |= self.reading.value.left_out


class UseReports(NodeFeature):
    """Reports who holds and who uses the GPUs now, with the state of each container's limit.

    Nothing is kept between two reports but the names of the pods that the last one showed.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare to report on `node`."""
        self._use, self._node, self._limits = node.features.of(Use), node, node.limit_states
        self.clock: Callable[[], float] = time.monotonic
        self.soon_s = SOON_S
        self.seldom_s = SELDOM_S
        self._names: Names = {}
        self._written: NodeUse | None = None
        self._written_at = 0.0
        self._answering = asyncio.Lock()

    def tasks(self) -> Tasks:  # noqa: D102
        return [] if self._node.cluster is None else [self.run()]

    def routes(self) -> list[Route]:  # noqa: D102
        return [page_at(USE_PATH, self.page)]

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: D102
        return use_gauges(metrics, self.now())

    def now(self) -> NodeUse:
        """Return the report of this moment: without figures while they are not read."""
        age_s = self.clock() - self._use.reading.value.at
        return self._report(fresh=age_s <= longest_pause_s(self._use.interval_s))

    async def page(self) -> Page:
        """Return the report of this moment as JSON. One is written after the other, however many clients ask."""
        async with self._answering:
            use = self.now()
            # Others run in between: each half takes some milliseconds for a thousand containers.
            await asyncio.sleep(0)
            return Page(write_node_use(use, SERVED), content_type=JSON)

    async def run(self) -> NoReturn:
        """Publish until cancelled, see `due_in_s`; nothing before the first reading."""
        use = self._use
        await use.reading.after(0)
        sources: tuple[Observable[Any], ...] = (use.reading, self._limits, use.over, use.asked, use.idle)
        await Worker(self._write_if_due).run(*sources)

    def _report(self, *, fresh: bool) -> NodeUse:
        use, pods = self._use, self._node.api.pods.values()
        held, reading = use.holders(), use.reading.value
        self._names = names(self._names, held, reading)
        return node_use(
            held,
            reading,
            self._limits.value,
            use.over.value,
            use.shares(),
            named=self._names,
            epoch=time.time() - time.monotonic(),
            fresh=fresh,
            there=None if self._node.cluster is None else {pod.kubelet_uid for pod in pods if not pod.ended},
            asked=use.asked.value,
            idle=use.idle.value,
        )

    def _write_if_due(self) -> float:
        """Publish if that is due; return in how many seconds it will be due if nothing changes."""
        now = self.clock()
        use = self._report(fresh=True)  # with their time, so that readers know their age
        due_s = due_in_s(self._written, use, now - self._written_at, self.soon_s, self.seldom_s)
        if due_s == 0.0:
            self._written, self._written_at = use, now
            self._node.reached_cluster.published.annotate({NODE_USE: write_node_use(use)})
            due_s = due_in_s(use, use, 0.0)
        return due_s

"""Read at intervals which containers use what on the node's GPUs, and publish it: on the node, page and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.http import JSON, Page, page_at
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import Attempts, together
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimState
from gpu_device_plugin.features.use.contract import SERVED, USE_PATH, write_node_use
from gpu_device_plugin.features.use.rules.container_gpus import container_gpus
from gpu_device_plugin.features.use.rules.process_use import NOT_READ, UseReading, attribute, blindness
from gpu_device_plugin.features.use.rules.use_report import SELDOM_S, SOON_S, due_in_s, fresh, names, node_use
from gpu_device_plugin.features.use.settings import UseSettings
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.kubelet.procfs import ProcessOwners, boot_time, in_nodes_namespace
from gpu_device_plugin.model.contract.keys import NODE_USE
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, NoReturn

    from gpu_device_plugin.aio.http import Route
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.features.over_use.rules import Excess
    from gpu_device_plugin.features.use.contract import NodeUse
    from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
    from gpu_device_plugin.features.use.rules.use_report import Names
    from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
    from gpu_device_plugin.model.allocations import Allocation, Place
    from gpu_device_plugin.model.limits import LimitState
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.model.telemetry import GpuReading
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class UseWatch:
    """Reads at intervals who uses what; nothing is read before `run`."""

    _read_use: Callable[[], Awaitable[tuple[GpuReading, ...] | None]]
    """Reads the processes on all GPUs; None: no driver process answers now."""
    entries: Observable[tuple[Allocation, ...]]
    """What containers hold, as last read."""
    _state: NodeState
    _: KW_ONLY
    interval_s: float
    """Seconds between two readings; 0: the use is not read. See `every`."""
    pods: Callable[[], Iterable[Pod]] | None = None
    """Returns the pods of this node in the API; None: there is no API."""
    may_borrow: Callable[[], bool] = lambda: True
    """Returns whether containers may use more than they are guaranteed."""
    ended: Callable[[], Collection[str]] = frozenset
    """Returns the UIDs of ended pods that the checkpoint still shows."""
    mps_servers: Callable[[], Collection[int]] = frozenset
    """Returns the PIDs of MPS servers."""
    measured: Observable[Mapping[Place, int]] = field(default_factory=lambda: Observable({}))
    """What the driver itself says that containers use, see `attribute`."""
    alone: Callable[[], bool] = lambda: True
    """Returns whether nobody else hands out GPUs of this node at this moment."""
    processes: ProcessOwners = field(default_factory=ProcessOwners)
    host_pids: Callable[[], bool | None] = in_nodes_namespace
    """Returns whether the agent sees the processes of all pods, see `blindness`."""

    def __post_init__(self) -> None:
        self._worker = Worker(self._step)
        self.read_now = self._worker.wake
        """Reads at once."""
        self._hurry_s: float | None = None
        self._attempts = Attempts(_log, "the use of the GPUs cannot be read; trying again at every interval")
        self._blind = ""
        self._excused: frozenset[str] = frozenset()
        """UIDs of the pods that used GPUs while another plugin handed them out: they keep them when it has left."""
        self.processes_read: tuple[Sequence[GpuReading], Mapping[int, CgroupOwner | None]] = ((), {})
        """The processes on the GPUs as last read, and whose they are."""
        self.reading: Observable[UseReading] = Observable(UseReading())
        """Who uses what, as last read; not set before the first reading. While the use is not read, it lists the
        containers only, whenever the kubelet's checkpoint was read."""

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
        return self._state.node.shares

    def holders(self) -> tuple[ContainerGpus, ...]:
        """Return which container holds how much of which GPU now."""
        node = self._state.node
        known = self.entries.value, self._pods(), node.shares, self.ended(), node.ledger.reservations
        return container_gpus(*known, may_borrow=self.may_borrow())

    def _pods(self) -> Iterable[Pod]:
        return () if self.pods is None else self.pods()

    async def run(self) -> NoReturn:
        """Read until cancelled. No failure of a reading ends it."""
        # Without the checkpoint every pod on a GPU would seem to use what it was not given.
        await self.entries.after(0)
        await together(self._worker.run(), self.entries.follow(self._recorded))

    def _recorded(self, _: object) -> None:
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
        at = time.monotonic()
        found = await self._read_use()
        if found is None:
            return  # the newest reading stays, and its time tells its age
        shares = self.shares()
        # GPUs that are not shared are other plugins' to give.
        readings = [reading for reading in found if shares.by_uuid(reading.uuid) is not None]
        pids = {process.pid for reading in readings for process in reading.processes or ()}
        named_at = boot_time()
        # In a thread: a thousand processes take 0.1 s, in which the kubelet would wait for its answers.
        owners = await asyncio.to_thread(self.processes.owners, pids, named_at=named_at) if pids else {}
        self.processes_read = readings, owners
        # Whether the checkpoint's entries show everything that we granted.
        complete = all(state.granted_at is None for state in self._state.node.ledger.id_states.values())
        alone = self.alone()
        self._excused &= {owner.pod_uid for owner in owners.values() if owner is not None}
        blind = blindness(readings, owners, host_pids=self.host_pids())
        if blind and blind != self._blind:
            _log.warning("the use of the GPUs by container is not known: %s", blind)
        self._blind = blind
        self.reading.set(
            attribute(
                readings,
                owners,
                self.holders(),
                pods=self._pods(),
                mps_servers=self.mps_servers(),
                measured=self.measured.value,
                at=at,
                blind=blind,
                complete=complete and alone,
                excused=self._excused
                | {allocation.pod_uid for allocation in self.entries.value if allocation.gpus is not None},
            )
        )
        if not alone:
            self._excused |= self.reading.value.left_out


@dataclass(eq=False, repr=False)
class UseReports:
    """Reports who holds and who uses the GPUs now, with the state of each container's limit.

    Nothing is kept between two reports but the names of the pods that the last one showed.
    """

    _watch: UseWatch
    _limits: Observable[Mapping[Place, LimitState]]
    over: Observable[Mapping[Place, Excess]]
    _publish: Callable[[str], None]
    """Puts a text on the node."""
    _: KW_ONLY
    reclaiming: Observable[ReclaimState] = field(default_factory=lambda: Observable(ReclaimState()))
    """The containers that were asked to return memory."""
    idle: Observable[Mapping[str, str]] = field(default_factory=lambda: Observable({}))
    """Since when pods are idle, RFC 3339 by UID."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.soon_s = SOON_S
        self.seldom_s = SELDOM_S
        self._names: Names = {}
        self._written: NodeUse | None = None
        self._written_at = 0.0
        self._answering = asyncio.Lock()

    def now(self) -> NodeUse:
        """Return the report of this moment: without figures while they are not read."""
        return self._report(fresh=fresh(self._watch.reading.value, self.clock(), self._watch.interval_s))

    async def page(self) -> Page:
        """Return the report of this moment as JSON. One is written after the other, however many clients ask."""
        async with self._answering:
            use = self.now()
            # Others run in between: each half takes some milliseconds for a thousand containers.
            await asyncio.sleep(0)
            return Page(write_node_use(use, SERVED), content_type=JSON)

    async def run(self) -> NoReturn:
        """Publish until cancelled, see `due_in_s`; nothing before the first reading."""
        await self._watch.reading.after(0)
        sources: tuple[Observable[Any], ...] = (
            self._watch.reading,
            self._limits,
            self.over,
            self.reclaiming,
            self.idle,
        )
        await Worker(self._write_if_due).run(*sources)

    def _report(self, *, fresh: bool) -> NodeUse:
        watch = self._watch
        held, reading = watch.holders(), watch.reading.value
        self._names = names(self._names, held, reading)
        return node_use(
            held,
            reading,
            self._limits.value,
            self.over.value,
            watch.shares(),
            named=self._names,
            epoch=time.time() - time.monotonic(),
            fresh=fresh,
            there=None if watch.pods is None else {pod.kubelet_uid for pod in watch.pods() if not pod.ended},
            requests=self.reclaiming.value.requests,
            idle=self.idle.value,
        )

    def _write_if_due(self) -> float:
        """Publish if that is due; return in how many seconds it will be due if nothing changes."""
        now = self.clock()
        use = self._report(fresh=True)  # with their time, so that readers know their age
        due_s = due_in_s(self._written, use, now - self._written_at, self.soon_s, self.seldom_s)
        if due_s == 0.0:
            self._written, self._written_at = use, now
            self._publish(write_node_use(use))
            due_s = due_in_s(use, use, 0.0)
        return due_s


class Use(NodeFeature):
    """Reads the use; other features follow the readings, and add what they know of containers to the reports."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to read the GPUs of `node`."""
        self._settings = node.settings
        self.allowed_now: Observable[Mapping[Place, int]] = Observable({})
        """The MiB that each container may use now, of those that may use something else than when they started."""
        self.watch = UseWatch(
            partial(node.hardware.use, utilisation=True),
            node.entries,
            node.state,
            interval_s=node.settings.value.of(UseSettings).usage_interval_s,
            pods=(lambda: tuple(node.api.pods.values())) if node.api.has_access else None,
            may_borrow=lambda: False,
            ended=lambda: node.records.over,
            alone=node.other_plugins.alone,
            processes=procfs.ProcessOwners(node.proc),
            host_pids=partial(procfs.in_nodes_namespace, node.proc),
        )
        self.reports = UseReports(
            self.watch, node.limit_states, Observable({}), lambda text: node.api.annotate_node({NODE_USE: text})
        )
        self._published = node.api.has_access

    def tasks(self) -> Tasks:  # noqa: D102
        tasks = [self.watch.run(), self._settings.follow(self._interval)]
        return [*tasks, self.reports.run()] if self._published else tasks

    def routes(self) -> list[Route]:  # noqa: D102
        return [page_at(USE_PATH, self.reports.page)]

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, use=self.reports.now())

    def _interval(self, settings: NodeSettings) -> None:
        self.watch.every(settings.of(UseSettings).usage_interval_s)

"""The scheduler extender: watches the cluster's nodes and pods, and answers kube-scheduler's requests."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import STRANGERS, ListenError, serving_routes, written
from gpu_device_plugin.aio.waiting import for_ever
from gpu_device_plugin.cluster.client.api_client import Client, Timing
from gpu_device_plugin.cluster.client.config import SERVICE_ACCOUNT, ClusterConfig, ClusterConfigError, config_for
from gpu_device_plugin.cluster.lease import Lease, LeaseTiming
from gpu_device_plugin.cluster.objects.decoding import NODES, PODS, NodeReader, PodReader
from gpu_device_plugin.cluster.objects.other_pods import OtherPodReader
from gpu_device_plugin.cluster.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.cluster.writers.binder import Binder, BinderTiming
from gpu_device_plugin.core.report.gauges import ExtenderMetrics
from gpu_device_plugin.fleet import Fleet, FleetEntry
from gpu_device_plugin.lifetime import ReloadingProgram, collect_rarely, freeze_objects, return_large_blocks, tls_of
from gpu_device_plugin.model.contract.keys import (
    NODE_USE,
    READ_BY_AGENT,
    READ_ON_NODES,
    READ_ON_PODS,
    STAND_IN,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.contract.promises import promises
from gpu_device_plugin.programs.extender.binding import Binding, Freshness
from gpu_device_plugin.programs.extender.capacity.capacity import Capacity
from gpu_device_plugin.programs.extender.capacity.waiters import Parts
from gpu_device_plugin.programs.extender.extender_routes import ExtenderRoutes, Readiness
from gpu_device_plugin.programs.extender.followed import READ_ON_NODES as FOLLOWED_ON_NODES
from gpu_device_plugin.programs.extender.followed import Followed, is_stand_in, with_brief_use
from gpu_device_plugin.programs.extender.holds import Holds
from gpu_device_plugin.programs.extender.nominating import Nominator
from gpu_device_plugin.programs.extender.resizes import Resizes
from gpu_device_plugin.programs.extender.resizing import Leadership, Resizer
from gpu_device_plugin.programs.extender.verbs import Verbs
from gpu_device_plugin.programs.extender.workload_learning import Learner
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import msgspec

    from gpu_device_plugin.aio.http import Route
    from gpu_device_plugin.cluster.client.errors import ApiError
    from gpu_device_plugin.core.cluster.other_pods import OtherPod
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.programs.extender.extender_routes import Watches
    from gpu_device_plugin.settings.forms import Address
    from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtenderTimings:
    """The timeouts and intervals of an extender's parts, in seconds."""

    api: Timing = field(default_factory=Timing)
    follow: ReflectorTiming = field(default_factory=ReflectorTiming)
    bind: BinderTiming | None = None
    """None: derived from the setting `bind_timeout_s`."""
    lease: LeaseTiming = field(default_factory=LeaseTiming)
    catch_up_s: float = 3.0
    """Timeout of catching up with the bindings of others. A scheduler gives up on a binding after 5 s."""
    check_doubts_s: float = 5.0
    """Interval at which bindings in doubt are checked."""
    settle_s: float = 2.0
    """How long a GPU stays closed to the other resource after a pod on it has ended. The agent reads the kubelet's
    records and the driver, and updates the kubelet, within 16 to 25 ms; on a busy node it takes longer."""
    nominate_s: float = 0.5
    """How long a nomination waits for what kube-scheduler writes of the pod's failure, which would remove it."""
    resize_s: float = 0.2
    """Pause between the decisions on resizes of a few pods."""
    capacity_s: float = 0.5
    """Pause between the rounds of care for the cluster's capacity."""
    settled_s: float = 5.0
    """How long a pod has been refused before nodes are asked for, or other pods moved, for it."""
    tick_s: float = 0.5
    """Interval at which vanished pods are expired."""
    quiet_s: float = 1.0
    """How much longer than a binding `/quiet` waits for the shutdown that its caller, kube-scheduler, has begun too."""
    unfollowed_s: float = 60.0
    """Once a watch of nodes or pods has been broken for this long, the extender is not ready."""


DEFAULT_TIMINGS = ExtenderTimings()


def main(sources: Sources[ExtenderSettings], texts: Texts, settings: ExtenderSettings) -> int:
    """Run the extender until SIGTERM or SIGINT; return its exit code.

    `texts` are the contents of the files among `sources`, and `settings` were read from them.

    Raises:
        UsageError: an address, or a certificate, cannot be used.
    """
    try:
        config = config_for(settings.api, os.environ)
    except ClusterConfigError as error:
        raise UsageError(f"api: {error}") from error
    return_large_blocks()
    extender = Extender(settings, config, when_read=collect_rarely())
    return asyncio.run(extender.follow_settings(sources, texts, extender.run(), "extender"))


class Extender(ReloadingProgram[ExtenderSettings]):
    """Wires the parts of an extender together. Makes no decision itself."""

    def __init__(
        self,
        settings: ExtenderSettings,
        config: ClusterConfig,
        *,
        timings: ExtenderTimings = DEFAULT_TIMINGS,
        when_read: Callable[[], None] = freeze_objects,
    ) -> None:
        """Prepare; nothing is sent before `run`. `when_read` is called once, when the cluster has been read."""
        super().__init__(settings)
        self._timings = timings
        self._when_read = when_read
        self._resources = resources = settings.offered
        names = tuple(resource.name for resource in resources)
        self._metrics: m.Metrics = (
            m.PrometheusMetrics(lambda: self.state().gauges(), m.EXTENDER_COUNTS, m.EXTENDER_DURATIONS)
            if settings.http is not None
            else m.Metrics()
        )
        self._client = Client(config, timing=timings.api, on_error=self._count_error)
        self._pod_reader = PodReader(names, READ_ON_PODS.__contains__, sums=True, owners=True)
        self._other_reader = OtherPodReader()
        # A pod whose JSON names none of our resources asks for none.
        self._ours = tuple(f'"{name}"'.encode() for name in (*names, STAND_IN))
        kept = READ_ON_NODES | FOLLOWED_ON_NODES | {NODE_USE}
        # Pods that wait, or are to go elsewhere, may go where the labels of nodes allow it.
        all_labels = settings.follows_every_pod or settings.follows_waiting_pods
        node_reader = NodeReader(names, lambda key: all_labels or key in kept)
        self._changed = asyncio.Event()
        self.fleet = Fleet(
            resources,
            vanished_grace_s=settings.vanished_grace_s,
            settle_s=timings.settle_s,
            on_drift=self._drifted,
            on_unplaced=self._unplaced,
            on_change=self._changed.set,
        )
        holds = Holds(self.fleet, self._client, clock=time.monotonic, wall=time.time)
        self.resizes = Resizes(self.fleet, resources, clock=time.monotonic)
        self._followed = followed = Followed(
            self.fleet,
            resources,
            holds,
            self.resizes,
            clock=time.monotonic,
            every_pod=settings.follows_every_pod,
            waiting_pods=settings.follows_waiting_pods,
        )
        self._nodes: Reflector[NodeRecord] = Reflector(
            self._client,
            NODES,
            lambda raw: with_brief_use(node_reader.read(raw)),
            followed.node_store,
            timing=timings.follow,
        )
        self._nominator = Nominator(self._client, lambda: self.fleet.pending, delay_s=timings.nominate_s)
        self.verbs = Verbs(
            self.fleet,
            PodReader(names, READ_ON_PODS.__contains__, sums=True, every=True, owners=True),
            resources,
            self._nominator,
            node_policy=lambda: self.settings.node_policy,
            gpu_policy=lambda: self.settings.gpu_policy,
            ready=lambda: next(iter(self.unready()), ""),
            metrics=self._metrics,
            closed=followed.closed,
            held=holds.for_pod,
        )
        fleet = self.fleet
        self._learner = Learner(
            self.verbs.judge, resources, time.monotonic, entries=fleet.entries.values, others=lambda: fleet.others
        )
        followed.observe = self._learner.observe
        self._pods: Reflector[Pod | OtherPod] = Reflector(
            self._client, PODS, self._read_pod, followed.pod_store, timing=timings.follow
        )
        self.watches: Watches = {"nodes": self._nodes, "pods": self._pods}
        """The reflectors of the cluster, by the plural of the kind."""
        self._lease = (
            Lease(
                self._client,
                settings.namespace(SERVICE_ACCOUNT),
                settings.lease_name,
                # Differs after every restart: a restarted process does not hold the lease of its predecessor.
                f"{settings.holder()}_{uuid.uuid4()}",
                timing=timings.lease,
            )
            if settings.leader_election
            else None
        )
        self.readiness = Readiness(self.watches, self._lease, time.monotonic, timings.unfollowed_s)
        self.unready = self.readiness.unready
        """Returns why this extender is not ready to answer the scheduler; empty if it is."""
        catch_up = partial(self._pods.caught_up, timings.catch_up_s)
        self._fresh = Freshness(catch_up, time.monotonic)
        binder = Binder(
            self._client,
            # A binding in doubt is compared with all that was written.
            PodReader(names, READ_BY_AGENT.__contains__, sums=True, owners=True),
            timing=lambda: timings.bind or BinderTiming.within(self.settings.bind_timeout_s),
        )
        scheduler = settings.namespace(SERVICE_ACCOUNT), settings.scheduler_lease
        leadership = Leadership(
            self._client,
            self.readiness,
            lease=scheduler if settings.scheduler_lease else None,
            identity=settings.holder(),
            clock=time.monotonic,
        )
        self.capacity = Capacity(
            Parts(self.fleet, followed, holds, self._client, resources, self._metrics, binder),
            self.verbs.judge,
            self.verbs.waiting.refused,
            leadership,
            lambda: self.settings,
            catch_up=self._caught_up,
            pause_s=timings.capacity_s,
            settled_s=timings.settled_s,
        )
        self._resizer = Resizer(
            self.resizes,
            self._client,
            binder,
            resources,
            leadership,
            self._metrics,
            catch_up=catch_up,
            clock=time.monotonic,
            check_doubts_s=timings.check_doubts_s,
            before_write=self.capacity.before_bind,
            pause_s=timings.resize_s,
        )
        self.binding = Binding(
            self.fleet,
            binder,
            resources,
            current=self._fresh,
            gpu_policy=lambda: self.settings.gpu_policy,
            ranks=self._learner.ranks,
            held=holds.for_pod,
            taken=holds.taken,
            before_bind=self.capacity.before_bind,
            used_mib=lambda node: followed.used_mib.get(node, {}),
            timeout_s=lambda: self.settings.bind_timeout_s,
            clock=time.monotonic,
            wall_ns=time.time_ns,
            check_doubts_s=timings.check_doubts_s,
        )
        self.routes = ExtenderRoutes(
            self.verbs,
            self.binding,
            self.readiness,
            self._metrics,
            quiet_within_s=lambda: self.settings.bind_timeout_s + timings.quiet_s,
        )
        self.ports: dict[str, int] = {}
        """The listening ports by setting, once open."""

    def reload(self, wanted: ExtenderSettings) -> None:
        """Apply the settings that can change at run time."""
        super().reload(wanted)
        self.fleet.vanished_grace_s = self.settings.vanished_grace_s

    async def run(self) -> NoReturn:
        """Run all parts until cancelled. Owns the listening sockets and the connections.

        Raises:
            UsageError: an address cannot be listened on, or a certificate not be used.
        """
        settings = self.settings
        _log.info("the scheduler extender starts", extra={"version": __version__, "listen": written(*settings.listen)})
        if settings.exposed:
            _log.warning(
                "every client that reaches this address can bind pods; let only the scheduler reach it, or "
                "give tls_cert, tls_key and client_ca",
                extra={"listen": written(*settings.listen)},
            )
        tls = tls_of(settings.tls_cert, settings.tls_key, settings.client_ca)
        async with self._client, AsyncExitStack() as servers:
            if settings.http is not None:
                await self._serve(servers, "http", settings.http, self.routes.for_monitoring(), limits=STRANGERS)
            servers.callback(self.routes.quiet.set)  # once the scheduler's calls have ended, before the probes end
            calls, patience_s = self.routes.for_scheduler(), settings.bind_timeout_s
            await self._serve(servers, "listen", settings.listen, calls, tls=tls, finish_within_s=patience_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._nodes.run(), name="watch nodes")
                tasks.create_task(self._follow_pods(), name="watch pods")
                tasks.create_task(self.binding.resolve_doubts(), name="resolve doubts")
                tasks.create_task(self._prepare_after_changes(), name="prepare after changes")
                tasks.create_task(self._learner.run(), name="learn")
                tasks.create_task(self._tick(), name="expire vanished pods")
                tasks.create_task(self._nominator.run(), name="nominate nodes")
                tasks.create_task(self._resizer.run(), name="resize pods")
                tasks.create_task(self.capacity.run(), name="care for the capacity")
                tasks.create_task(self._log_when_ready(), name="log when ready")
                if self._lease is not None:
                    tasks.create_task(self._lease.run(), name="elect a leader")
                    tasks.create_task(self._follow_leader(self._lease), name="follow the leader")
                try:
                    await for_ever()
                finally:
                    # Bindings in progress end before the lease is released: the next leader lists pods before it binds,
                    # and would miss a binding still in flight.
                    self.readiness.shutting_down = True
                    await self._resizer.close()
                    await servers.aclose()

    async def _serve(
        self, servers: AsyncExitStack, setting: str, address: Address, routes: Iterable[Route], **more: Any
    ) -> None:
        try:
            self.ports[setting] = await servers.enter_async_context(serving_routes(*address, routes, **more))
        except ListenError as error:
            raise UsageError(f"{setting}: {error}") from error

    # --- The cluster ----------------------------------------------------------------------------------------------

    def _read_pod(self, raw: msgspec.Raw) -> Pod | OtherPod | None:
        whole = bytes(raw)
        if not any(name in whole for name in self._ours):
            return self._other_reader.read(raw)
        pod, ignored = self._pod_reader.read(raw)
        if ignored:
            _log.warning(
                "ignoring invalid limits of a pod", extra={"pod": f"{pod.namespace}/{pod.name}", "why": ignored[0]}
            )
        self._followed.note(pod, raw)
        return pod if pod.containers or is_stand_in(pod) else self._other_reader.read(raw)

    def _unplaced(self, pod: Pod) -> None:
        """Count a pod whose GPU is unknown because its annotations are malformed."""
        try:
            promises(pod, self._resources)
        except MalformedAnnotationError:
            self._metrics.count(m.MALFORMED_ANNOTATIONS)

    async def _follow_pods(self) -> NoReturn:
        # A pod without GPUs says something of what comes to nodes with GPUs if its node is known to be one.
        await self._nodes.wait_synced()
        await self._pods.run()

    async def _caught_up(self) -> None:
        await asyncio.gather(*(watch.caught_up(self._timings.catch_up_s) for watch in self.watches.values()))

    async def _tick(self) -> NoReturn:
        while True:
            self.fleet.expire(time.monotonic())
            self.readiness.record_watches()
            await asyncio.sleep(self._timings.tick_s)

    async def _prepare_after_changes(self) -> NoReturn:
        """Prepare for the next request as soon as the fleet changes."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.verbs.judge.prepare()

    async def _log_when_ready(self) -> None:
        began = time.monotonic()
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        took_s = time.monotonic() - began
        self._when_read()
        _log.info(
            "the cluster has been read",
            extra={"nodes": len(self.fleet.candidates), "pods": len(self.fleet.entries), "took_s": round(took_s, 2)},
        )

    async def _follow_leader(self, lease: Lease) -> NoReturn:
        def log(leads: bool) -> None:  # noqa: FBT001 - a value that is followed
            if leads:
                self._fresh.lost()
            _log.info("this extender leads" if leads else "this extender does not lead", extra={"holder": lease.holder})

        await lease.leader.follow(log, initial=True)

    def _drifted(self, before: FleetEntry, now: FleetEntry) -> None:
        self._metrics.count(m.DRIFT, "moved" if before.node == now.node else "other_node")
        _log.warning(
            "a pod holds other GPUs than the ledger recorded",
            extra={
                "pod": f"{now.namespace}/{now.name}",
                "node": now.node,
                "had": str(before.usage),
                "has": str(now.usage),
            },
        )

    def _count_error(self, error: ApiError) -> None:
        self._metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)

    def state(self) -> ExtenderMetrics:
        """Return the state that the metrics export."""
        return ExtenderMetrics(
            leader=self.readiness.leading,
            pods=sum(not entry.held_for for entry in self.fleet.entries.values()),
            pending=len(self.fleet.pending),
            oldest_s=self.verbs.waiting.oldest_s(),
            claims=sum(entry.claimed for entry in self.fleet.entries.values()),
            in_doubt=self.binding.doubts,
            learned=self._learner.in_force,
            distrusted=len(self._learner.distrusted),
            wanted=len(self.capacity.grower.latest),
            kept=len(self.capacity.keeper.latest.stay),
            held=len(self._followed.holds.rooms),
            watches={
                kind: (watch.live, watch.silent_s, watch.lists, watch.unreadable)
                for kind, watch in self.watches.items()
            },
            waiting=self.verbs.waiting.counts(),
            # Of GPUs that kube-scheduler allocates we do not know which are in use.
            nodes=[node for node in self.fleet.candidates.values() if not node.gpus.claims],
            stranded=self.verbs.judge.stranded(),
        )

"""The scheduler extender: watches the cluster's nodes and pods, and answers kube-scheduler's requests."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import STRANGERS, ListenError, Route, serving_routes, written
from gpu_device_plugin.aio.waiting import for_ever
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.feature_list import FeatureSpec
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT, ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.lease import Lease
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, PodReader
from gpu_device_plugin.kubernetes.reflector import Reflector
from gpu_device_plugin.kubernetes.writers.binder import Binder, BinderTiming
from gpu_device_plugin.lifetime import ReloadingProgram, tls_of
from gpu_device_plugin.model.contract.keys import READ_BY_AGENT, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import promises
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.binding import Binding, Freshness
from gpu_device_plugin.scheduler.cluster_follower import ClusterFollower
from gpu_device_plugin.scheduler.cluster_state import Fleet, FleetEntry
from gpu_device_plugin.scheduler.controller_context import DEFAULT_TIMINGS, ControllerContext, ExtenderTimings
from gpu_device_plugin.scheduler.extender_routes import ExtenderRoutes
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.leader_tasks import LeaderTasks
from gpu_device_plugin.scheduler.leadership import Readiness, Watches
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics
from gpu_device_plugin.scheduler.verbs import Verbs
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import UsageError

_log = logging.getLogger(__name__)


class Extender(ReloadingProgram[ExtenderSettings]):
    """Wires the parts of an extender together. Makes no decision itself."""

    def __init__(
        self,
        settings: ExtenderSettings,
        config: ClusterConfig,
        *,
        features: Iterable[FeatureSpec] = (),
        timings: ExtenderTimings = DEFAULT_TIMINGS,
        when_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare an extender with these features; nothing is sent before `run`.

        `when_read` is called once, when the cluster has been read.
        """
        super().__init__(settings)
        self._when_read = when_read
        resources = settings.offered
        names = [resource.name for resource in resources]
        metrics: m.Metrics = (
            m.PrometheusMetrics(lambda: self.state().gauges(), m.OF_EXTENDERS)
            if settings.http is not None
            else m.Metrics()
        )
        self.fleet = Fleet(
            resources,
            vanished_grace_s=settings.vanished_grace_s,
            settle_s=timings.settle_s,
            on_drift=self._drifted,
            on_unplaced=self._unplaced,
        )
        client = Client(config, timing=timings.api, on_error=self._count_error)
        binder = Binder(
            client,
            # A binding in doubt is compared with all that was written.
            PodReader(names, READ_BY_AGENT.__contains__, sums=True, owners=True),
            timing=lambda: timings.bind or BinderTiming.within(self.settings.bind_timeout_s),
        )
        self._context = context = ControllerContext(
            self.fleet,
            client,
            binder,
            resources,
            metrics,
            lambda: self.settings,
            timings,
            refused=lambda uid: self.verbs.waiting.refused(uid),  # noqa: PLW0108 - they are made later
            active_term=lambda *within_s: self.readiness.active_term(*within_s),  # noqa: PLW0108 - they are made later
            catch_up=lambda: self.readiness.catch_up(),  # noqa: PLW0108 - they are made later
        )
        self.features = context.features
        """Those of this extender."""
        self.features.make(features, context)
        self.follower = follower = ClusterFollower(context)
        self._nodes: Reflector[NodeRecord] = Reflector(
            client, NODES, follower.read_node, follower.nodes, timing=timings.follow
        )
        self._pods: Reflector[Pod | OtherPod] = Reflector(
            client, PODS, follower.read_pod, follower.pods, timing=timings.follow
        )
        self.watches: Watches = {"nodes": self._nodes, "pods": self._pods}
        """The reflectors of the cluster, by the plural of the kind."""
        self.verbs = Verbs(context, lambda: next(iter(self.unready()), ""))
        self._preparing = Worker(context.evaluator.prepare)  # for the next request, as soon as the fleet changes
        self._lease = (
            Lease(
                client,
                settings.namespace(SERVICE_ACCOUNT),
                settings.lease_name,
                # Differs after every restart: a restarted process does not hold the lease of its predecessor.
                f"{settings.holder()}_{uuid.uuid4()}",
                timing=timings.lease,
            )
            if settings.leader_election
            else None
        )
        self.readiness = Readiness(context, self.watches, self._lease)
        self.unready = self.readiness.unready
        """Returns why this extender is not ready to answer the scheduler; empty if it is."""
        catch_up = partial(self._pods.caught_up, timings.catch_up_s)
        context.evaluator.ranker = self.features.first(SchedulerFeature.ranker)
        steps = [step for feature in self.features for step in feature.leader_steps()]
        self._leader_tasks = LeaderTasks(self.readiness.active_term, self.readiness.catch_up, steps)
        current = Freshness(catch_up, context.clock, lambda: self.readiness.term)
        self.binding = Binding(context, current)
        self.routes = ExtenderRoutes(context, self.verbs, self.binding, self.readiness)
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
        async with self._context.client, AsyncExitStack() as servers:
            if settings.http is not None:
                await self._serve(servers, "http", settings.http, self.routes.for_monitoring(), limits=STRANGERS)
            servers.callback(self.routes.quiet.set)  # once the scheduler's calls have ended, before the probes end
            calls, patience_s = self.routes.for_scheduler(), settings.bind_timeout_s
            await self._serve(servers, "listen", settings.listen, calls, tls=tls, finish_within_s=patience_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._nodes.run(), name="watch nodes")
                tasks.create_task(self._follow_pods(), name="watch pods")
                tasks.create_task(self.binding.resolve_doubts(), name="resolve doubts")
                tasks.create_task(self._preparing.run(), name="prepare after changes")
                tasks.create_task(self._tick(), name="expire vanished pods")
                tasks.create_task(self._log_when_ready(), name="log when ready")
                tasks.create_task(self._leader_tasks.run(), name="tasks of the active extender")
                tasks.create_task(self._context.events.run(), name="write Events")
                for feature in self.features:
                    for task in feature.tasks():
                        tasks.create_task(task)
                if self._lease is not None:
                    tasks.create_task(self._lease.run(), name="elect a leader")
                    tasks.create_task(self._follow_leader(self._lease), name="follow the leader")
                try:
                    await for_ever()
                finally:
                    # Bindings in progress end before the lease is released: the next leader lists pods before it binds,
                    # and would miss a binding still in flight.
                    self.readiness.shutting_down = True
                    for finished in self.features.at(SchedulerFeature.finished):
                        await finished()
                    await servers.aclose()

    async def _serve(
        self, servers: AsyncExitStack, setting: str, address: Address, routes: Iterable[Route], **more: Any
    ) -> None:
        try:
            self.ports[setting] = await servers.enter_async_context(serving_routes(*address, routes, **more))
        except ListenError as error:
            raise UsageError(f"{setting}: {error}") from error

    # --- The cluster ----------------------------------------------------------------------------------------------

    def _unplaced(self, pod: Pod) -> None:
        """Count a pod whose GPU is unknown because its annotations are malformed."""
        try:
            promises(pod, self._context.resources)
        except MalformedAnnotationError:
            self._context.metrics.count(m.MALFORMED_ANNOTATIONS)

    async def _follow_pods(self) -> NoReturn:
        # A pod without GPUs says something of what comes to nodes with GPUs if its node is known to be one.
        await self._nodes.wait_synced()
        await self._pods.run()

    async def _tick(self) -> NoReturn:
        while True:
            self.fleet.expire(self._context.clock())
            self.readiness.record_watches()
            await asyncio.sleep(self._context.timings.tick_s)

    async def _log_when_ready(self) -> None:
        began = self._context.clock()
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        took_s = self._context.clock() - began
        self.fleet.on_change = self._preparing.wake
        self._preparing.wake()
        self._when_read()
        _log.info(
            "the cluster has been read",
            extra={"nodes": len(self.fleet.candidates), "pods": len(self.fleet.entries), "took_s": round(took_s, 2)},
        )

    async def _follow_leader(self, lease: Lease) -> NoReturn:
        def log(leads: bool) -> None:  # noqa: FBT001 - a value that is followed
            _log.info("this extender leads" if leads else "this extender does not lead", extra={"holder": lease.holder})

        await lease.leader.follow(log, initial=True)

    def _drifted(self, before: FleetEntry, now: FleetEntry) -> None:
        self._context.metrics.count(m.DRIFT, "moved" if before.node == now.node else "other_node")
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
        self._context.metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)

    def state(self) -> ExtenderMetrics:
        """Return the state that the metrics export."""
        state = ExtenderMetrics(
            leader=self.readiness.leading,
            pods=sum(not entry.held_for for entry in self.fleet.entries.values()),
            pending=len(self.fleet.pending),
            oldest_s=self.verbs.waiting.oldest_s(),
            claims=sum(entry.claimed for entry in self.fleet.entries.values()),
            in_doubt=self.binding.doubts,
            watches={
                kind: (watch.live, watch.silent_s, watch.lists, watch.unreadable)
                for kind, watch in self.watches.items()
            },
            waiting=self.verbs.waiting.counts(),
            # Of GPUs that kube-scheduler allocates we do not know which are in use.
            nodes=[node for node in self.fleet.candidates.values() if not node.gpus.claims],
        )
        for measured in self.features.at(SchedulerFeature.measured):
            state = measured(state)
        return state

"""The node agent: its parts, and how they are wired together; in one piece, as both ends of a wire are to be seen."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import page_at
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.core.contract.nodereport import USE_PATH
from gpu_device_plugin.core.model.gpus import NO_LINKS
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.shares import SHARES, Shares
from gpu_device_plugin.core.node.kubelet.ended_pods import PodsInApi
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.core.report.gauges import NodeMetrics
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet import cgroupfs, procfs
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.kubelet.incident_files import IncidentFiles
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.kubelet.registration_loop import RegistrationEvent, RegistrationLoop
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryError, NodeLock, check_directory, remove_stale_sockets
from gpu_device_plugin.kubelet.statefile import ENDED_PODS, SHARE_SIZE, WAY, SavedGuarantees, StateFile
from gpu_device_plugin.node_state import NodeState
from gpu_device_plugin.programs.node.audit_log import AuditLog
from gpu_device_plugin.programs.node.auto_cordon import AutoCordon
from gpu_device_plugin.programs.node.claims.serving_mode_switch import ServingModeSwitch
from gpu_device_plugin.programs.node.configuration import Configuration, initial, initial_share_mib
from gpu_device_plugin.programs.node.conflicting_plugins import ConflictingPlugins
from gpu_device_plugin.programs.node.extension import Features
from gpu_device_plugin.programs.node.flight_recorder import FlightRecorder
from gpu_device_plugin.programs.node.guarantees import Guarantees
from gpu_device_plugin.programs.node.happenings import Happening
from gpu_device_plugin.programs.node.kubelet.advertiser import Advertiser
from gpu_device_plugin.programs.node.kubelet.allocation_handler import AllocationHandler, Starts
from gpu_device_plugin.programs.node.kubelet.reconciler import ForgottenPods, Reconciler
from gpu_device_plugin.programs.node.limits.limit_link import LimitLink
from gpu_device_plugin.programs.node.limits.limit_verification import Verification
from gpu_device_plugin.programs.node.limits.mps_link import MpsLink
from gpu_device_plugin.programs.node.limits.required_limits import RequiredLimits
from gpu_device_plugin.programs.node.node_api import NodeApi, reach_api
from gpu_device_plugin.programs.node.node_events import OrphanedInstances, Reports
from gpu_device_plugin.programs.node.use.borrowing import Borrowing
from gpu_device_plugin.programs.node.use.history import History
from gpu_device_plugin.programs.node.use.memory_files import MemoryFiles
from gpu_device_plugin.programs.node.use.use_reader import UseReports, UseWatch
from gpu_device_plugin.programs.node.use.use_watches import IdlePods, OverUse
from gpu_device_plugin.programs.probes import serving_probes
from gpu_device_plugin.settings.knobs import UsageError, reload

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.node_config import NodeConfig
    from gpu_device_plugin.core.node.use.process_use import Place
    from gpu_device_plugin.programs.node.claims.dra_driver import DraDriver
    from gpu_device_plugin.programs.node.node_cluster import NodeCluster
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


class NodeAgent:
    """The parts of an agent, which follow each other's published values."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        dev: Path = Path("/dev"),
        proc: Path = procfs.PROC,
        cgroups: Path = cgroupfs.ROOT,
    ) -> None:
        """Prepare; no file, socket or GPU is opened before `run`.

        `dev` is the directory of the device nodes, `proc` that of the processes, `cgroups` that of the cgroups.
        """
        self.settings = Observable(settings)
        self.config = config = Observable(initial(settings))
        """How the node gives its GPUs to pods."""
        self.state = NodeState(Node(config.value.shares))
        self.metrics = m.PrometheusMetrics(lambda: self.metrics_state().gauges()) if settings.http else m.Metrics()
        self.cluster = cluster = self._reach_cluster()
        self.api = api = NodeApi() if cluster is None else cluster
        self.reports = Reports(self.state, self.metrics, api)
        try:
            self.hardware = Hardware(settings.gpus, on_change=self.reports.health_changed, on_xid=self.reports.xid_seen)
        except DescriptionError as error:
            raise UsageError(str(error)) from error
        self.conflicting_plugins = ConflictingPlugins(
            self.settings,
            api,
            lambda: {hold.through for hold in self.reconciler.checkpoint_entries.value if hold.gpus is not None},
        )
        self.advertiser = Advertiser(self.state, config, self.reports, settings.refusal_limit)
        self.kubelet_records = KubeletRecords(
            settings.device_plugin_dir,
            settings.pod_resources_socket,
            settings.names,
            listener=lambda: self.registration.listener,
            in_api=PodsInApi if cluster is None else cluster.pods_in_api,
        )
        self._forgotten = ForgottenPods(
            self.kubelet_records, None if cluster is None else cluster.living, self.reports.allocations_lost, proc
        )
        self.reconciler = Reconciler(
            self.state,
            self.kubelet_records,
            self.metrics,
            self._forgotten,
            resend=self.advertiser.resend,
            readings=lambda: self.hardware.readings.value,
            read_again=self.hardware.read_again,
            interval_s=settings.reconcile_interval_s,
            process_wait_s=settings.process_wait_s,
        )
        self.guarantees = Guarantees(
            self.state,
            api,
            self.reconciler.checkpoint_entries,
            SavedGuarantees(settings.device_plugin_dir),
            waiting=tuple if cluster is None else cluster.waiting.waiting,
            withheld=lambda: config.value.why_not_offered,
        )
        self.entries: Observable[tuple[DeviceHold, ...]] = Observable(())
        """What each container holds: by the kubelet's checkpoint, and by the claims that were prepared."""
        self.mps = MpsLink(settings.mps_dir, self.state, self.entries, self.reports.mps_changed)
        allowed_now: Observable[Mapping[Place, int]] = Observable({})
        self.use_watch = UseWatch(
            partial(self.hardware.use, utilisation=True),
            self.entries,
            self.state,
            interval_s=settings.usage_interval_s,
            pods=None if cluster is None else lambda: tuple(cluster.followed.pods.values()),
            may_borrow=lambda: self.settings.value.borrowers != "off",
            ended=lambda: self.kubelet_records.over,
            mps_servers=lambda: frozenset(pid for gpu in self.mps.gpus.values() for pid in gpu.server_pids),
            alone=self.conflicting_plugins.alone,
            processes=procfs.ProcessOwners(proc),
            host_pids=partial(procfs.in_nodes_namespace, proc),
        )
        self.verification = Verification(
            self.use_watch.holdings,
            self.hardware.limits,
            CgroupTree(cgroups),
            self.state,
            api,
            allowed_now=allowed_now,
            measured=self.use_watch.measured,
            interval_s=settings.usage_interval_s,
        )
        self.evictor = self.failures = None
        if cluster is not None:
            from gpu_device_plugin.programs.node.use.evictor import Evictor, GpuFailures  # noqa: PLC0415 - see node_api.reach_api

            self.evictor = Evictor(cluster, self.metrics, self.settings, alone=self.conflicting_plugins.alone)
            self.failures = GpuFailures(
                self.hardware.view, self.state, self.settings, self.use_watch.holdings, self.evictor
            )
        self.borrowing = Borrowing(
            self.use_watch,
            self.entries,
            self.state,
            self.settings,
            api,
            self.metrics,
            MemoryFiles(settings.memory_dir),
            self.evictor,
            allowed_now=allowed_now,
        )
        self.limit_link = self._tell_limits()
        features = Features(self.borrowing, self.mps, RequiredLimits(self.state))
        self._answers = AllocationHandler(
            self.state,
            None if cluster is None else cluster.waiting,
            self.metrics,
            config=config,
            dev=dev,
            on_refusal=self.advertiser.refused,
            on_grant=self.reconciler.granted,
            features=features,
            starts=Starts(self.state, self.entries, api, self.kubelet_records.listed),
        )
        self.over_use = OverUse(self.state, self.settings, api, self.evictor)
        self.idle_pods = IdlePods(self.settings, api)
        self.use_reports = UseReports(
            self.use_watch,
            self.verification.states,
            self.over_use.excesses,
            (lambda _: None) if cluster is None else cluster.show_use,
            reclaiming=self.borrowing.reclaiming,
            idle=self.idle_pods.since,
        )
        self.history, self.recorder = self._memory(CgroupTree(cgroups))
        self.registration = RegistrationLoop(
            settings.device_plugin_dir,
            lambda: config.value.resources,
            self._servicer,
            self._prepare,
            self._registration_event,
        )
        self._stranding = OrphanedInstances(config, self.entries, self.kubelet_records, api, self.reports)
        self._lock = NodeLock(settings.device_plugin_dir)
        self._share_size = StateFile(settings.device_plugin_dir, SHARE_SIZE)
        # Without it the share size stays what it was, so a power cut does no harm.
        self._ended_pods = StateFile(settings.device_plugin_dir, ENDED_PODS, lasting=False)
        self.serving_switch = ServingModeSwitch(
            config,
            self.state,
            api,
            self.reports,
            registration=self.registration,
            reconciler=self.reconciler,
            conflicting_plugins=self.conflicting_plugins,
            last_mode=StateFile(settings.device_plugin_dir, WAY),
        )
        self.configuration = Configuration(
            config,
            self.settings,
            self.state,
            self.metrics,
            self.reports,
            hardware=self.hardware,
            api=api,
            mps=self.mps,
            serving=self.serving_switch.serving,
            conflicting_plugins=self.conflicting_plugins,
            reconciler=self.reconciler,
        )
        self.dra: DraDriver | None = None
        if cluster is not None:
            from gpu_device_plugin.programs.node.claims.dra_driver import DraDriver  # noqa: PLC0415 - see node_api.reach_api

            self.dra = self.serving_switch.dra = DraDriver(
                settings,
                self.state,
                cluster,
                self.metrics,
                self.reports,
                config=config,
                reconciler=self.reconciler,
                conflicting_plugins=self.conflicting_plugins,
                mps=self.mps,
                dev=dev,
                features=features,
                changed=self.serving_switch.look,
            )
        self._paused = Observable(value=False)

    def _memory(self, cgroups: CgroupTree) -> tuple[History, FlightRecorder]:
        settings, watch = self.settings.value, self.use_watch
        history = History(watch, self.hardware.condition, lambda: self.settings.value.condition, cgroups)
        files = IncidentFiles(settings.device_plugin_dir)
        return history, FlightRecorder(settings.node_name, self.api, watch, history, self.use_reports.now, files)

    def _tell_limits(self) -> LimitLink | None:
        directory, of = self.settings.value.memory_dir, (self.use_watch.holdings, self.borrowing.allowed_now)
        if directory is None:
            return None
        return LimitLink(directory, *of, soft=lambda: self.settings.value.soft_limit == "share")

    def _audit(self) -> AuditLog:
        known = self.settings.value, self.config, self.state, self.use_watch
        return AuditLog(*known, self.cluster, self.evictor, lambda text: self.api.happenings.tell(Happening("", text)))

    def __repr__(self) -> str:
        return f"<NodeAgent {self.settings.value.node_name or 'standalone'}: {self.state!r}>"

    async def run(self) -> NoReturn:
        """Serve this node until cancelled.

        Raises:
            UsageError: the settings do not fit this node, or the address of the probes cannot be listened on.
            HardwareContextLost: this container has lost its access to the GPUs.
            DirectoryGoneError: a directory of the kubelet that this container has mounted was deleted.
            ListFullError: the device list is full of MIG instances that are not offered any more.
        """
        self._begin()
        try:
            async with serving_probes(
                self.settings.value.http,
                self.serving_switch.alive,
                self.serving_switch.ready,
                lambda: self.config.value.notes,
                metrics=self.metrics,
                routes=[page_at(USE_PATH, self.use_reports.page), *self.recorder.routes],
            ):
                await together(*self._parts())
        finally:
            self._lock.release()

    def _parts(self) -> list[Coroutine[Any, Any, NoReturn]]:
        parts = [
            self.hardware.run(),
            self.configuration.run(),
            self.config.follow(self._take_config),
            self._pause_and_resume(),
            self.advertiser.run(),
            self.conflicting_plugins.run(),
            self.mps.run(),
            self.serving_switch.run(),
            *map(self.use_watch.reading.follow, (self.over_use.act_on, self.borrowing.act_on, self.idle_pods.act_on)),
            self.entries.follow(self.borrowing.holders_changed),
            self.entries.follow(self.verification.changed),
            self.settings.follow(self.borrowing.look),
            self.reconciler.rounds.follow(self._round_over),
            self.use_watch.run(),
            self.recorder.run(),
            self.verification.run(),
            self.guarantees.run(),
            self._audit().run(),
            self.hardware.view.follow(self.verification.again),
            self.reconciler.checkpoint_entries.follow(self._holders_changed),
            self.reconciler.checkpoint_entries.follow(lambda _: self.conflicting_plugins.look()),
        ]
        if self.limit_link is not None:
            changed = self.limit_link.changed
            parts += [self.limit_link.run(), self.entries.follow(changed), self.settings.follow(changed)]
        if self.evictor is not None and self.failures is not None:
            parts += [self.evictor.run(), self.failures.run()]
        if self.cluster is not None and self.dra is not None:
            parts += [
                self.use_reports.run(),
                AutoCordon(self.history.conditions, self.settings, self.config, self.api).run(),
                self.dra.entries.follow(self._holders_changed),
                self.dra.follow(),
                self.config.follow(self.dra.update),
                self.verification.states.follow(self.dra.limits_read),
                self.cluster.followed.changes.follow(self.verification.changed),
                self.cluster.followed.changes.follow(self.guarantees.wake),
                self.cluster.followed.changes.follow(self.recorder.pods_changed),
                self.cluster.followed.changes.follow(self.borrowing.look, settle_s=0.1),
                self.cluster.run(self.dra.run_api),
                self.api.node.follow(self._stranding.look),
                self.cluster.users.follow(self.reconciler.users_changed),
                self.reconciler.checkpoint_entries.follow(self.cluster.learn),
            ]
        return parts

    def reload(self, wanted: NodeSettings) -> None:
        """Apply those changes of settings that need no restart, and report the others."""
        outcome = reload(self.settings.value, wanted)
        self.settings.set(settings := outcome.settings)
        self.reconciler.interval_s = settings.reconcile_interval_s
        self.reconciler.process_wait_s = settings.process_wait_s
        self.verification.interval_s = settings.usage_interval_s
        self.use_watch.every(settings.usage_interval_s)
        self.advertiser.limit(settings.refusal_limit)
        logging.getLogger("gpu_device_plugin").setLevel(settings.log_level.upper())
        self.configuration.reload()
        self.reports.settings_read(outcome)

    def toggle_pause(self) -> None:
        """Release the GPUs so that they can be reset, or take them up again."""
        self._paused.set(not self._paused.value)

    def metrics_state(self) -> NodeMetrics:
        """Return the state of the node for the metrics."""
        config = self.config.value
        return NodeMetrics(
            node=self.state.node,
            use=self.use_reports.now(),
            limits=config.limits,
            inventory=config.facts.inventory,
            fenced={offer.shared.gpu.uuid: len(offer.fenced) for offer in self.advertiser.offers.get(SHARES, ())},
            limit_states=self.verification.counts,
            containers_over=len(self.over_use.excesses.value),
            streams=self.registration.outages(),
            mps=self.mps.ready,
            conditions=self.history.conditions.value,
        )

    # --- Callbacks ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the lock, and keep the share size that is in use, even if our settings name another."""
        settings = self.settings.value
        try:
            check_directory(settings.device_plugin_dir)
            self._lock.take()
        except DirectoryError as error:
            raise UsageError(str(error)) from error
        claims = () if self.dra is None else self.dra.holders_of_shares()
        others, files = (*claims, *self._forgotten.load()), (self._share_size, self._ended_pods)
        share_mib = initial_share_mib(settings.share_size_mib, self.kubelet_records, others, *files)
        if share_mib != settings.share_size_mib:
            shares = Shares(share_mib, settings.reserve_mib)
            self.settings.set(replace(settings, share_size_mib=share_mib))
            self.state.refresh_inventory(shares, {}, NO_LINKS)
            self.config.set(replace(self.config.value, shares=shares))
            self.reload(settings)
        self._share_size.write(str(share_mib))
        started = {"version": __version__, "gpus": settings.gpus, "share": format_mib(share_mib)}
        _log.info("node agent starts", extra=started)

    async def _pause_and_resume(self) -> NoReturn:
        async for paused in self._paused.values():
            if paused:
                await self.hardware.pause()
                _log.warning("paused: GPUs can be reset now; send SIGUSR1 again to resume")
            elif self.hardware.view.value.state is State.PAUSED:
                self.hardware.resume()
        raise AssertionError  # pragma: no cover (an Observable never ends)

    async def _prepare(self) -> None:
        """Bring ledger and device lists up to date before any resource is registered."""
        self._lock.take()
        self._tell_kubelet()
        self._share_size.write(str(self.state.node.shares.share_mib))
        remove_stale_sockets(self.settings.value.device_plugin_dir)
        await self.reconciler.prepare()
        self.guarantees.load()
        self.mps.ledger_complete()
        self.advertiser.refresh()

    def _servicer(self, resource: Resource) -> PluginServicer:
        return PluginServicer(
            resource,
            self._answers,
            self.advertiser.list_of(resource),
            pre_start=self.settings.value.pre_start and not self.serving_switch.deregistering,
            observe=lambda _resource, rpc, seconds: self.metrics.took(m.RPCS, seconds, rpc),
        )

    def _registration_event(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        if event is RegistrationEvent.REGISTERED:
            self._tell_kubelet()  # it may have started while the plugin was being prepared
            self.reconciler.registered()
            self.serving_switch.registered.set()
        self.reports.registration(event, details)

    def _tell_kubelet(self) -> None:
        if self.cluster is not None:
            self.cluster.followed.kubelet_is(self.kubelet_records.kubelet)

    def _round_over(self, _round: int) -> None:
        ended = " ".join(sorted(self.kubelet_records.over))
        if ended or self._ended_pods.read():
            self._ended_pods.write(ended)  # for the next agent, which has not seen them end
        if self.cluster is not None and all(self.registration.registrations.values()):
            self.cluster.announce_ready()

    def _holders_changed(self, _new: object) -> None:
        claims = () if self.dra is None else self.dra.entries.value
        self.entries.set((*self.reconciler.checkpoint_entries.value, *claims))
        self.serving_switch.look()
        if self._stranding.possible:
            self._stranding.look()
            if self.cluster is not None:
                self.cluster.note()  # who has an instance decides in which list of the node it is

    def _take_config(self, config: NodeConfig) -> None:
        if not config.claims and not self.registration.registrations.keys() >= {each.name for each in config.resources}:
            self.advertiser.refresh()
            self.registration.serve_more()
        self._stranding.look()

    def _reach_cluster(self) -> NodeCluster | None:
        server = reach_api(self.settings.value)
        if server is None:
            return None
        from gpu_device_plugin.programs.node.node_cluster import NodeCluster  # noqa: PLC0415 - see node_api.reach_api

        return NodeCluster(server, self.settings.value, self.config, self.state, self.metrics)

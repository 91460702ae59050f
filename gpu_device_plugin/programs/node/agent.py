"""The node agent: its parts, and how they are wired together."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.contract.keys import CGPU_DISABLE_LABEL, PLACEMENT_LABEL
from gpu_device_plugin.core.model.gpus import NO_LINKS
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.policy import POLICIES, policy_in_force
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import Shares
from gpu_device_plugin.core.node.ended_pods import PodsInApi
from gpu_device_plugin.core.node.grants import Delivery
from gpu_device_plugin.core.node.ledger import Reading
from gpu_device_plugin.core.node.mps import asked
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.core.node.refusals import ADVICE
from gpu_device_plugin.core.node.rungs import wanted
from gpu_device_plugin.core.node.serving import Way
from gpu_device_plugin.hardware.beliefs import State
from gpu_device_plugin.hardware.forms import DescriptionError
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet import cgroupfs, procfs
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.kubelet.registration_loop import Plugin, RegistrationEvent, RegistrationLoop
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryError, NodeLock, check_directory, remove_stale_sockets
from gpu_device_plugin.node_state import NodeState
from gpu_device_plugin.programs import frugal
from gpu_device_plugin.programs.node import probes, watching
from gpu_device_plugin.programs.node.advertiser import Advertiser
from gpu_device_plugin.programs.node.answers import NodeAnswers
from gpu_device_plugin.programs.node.coexistence import Coexistence
from gpu_device_plugin.programs.node.equipment import Equipment
from gpu_device_plugin.programs.node.forgotten_pods import ForgottenPods
from gpu_device_plugin.programs.node.handover import Handover
from gpu_device_plugin.programs.node.instances import Instances, resources
from gpu_device_plugin.programs.node.limiting import Limiting
from gpu_device_plugin.programs.node.mps import MpsLink
from gpu_device_plugin.programs.node.reconciler import Reconciler
from gpu_device_plugin.programs.node.reports import Reports
from gpu_device_plugin.programs.node.responses import Responses
from gpu_device_plugin.programs.node.use import UseReports, UseWatch
from gpu_device_plugin.programs.node.verification import Verification
from gpu_device_plugin.programs.node.ways import Ways
from gpu_device_plugin.settings.extra_grant import read_extra_grant
from gpu_device_plugin.settings.knobs import UsageError, reload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.api import NodeRecord
    from gpu_device_plugin.cluster.config import ClusterConfig
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.admitting import Refused
    from gpu_device_plugin.programs.node.cluster import NodeCluster
    from gpu_device_plugin.programs.node.dra import DraDriver
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_GPUS_S = 10.0
"""How long the kubelet of a node with claims waits for our GPUs, in seconds."""


def reach_api(settings: NodeSettings) -> ClusterConfig | None:
    """Return how an agent with these settings reaches the API server, None if it runs without the API.

    Raises:
        UsageError: the setting `api` cannot be used.
    """
    if not settings.reaches_api(os.environ):
        return None
    frugal.import_aiohttp()
    # 12 MB that an agent without API access does not pay.
    from gpu_device_plugin.cluster.config import ClusterConfigError, config_if_any  # noqa: PLC0415

    try:
        config = config_if_any(settings.api, os.environ)
    except ClusterConfigError as error:
        raise UsageError(f"--api {settings.api}: {error}") from error
    if config is not None and not settings.node_name:
        _log.warning("runs without the Kubernetes API: set NODE_NAME (from the field spec.nodeName)")
        return None
    return config


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
        self.settings = settings
        self.state = NodeState(Node(Shares(settings.share_size_mib, settings.reserve_mib)))
        self.metrics: m.Metrics = (
            m.PrometheusMetrics(partial(probes.metrics_state, self)) if settings.http is not None else m.Metrics()
        )
        self.cluster = cluster = self._reach_cluster()
        self.node: Latest[NodeRecord | None] = Latest(None) if cluster is None else cluster.node
        """Our node as last read from the Kubernetes API; None: not yet."""
        self.reports = Reports(self.state, self.metrics, (lambda *_, **__: None) if cluster is None else cluster.event)
        try:
            self.hardware = Hardware(
                settings.gpus,
                timings=watching.timings(settings),
                rules=watching.rules(settings),
                on_change=self.reports.health_changed,
                on_xid=self.reports.xid_seen,
            )
        except DescriptionError as error:
            raise UsageError(str(error)) from error
        gpus_before = None if cluster is None else cluster.gpus_before
        self.equipment = Equipment(
            self.hardware,
            self.state,
            self.metrics,
            gpus_before,
            excluded=settings.exclude_gpus,
            mig=MigMode(settings.mig),
            on_equipped=lambda: self.reconciler.find_foreign(),  # noqa: PLW0108 - it is made later
        )
        self.coexistence = Coexistence(settings)
        self.limiting = Limiting(read_extra_grant(settings.extra_grant), self.reports.limits_missing)
        self.advertiser = Advertiser(self.state, partial(resources, self), settings.refusal_limit)
        self.kubelet_records = KubeletRecords(
            settings.device_plugin_dir,
            settings.pod_resources_socket,
            settings.names,
            listener=lambda: self.registration.listener,
            in_api=PodsInApi if cluster is None else cluster.pods_in_api,
        )
        living = None if cluster is None else cluster.living
        self._forgotten = ForgottenPods(self.kubelet_records, living, self.reports.allocations_lost, proc)
        self.reconciler = Reconciler(
            self.state,
            self.kubelet_records,
            self.metrics,
            self._forgotten,
            resend=self.advertiser.resend,
            readings=self._readings,
            read_again=self.hardware.read_again,
            interval_s=settings.reconcile_interval_s,
            process_wait_s=settings.process_wait_s,
        )
        self.entries: Latest[tuple[DeviceHold, ...]] = Latest(())
        """What each container holds: by the kubelet's checkpoint, and by the claims that were prepared."""
        self.mps = MpsLink(settings.mps_dir, self.state, self.entries, self.reports.mps_changed)
        self._answers = NodeAnswers(
            self.state,
            None if cluster is None else cluster.waiting,
            self.metrics,
            policy=settings.policy,
            delivery=Delivery(frozenset(settings.devices), settings.cdi_kind),
            dev=dev,
            on_refusal=self._refused,
            on_grant=self.reconciler.granted,
            mps=self.mps,
        )
        self.use_watch = UseWatch(
            partial(self.hardware.use, utilisation=True),
            self.entries,
            lambda: self.state.node.shares,
            interval_s=settings.usage_interval_s,
            pods=None if cluster is None else lambda: tuple(cluster.followed.pods.values()),
            ended=lambda: self.kubelet_records.over,
            mps_servers=lambda: frozenset(pid for gpu in self.mps.gpus.values() for pid in gpu.server_pids),
            measured=lambda: self.verification.measured,
            complete=lambda: all(hold.granted_at is None for hold in self.state.node.ledger.holds.values()),
            processes=procfs.Processes(proc),
            host_pids=partial(procfs.in_nodes_namespace, proc),
        )
        self.verification = Verification(
            self.use_watch.holdings,
            self.hardware.limits,
            CgroupTree(cgroups),
            self.state,
            (lambda *_: None) if cluster is None else cluster.pod_event,
            interval_s=settings.usage_interval_s,
        )
        self.responses = Responses(self, self.use_watch.reading)
        self.over_use = self.responses.over_use
        self.use_reports = UseReports(
            self.use_watch,
            self.verification.states,
            self.over_use.excesses,
            (lambda _: None) if cluster is None else cluster.show_use,
        )
        self.registration = RegistrationLoop(
            settings.device_plugin_dir,
            lambda: [Plugin(resource, partial(self._servicer, resource)) for resource in resources(self)],
            self._prepare,
            self._registration_event,
        )
        self.instances = Instances(self)
        self._lock = NodeLock(settings.device_plugin_dir)
        self._handover = Handover(settings, self.kubelet_records)
        self.ways = Ways(
            self.state,
            self.registration,
            self.reconciler,
            self.coexistence,
            self.reports,
            handover=self._handover,
            there=self.equipment.there,
            wanted=lambda: (self.settings.serve, None if self.node.value is None else self.node.value.labels),
        )
        self.dra: DraDriver | None = None
        if cluster is not None:
            from gpu_device_plugin.programs.node.dra import DraDriver  # noqa: PLC0415 - see reach_api

            self.dra = self.ways.dra = DraDriver(
                settings,
                self.state,
                cluster,
                self.metrics,
                self.reports,
                reconciler=self.reconciler,
                coexistence=self.coexistence,
                mps=self.mps,
                delivery=lambda: self._answers.delivery,
                dev=dev,
                changed=self.ways.look,
            )

    def __repr__(self) -> str:
        return f"<NodeAgent {self.settings.node_name or 'standalone'}: {self.state!r}>"

    async def run(self) -> NoReturn:
        """Serve this node until cancelled.

        Raises:
            UsageError: the settings do not fit this node, or the address of the probes cannot be listened on.
            HardwareContextLost: this container has lost its access to the GPUs.
            DirectoryGoneError: the device-plugin directory that this container has mounted was deleted.
            ListFullError: the device list is full of MIG instances that are not offered any more.
        """
        self._begin()
        try:
            async with (
                probes.serving_probes(
                    self.settings.http,
                    partial(probes.alive, self),
                    partial(probes.ready, self),
                    lambda: (*self.equipment.remarks, *self.limiting.remarks),
                    metrics=self.metrics,
                    use=self.use_reports.page,
                ),
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(self.hardware.run(), name="hardware")
                tasks.create_task(self.equipment.run(), name="follow the hardware")
                tasks.create_task(self.equipment.views.follow(self._apply), name="publish the GPUs")
                tasks.create_task(self.equipment.pause_and_resume(), name="pause and resume")
                tasks.create_task(self.advertiser.run(), name="advertise")
                tasks.create_task(self.coexistence.run(), name="look for other plugins")
                tasks.create_task(self.coexistence.others.follow(self._apply), name="publish other plugins")
                tasks.create_task(self.mps.run(), name="meet the MPS supervisor")
                tasks.create_task(self.mps.states.follow(self._apply), name="publish the MPS daemons")
                tasks.create_task(self._serve(), name="serve the kubelet")
                tasks.create_task(self.responses.run(), name="respond to over-use and failed GPUs")
                tasks.create_task(self.reconciler.rounds.follow(self._round_over), name="save ended pods")
                tasks.create_task(self.use_watch.run(), name="read the use of the GPUs")
                pods = () if self.cluster is None else (self.cluster.followed.changes,)
                tasks.create_task(
                    self.verification.run((self.entries, *pods), (self.hardware.view,)),
                    name="verify memory limits",
                )
                tasks.create_task(
                    self.reconciler.checkpoint_entries.follow(self._holders_changed), name="follow the checkpoint"
                )
                tasks.create_task(self.ways.serving.follow(self._apply), name="publish the way of serving")
                if self.cluster is not None and self.dra is not None:
                    tasks.create_task(self.use_reports.run(), name="publish the use of the GPUs")
                    tasks.create_task(self.dra.entries.follow(self._holders_changed), name="follow those with claims")
                    tasks.create_task(self.dra.follow(), name="follow claims")
                    tasks.create_task(self.verification.states.follow(self.dra.limits_read), name="status of claims")
                    tasks.create_task(self.cluster.run(self.dra.run_api), name="Kubernetes API")
                    tasks.create_task(self.cluster.node.follow(self._take_node), name="follow our node")
                    tasks.create_task(self.cluster.users.follow(self.reconciler.users_changed), name="follow users")
                    tasks.create_task(
                        self.reconciler.checkpoint_entries.follow(self.cluster.learn), name="settle promises"
                    )
        finally:
            self._lock.release()
        raise AssertionError  # pragma: no cover (the tasks never return)

    def reload(self, wanted: NodeSettings) -> None:
        """Apply those changes of settings that need no restart, and report the others."""
        outcome = reload(self.settings, wanted)
        settings = self.settings = outcome.settings
        self.reconciler.interval_s = settings.reconcile_interval_s
        self.reconciler.process_wait_s = settings.process_wait_s
        self.use_watch.interval_s = self.verification.interval_s = settings.usage_interval_s
        self.advertiser.limit(settings.refusal_limit)
        self.hardware.timings, self.hardware.rules = watching.timings(settings), watching.rules(settings)
        self.coexistence.settings = settings
        self.coexistence.look()
        self.ways.look()
        logging.getLogger("gpu_device_plugin").setLevel(settings.log_level.upper())
        self._apply()
        self.reports.settings_read(outcome)

    # --- Callbacks ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the lock, and keep the share size that is in use, even if our settings name another."""
        settings = self.settings
        try:
            check_directory(settings.device_plugin_dir)
            self._lock.take()
        except DirectoryError as error:
            raise UsageError(str(error)) from error
        claims = () if self.dra is None else self.dra.holders_of_shares()
        share_mib = self._handover.share_mib((*claims, *self._forgotten.load()))
        if share_mib != settings.share_size_mib:
            self.settings = replace(settings, share_size_mib=share_mib)
            self.state.equip(Shares(share_mib, settings.reserve_mib), {}, NO_LINKS)
            self.reload(settings)
        self._handover.keep_share_size(share_mib)
        share = format_mib(share_mib)
        _log.info("node agent starts", extra={"version": __version__, "gpus": settings.gpus, "share": share})

    async def _serve(self) -> None:
        if not await within(_GPUS_S if self.ways.served_claims else None, self.equipment.there.wait()):
            _log.warning("claims are served before a GPU is found: pods that end have to give theirs back")
        await self.ways.run()

    async def _prepare(self) -> None:
        """Bring ledger and device lists up to date before any resource is registered."""
        self._lock.take()
        self._handover.keep_share_size(self.state.node.shares.share_mib)
        remove_stale_sockets(self.settings.device_plugin_dir)
        await self.reconciler.prepare()
        self.mps.ledger_complete()
        self.advertiser.refresh()

    def _servicer(self, resource: Resource) -> PluginServicer:
        return PluginServicer(
            resource,
            self._answers,
            self.advertiser.list_of(resource),
            pre_start=self.settings.pre_start and not self.ways.parting,
            observe=lambda _resource, rpc, seconds: self.metrics.took(m.RPCS, seconds, rpc),
        )

    def _registration_event(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        if event is RegistrationEvent.REGISTERED:
            self.reconciler.registered()
            self.ways.registered()
        self.reports.registration(event, details)

    def _refused(self, kind: Kind, amount: int, refused: Refused) -> None:
        self.reports.refused(kind, amount, refused)
        advice = ADVICE.get(refused.why) if kind is Kind.MEMORY else None
        if advice is not None and self.advertiser.refused(amount):
            self.reports.refused_again_and_again(amount, advice)

    def _round_over(self, _round: int) -> None:
        self._handover.keep_ended_pods()
        if self.cluster is not None and all(self.registration.registrations.values()):
            self.cluster.announce_ready()

    def _readings(self) -> Mapping[str, Reading]:
        load = self.hardware.load.value
        return {uuid: Reading.of(count, load.used_mib[uuid], load.began) for uuid, count in load.processes.items()}

    def _holders_changed(self, _new: object) -> None:
        claims = () if self.dra is None else self.dra.entries.value
        self.entries.set((*self.reconciler.checkpoint_entries.value, *claims))
        self.ways.look()
        if self.instances.there:
            self._apply()  # who has an instance decides in which list of the node it is

    def _take_node(self, node: NodeRecord | None) -> None:
        if node is not None:
            self.coexistence.offered(node.allocatable)
        self.ways.look()
        self._apply()

    def _apply(self, _new: object = None) -> None:
        """Apply settings, hardware and our node's labels to the choice and delivery of GPUs; publish the result."""
        settings, view = self.settings, self.hardware.view.value
        self.advertiser.idle = self.ways.serving.value.way is Way.DRA and not self.ways.parting
        labels = {} if self.node.value is None else self.node.value.labels
        cgpu_disable = labels.get(CGPU_DISABLE_LABEL) == "true"
        self.mps.look()  # who asks for MPS only now does not hear that there was no supervisor before
        self.limiting.mps = self.mps.daemons
        means = self.limiting.apply(settings, self.state.node.shares, view.inventory.cgroup, labels)
        self.mps.ask_for(asked(self.state.node.shares, means.rungs, wanted(settings.limits, labels)))
        self.mps.refuse = means.refuse
        self._answers.delivery = Delivery(frozenset(settings.devices), settings.cdi_kind, cgpu_disable, means)
        self.instances.apply(labels)
        placement = labels.get(PLACEMENT_LABEL, "")
        if placement and placement not in POLICIES:
            extra = {"value": placement, "known": sorted(POLICIES), "once_per_s": 3600}
            _log.warning("the node label %s names no policy, and is ignored", PLACEMENT_LABEL, extra=extra)
        policy = policy_in_force(placement, settings.policy)
        if policy != self._answers.policy:
            _log.info("the policy for choosing GPUs changed", extra={"policy": policy})
            self._answers.policy = policy
        self.responses.show_condition()
        if self.cluster is not None and view.state is not State.STARTING:
            serving = self.ways.serving.value
            withheld = "; ".join(other.found for other in self.coexistence.others.value) or serving.waits
            sentence, claims = self.equipment.why_none, serving.way is Way.DRA
            self.cluster.show(view.inventory, policy, sentence, withheld, self.limiting.node, claims=claims)
        if self.dra is not None:
            self.dra.tell(settings, policy, means, view.inventory.driver_version)

    def _reach_cluster(self) -> NodeCluster | None:
        config = reach_api(self.settings)
        if config is None:
            return None
        from gpu_device_plugin.programs.node.cluster import NodeCluster  # noqa: PLC0415 - see reach_api

        return NodeCluster(config, self.settings, self.state, self.metrics)

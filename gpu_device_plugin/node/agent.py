"""Builds the node agent and connects its components."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.feature_list import FeatureSpec
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet import cgroupfs, procfs
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
from gpu_device_plugin.kubelet.rounds import RegistrationEvent
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryError, NodeLock, check_directory, remove_stale_sockets
from gpu_device_plugin.kubelet.statefile import SHARE_SIZE, StateFile
from gpu_device_plugin.model.gauges import Gauges
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import SHARES
from gpu_device_plugin.node.allocation_handler import AllocationHandler
from gpu_device_plugin.node.configuration import Configuration, initial
from gpu_device_plugin.node.extension import Features, Server
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_api import NodeApi, reach_api
from gpu_device_plugin.node.node_events import Reports
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.reconciler import Reconciler
from gpu_device_plugin.node.rules.node import Node
from gpu_device_plugin.node.rules.node_config import NodeConfig, share_size
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from gpu_device_plugin.node.serving import Advertiser, DevicePlugin, OtherPlugins
from gpu_device_plugin.probes import serving_probes
from gpu_device_plugin.settings.knobs import UsageError, reload

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


class NodeAgent(NodeContext):
    """The components of an agent. They follow each other's published values; what none of them knows is here."""

    def __init__(
        self,
        settings: NodeSettings,
        features: Iterable[FeatureSpec] = (),
        *,
        dev: Path = Path("/dev"),
        proc: Path = procfs.PROC,
        cgroups: Path = cgroupfs.ROOT,
    ) -> None:
        """Prepare an agent with these features; no file, socket or GPU is opened before `run`.

        `dev` is the directory of the device nodes, `proc` that of the processes, `cgroups` that of the cgroups.
        """
        # What is known of the node, and whom to tell.
        self.settings = Observable(settings)
        self.config = config = Observable(initial(settings))
        self.state = NodeState(Node(config.value.shares))
        self.metrics = m.PrometheusMetrics(self.gauges) if settings.http else m.Metrics()
        self.cluster = None
        if (api_server := reach_api(settings)) is not None:
            from gpu_device_plugin.node.node_cluster import NodeCluster  # noqa: PLC0415 - see node_api.reach_api

            self.cluster = NodeCluster(api_server, settings, config, self.state, self.metrics, dev=dev)
        self.api = api = self.cluster or NodeApi()
        self.reports = Reports(self.state, self.metrics, api)
        try:
            self.hardware = Hardware(settings.gpus, on_change=self.reports.health_changed, on_xid=self.reports.xid_seen)
        except DescriptionError as error:
            raise UsageError(str(error)) from error
        # The device plugin: what it offers, what the kubelet says of it, and how it is registered.
        self.other_plugins = OtherPlugins(api)
        self.advertiser = Advertiser(self.state, config, api, settings.refusal_limit)
        self.records = KubeletRecords(
            settings.device_plugin_dir,
            settings.pod_resources_socket,
            settings.names,
            listener=lambda: self.registration.listener,
            in_api=api.pods_in_api,
        )
        self.features = Features()
        self.reconciler = Reconciler(
            self.state,
            self.records,
            self.metrics,
            self.features,
            self.hardware,
            self.settings,
            self.advertiser.resend,
        )
        self.registration = RegistrationLoop(
            settings.device_plugin_dir,
            lambda: config.value.resources,
            self._servicer,
            self._prepare,
            self._registration_event,
        )
        self.plugin = DevicePlugin(
            config,
            self.state,
            registration=self.registration,
            reconciler=self.reconciler,
            other_plugins=self.other_plugins,
            last_mode=StateFile(settings.device_plugin_dir, "serve"),
        )
        # The features, and what they and the rest share.
        self.entries, self.limit_states = Observable(()), Observable({})
        self.checkpoint_entries = self.reconciler.checkpoint_entries
        self.dev, self.proc, self.cgroups = dev, proc, CgroupTree(cgroups)
        self.features.make(features, self, api=self.cluster is not None)
        self._further_entries = [entries for feature in self.features for entries in feature.entries()]
        """What containers hold in another way than by the kubelet's checkpoint."""
        servers = (server for feature in self.features if (server := feature.server()) is not None)
        self.server: Server = next(servers, self.plugin)
        """Who serves pods."""
        # What needs the features.
        self._answers = AllocationHandler(self, on_refusal=self.advertiser.refused, on_grant=self.reconciler.granted)
        self.configuration = Configuration(self, self.server.serving, self.reconciler)
        # What stays on the node for the next agent, and what people ask of this one.
        self._lock = NodeLock(settings.device_plugin_dir)
        self._share_size = StateFile(settings.device_plugin_dir, SHARE_SIZE)
        # UIDs of pods that the checkpoint still shows. Without it the share size stays, so a power cut does no harm.
        self._ended_pods = StateFile(settings.device_plugin_dir, "ended-pods", lasting=False)
        self._paused = Observable(value=False)

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
                self.server.alive,
                self.server.ready,
                lambda: self.config.value.notes,
                metrics=self.metrics,
                routes=[route for feature in self.features for route in feature.routes()],
            ):
                await together(*self._parts())
        finally:
            self._lock.release()

    def _parts(self) -> list[Coroutine[Any, Any, NoReturn]]:
        """Return what runs together."""
        entries = self.checkpoint_entries
        parts = [
            self.hardware.run(),
            self.configuration.run(),
            self.config.follow(self._take_config),
            self._paused.follow(self._pause_or_resume),
            self.advertiser.run(),
            self.server.run(),
            *(task for feature in self.features for task in feature.tasks()),
            self.reconciler.rounds.follow(self._round_over),
            entries.follow(self._holders_changed),
            *(more.follow(self._holders_changed) for more in self._further_entries),
        ]
        if (cluster := self.cluster) is not None:
            parts += [cluster.run(), cluster.users.follow(self.reconciler.users_changed), entries.follow(cluster.learn)]
        return parts

    def reload(self, wanted: NodeSettings) -> None:
        """Apply those changes of settings that need no restart, and report the others."""
        outcome = reload(self.settings.value, wanted)
        self.settings.set(settings := outcome.settings)
        self.advertiser.limit(settings.refusal_limit)
        logging.getLogger("gpu_device_plugin").setLevel(settings.log_level.upper())
        self.configuration.reload()
        self.reports.settings_read(outcome)

    def toggle_pause(self) -> None:
        """Release the GPUs so that they can be reset, or take them up again."""
        self._paused.set(not self._paused.value)

    def gauges(self) -> Gauges:
        """Yield the gauges of the node and of its features."""
        metrics = self.metrics_state()
        yield from metrics.gauges()
        yield from self.features.measured(metrics)

    def metrics_state(self) -> NodeMetrics:
        """Return the state of the node for the metrics, without what features know."""
        config = self.config.value
        return NodeMetrics(
            node=self.state.node,
            limits=config.limits,
            inventory=config.facts.inventory,
            fenced={offer.shared.gpu.uuid: len(offer.fenced) for offer in self.advertiser.offers.get(SHARES, ())},
            streams=self.registration.outages(),
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
        self.configuration.recover()
        others = [uid for feature in self.features for uid in feature.recover()]
        try:
            holders = {*self.records.recorded().by_pod({Kind.MEMORY}), *others}
        except CheckpointUnreadableError:
            holders = None
        ended = (self._ended_pods.read() or "").split()
        share_mib = share_size(settings.share_size_mib, self._share_size.number(), holders, ended)
        if share_mib != settings.share_size_mib:
            self.configuration.start_with(share_mib)
            self.reload(settings)
        self._share_size.write(str(share_mib))
        started = {"version": __version__, "gpus": settings.gpus, "share": format_mib(share_mib)}
        _log.info("node agent starts", extra=started)

    async def _pause_or_resume(self, paused: bool) -> None:  # noqa: FBT001 - a value that is followed
        if paused:
            await self.hardware.pause()
            _log.warning("paused: GPUs can be reset now; send SIGUSR1 again to resume")
        elif self.hardware.view.value.state is State.PAUSED:
            self.hardware.resume()

    async def _prepare(self) -> None:
        """Bring ledger and device lists up to date before any resource is registered."""
        self._lock.take()
        self._tell_kubelet()
        self._share_size.write(str(self.state.node.shares.share_mib))
        remove_stale_sockets(self.settings.value.device_plugin_dir)
        await self.reconciler.prepare()
        for feature in self.features:
            feature.ledger_complete()
        self.advertiser.refresh()

    def _servicer(self, resource: Resource) -> PluginServicer:
        return PluginServicer(
            resource,
            self._answers,
            self.advertiser.list_of(resource),
            pre_start=self.settings.value.pre_start and not self.plugin.deregistering,
            observe=lambda _resource, rpc, seconds: self.metrics.took(m.RPCS, seconds, rpc),
        )

    def _registration_event(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        if event is RegistrationEvent.REGISTERED:
            self._tell_kubelet()  # it may have started while the plugin was being prepared
            self.reconciler.registered()
            self.plugin.registered.set(self.plugin.registered.value + 1)
        self.reports.registration(event, details)

    def _round_over(self, _round: int) -> None:
        ended = " ".join(sorted(self.records.over))
        if ended or self._ended_pods.read():
            self._ended_pods.write(ended)  # for the next agent, which has not seen them end
        if self.api.published is not None and all(self.registration.registrations.values()):
            self.api.published.announce_ready()

    def _tell_kubelet(self) -> None:
        if self.cluster is not None:
            self.cluster.followed.kubelet_is(self.records.kubelet)

    def _holders_changed(self, _new: object) -> None:
        observed = (self.checkpoint_entries, *self._further_entries)
        self.entries.set(tuple(allocation for entries in observed for allocation in entries.value))
        instances = any(shared.gpu.instance is not None for shared in self.state.node.shares.gpus)
        if self.api.published is not None and instances:
            self.api.published.note()  # who has an instance decides in which list of the node it is

    def _take_config(self, config: NodeConfig) -> None:
        if not config.claims and not self.registration.registrations.keys() >= {each.name for each in config.resources}:
            self.advertiser.refresh()
            self.registration.serve_more()

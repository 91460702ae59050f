"""The node agent: finds GPUs, advertises them to the kubelet, and answers for them."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.http import serving
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.core.contract.annotations import CGPU_DISABLE_LABEL, PLACEMENT_LABEL
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.policy import POLICIES
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import Shares, TooManySharesError, unknown_exclusions
from gpu_device_plugin.core.node.admitting import Why
from gpu_device_plugin.core.node.endings import PodsInApi
from gpu_device_plugin.core.node.grants import Delivery
from gpu_device_plugin.core.node.health import Rules
from gpu_device_plugin.core.node.ledger import Reading
from gpu_device_plugin.core.node.limiting import enforcement
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.hardware.beliefs import State
from gpu_device_plugin.hardware.description import DescriptionError
from gpu_device_plugin.hardware.monitor import Hardware, Timings
from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.kubelet.registration_loop import Plugin, RegistrationEvent, RegistrationLoop
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryError, NodeLock, check_directory, remove_stale_sockets
from gpu_device_plugin.kubelet.statefile import ENDED_PODS, SHARE_SIZE, StateFile
from gpu_device_plugin.node_state import Book
from gpu_device_plugin.programs import frugal
from gpu_device_plugin.programs.node.advertiser import Advertiser
from gpu_device_plugin.programs.node.answers import NobodyWaits, NodeAnswers
from gpu_device_plugin.programs.node.coexistence import ALLOW, Coexistence
from gpu_device_plugin.programs.node.reconciler import Reconciler
from gpu_device_plugin.settings.node import NodeSettings, UsageError, reload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from gpu_device_plugin.aio.http import Page
    from gpu_device_plugin.cluster.api import NodeRecord
    from gpu_device_plugin.cluster.config import ClusterConfig
    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.admitting import Refused
    from gpu_device_plugin.hardware.beliefs import HardwareView, HealthChange, Load, XidSeen
    from gpu_device_plugin.kubelet.checkpoint import Record
    from gpu_device_plugin.programs.node.cluster import NodeCluster

_log = logging.getLogger(__name__)

_IN_USE_MIB = 100
"""A CUDA context takes more than this much memory, an idle GPU less."""
_ANNOUNCE_S = 1.0
"""How long an agent that is told to end tries to say so on its node."""
LEAVE_S = 3.0
"""How long an agent that is told to end waits to learn from the API server whether its node is to be cleaned up."""
_FORGOTTEN_S = 12.0
"""How long it then waits for the kubelet to offer none of it, which writes its node every 10 seconds by default."""
_REMEMBER_S = 2.0
"""How long GPUs that were found wait to be told which position each had before. Registering late costs pods."""
_DRAIN_FIRST = frozenset({"share_size", "domain", "memory_resource", "count_resource"})
"""Settings by which the kubelet knows the devices of running pods."""
_ADVICE: Mapping[Why, str] = MappingProxyType(
    {
        Why.NO_ROOM: "the scheduler sees only the sum of what is free, and no single GPU has room for them; install a "
        "scheduler extender, or ask for less than the emptiest GPU has free",
        Why.TOO_LARGE: "no GPU of this node is as large; ask for less, or choose nodes by the label "
        "gpu-device-plugin/memory-mib",
    }
)


def reach_api(settings: NodeSettings) -> ClusterConfig | None:
    """Return how the agent of these settings reaches the API server, None if it goes without.

    Raises:
        UsageError: what the settings say of it cannot be used.
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
        _log.warning("goes without the Kubernetes API: set NODE_NAME (from the field spec.nodeName)")
        return None
    return config


class NodeAgent:
    """Everything an agent is, wired together. Makes no decision itself."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        dev: Path = Path("/dev"),
        labelled: Callable[[Mapping[str, str]], None] = lambda _labels: None,
    ) -> None:
        """Prepare; nothing is touched before `run`.

        Args:
            settings: what to run with; `reload` changes some.
            dev: where device nodes are.
            labelled: told the labels of our node, again and again.
        """
        self.settings = settings
        self._tell_labels = labelled
        self._shares = Shares(settings.share_size_mib, settings.reserve_mib)
        self.book = Book(Node(self._shares))
        self._metrics: m.Metrics = m.PrometheusMetrics(self.state) if settings.http is not None else m.NoMetrics()
        try:
            self.hardware = Hardware(
                settings.gpus,
                timings=_timings(settings),
                rules=_rules(settings),
                on_change=self._health_changed,
                on_xid=self._xid_seen,
            )
        except DescriptionError as error:
            raise UsageError(str(error)) from error
        self.advertiser = Advertiser(self.book, settings.offered, settings.refusal_limit)
        self._cluster = self._reach_cluster()
        self._answers = NodeAnswers(
            self.book,
            NobodyWaits() if self._cluster is None else self._cluster.waiting,
            self._metrics,
            policy=settings.policy,
            delivery=Delivery(frozenset(settings.devices), settings.cdi_kind),
            dev=dev,
            on_refusal=self._refused,
            on_grant=self._granted,
        )
        resources = frozenset(resource.name for resource in settings.offered)
        self.kubelet_records = KubeletRecords(
            settings.device_plugin_dir,
            settings.pod_resources_socket,
            resources,
            listener=lambda: self.registration.listener,
            in_api=self._pods_in_api,
        )
        self.reconciler = Reconciler(
            self.book,
            self.kubelet_records,
            self._metrics,
            resend=self.advertiser.resend,
            readings=self._readings,
            read_again=self.hardware.read_again,
            learned=self._learned,
            rounded=self._rounded,
            interval_s=settings.reconcile_interval_s,
            process_wait_s=settings.process_wait_s,
        )
        self.registration = RegistrationLoop(
            settings.device_plugin_dir,
            [Plugin(resource, partial(self._servicer, resource)) for resource in settings.offered],
            self._prepare,
            self._registration_event,
        )
        self.coexistence = Coexistence(settings)
        self._lock = NodeLock(settings.device_plugin_dir)
        self._share_size = StateFile(settings.device_plugin_dir, SHARE_SIZE)
        self._ended_pods = StateFile(settings.device_plugin_dir, ENDED_PODS)
        self._paused = Latest(value=False)
        self._equipped = asyncio.Event()
        self._notes: tuple[str, ...] = ()
        """What is to be known of this node beside its GPUs, as sentences."""
        self._placement = ""
        """The policy that our node's label names; empty: it names none."""

    def __repr__(self) -> str:
        return f"<NodeAgent {self.settings.node_name or 'standalone'}: {self.book!r}>"

    async def run(self) -> NoReturn:
        """Serve this node until cancelled.

        Raises:
            UsageError: settings and this node do not go together.
            HardwareContextLost: this container has lost its access to the GPUs.
            DirectoryGoneError: this container sees a device-plugin directory that is no more.
        """
        settings = self.settings
        try:
            check_directory(settings.device_plugin_dir)
            self._lock.take()
        except DirectoryError as error:
            raise UsageError(str(error)) from error
        self._begin_with(self._share_size_in_use() or settings.share_size_mib)
        self._share_size.write(str(self._shares.share_mib))
        _log.info(
            "node agent starts",
            extra={"version": __version__, "gpus": settings.gpus, "share": format_mib(self._shares.share_mib)},
        )
        async with AsyncExitStack() as stack:
            stack.callback(self._lock.release)
            if settings.http is not None:
                frugal.import_aiohttp()
                await stack.enter_async_context(serving(settings.http.host, settings.http.port, self._pages()))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.hardware.run(), name="hardware")
                tasks.create_task(self._follow_hardware(), name="follow the hardware")
                tasks.create_task(self._follow_pause(), name="pause and resume")
                tasks.create_task(self.advertiser.run(), name="advertise")
                tasks.create_task(self.coexistence.run(), name="look for others")
                tasks.create_task(self._serve(), name="serve the kubelet")
                if self._cluster is not None:
                    tasks.create_task(self._cluster.run(), name="Kubernetes API")
        raise AssertionError  # pragma: no cover (the tasks never return)

    def _share_size_in_use(self) -> int | None:
        """Return the share size of the agent before us, in MiB, if containers hold shares of it; the lock is ours.

        They would be another amount of memory to us, and some of it might be given out again.
        """
        before = self._share_size.number()
        names = frozenset(resource.name for resource in self.settings.offered if resource.kind is Kind.MEMORY)
        ended = (self._ended_pods.read() or "").split()
        try:
            by_pod = checkpoint.read(self.settings.device_plugin_dir / checkpoint.NAME).by_pod(names)
            held = not by_pod.keys() <= set(ended)
        except CheckpointUnreadableError:
            held = True  # for all we know
        return before if held else None

    def _begin_with(self, share_mib: int) -> None:
        """Cut GPUs into shares of this size, also where our settings want another one: then that waits."""
        wanted = self.settings
        if share_mib != wanted.share_size_mib:
            self.settings = replace(wanted, share_size_mib=share_mib)
            self._shares = Shares(share_mib, wanted.reserve_mib)
            self.book.equip(self._shares, {}, {})
            self.reload(wanted)

    async def announce_shutdown(self) -> None:
        """Let schedulers know that no pod had better come while there is no agent. Before `run` is cancelled."""
        if self._cluster is not None:
            await self._cluster.announce_shutdown(_ANNOUNCE_S)

    async def leave(self) -> None:
        """Leave the node as its label wants it: cleaned up where it shares its GPUs no more. After `run` has ended."""
        if self._cluster is not None:
            await self._cluster.leave(LEAVE_S, _FORGOTTEN_S)

    def reload(self, wanted: NodeSettings) -> None:
        """Apply what can be applied of other settings, and name what cannot."""
        outcome = reload(self.settings, wanted)
        settings = self.settings = outcome.settings
        self._answers.delivery = replace(
            self._answers.delivery, ways=frozenset(settings.devices), cdi_kind=settings.cdi_kind
        )
        self.reconciler.interval_s = settings.reconcile_interval_s
        self.reconciler.process_wait_s = settings.process_wait_s
        self.advertiser.limit(settings.refusal_limit)
        self.hardware.timings, self.hardware.rules = _timings(settings), _rules(settings)
        self.coexistence.settings = settings
        self.coexistence.look()
        logging.getLogger("gpu_device_plugin").setLevel(settings.log_level.upper())
        self._choose_by()
        _log.info("%s", outcome.sentence, extra=outcome.changes)
        if outcome.waiting:
            _log.warning("these changes need a restart of the agent", extra={"settings": list(outcome.waiting)})
            drain = "drain the node, then " if _DRAIN_FIRST.intersection(outcome.waiting) else ""
            restart = (
                "kubectl -n gpushare delete pod -l app.kubernetes.io/component=node "
                f"--field-selector spec.nodeName={settings.node_name}"
            )
            note = f"The settings {', '.join(outcome.waiting)} wait for a restart of the agent: {drain}{restart}"
            self._event("SettingsWait", note, "Reload")

    def keep_settings(self, why: str) -> None:
        """Say that other settings cannot be used, and that all stay as they are."""
        _log.error("the configuration stays as it was", extra={"why": why})
        self._event("SettingsRefused", f"The settings of the agent stay as they were: {why}", "Reload")

    def toggle_pause(self) -> None:
        """Let go of the GPUs so that they can be reset, or take them up again."""
        self._paused.set(not self._paused.value)

    # --- What happens ---------------------------------------------------------------------------------------------

    async def _follow_hardware(self) -> None:
        told: tuple[object, ...] = ()
        restarts, remembered = 0, False
        async for view in self.hardware.view.values():
            if view.state is not State.STARTING and (view.state, view.sentence) != told:
                told = (view.state, view.sentence)
                usual = view.state in {State.WATCHING, State.PAUSED}
                _log.log(logging.INFO if usual else logging.WARNING, "%s", view.sentence)
            for _ in range(restarts, view.child_restarts):
                self._metrics.count(m.CHILD_RESTARTS, str(view.state))
            restarts = view.child_restarts
            if view.inventory.gpus and not remembered:
                remembered = True
                if self._cluster is not None:
                    self.hardware.restore_order(await self._cluster.gpus_before(_REMEMBER_S))
            self._equip(self.hardware.view.value)

    async def _follow_pause(self) -> None:
        async for paused in self._paused.values():
            if paused:
                await self.hardware.pause()
                _log.warning("paused: GPUs can be reset now; SIGUSR1 once more takes them up again")
            elif self.hardware.view.value.state is State.PAUSED:
                self.hardware.resume()

    def _equip(self, view: HardwareView) -> None:
        before = self._shares
        try:
            self._shares = before.with_inventory(view.inventory, self.settings.exclude_gpus)
        except TooManySharesError as error:
            if not before.gpus:
                raise UsageError(str(error)) from error
            _log.error("new GPUs are left out", extra={"why": str(error), "once_per_s": 600})
        self._answers.delivery = replace(self._answers.delivery, cgroup=view.inventory.cgroup)
        for gpu, reason in self._shares.left_out:
            if (gpu, reason) not in before.left_out:
                _log.warning("GPU %s is not shared: %s", gpu.index, reason, extra={"uuid": gpu.uuid})
        for shared in self._shares.gpus[len(before.gpus) :]:
            _log.info(
                "GPU %s is shared",
                shared.position,
                extra={"uuid": shared.gpu.uuid, "model": shared.gpu.product, "shares": len(shared.shares)},
            )
        self._take_note(view.inventory)
        unhealthy = {uuid: "; ".join(belief.reasons) for uuid, belief in view.beliefs.items() if not belief.healthy}
        unhealthy |= {
            gpu.uuid: "it is in MIG mode now, whose instances are not shared yet"
            for gpu in view.inventory.gpus
            if gpu.mig and gpu.uuid not in unhealthy
        }
        self.book.equip(self._shares, unhealthy, self._shares.closeness(view.inventory.links))
        if self._shares.gpus:
            self._equipped.set()
        self._show()

    def _take_note(self, inventory: Inventory) -> None:
        """Log what is to be known of this node beside its GPUs, once, and keep it for the page of readiness."""
        gpus = [shared.gpu for shared in self._shares.gpus]
        notes = {
            f"memory limits: {enforcement(gpus, inventory.cgroup)}" if gpus else "": logging.INFO,
            unknown_exclusions(self.settings.exclude_gpus, inventory): logging.WARNING,
            self._shares.why_none: logging.WARNING,
        }
        before, self._notes = self._notes, tuple(filter(None, notes))
        for note in self._notes:
            if note not in before:
                _log.log(notes[note], "%s", note)

    async def _serve(self) -> None:
        """Serve the kubelet while there is something to offer and nobody else offers it."""
        await self._equipped.wait()
        self.coexistence.look()  # before the first registration, whichever task ran first
        serving: asyncio.Task[NoReturn] | None = None
        refused = False
        async with asyncio.TaskGroup() as tasks:
            async for others in self.coexistence.others.values():
                for other in others:
                    _log.error("GPUs are not shared: %s; %s", other, ALLOW)
                    self._event("OtherDevicePlugin", f"GPUs of this node are not shared: {other}; {ALLOW}.", "Refuse")
                if others and serving is not None:
                    serving.cancel()
                    await asyncio.wait({serving})
                    serving = None
                elif not others and serving is None:
                    if refused:
                        _log.info("GPUs are shared: nobody else hands them out any more")
                    serving = tasks.create_task(self._serve_kubelet(), name="offer and reconcile")
                refused = bool(others)
                self._show()

    async def _serve_kubelet(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.registration.run(), name="plugins")
            tasks.create_task(self.reconciler.run(), name="reconcile")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def _prepare(self) -> None:
        self._lock.take()
        self._share_size.write(str(self._shares.share_mib))
        remove_stale_sockets(self.settings.device_plugin_dir)
        await self.reconciler.prepare()
        self.advertiser.refresh()

    def _servicer(self, resource: Resource) -> PluginServicer:
        return PluginServicer(
            resource,
            self._answers,
            self.advertiser.lists[resource.kind],
            pre_start=self.settings.pre_start,
            observe=lambda _resource, rpc, seconds: self._metrics.took(m.RPCS, seconds, rpc),
        )

    def _readings(self) -> Mapping[str, Reading]:
        """Return for each GPU how many processes it shows; one that only its memory betrays counts too.

        NVML names only processes of the caller's PID namespace, and an agent has one of its own.
        """
        load = self.hardware.load.value
        return {uuid: Reading(_at_work(load, uuid), load.began) for uuid in load.processes}

    def _granted(self) -> None:
        self.reconciler.granted()

    def _refused(self, kind: Kind, amount: int, refused: Refused) -> None:
        extra = {"kind": kind.value, "amount": amount, "why": refused.sentence, "once_per_s": 60}
        _log.warning("refused", extra=extra)
        if kind is Kind.MEMORY and refused.why in _ADVICE and self.advertiser.refused(amount):
            asked, advice = format_mib(amount * self._shares.share_mib), _ADVICE[refused.why]
            _log.warning("pods of %s are refused again and again: %s", asked, advice)
            self._event("GPUMemoryFragmented", f"Pods of {asked} are refused again and again: {advice}.", "Refuse")

    def _health_changed(self, change: HealthChange) -> None:
        self._metrics.count(m.HEALTH_CHANGES, "healthy" if change.healthy else "unhealthy", change.cause)
        level = logging.INFO if change.healthy else logging.ERROR
        name = self._name_of(change.uuid)
        _log.log(level, "%s is %s", name, change.reason, extra={"uuid": change.uuid})
        reason = "GPUHealthy" if change.healthy else "GPUUnhealthy"
        self._event(reason, f"{name} ({change.uuid}) is {change.reason}", "Observe")

    def _xid_seen(self, seen: XidSeen) -> None:
        self._metrics.count(m.XIDS, seen.uuid, str(seen.code))
        name, what = self._name_of(seen.uuid), f"XID {seen.code}: {seen.xid.meaning}"
        _log.warning("%s: %s", name, what, extra={"uuid": seen.uuid, "once_per_s": 60})
        self._event("GPUError", f"{name} ({seen.uuid}) reported {what}", "Observe")

    def _name_of(self, uuid: str) -> str:
        shared = self._shares.by_uuid(uuid)
        return "a GPU" if shared is None else f"GPU {shared.position}"

    def _learned(self, records: Iterable[Record]) -> None:
        if self._cluster is not None:
            self._cluster.learn(records)

    def _pods_in_api(self) -> PodsInApi | None:
        return PodsInApi() if self._cluster is None else self._cluster.pods_in_api()

    def _rounded(self) -> None:
        ended = " ".join(sorted(self.kubelet_records.over))
        if ended or self._ended_pods.read():
            self._ended_pods.write(ended)
        if self._cluster is not None and all(self.registration.registrations.values()):
            self._cluster.arrived()

    def _registration_event(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        if event is RegistrationEvent.REGISTERED:
            self.reconciler.registered()
        if event in (RegistrationEvent.REGISTERED, RegistrationEvent.NOT_REGISTERED):
            outcome = "registered" if event is RegistrationEvent.REGISTERED else "failed"
            self._metrics.count(m.REGISTRATIONS, str(details["resource"]), outcome)
        level = logging.INFO if event is RegistrationEvent.REGISTERED else logging.WARNING
        _log.log(level, "%s", event, extra=details)

    # --- The Kubernetes API, where there is one -------------------------------------------------------------------

    def _reach_cluster(self) -> NodeCluster | None:
        config = reach_api(self.settings)
        if config is None:
            return None
        from gpu_device_plugin.programs.node.cluster import NodeCluster  # noqa: PLC0415 - see reach_api

        return NodeCluster(
            config,
            self.settings,
            self.book,
            self._metrics,
            pods_changed=lambda: self.reconciler.changed(),  # noqa: PLW0108 - there is no reconciler yet
            looked=self._looked_at_node,
        )

    def _looked_at_node(self, node: NodeRecord) -> None:
        self.coexistence.offered(node.allocatable)
        self._labelled(node.labels)
        self._tell_labels(node.labels)

    def _labelled(self, labels: Mapping[str, str]) -> None:
        """Do as the labels of our node say."""
        delivery = self._answers.delivery
        self._answers.delivery = replace(delivery, cgpu_disable=labels.get(CGPU_DISABLE_LABEL) == "true")
        placement = labels.get(PLACEMENT_LABEL, "")
        if placement and placement not in POLICIES:
            extra = {"value": placement, "known": sorted(POLICIES), "once_per_s": 3600}
            _log.warning("the node label %s names no policy, and is ignored", PLACEMENT_LABEL, extra=extra)
        self._placement = placement if placement in POLICIES else ""
        self._choose_by()

    def _choose_by(self) -> None:
        """Choose GPUs by the policy in force: the node's label goes before our own setting."""
        policy = self._placement or self.settings.policy
        if policy != self._answers.policy:
            _log.info("GPUs are chosen by another policy now", extra={"policy": policy})
            self._answers.policy = policy
        self._show()

    def _show(self) -> None:
        view = self.hardware.view.value
        if self._cluster is not None and view.state is not State.STARTING:
            withheld = "; ".join(other.found for other in self.coexistence.others.value)
            self._cluster.show(view.inventory, self._answers.policy, self._why_nothing(), withheld)

    def _why_nothing(self) -> str:
        """Return why no GPU is shared, where none is."""
        view = self.hardware.view.value
        return (view.state is State.WATCHING and self._shares.why_none) or view.sentence

    def _event(self, reason: str, note: str, action: str) -> None:
        if self._cluster is not None:
            self._cluster.event(reason, note, action, warning=reason != "GPUHealthy")

    # --- Probes and metrics ---------------------------------------------------------------------------------------

    def _pages(self) -> Mapping[str, Callable[[], Awaitable[Page]]]:
        pages = {"/healthz": m.probe(self._alive), "/readyz": m.probe(self._ready, lambda: self._notes)}
        return pages | ({"/metrics": self._metrics.page} if isinstance(self._metrics, m.PrometheusMetrics) else {})

    async def _alive(self) -> tuple[str, ...]:
        serving = self._equipped.is_set() and not self.coexistence.others.value
        if not serving or await self.registration.answer_ourselves():
            return ()
        return ("our own sockets do not answer",)

    async def _ready(self) -> tuple[str, ...]:
        view = self.hardware.view.value
        if not self._equipped.is_set():
            return (self._why_nothing(),)
        unread = () if self.book.node.ledger.certain else ("the kubelet's checkpoint cannot be read; see the log",)
        missing = () if view.state is State.WATCHING else (view.sentence,)
        return (*missing, *self.coexistence.unmet(), *unread, *self.registration.unmet())

    def state(self) -> m.State:
        """Return the node as metrics show it."""
        node = self.book.node
        fenced = {offer.shared.gpu.uuid: len(offer.fenced) for offer in self.advertiser.offers(Kind.MEMORY)}
        return m.State(
            gpus=tuple(
                m.GpuState(
                    uuid=shared.gpu.uuid,
                    healthy=shared.gpu.uuid not in node.unhealthy,
                    shares=len(shared.shares),
                    allocated=len(shared.shares) if node.use(shared).whole else len(node.use(shared).shares),
                    unhealthy=len(shared.shares) if shared.gpu.uuid in node.unhealthy else 0,
                    fenced=fenced.get(shared.gpu.uuid, 0),
                )
                for shared in node.shares.gpus
            ),
            streams=tuple(
                m.StreamState(resource=name, up=up, without_s=without)
                for name, (up, without) in self.registration.outages().items()
            ),
        )


def _at_work(load: Load, uuid: str) -> int | None:
    processes, used_mib = load.processes[uuid], load.used_mib[uuid]
    return None if processes is used_mib is None else (processes or 0) + ((used_mib or 0) >= _IN_USE_MIB)


def _timings(settings: NodeSettings) -> Timings:
    return Timings(
        probe_every_s=settings.probe_interval_s,
        answer_within_s=settings.nvml_timeout_s,
        blind_after_s=settings.blind_after_s,
    )


def _rules(settings: NodeSettings) -> Rules:
    return Rules(
        ignored_xids=frozenset(settings.ignored_xids),
        fatal_xids=frozenset(settings.fatal_xids),
        remap_pending_is_fatal=settings.row_remap_pending == "unhealthy",
    )

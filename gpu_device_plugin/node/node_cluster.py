"""The node agent's side of the Kubernetes API: follow its pods, annotate them, and publish its GPUs on the node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, within
from gpu_device_plugin.cluster.client.answers import translated
from gpu_device_plugin.cluster.client.api_client import Client
from gpu_device_plugin.cluster.client.backoff import Backoff
from gpu_device_plugin.cluster.client.errors import ApiError, Call, ForbiddenError
from gpu_device_plugin.cluster.node_pods import NodePods
from gpu_device_plugin.cluster.objects.decoding import NAMESPACES, PodReader, read_metadata
from gpu_device_plugin.cluster.writers.events import EventSubject, EventWriter, about_node
from gpu_device_plugin.cluster.writers.evictions import evict
from gpu_device_plugin.cluster.writers.own_node import NodeCondition, NodeMetadata, OwnNode
from gpu_device_plugin.cluster.writers.pod_writer import PodWriter
from gpu_device_plugin.model.contract.keys import (
    AGENT_LABELS,
    ASSUME_TIME,
    INSTANCES,
    NODE_GPUS,
    NODE_LIMITS,
    NODE_USE,
    READ_BY_AGENT,
    SWITCH_LABEL,
    SWITCHED_ON,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.contract.nodegpus import node_gpus, write_node_gpus
from gpu_device_plugin.model.contract.nodelabels import node_labels, our_annotations, our_labels, switched_on
from gpu_device_plugin.model.contract.nodereport import write_node_limits
from gpu_device_plugin.model.contract.promises import assignment, write_instances
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import TooManySharesError
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.rules.ended_pods import pods_in_api
from gpu_device_plugin.node.rules.holdings import assigned_shares
from gpu_device_plugin.node.rules.positions import listed_before
from gpu_device_plugin.node.waiting_pods import WaitingPods

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import NoReturn

    from gpu_device_plugin.cluster.client.config import ClusterConfig
    from gpu_device_plugin.cluster.writers.evictions import Eviction
    from gpu_device_plugin.model.contract.cordons import Cordon
    from gpu_device_plugin.model.gpus import Gpu
    from gpu_device_plugin.model.holds import DeviceHold
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.node.node_api import Happening
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.ended_pods import PodsInApi
    from gpu_device_plugin.node.rules.node_config import NodeConfig
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between two checks whether a node that is cleaned up still shows our resources."""


class NodeCluster(NodeApi):
    """Follows this node's pods, annotates them with their GPUs, and publishes on the node what schedulers need."""

    has_access = True

    def __init__(
        self,
        server: ClusterConfig,
        settings: NodeSettings,
        config: Observable[NodeConfig],
        state: NodeState,
        metrics: m.Metrics,
    ) -> None:
        """Prepare to publish `config` through `server`; nothing is sent before `run`."""
        super().__init__()
        self.happenings.subscribe(self._post)
        self._settings = settings
        self._config = config
        self._state = state
        self.client = Client(
            server, on_error=lambda error: metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)
        )
        """Open while `run` runs."""
        names = [resource.name for resource in settings.offered]
        reader = PodReader(names, READ_BY_AGENT.__contains__, ids=True, claims=True, mig=True, owners=True)
        self.followed = NodePods(self.client, reader, settings.node_name)
        """The pods bound to our node."""
        self.waiting = WaitingPods(self.followed, settings.offered, metrics, state)
        self._writer = PodWriter(self.client, node=settings.node_name, refused=self._refused)
        self._events = EventWriter(self.client, instance=settings.node_name)
        self._self = OwnNode(self.client, settings.node_name)
        self.cleanup = Cleanup(self.client, self._self, settings.names)
        self.condition = NodeCondition(
            self.client,
            settings.node_name,
            forbidden=lambda why: self.event("NodeConditionForbidden", why, "Observe"),
        )
        """The condition GPUHealthy of our node."""
        self.evict_within_s = 15.0
        """Seconds for the answer to an eviction."""
        self.look_s = 60.0
        """Seconds between two readings of our node, for changed labels and for notes that another client removed."""
        self.linger_s = 1.0
        """Seconds that an agent stays after it announced its shutdown: pods that are being bound still arrive."""
        self.users: Observable[frozenset[str]] = Observable(frozenset())
        """UIDs of the pods that request devices and have not ended."""
        self._ready = False
        """The kubelet listens to us, and the free shares are known."""
        self._ending = False
        """The agent is about to end. A pod that arrives while no agent runs fails."""
        self._outdated: Mapping[str, None] = {}
        """Labels that an earlier agent may have left. Those of removed GPU models would otherwise stay for ever."""
        self._before: tuple[Gpu, ...] = ()
        """The GPUs that our node's annotation listed when we first read it."""
        self._looked = asyncio.Event()
        self._instances: dict[str, dict[str, frozenset[str]]] | None = None
        """The whole MIG instances of each container, by the UID of its pod, by the kubelet's checkpoint; None: not read
        yet."""
        self._requested: dict[str, Mapping[str, str | None]] = {}
        """The annotations last requested for each pod, by UID, until the pod shows them."""
        self._notes: Observable[NodeMetadata] = Observable(NodeMetadata())
        self._use: Mapping[str, str] = {}
        """The annotation about the use of the GPUs; empty: not known yet, what an earlier agent wrote stays."""

    async def run(self) -> NoReturn:
        """Follow and publish until cancelled; owns the connections."""
        async with self.client:
            await together(
                self.followed.reflector.run(),
                self._writer.run(),
                self._events.run(),
                self._publish(),
                self._config.follow(self._show),
                self.condition.run(),
                self._look_at_node(),
                self.followed.changes.follow(self._pods_changed),
            )

    async def announce_shutdown(self, within_s: float = 1.0) -> None:
        """Publish on the node that its agent is about to end, so that no scheduler sends a pod. While `run` still runs.

        Returns after `linger_s` seconds, in which pods that are being bound arrive (without an agent they would fail),
        or after `within_s` seconds without an answer of the API server.
        """
        self._ending = True
        self.note()
        if NODE_GPUS not in self._notes.value.annotations:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._self.publish(self._notes.value)
            await asyncio.sleep(self.linger_s)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.info("the agent's shutdown could not be announced on its node: %s", why)

    def _post(self, happening: Happening) -> None:
        """Post an Event of what happened."""
        pod = happening.pod
        about = (
            about_node(self._settings.node_name)
            if pod is None
            else EventSubject("Pod", pod.name, pod.namespace, pod.uid)
        )
        if happening.reason:
            self._events.post(
                about,
                reason=happening.reason,
                note=happening.note,
                action=happening.action,
                warning=happening.warning,
            )

    @property
    def pods(self) -> Mapping[str, Pod]:  # noqa: D102
        return self.followed.pods

    @property
    def current(self) -> bool:  # noqa: D102
        return self.followed.reflector.synced and self.followed.reflector.live

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:  # noqa: D102
        self._writer.annotate(pod, annotations)

    async def cordon(self, uuid: str, cordon: Cordon) -> bool:  # noqa: D102
        try:
            self.node.set(await self._self.cordon(uuid, cordon))
        except (ApiError, MalformedAnnotationError) as error:
            _log.warning("GPU %s cannot be put aside: %s", uuid, error, extra={"once_per_s": 600})
            return False
        return True

    async def namespace_labels(self, namespace: str) -> Mapping[str, str] | str | None:  # noqa: D102
        try:
            with translated(Call("get", NAMESPACES.plural, name=namespace)):
                found = read_metadata(await self.client.get(NAMESPACES, namespace))
        except ForbiddenError as error:
            return f"the labels of namespace {namespace} cannot be read: {error}"
        except ApiError as error:
            _log.warning("the labels of a namespace cannot be read: %s", error, extra={"once_per_s": 600})
            return None
        return found.labels or {}

    async def evict(self, pod: Pod, most_grace_s: int) -> Eviction:
        """Ask for the eviction of a pod, once; it has no more than `most_grace_s` seconds to end."""
        return await evict(self.client, pod, most_grace_s=most_grace_s, timeout_s=self.evict_within_s)

    def _refused(self, pod: Pod, error: ApiError) -> None:
        note = (
            f"the annotations with the GPUs of pod {pod.namespace}/{pod.name} could not be written, and are retried: "
            f"{error}. Until they are written, schedulers may count the pod on every GPU of this node"
        )
        self.event("PodNotAnnotated", note, "Annotating")

    async def gpus_before(self, within_s: float) -> tuple[Gpu, ...]:
        """Return the GPUs that our node listed before we started, by position; none if it cannot be read in time."""
        if not await within(within_s, self._looked.wait()):
            _log.warning("the positions of the GPUs may differ from before: our node could not be read yet")
        return self._before

    def show_use(self, text: str) -> None:
        """Publish on the node who uses what, as the value of its annotation."""
        self._use = {NODE_USE: text}
        self.note()

    def announce_ready(self) -> None:
        """Publish that the node accepts pods: its kubelet listens to us, and we know which shares are free.

        Until then the node lists its GPUs, and that no agent serves them yet: a share that a scheduler promises before
        may be recorded for a container that ended while no agent ran.
        """
        if not self._ready:
            self._ready = True
            self.note()

    def learn(self, holds: Sequence[DeviceHold]) -> None:
        """Take over from the kubelet's checkpoint which container has which devices, and settle the promises by it."""
        self.waiting.learn(holds)
        self._instances = {}
        for hold in holds:
            if hold.kind is Kind.INSTANCE:
                held = self._instances.setdefault(hold.pod_uid, {})
                held[hold.container] = held.get(hold.container, frozenset()) | hold.device_ids
        self._settle()

    def living(self) -> Mapping[str, str] | None:  # noqa: D102
        if not self.followed.reflector.synced:
            return None
        return {pod.kubelet_uid: f"{pod.namespace}/{pod.name}" for pod in self.followed.pods.values() if not pod.ended}

    def pods_in_api(self) -> PodsInApi | None:
        """Return the pods of our node in the API, see `node.rules.ended_pods.pods_in_api`."""
        node = self.node.value
        return pods_in_api(self.followed.pods.values(), "" if node is None else node.kubelet_version)

    def _settle(self) -> None:
        """Annotate every pod that has all its devices with their GPUs."""
        pods = self.followed.pods
        self._requested = {uid: requested for uid, requested in self._requested.items() if uid in pods}
        node, served, resources = self._state.node, self.waiting.recorded, self._settings.offered
        sizes = [len(shared.shares) for shared in node.shares.gpus]
        for pod in pods.values():
            requested = self._requested.pop(pod.uid, {})
            if pod.ended:
                continue
            changes: dict[str, str | None] = {**self._instances_changed(pod)}
            if actual := assigned_shares(pod, served, node, resources):
                now_ns = int(requested.get(ASSUME_TIME) or time.time_ns())
                changes |= assignment(pod, actual, resources, sizes, now_ns)
            if changes:
                self._requested[pod.uid] = changes
                if changes != requested:
                    self._writer.annotate(pod, changes)

    def _instances_changed(self, pod: Pod) -> Mapping[str, str | None]:
        """Return the annotation with the whole MIG instances of a pod, if it says something else; None removes it.

        The pod's owner may have written it, where no policy forbids that.
        """
        if self._instances is None:
            return {}
        held = self._instances.get(pod.kubelet_uid)
        text = None if held is None else write_instances(held)
        return {} if text == pod.annotations.get(INSTANCES) else {INSTANCES: text}

    def _pods_changed(self, pods: Mapping[str, Pod]) -> None:
        users = frozenset(uid for uid, pod in pods.items() if pod.containers and not pod.ended)
        self.users.change(users)
        self._settle()

    async def _publish(self) -> NoReturn:
        await self._notes.after(0)  # nothing is published before the GPUs are known
        await self._self.keep(self._notes)

    def _show(self, config: NodeConfig) -> None:
        node = self.node.value
        ours = self.condition.wanted.version or (node is not None and node.gpu_condition)
        if config.facts.started and (config.condition is not None or ours):  # this agent wrote it, or an earlier one
            self.condition.want(config.condition)
        self.note()

    def note(self) -> None:
        """Publish on the node its GPUs and how they are given to pods, as they are now."""
        config = self._config.value
        if not (config.facts.started and config.labelled):
            return  # an annotation about GPUs that the driver does not show now must not be lost
        node = self._state.node
        shares, unhealthy = node.shares, {uuid: block.everyone for uuid, block in node.blocks.items() if block.everyone}
        if not shares.any_listed:
            with contextlib.suppress(TooManySharesError):
                shares = shares.with_inventory(
                    Inventory(self._before, order=self._before),
                    self._settings.exclude_gpus,
                    mig=config.shares.mig,
                )
            unhealthy = {shared.gpu.uuid: config.why_none for shared in shares.gpus}
        if config.why_not_offered:
            unhealthy = {shared.gpu.uuid: config.why_not_offered for shared in shares.gpus}
        offered = node.shares.any_listed and not config.why_not_offered
        away = self._ending or (offered and not self._ready)
        uses = {shared.gpu.uuid: node.use(shared) for shared in shares.gpus}
        gpus = node_gpus(
            shares,
            config.facts.inventory,
            unhealthy,
            config.policy,
            away=away,
            claims=config.claims,
            mig_domain=self._settings.domain_of_mig,
            held_shares={uuid for uuid, use in uses.items() if use.shares},
            held_whole={uuid for uuid, use in uses.items() if use.whole},
            cordoned={uuid for uuid, block in node.blocks.items() if block.new_pods},
        )
        notes = NodeMetadata(
            labels={**self._outdated, **node_labels(shares, config.facts.inventory, config.policy, config.limits)},
            annotations={
                NODE_GPUS: write_node_gpus(gpus),
                NODE_LIMITS: write_node_limits(config.limits) if config.limits.gpus else None,
                **self._use,
            },
        )
        self._notes.change(notes)

    async def _look_at_node(self) -> NoReturn:
        backoff = Backoff(1.0)
        while True:
            try:
                node = await self._self.read()
            except ApiError as error:
                _log.warning("our node cannot be read: %s", error, extra={"once_per_s": 600})
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
                continue
            backoff.reset()
            self.cleanup.saw(node.labels)
            self._outdated = dict.fromkeys((*AGENT_LABELS, *our_labels(node.labels)))
            if not self._looked.is_set():
                self._before = listed_before(node.annotations.get(NODE_GPUS, ""))
                self._looked.set()
            elif self._notes.value.missing(node):
                self._notes.set(self._notes.value)  # the node was recreated, or another client removed them
            self.node.set(node)
            self._show(self._config.value)  # the configuration may have nothing new to say of the node
            await asyncio.sleep(self.look_s)


@dataclass(eq=False)
class Cleanup:
    """Cleans up after the last agent of a node.

    A rollout stops an agent in the same way, but leaves the label: then nothing is removed. Nor is anything from a node
    that never had the label: another rule, which we do not know, selects it.
    """

    _client: Client
    """It is opened for that, and closed again."""
    _self: OwnNode
    _resources: Container[str] = ()
    """The kubelet has to drop these first: without our annotations, schedulers take a node that shows one of them for a
    node of another device plugin."""

    def __post_init__(self) -> None:
        self._switched_on = False

    def saw(self, labels: Mapping[str, str]) -> None:
        """Record the labels of our node."""
        self._switched_on = self._switched_on or switched_on(labels)

    async def run(self, within_s: float = 3.0, forgotten_within_s: float = 12.0) -> None:
        """Clean up if the node had the label and has lost it. To be called after the agent has ended.

        Each call to the API server may take `within_s`, and the kubelet `forgotten_within_s` to drop our resources: it
        updates the status of its node every 10 seconds by default.
        """
        if not self._switched_on:
            return
        try:
            async with self._client:
                forgotten_by = time.monotonic() + forgotten_within_s
                while True:
                    async with asyncio.timeout(within_s):
                        node = await self._self.read()
                    if switched_on(node.labels):
                        return
                    offered = any(amount and name in self._resources for name, amount in node.allocatable.items())
                    if not offered or time.monotonic() >= forgotten_by:
                        break
                    await asyncio.sleep(min(_LOOK_S, forgotten_within_s))
                ours = dict.fromkeys(our_labels(node.labels)), dict.fromkeys(our_annotations(node.annotations))
                async with asyncio.timeout(within_s):
                    if await self._self.put(NodeMetadata(*ours), node):
                        sentence = "the node lost the label %s=%s: our labels and annotations are removed"
                        _log.info(sentence, SWITCH_LABEL, SWITCHED_ON)
                if node.gpu_condition:
                    async with asyncio.timeout(within_s):
                        await NodeCondition(self._client, self._self.name).put(None)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.warning("the node could not be cleaned up; our labels and annotations may still be on it: %s", why)

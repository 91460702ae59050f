"""The Kubernetes API of a node agent: follows the node and its pods, and writes to both of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.aio.worker import Backoff, Worker
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, PodReader, read_metadata
from gpu_device_plugin.kubernetes.writers.events import EventSubject, EventWriter, about_node
from gpu_device_plugin.kubernetes.writers.evictions import evict
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.kubernetes.writers.pod_writer import PodWriter
from gpu_device_plugin.model.contract.keys import ASSUME_TIME, READ_BY_AGENT, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import assignment
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_publisher import Cleanup, NodePublisher
from gpu_device_plugin.node.rules.ended_pods import pods_in_api
from gpu_device_plugin.node.rules.node import assigned_shares
from gpu_device_plugin.node.waiting_pods import WaitingPods

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_device_plugin.kubernetes.client.config import ClusterConfig
    from gpu_device_plugin.kubernetes.writers.evictions import Eviction
    from gpu_device_plugin.model.allocations import Allocation
    from gpu_device_plugin.model.contract.cordons import Cordon
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.node.node_api import Happening
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.ended_pods import PodsInApi
    from gpu_device_plugin.node.rules.node_config import NodeConfig
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


class NodeCluster(NodeApi):
    """The API of an agent that has access to it, over one client."""

    def __init__(
        self,
        server: ClusterConfig,
        settings: NodeSettings,
        config: Observable[NodeConfig],
        state: NodeState,
        metrics: m.Metrics,
        *,
        dev: Path,
    ) -> None:
        """Prepare to publish `config` through `server`; nothing is sent before `run`."""
        super().__init__()
        self.happenings.listeners.append(self._post)
        self._settings = settings
        self.client = Client(
            server, on_error=lambda error: metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)
        )
        """Open while `run` runs."""
        names = [resource.name for resource in settings.offered]
        reader = PodReader(names, READ_BY_AGENT.__contains__, ids=True, claims=True, mig=True, owners=True)
        self.followed = NodePods(self.client, reader, settings.node_name)
        self.pod_changes = self.followed.changes
        self.waiting: WaitingPods = WaitingPods(self.followed, settings.offered, metrics, state)
        self._writer = PodWriter(self.client, node=settings.node_name, refused=self._refused)
        self._events = EventWriter(self.client, instance=settings.node_name)
        self._self = OwnNode(self.client, settings.node_name)
        self.cleanup = Cleanup(self.client, self._self, settings.names)
        self.published: NodePublisher = NodePublisher(
            self._self, settings, config, state, lambda why: self.event("NodeConditionForbidden", why, "Observe"), dev
        )
        self.users: Observable[frozenset[str]] = Observable(frozenset())
        """UIDs of the pods that request devices and have not ended."""
        self._state = state
        self._requested: dict[str, Mapping[str, str | None]] = {}
        """The annotations last requested for each pod, by UID, until the pod shows them."""
        self.evict_within_s = 15.0
        """Seconds for the answer to an eviction."""
        self.look_s = 60.0
        """Seconds between two readings of our node, for changed labels and for notes that another client removed."""
        self._look_again = Backoff(1.0)

    async def run(self) -> NoReturn:
        """Follow and publish until cancelled; owns the connections."""
        async with self.client:
            await together(
                self.followed.reflector.run(),
                self._writer.run(),
                self._events.run(),
                self.published.run(),
                Worker(self._look_at_node).run(),
                self.followed.changes.follow(self._pods_changed),
            )

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
    def current(self) -> bool:  # noqa: D102
        return self.followed.reflector.synced and self.followed.reflector.live

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:  # noqa: D102
        self._writer.annotate(pod, annotations)

    async def cordon(self, uuid: str, cordon: Cordon) -> bool:
        """Put a GPU of our node aside, unless it is; return whether it is now."""
        try:
            self.node.set(await self._self.change_cordons(lambda now: {uuid: cordon, **now}))
        except (ApiError, MalformedAnnotationError) as error:
            _log.warning("GPU %s cannot be cordoned: %s", uuid, error, extra={"once_per_s": 600})
            return False
        return True

    async def namespace_labels(self, namespace: str) -> Mapping[str, str] | str | None:  # noqa: D102
        try:
            found = (await self.client.get(NAMESPACES, namespace)).read(read_metadata)
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
            f"the annotations with the GPUs of pod {pod} could not be written, and are retried: "
            f"{error}. Until they are written, schedulers may count the pod on every GPU of this node"
        )
        self.event("PodNotAnnotated", note, "Annotating")

    def learn(self, allocations: Sequence[Allocation]) -> None:
        """Take over from the kubelet's checkpoint which container has which devices, and settle the promises by it."""
        self.waiting.learn(allocations)
        self._settle_promises()

    def living(self) -> Mapping[str, str] | None:  # noqa: D102
        if not self.followed.reflector.synced:
            return None
        return {pod.kubelet_uid: str(pod) for pod in self.followed.pods.values() if not pod.ended}

    def pods_in_api(self) -> PodsInApi | None:  # noqa: D102
        node = self.node.value
        return pods_in_api(self.followed.pods.values(), "" if node is None else node.kubelet_version)

    def _pods_changed(self, pods: Mapping[str, Pod]) -> None:
        users = frozenset(uid for uid, pod in pods.items() if pod.containers and not pod.ended)
        self.users.change(users)
        self._settle_promises()

    def _settle_promises(self) -> None:
        """Annotate every pod with its actual GPUs once all its containers have them."""
        pods, node, resources = self.followed.pods, self._state.node, self._settings.offered
        self._requested = {uid: requested for uid, requested in self._requested.items() if uid in pods}
        sizes = [len(shared.shares) for shared in node.shares.gpus]
        for pod in pods.values():
            requested = self._requested.pop(pod.uid, {})
            if pod.ended:
                continue
            actual = assigned_shares(pod, self.waiting.recorded, node, resources)
            now_ns = int(requested.get(ASSUME_TIME) or time.time_ns())
            if actual and (changes := assignment(pod, actual, resources, sizes, now_ns)):
                self._requested[pod.uid] = changes
                if changes != requested:
                    self._writer.annotate(pod, changes)

    async def _look_at_node(self) -> float:
        try:
            node = await self._self.read()
        except ApiError as error:
            _log.warning("our node cannot be read: %s", error, extra={"once_per_s": 600})
            return self._look_again.next_s(error.retry_after_s)
        self._look_again.reset()
        self.cleanup.saw(node.labels)
        self.published.take(node)
        self.node.set(node)
        return self.look_s

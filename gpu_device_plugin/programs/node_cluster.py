"""What the node agent has to do with the Kubernetes API; without one, none of it exists."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import PodReader
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.client import Client
from gpu_device_plugin.cluster.config import SERVICE_ACCOUNT, ClusterConfig, from_kubeconfig, in_cluster
from gpu_device_plugin.cluster.errors import ApiError
from gpu_device_plugin.cluster.events import EventWriter, about_node
from gpu_device_plugin.cluster.mirror import PodMirror
from gpu_device_plugin.cluster.node import NodeNotes, NodeSelf
from gpu_device_plugin.cluster.podwriter import PodWriter
from gpu_device_plugin.core.annotations import (
    CGPU_DISABLE_LABEL,
    NODE_GPUS,
    NODE_LABELS,
    POD_ANNOTATIONS,
    STATIC_POD,
    assignment,
    node_gpus,
    node_labels,
)
from gpu_device_plugin.core.preferring import spread_over
from gpu_device_plugin.programs.waiting import WaitingPods, kubelet_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.book import Book
    from gpu_device_plugin.core.gpus import Inventory
    from gpu_device_plugin.core.pods import Pod
    from gpu_device_plugin.core.resources import Kind
    from gpu_device_plugin.kubelet.checkpoint import Record
    from gpu_device_plugin.settings import NodeSettings

_log = logging.getLogger(__name__)

_LOOK_S = 60.0
"""How often we look at our node, for the label that turns cGPU's isolation off and for labels that nobody keeps."""
_MODELS = f"{NODE_LABELS}product."
"""Labels that name a model. Those of models that are gone would otherwise stay for ever."""


def config_for(api: str) -> ClusterConfig | None:
    """Return how to reach the API server, None to go without.

    Raises:
        ClusterConfigError: what was asked for cannot be read.
    """
    match api:
        case "off":
            return None
        case "auto":
            mounted = (SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ
            return in_cluster(os.environ) if mounted else None
        case "in-cluster":
            return in_cluster(os.environ)
        case _ if api.startswith(("http://", "https://")):
            return ClusterConfig(url=api)
        case _:
            return from_kubeconfig(Path(api))


class NodeCluster:
    """Follows this node's pods, writes what became of them, and says on the node what a scheduler needs to know."""

    def __init__(
        self,
        config: ClusterConfig,
        settings: NodeSettings,
        book: Book,
        metrics: m.Metrics,
        *,
        pods_changed: Callable[[], None],
        cgpu_disable: Callable[[bool], None],
    ) -> None:
        """Prepare; nothing is sent before `run`.

        Args:
            config: how to reach the API server.
            settings: for node name, resources and policy.
            book: the node.
            metrics: where to count.
            pods_changed: told when a pod that had asked for devices went or ended.
            cgpu_disable: told what the node's label says about cGPU's isolation.
        """
        self._settings = settings
        self._book = book
        self._metrics = metrics
        self._pods_changed = pods_changed
        self._cgpu_disable = cgpu_disable
        self._client = Client(config, on_error=self._count_error)
        keep = POD_ANNOTATIONS | {STATIC_POD}
        reader = PodReader((resource.name for resource in settings.offered), keep.__contains__)
        self._mirror = PodMirror(self._client, reader, node=settings.node_name)
        self.waiting = WaitingPods(self._mirror, settings.offered, metrics)
        self._writer = PodWriter(self._client)
        self._events = EventWriter(self._client, instance=settings.node_name)
        self._self = NodeSelf(self._client, settings.node_name)
        self._shown = NodeNotes()
        self._forgotten: Mapping[str, None] = {}
        self._notes: Latest[NodeNotes] = Latest(NodeNotes())

    def __repr__(self) -> str:
        return f"<NodeCluster of {self._settings.node_name}: {self._mirror!r}>"

    def _count_error(self, error: ApiError) -> None:
        self._metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)

    async def run(self) -> NoReturn:
        """Do all of it until cancelled; owns the connections."""
        async with self._client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mirror.run(), name="follow pods")
            tasks.create_task(self._writer.run(), name="annotate pods")
            tasks.create_task(self._events.run(), name="write events")
            tasks.create_task(self._publish(), name="publish the GPUs")
            tasks.create_task(self._look_at_node(), name="read the node's labels")
            tasks.create_task(self._follow_pods(), name="settle promises")
        raise AssertionError  # pragma: no cover (the tasks never return)

    def event(self, reason: str, note: str, action: str, *, warning: bool) -> None:
        """Have an Event written on our node."""
        self._events.post(
            about_node(self._settings.node_name), reason=reason, note=note, action=action, warning=warning
        )

    def show(self, inventory: Inventory, policy: str) -> None:
        """Have the node say what GPUs it has."""
        node = self._book.node
        self._shown = NodeNotes(
            labels=dict(node_labels(node.shares, inventory, policy)),
            annotations={NODE_GPUS: node_gpus(node.shares, inventory, node.unhealthy, policy)},
        )
        self._note()

    def learn(self, records: Iterable[Record]) -> None:
        """Take over what the kubelet's checkpoint says of who has what, and settle the promises by it."""
        self.waiting.learn(records)
        self._settle()

    def _settle(self) -> None:
        """Write on every pod that has all its devices that it has them, and which."""
        for pod in self._mirror.pods.values():
            if pod.ended or not pod.annotations:
                continue
            actual = self._actual(pod)
            if actual and (changes := assignment(pod, actual, self._settings.offered)):
                self._writer.annotate(pod, changes)

    def _actual(self, pod: Pod) -> Mapping[tuple[str, Kind], Mapping[int, int]] | None:
        """Return on which GPUs a pod's containers are, by the kubelet's books; None unless all of them have theirs."""
        actual = {}
        for container in pod.containers:
            for resource in self._settings.offered:
                if container.limits.get(resource.name, 0) > 0:
                    ids = self.waiting.records.get((kubelet_uid(pod), container.name, resource.kind))
                    if ids is None:
                        return None
                    actual[container.name, resource.kind] = spread_over(self._book.node, ids)
        return actual

    async def _follow_pods(self) -> NoReturn:
        users: frozenset[str] = frozenset()
        async for pods in self._mirror.changes.values():
            before, users = users, frozenset(uid for uid, pod in pods.items() if pod.containers and not pod.ended)
            if before - users:
                self._pods_changed()
            self._settle()
        raise AssertionError  # pragma: no cover (changes never end)

    async def _publish(self) -> NoReturn:
        await self._notes.after(0)  # nothing is said before the GPUs are known
        await self._self.keep(self._notes)

    def _note(self) -> None:
        notes = NodeNotes({**self._forgotten, **self._shown.labels}, self._shown.annotations)
        if self._shown.annotations and notes != self._notes.value:
            self._notes.set(notes)

    async def _look_at_node(self) -> NoReturn:
        backoff = Backoff(1.0)
        while True:
            try:
                node = await self._self.read()
            except ApiError as error:
                _log.warning("the labels of our node are not known: %s", error, extra={"once_per_s": 600})
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
                continue
            backoff.reset()
            self._cgpu_disable(node.labels.get(CGPU_DISABLE_LABEL) == "true")
            self._forgotten = dict.fromkeys(label for label in node.labels if label.startswith(_MODELS))
            self._note()
            await asyncio.sleep(_LOOK_S)

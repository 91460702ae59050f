"""Keep the cluster's state equal to the pods and nodes that the API server shows, and let features follow them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, PodReader
from gpu_device_plugin.kubernetes.store import Store
from gpu_device_plugin.model.contract.keys import NODE_USE, READ_ON_NODES, READ_ON_PODS, STAND_IN
from gpu_device_plugin.model.contract.node_use import brief_use
from gpu_device_plugin.model.gpus import Links
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod

if TYPE_CHECKING:
    import msgspec


_log = logging.getLogger(__name__)

_MOST_COUNTED = 10_000
"""Of a list only the latest pods are counted as coming: older ones would teach no more, and take seconds."""
_MOST_LINKS = 200
"""The most GPU topologies that are cached; the cache is cleared when it is full."""


@dataclass(eq=False)
class ClusterFollower:
    """Applies watched pods and nodes to the fleet, then tells the features, all of which are made already.

    `nodes` and `pods` are the stores of reflectors, which read objects with `read_node` and `read_pod`: these change
    nothing, as a list shows what the watch has overtaken meanwhile, and may fail before its last page.

    Pods are seen bound once each. A pod that waits costs its owner nothing, and may never find room: it teaches
    nothing.
    """

    _context: ControllerContext

    def __post_init__(self) -> None:
        names = [resource.name for resource in self._context.resources]
        self._pod_reader = PodReader(names, READ_ON_PODS.__contains__, sums=True, owners=True)
        keys = [feature.keys_of_nodes() for feature in self._context.features]
        kept = READ_ON_NODES.union(*filter(None, keys))
        self._node_reader = NodeReader(names, (lambda _key: True) if None in keys else kept.__contains__)
        self._names: Mapping[Kind, str] = {resource.kind: resource.name for resource in self._context.resources}
        self._nodes: dict[str, str] = {}
        """By name, the UIDs of the nodes that there are."""
        self._links: dict[str, Links] = {}
        self.pods: Store[Pod | OtherPod] = Store(self.replace_pods, self.put_pod, self.remove_pod)
        self.nodes: Store[NodeRecord] = Store(self.replace_nodes, self.put_node, self.remove_node)

    # --- Objects of the API -------------------------------------------------------------------------------------------

    def read_node(self, raw: msgspec.Raw) -> NodeRecord:
        """Read a node from its JSON. Of its long annotation `NODE_USE` no more is left than `used_mib` reads.

        Raises:
            UnreadableObjectError: it is none.
        """
        node = self._node_reader.read(raw)
        text = node.annotations.get(NODE_USE)
        return node if text is None else replace(node, annotations={**node.annotations, NODE_USE: brief_use(text)})

    def read_pod(self, raw: msgspec.Raw) -> Pod | OtherPod | None:
        """Read a pod from its JSON; None for one that takes nothing of a node.

        Raises:
            UnreadableObjectError: it is none.
        """
        pod, ignored = self._pod_reader.read_either(raw)
        if ignored:
            whole, _ = self._pod_reader.read(raw)
            _log.warning("ignoring invalid limits of a pod", extra={"pod": str(whole), "why": ignored[0]})
        if isinstance(pod, Pod):
            for read in self._context.features.at(SchedulerFeature.read_pod):
                pod = read(pod, raw)
        return pod

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod | OtherPod) -> None:
        """Add or update a pod."""
        if self._comes(pod):
            self._bound(pod)
        if isinstance(pod, OtherPod):
            self._context.fleet.put_other(pod)
            return
        self._context.fleet.put_pod(pod, self._context.clock())
        self._context.features.each(SchedulerFeature.put_pod, pod)

    def remove_pod(self, pod: Pod | OtherPod) -> None:
        """Remove a pod, given its last state."""
        if isinstance(pod, OtherPod):
            self._context.fleet.remove_other(pod)
            return
        self._context.fleet.remove_pod(pod, self._context.clock())
        self._context.features.each(SchedulerFeature.remove_pod, pod.uid)

    def replace_pods(self, pods: Sequence[Pod | OtherPod]) -> None:
        """Replace all pods."""
        # The mix of pods forgets by the time between them, so they come in their order.
        for each in sorted(filter(self._comes, pods), key=lambda pod: pod.created)[-_MOST_COUNTED:]:
            self._bound(each)
        there = {pod.uid: pod for pod in pods if isinstance(pod, Pod)}
        self._context.fleet.replace_pods(tuple(there.values()), self._context.clock())
        self._context.features.each(SchedulerFeature.kept_pods, there)
        self._context.fleet.replace_others(each for each in pods if isinstance(each, OtherPod))

    def _comes(self, pod: Pod | OtherPod) -> bool:
        """Return whether a pod is seen bound for the first time, and says something of what comes."""
        if pod.ended:
            return False
        if isinstance(pod, OtherPod):
            # A pod that had no choice of its node says nothing of what comes to other nodes.
            return not pod.bound_to_node and self._context.fleet.gains_other(pod)
        entry = self._context.fleet.entries.get(pod.uid)
        return bool(pod.node_name) and not pod.deleting and (entry is None or not entry.seen)

    def _bound(self, pod: Pod | OtherPod) -> None:
        self._context.features.each(SchedulerFeature.bound, pod)

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> None:
        """Add or update a node."""
        self._nodes[node.name] = node.uid
        memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        if len(self._links) > _MOST_LINKS:
            self._links.clear()
        gpus = gpus_of_node(node.annotations, node.labels, memory, count, self._links)
        averse = any(taint.effect == "PreferNoSchedule" for taint in node.taints)
        self._context.fleet.put_node(node.name, gpus, node.cpu_and_memory, averse=averse)
        self._context.features.each(SchedulerFeature.put_node, node)

    def remove_node(self, node: NodeRecord) -> None:
        """Forget a node."""
        self._forget(node.name)

    def replace_nodes(self, nodes: Sequence[NodeRecord]) -> None:
        """Replace all nodes."""
        there = {node.name: node.uid for node in nodes}
        for name in [name for name, uid in self._nodes.items() if there.get(name) != uid]:
            self._forget(name)
        for node in nodes:
            self.put_node(node)

    def _forget(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._context.fleet.remove_node(name)
        self._context.features.each(SchedulerFeature.remove_node, name)


def is_stand_in(pod: Pod) -> bool:
    """Return whether a pod only stands for wanted room: one that asks for GPUs, or is bound, counts like any other."""
    return STAND_IN in pod.labels and not (pod.containers or pod.node_name)

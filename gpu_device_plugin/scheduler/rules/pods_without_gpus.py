"""The requests of the pods without GPUs, added up by node: they take CPU and memory that pods with GPUs need too."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts


@dataclass(frozen=True, slots=True)
class OtherPod:
    """A pod that asks for no GPU, reduced to what its node must spare for it."""

    uid: str
    resource_version: str
    node_name: str
    """Empty: it has no node yet, and takes nothing."""
    amounts: Amounts = NO_AMOUNTS
    ended: bool = False
    bound_to_node: bool = False
    """It could not have gone to another node: a DaemonSet made it for this one, or the kubelet did."""
    created: str = ""
    """RFC 3339, in UTC."""


@dataclass(slots=True)
class OtherPods:
    """Adds up requests. Holds a few dozen bytes for each pod, of which a cluster may have hundreds of thousands."""

    _nodes: dict[str, dict[str, Amounts]] = field(default_factory=dict)
    """By node and by uid."""
    _sums: dict[str, Amounts] = field(default_factory=dict)

    def put(self, pod: OtherPod) -> bool:
        """Add or update a pod; return whether the sum of its node has changed. A pod never changes its node."""
        if pod.ended or not pod.node_name:
            return self.remove(pod)
        there = self._nodes.setdefault(pod.node_name, {})
        before = there.get(pod.uid, NO_AMOUNTS)
        there[pod.uid] = pod.amounts
        return self._add(pod.node_name, pod.amounts, before)

    def remove(self, pod: OtherPod) -> bool:
        """Remove a pod, given its last state; return whether the sum of its node has changed."""
        there = self._nodes.get(pod.node_name, {})
        before = there.pop(pod.uid, NO_AMOUNTS)
        if not there:
            self._nodes.pop(pod.node_name, None)
        return self._add(pod.node_name, NO_AMOUNTS, before)

    def replace(self, pods: Iterable[OtherPod]) -> Collection[str]:
        """Hold exactly these pods; return the nodes whose sums have changed."""
        before = self._sums
        self._nodes, self._sums = {}, {}
        for pod in pods:
            self.put(pod)
        return {node for node in {*before, *self._sums} if before.get(node) != self._sums.get(node)}

    def counts(self, pod: OtherPod) -> bool:
        """Return whether a pod counts on its node already."""
        return pod.uid in self._nodes.get(pod.node_name, {})

    def on(self, node: str) -> Amounts:
        """Return the sum of the requests on a node."""
        return self._sums.get(node, NO_AMOUNTS)

    def _add(self, node: str, amounts: Amounts, before: Amounts) -> bool:
        if amounts == before:
            return False
        now = self.on(node)
        self._sums[node] = Amounts(
            now.cpu_milli + amounts.cpu_milli - before.cpu_milli,
            now.memory_mib + amounts.memory_mib - before.memory_mib,
        )
        if self._sums[node] == NO_AMOUNTS:
            del self._sums[node]
        return True

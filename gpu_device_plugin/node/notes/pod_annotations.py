"""Annotate the pods of our node with the GPUs that their containers have."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import ASSUME_TIME, INSTANCES
from gpu_device_plugin.model.contract.promises import assignment, write_instances
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.holdings import assigned_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.model.holds import DeviceHold
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.waiting_pods import WaitingPods


@dataclass(eq=False, repr=False)
class PodAnnotations:
    """Settles the promises on pods: each is annotated with its actual GPUs once all its containers have them."""

    _pods: Callable[[], Mapping[str, Pod]]
    """Returns the pods of our node, by UID."""
    _waiting: WaitingPods
    """Knows which containers have devices."""
    _state: NodeState
    _resources: Sequence[Resource]
    _annotate: Callable[[Pod, Mapping[str, str | None]], None]
    """Writes annotations on a pod in the background."""

    def __post_init__(self) -> None:
        self._instances: dict[str, dict[str, frozenset[str]]] | None = None
        """The whole MIG instances of each container, by the UID of its pod, by the kubelet's checkpoint; None: not read
        yet."""
        self._requested: dict[str, Mapping[str, str | None]] = {}
        """The annotations last requested for each pod, by UID, until the pod shows them."""

    def learn(self, holds: Sequence[DeviceHold]) -> None:
        """Take over from the kubelet's checkpoint which container has which devices, and annotate the pods by it."""
        self._instances = {}
        for hold in holds:
            if hold.kind is Kind.INSTANCE:
                held = self._instances.setdefault(hold.pod_uid, {})
                held[hold.container] = held.get(hold.container, frozenset()) | hold.device_ids
        self.settle()

    def settle(self) -> None:
        """Annotate every pod that has all its devices with their GPUs."""
        pods = self._pods()
        self._requested = {uid: requested for uid, requested in self._requested.items() if uid in pods}
        node, served, resources = self._state.node, self._waiting.recorded, self._resources
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
                    self._annotate(pod, changes)

    def _instances_changed(self, pod: Pod) -> Mapping[str, str | None]:
        """Return the annotation with the whole MIG instances of a pod, if it says something else; None removes it.

        The pod's owner may have written it, where no policy forbids that.
        """
        if self._instances is None:
            return {}
        held = self._instances.get(pod.kubelet_uid)
        text = None if held is None else write_instances(held)
        return {} if text == pod.annotations.get(INSTANCES) else {INSTANCES: text}

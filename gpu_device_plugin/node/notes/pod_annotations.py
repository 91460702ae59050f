"""Annotate the pods of our node with the GPUs that their containers have."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import ASSUME_TIME
from gpu_device_plugin.model.contract.promises import assignment
from gpu_device_plugin.node.rules.assignments import assigned_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        self._requested: dict[str, Mapping[str, str | None]] = {}
        """The annotations last requested for each pod, by UID, until the pod shows them."""

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
            actual = assigned_shares(pod, served, node, resources)
            now_ns = int(requested.get(ASSUME_TIME) or time.time_ns())
            if actual and (changes := assignment(pod, actual, resources, sizes, now_ns)):
                self._requested[pod.uid] = changes
                if changes != requested:
                    self._annotate(pod, changes)

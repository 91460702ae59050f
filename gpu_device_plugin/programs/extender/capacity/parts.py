"""The parts of an extender with which all of its care for the capacity works."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.capacity.movable import Residents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.binder import Binder
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.fleet import Fleet
    from gpu_device_plugin.metrics import Metrics
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.extender.capacity.followed import Followed
    from gpu_device_plugin.programs.extender.capacity.holds import Holds


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an extender that all care for the capacity needs."""

    fleet: Fleet
    followed: Followed
    holds: Holds
    client: Client
    resources: Sequence[Resource]
    metrics: Metrics
    binder: Binder
    use_read_at: Mapping[str, float]
    """By node, when its agent last read the use of its GPUs, in seconds since the epoch."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""
    wall: Callable[[], float] = time.time
    """Returns seconds since the epoch."""

    def sharing(self) -> dict[str, Candidate]:
        """Return the nodes whose GPUs pods share by limits, as they are now: those that pods may be moved between."""
        return {
            name: node
            for name, node in self.fleet.candidates.items()
            if node.rooms and not node.gpus.claims and name in self.followed.nodes
        }

    def residents(self, nodes: Iterable[str]) -> Residents:
        """Return what makes residents of pods, of which those that may be moved may go to these nodes."""
        # The eviction itself asks PodDisruptionBudgets.
        return Residents([self.followed.nodes[name] for name in nodes], self.resources, {})

"""The parts of an extender with which all of its care for the capacity works."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.binder import Binder
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.fleet import Fleet
    from gpu_device_plugin.metrics import Metrics
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

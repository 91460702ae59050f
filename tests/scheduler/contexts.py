"""What a part of an extender knows, as far as a test needs it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.scheduler.binding import Binding
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.controller_context import ControllerContext, ExtenderTimings
from gpu_device_plugin.scheduler.followed_objects import CapacityCache
from gpu_device_plugin.settings.extender import ExtenderSettings
from tests.resources import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gpu_device_plugin.kubernetes.writers.binder import PodRef
    from gpu_device_plugin.model.resources import Resource

BINPACK = ExtenderSettings(gpu_policy="binpack", node_policy="binpack", grow="auto", bind_timeout_s=60.0)


def context(
    fleet: Any = None,
    *,
    client: Any = None,
    binder: Any = None,
    metrics: Metrics | None = None,
    resources: Sequence[Resource] = RESOURCES,
    settings: Callable[[], ExtenderSettings] = lambda: BINPACK,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    **timings: Any,
) -> ControllerContext:
    """Return a context with what is given; doubles need only be what the part under test asks of them."""
    return ControllerContext(
        Fleet(resources, vanished_grace_s=30) if fleet is None else fleet,
        client,
        binder,
        resources,
        metrics or Metrics(),
        settings,
        replace(ExtenderTimings(nominate_s=0.0), **timings),
        clock,
        wall,
    )


def binding_in(parts: ControllerContext, current: Callable[[], Awaitable[None]]) -> Binding:
    """Return what binds pods where nothing is learned, no node is kept, and no room is held."""

    async def before_bind(_node: str, _pod: PodRef) -> str:
        return ""

    return Binding(
        parts, CapacityCache(parts), current=current, ranks=lambda _node, _amounts: None, before_bind=before_bind
    )

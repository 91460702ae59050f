"""What a part of an extender knows, as far as a test needs it."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.scheduler.binding import Binding
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.controller_context import ControllerContext, ExtenderTimings
from gpu_device_plugin.settings.sources import Sources
from tests.resources import RESOURCES

BINPACK: Any = Sources(
    EXTENDER_SETTINGS, {"gpu_policy": "binpack", "node_policy": "binpack", "grow": "auto", "bind_timeout": "60s"}, {}
).read()


def context(
    fleet: Any = None,
    *,
    client: Any = None,
    binder: Any = None,
    metrics: Metrics | None = None,
    resources: Sequence[Resource] = RESOURCES,
    settings: Callable[[], Any] = lambda: BINPACK,
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
    return Binding(parts, current)

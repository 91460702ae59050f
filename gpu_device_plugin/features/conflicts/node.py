"""Share this node's GPUs only while no other device plugin or DRA driver hands them out; checked every minute."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.conflicts.rules import DRIVER_SOCKETS, PLUGIN_SOCKETS, Detection, sightings
from gpu_device_plugin.kubelet.sockets import listened_to

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

ALLOW = "if each hands out other GPUs, allow it with --allow-other-plugins"


@dataclass(eq=False, repr=False)
class ConflictingPlugins:
    """Looks for other device plugins and DRA drivers that hand out GPUs; `others` are those found last."""

    _settings: Observable[NodeSettings]
    _api: NodeApi
    _given: Callable[[], Collection[str]] = frozenset
    """Returns the resources by which other plugins have given containers GPUs."""

    def __post_init__(self) -> None:
        self.look_s = 60.0
        """Seconds between two looks."""
        self._seen_at = -math.inf
        self.others: Observable[tuple[Detection, ...]] = Observable(())

    def look(self) -> None:
        """Look at once, without waiting; sets `others` if the result differs from the last one.

        A plugin that was found counts as present until it was not seen for `look_s` seconds: it may be restarting.
        """
        settings, node, now = self._settings.value, self._api.node.value, time.monotonic()
        found: tuple[Detection, ...] = ()
        if not settings.allow_other_plugins:
            found = sightings(
                listened_to(settings.device_plugin_dir, PLUGIN_SOCKETS),
                listened_to(settings.plugins_registry, DRIVER_SOCKETS),
                {} if node is None else node.allocatable,
                settings.names,
                self._given(),
            )
        if found:
            self._seen_at = now
        elif now - self._seen_at < self.look_s and not settings.allow_other_plugins:
            return
        self.others.change(found)

    def alone(self) -> bool:
        """Look at once, and return whether no other program hands out GPUs of this node."""
        self.look()
        return not self.others.value

    def report(self) -> None:
        """Tell of each that its GPUs are why ours are not shared."""
        for other in self.others.value:
            sentence = f"GPUs of this node are not shared: {other}; {ALLOW}"
            self._api.announce(_log, "OtherDevicePlugin", sentence, "Refuse", logging.ERROR)

    def unmet(self) -> tuple[str, ...]:
        """Return a sentence for each other plugin, for readiness."""
        return tuple(f"{sighting}; {ALLOW}" for sighting in self.others.value)

    async def run(self) -> NoReturn:
        """Look every `look_s` seconds. Ends only by cancellation."""
        while True:
            self.look()
            await asyncio.sleep(self.look_s)

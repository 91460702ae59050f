"""Whether this node's GPUs are ours alone to hand out, looked at now and then."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.core.node.others import DRIVER_SOCKETS, PLUGIN_SOCKETS, Sighting, sightings
from gpu_device_plugin.kubelet.listening import listened_to

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from gpu_device_plugin.settings.node import NodeSettings

ALLOW = "if each hands out other GPUs, allow it with --allow-other-plugins"


class Coexistence:
    """Looks for others that hand out GPUs; `others` is who was found last."""

    def __init__(self, settings: NodeSettings) -> None:
        """Look where `settings` say that the kubelet is. `settings` may be replaced."""
        self.settings = settings
        self.look_s = 60.0
        """Seconds between two looks."""
        self._allocatable: Mapping[str, int] = {}
        self._seen_at = -math.inf
        self.others: Latest[tuple[Sighting, ...]] = Latest(())

    def __repr__(self) -> str:
        return f"<Coexistence with {[sighting.other.name for sighting in self.others.value]}>"

    def offered(self, allocatable: Mapping[str, int]) -> None:
        """Take note of what the node offers, by the API, and look."""
        self._allocatable = allocatable
        self.look()

    def look(self) -> None:
        """Look at once; sets `others` where that finds something else than before. Nothing is waited for.

        Who was there is believed gone when nothing of it was seen for `look_s`: it may only be restarting.
        """
        settings, now = self.settings, time.monotonic()
        found = () if settings.allow_other_plugins else self._found(settings)
        if found:
            self._seen_at = now
        elif now - self._seen_at < self.look_s and not settings.allow_other_plugins:
            return
        if found != self.others.value:
            self.others.set(found)

    def unmet(self) -> tuple[str, ...]:
        """Return for readiness a sentence for each of the others."""
        return tuple(f"{sighting}; {ALLOW}" for sighting in self.others.value)

    async def run(self) -> NoReturn:
        """Look every `look_s` seconds, for ever."""
        while True:
            self.look()
            await asyncio.sleep(self.look_s)

    def _found(self, settings: NodeSettings) -> tuple[Sighting, ...]:
        return sightings(
            listened_to(settings.device_plugin_dir, PLUGIN_SOCKETS),
            listened_to(settings.plugins_registry, DRIVER_SOCKETS),
            self._allocatable,
            {resource.name for resource in settings.offered},
        )

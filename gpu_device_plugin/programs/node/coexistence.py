"""Share this node's GPUs only while no other device plugin or DRA driver hands them out; checked every minute."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.core.node.others import DRIVER_SOCKETS, PLUGIN_SOCKETS, Sighting, sightings
from gpu_device_plugin.kubelet.sockets import listened_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
    from gpu_device_plugin.programs.node.reconciler import Reconciler
    from gpu_device_plugin.programs.node.reports import Reports
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

ALLOW = "if each hands out other GPUs, allow it with --allow-other-plugins"


class Coexistence:
    """Looks for other device plugins and DRA drivers that hand out GPUs; `others` are those found last."""

    def __init__(self, settings: NodeSettings) -> None:
        """Look in the kubelet's directories that `settings` name. `settings` may be replaced."""
        self.settings = settings
        self.look_s = 60.0
        """Seconds between two looks."""
        self._allocatable: Mapping[str, int] = {}
        self._seen_at = -math.inf
        self.others: Latest[tuple[Sighting, ...]] = Latest(())

    def __repr__(self) -> str:
        return f"<Coexistence with {[sighting.other.name for sighting in self.others.value]}>"

    def offered(self, allocatable: Mapping[str, int]) -> None:
        """Record the node's allocatable resources, as read from the API, and look."""
        self._allocatable = allocatable
        self.look()

    def look(self) -> None:
        """Look at once, without waiting; sets `others` if the result differs from the last one.

        A plugin that was found counts as present until it was not seen for `look_s` seconds: it may be restarting.
        """
        settings, now = self.settings, time.monotonic()
        found: tuple[Sighting, ...] = ()
        if not settings.allow_other_plugins:
            found = sightings(
                listened_to(settings.device_plugin_dir, PLUGIN_SOCKETS),
                listened_to(settings.plugins_registry, DRIVER_SOCKETS),
                self._allocatable,
                settings.names,
            )
        if found:
            self._seen_at = now
        elif now - self._seen_at < self.look_s and not settings.allow_other_plugins:
            return
        if found != self.others.value:
            self.others.set(found)

    def unmet(self) -> tuple[str, ...]:
        """Return a sentence for each other plugin, for readiness."""
        return tuple(f"{sighting}; {ALLOW}" for sighting in self.others.value)

    async def run(self) -> NoReturn:
        """Look every `look_s` seconds. Ends only by cancellation."""
        while True:
            self.look()
            await asyncio.sleep(self.look_s)


async def serve_while_alone(
    registration: RegistrationLoop, reconciler: Reconciler, coexistence: Coexistence, reports: Reports
) -> None:
    """Keep resources registered and the ledger reconciled while there is no other plugin; report others. Never ends."""
    coexistence.look()  # before the first registration, whichever task runs first
    serving: asyncio.Task[NoReturn] | None = None
    refused = False
    async with asyncio.TaskGroup() as tasks:
        async for others in coexistence.others.values():
            reports.not_alone(others)
            if others and serving is not None:
                serving.cancel()
                await asyncio.wait({serving})
                serving = None
            elif not others and serving is None:
                if refused:
                    _log.info("GPUs are shared again: no other plugin hands them out")
                serving = tasks.create_task(_serve(registration, reconciler), name="offer and reconcile")
            refused = bool(others)


async def _serve(registration: RegistrationLoop, reconciler: Reconciler) -> NoReturn:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(registration.run(), name="plugins")
        tasks.create_task(reconciler.run(), name="reconcile")
    raise AssertionError  # pragma: no cover (the tasks never return)

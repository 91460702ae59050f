"""Share this node's GPUs only while no other device plugin or DRA driver offers them; checked every minute."""

from __future__ import annotations

import math
import time

from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.conflicts import ConflictSettings
from gpu_device_plugin.features.conflicts.rules import DRIVER_SOCKETS, PLUGIN_SOCKETS, sightings
from gpu_device_plugin.kubelet.sockets import listened_to
from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.serving import OtherPlugin

ALLOW = "if each hands out other GPUs, allow it with --allow-other-plugins"


class ConflictingPlugins(NodeFeature):
    """Looks for other device plugins and DRA drivers that hand out GPUs."""

    def __init__(self, node: NodeContext) -> None:
        """Look at `node`; nothing is opened before `tasks` run."""
        self._settings, self._api, self._entries = node.settings, node.api, node.checkpoint_entries
        self._others, self._hardware = node.other_plugins.others, node.hardware
        self.look_s = 60.0
        """Seconds between two looks."""
        self._seen_at = -math.inf
        node.other_plugins.look = self.detect

    def tasks(self) -> Tasks:  # noqa: D102
        return [Worker(self._look).run(self._entries)]

    def detect(self) -> None:
        """Look at once, without waiting, and publish the result if it differs from the last one.

        A plugin that was found counts as present until it was not seen for `look_s` seconds: it may be restarting.
        """
        settings, node, now = self._settings.value, self._api.node.value, time.monotonic()
        allowed = settings.of(ConflictSettings).allow_other_plugins
        found: tuple[OtherPlugin, ...] = ()
        if not allowed:
            detections = sightings(
                listened_to(settings.device_plugin_dir, PLUGIN_SOCKETS),
                listened_to(settings.plugins_registry, DRIVER_SOCKETS),
                {} if node is None else node.allocatable,
                settings.names,
                {allocation.through for allocation in self._entries.value if allocation.gpus is not None},
                # Until the GPUs are listed: a plugin of graphics that are not shared would be a false alarm.
                drivers={gpu.driver for gpu in self._hardware.view.value.inventory.gpus} or {NVIDIA},
            )
            found = tuple(OtherPlugin(one.finding, f"{one}; {ALLOW}") for one in detections)
        if found:
            self._seen_at = now
        elif now - self._seen_at < self.look_s and not allowed:
            return
        self._others.change(found)

    def _look(self) -> float:
        self.detect()
        return self.look_s

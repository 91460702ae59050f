"""Evicts pods: those that other features name, and those on failed GPUs where that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext


class Evictions(NodeFeature):
    """The evictor, which other features order evictions from, and the failures of GPUs."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to evict pods of `node`, which has the API."""
        # 1 MiB that an agent without API access does not pay: other features name this class.
        from gpu_device_plugin.features.eviction.evictor import Evictor, GpuFailures  # noqa: PLC0415

        self.evictor = Evictor(node.reached_cluster, node.metrics, node.settings, alone=node.other_plugins.alone)
        holders = node.features.of(Use).watch.holders
        self.failures = GpuFailures(node.hardware.view, node.state, node.settings, holders, self.evictor)

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.evictor.run(), self.failures.run()]

"""Evicts pods: those that other features name, and those on failed GPUs where that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.use import Use
from gpu_device_plugin.programs.node.use.evictor import Evictor, GpuFailures

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class Evictions(NodeFeature):
    """The evictor, which other features order evictions from, and the failures of GPUs."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to evict pods of `node`, which has the API."""
        self.evictor = Evictor(node.reached_cluster, node.metrics, node.settings, alone=node.alone)
        holdings = node.of(Use).watch.holdings
        self.failures = GpuFailures(node.hardware.view, node.state, node.settings, holdings, self.evictor)

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.evictor.run(), self.failures.run()]

"""Tells of containers that use more GPU memory than they may, and has their pods evicted where that is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.eviction import Evictions
from gpu_device_plugin.programs.node.features.use import Use
from gpu_device_plugin.programs.node.use.use_watches import OverUse

if TYPE_CHECKING:
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class OverUseOfMemory(NodeFeature):
    """Follows the readings of use."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to follow the use of `node`."""
        evictions = node.get(Evictions)
        self.over_use = OverUse(node.state, node.settings, node.api, None if evictions is None else evictions.evictor)
        self._use = node.of(Use)
        self._use.reports.over = self.over_use.excesses

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._use.watch.reading.follow(self.over_use.act_on)]

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, containers_over=len(self.over_use.excesses.value))

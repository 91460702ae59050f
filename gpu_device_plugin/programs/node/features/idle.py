"""Tells of pods that leave their GPUs idle; the scheduler extender acts on that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.use import Use
from gpu_device_plugin.programs.node.use.use_watches import IdlePods

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class Idle(NodeFeature):
    """Follows the readings of use."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to follow the use of `node`."""
        self.pods = IdlePods(node.settings, node.api)
        self._use = node.of(Use)
        self._use.reports.idle = self.pods.since

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._use.watch.reading.follow(self.pods.act_on)]

"""Puts GPUs aside that have shown a fault for long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.auto_cordon import AutoCordon
from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.history import PastHour

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class AutomaticCordons(NodeFeature):
    """Follows the conditions of the GPUs."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`, which has the API."""
        self.cordons = AutoCordon(node.of(PastHour).history.conditions, node.settings, node.config, node.api)

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.cordons.run()]

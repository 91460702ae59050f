"""Audit records of who had which GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.audit_log import AuditLog
from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.eviction import Evictions
from gpu_device_plugin.programs.node.features.use import Use
from gpu_device_plugin.programs.node.happenings import Happening

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class Audit(NodeFeature):
    """Follows what containers hold."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        evictions = node.get(Evictions)
        self.log = AuditLog(
            node.settings.value,
            node.config,
            node.state,
            node.of(Use).watch,
            node.cluster,
            None if evictions is None else evictions.evictor,
            lambda text: node.api.happenings.tell(Happening("", text)),
        )

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.log.run()]

"""Memory limits by NVIDIA's MPS, whose daemons a supervisor on the node runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.features.use import Use
from gpu_device_plugin.programs.node.limits.mps_link import MpsLink

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gpu_device_plugin.core.node.kubelet.admission import Refused
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.programs.node.extension import Contribution, GrantRequest, StartRequest, Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext


class Mps(NodeFeature):
    """Takes part in grants (containers are clients of a daemon), in starts, and in the node's configuration."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to meet the supervisor of `node`."""
        self.link = MpsLink(node.settings.value.mps_dir, node.state, node.entries, node.reports.mps_changed)
        if (use := node.get(Use)) is not None:
            use.watch.mps_servers = self.link.server_pids

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:  # noqa: D102
        return self.link.granting(request)

    async def before_start(self, start: StartRequest) -> Refused | None:  # noqa: D102
        return await self.link.before_start(start)

    def ledger_complete(self) -> None:  # noqa: D102
        self.link.ledger_complete()

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.link.run()]

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, mps=self.link.ready)

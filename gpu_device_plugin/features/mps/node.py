"""Memory limits by NVIDIA's MPS, whose daemons a supervisor on the node runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.features.limits.node import Limits
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.node.extension import StartRequest, Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.rules.admission import Refusal

from gpu_device_plugin.features.mps.mps_link import MpsLink
from gpu_device_plugin.features.mps.settings import MpsSettings

_log = logging.getLogger(__name__)


class Mps(NodeFeature):
    """Is a means of limiting (containers are clients of a daemon), and takes part in starts."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to meet the supervisor of `node`."""
        self._api, self._name_of = node.api, node.reports.name_of
        self.link = MpsLink(
            node.settings.value.of(MpsSettings).mps_dir,
            node.state,
            node.entries,
            self._changed,
            limits_compute=lambda: node.settings.value.of(MpsSettings).mps_compute == "by-share",
        )
        node.features.of(Limits).add(self.link)
        node.features.of(Use).mps_servers = self.link.server_pids

    async def before_start(self, start: StartRequest) -> Refusal | None:  # noqa: D102
        return await self.link.before_start(start)

    def ledger_complete(self) -> None:  # noqa: D102
        self.link.ledger_complete()

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.link.run()]

    def _changed(self, uuid: str, why: str) -> None:
        """Tell that a GPU lacks its daemon for this reason, or (empty) has it again; no UUID: each that needs one."""
        name = f"{self._name_of(uuid)} ({uuid})" if uuid else "this node"
        if why:
            self._api.announce(_log, "MPSNotReady", f"MPS does not serve {name}: {why}", "Observe", logging.ERROR)
        else:
            self._api.announce(_log, "MPSReady", f"MPS serves {name} again", "Observe", logging.INFO)

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, mps=self.link.ready)

"""The last hour of GPUs and containers, and records of incidents; both stay on the node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.features.history.flight_recorder import FlightRecorder
from gpu_device_plugin.features.history.incident_files import IncidentFiles
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.features.history.settings import HistorySettings
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from gpu_device_plugin.aio.http import Route
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext


class PastHour(NodeFeature):
    """Reads the condition of the GPUs, and listens to what happens on the node."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        settings, use = node.settings.value, node.features.of(Use)
        self._api = node.api
        self.history = History(
            use.watch, node.hardware.condition, lambda: node.settings.value.of(HistorySettings).condition, node.cgroups
        )
        files = IncidentFiles(settings.device_plugin_dir)
        self.recorder = FlightRecorder(settings.node_name, node.api, use.watch, self.history, use.reports.now, files)

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.recorder.run(), self._api.pod_changes.follow(self.recorder.pods_changed)]

    def routes(self) -> tuple[Route, ...]:  # noqa: D102
        return self.recorder.routes

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, telemetry=self.history.telemetry.value)

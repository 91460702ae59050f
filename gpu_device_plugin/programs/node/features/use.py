"""Who uses what on the node's GPUs: read at intervals, served, and published on the node."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.http import page_at
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.core.contract.nodereport import USE_PATH
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.programs.node.extension import NodeFeature
from gpu_device_plugin.programs.node.use.use_reader import UseReports, UseWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.aio.http import Route
    from gpu_device_plugin.core.node.use.process_use import Place
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.programs.node.extension import Tasks
    from gpu_device_plugin.programs.node.feature_context import NodeContext
    from gpu_device_plugin.settings.node import NodeSettings


class Use(NodeFeature):
    """Reads the use; other features follow the readings, and add what they know of containers to the reports."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to read the GPUs of `node`."""
        cluster = node.cluster
        self._settings = node.settings
        self.allowed_now: Observable[Mapping[Place, int]] = Observable({})
        """The MiB that each container may use now, of those that may use something else than when they started."""
        self.watch = UseWatch(
            partial(node.hardware.use, utilisation=True),
            node.entries,
            node.state,
            interval_s=node.settings.value.usage_interval_s,
            pods=None if cluster is None else lambda: tuple(cluster.followed.pods.values()),
            may_borrow=lambda: False,
            ended=lambda: node.records.over,
            alone=node.alone,
            processes=procfs.ProcessOwners(node.proc),
            host_pids=partial(procfs.in_nodes_namespace, node.proc),
        )
        self.reports = UseReports(
            self.watch, node.limit_states, Observable({}), (lambda _: None) if cluster is None else cluster.show_use
        )
        self._published = cluster is not None

    def tasks(self) -> Tasks:  # noqa: D102
        tasks = [self.watch.run(), self._settings.follow(self._interval)]
        return [*tasks, self.reports.run()] if self._published else tasks

    def routes(self) -> list[Route]:  # noqa: D102
        return [page_at(USE_PATH, self.reports.page)]

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, use=self.reports.now())

    def _interval(self, settings: NodeSettings) -> None:
        self.watch.every(settings.usage_interval_s)

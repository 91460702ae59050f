"""Choose whom to evict for a pod of a higher priority, GPU by GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_device_plugin.features.preemption.rules import Preemptor, choose_on_each
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import Proposals, SchedulerFeature
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest


class Preemption(SchedulerFeature):
    """Finds fewer or other victims than kube-scheduler, which sees the sums of a node alone."""

    def __init__(self, _context: ControllerContext) -> None:
        """Needs nothing of the extender."""

    def victims(  # noqa: D102
        self, pod: Pod, asked: GpuRequest, requests: Mapping[str, int] | None, proposals: Proposals
    ) -> Iterator[tuple[Candidate, frozenset[str]]]:
        return choose_on_each(Preemptor(asked, pod.priority, requests), proposals)

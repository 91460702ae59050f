"""What is told of pods, with all features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.claims.contract import RESOURCE_CLAIMS
from gpu_device_plugin.features.report_features import REPORT_FEATURES
from gpu_device_plugin.report import why_pod
from gpu_device_plugin.report.rules import node_answers, pod_causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.rules.extension import Kept, SchedulingStatus
    from gpu_device_plugin.report.rules.finding import Finding
    from gpu_device_plugin.report.rules.node_answers import NodeAnswer
    from gpu_device_plugin.report.rules.node_view import NodeView
    from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest


def causes(
    pod: Pod, status: SchedulingStatus, resources: Iterable[Resource], nodes: Mapping[str, NodeView] | None
) -> tuple[list[Finding], GpuRequest | None]:
    return pod_causes.causes(pod, status, resources, nodes, REPORT_FEATURES)


def answers(asked: Iterable[tuple[NodeView, GpuRequest, Kept]], policy: str, most: int) -> list[NodeAnswer]:
    return node_answers.answers(asked, policy, most, REPORT_FEATURES)


def why(
    pod: Pod,
    status: SchedulingStatus,
    resources: Sequence[Resource],
    nodes: Sequence[NodeView] | None,
    *,
    claims: Iterable[Claim] | None = None,
    **more: Any,
) -> why_pod.Why:
    followed = {} if claims is None else {RESOURCE_CLAIMS: claims}
    return why_pod.why(pod, status, resources, nodes, followed=followed, features=REPORT_FEATURES, **more)

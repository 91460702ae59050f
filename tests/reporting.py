"""What is told of pods and asked of clusters, with all features."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gpu_device_plugin.features.claims.contract import RESOURCE_CLAIMS, Claim
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.features.terminal_features import TERMINAL
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.doctor.rules import cluster_checks, node_checks
from gpu_device_plugin.programs.inspect.inspect_program import commands
from gpu_device_plugin.report import why_pod
from gpu_device_plugin.report.rules import node_answers, pod_causes
from gpu_device_plugin.report.rules.extension import placed
from gpu_device_plugin.report.rules.finding import Finding
from gpu_device_plugin.report.rules.node_answers import NodeAnswer
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import Kept
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

COMMANDS = commands(TERMINAL)
CLUSTER_CHECKS = placed(cluster_checks.OWN, REPORT.cluster_checks)
NODE_CHECKS = placed(node_checks.OWN, REPORT.node_checks)

examine_partly = partial(cluster_checks.examine_partly, of_features=REPORT.cluster_checks, on_pods=REPORT.pod_checks)


def causes(
    pod: Pod, status: SchedulingStatus, resources: Iterable[Resource], nodes: Mapping[str, NodeView] | None
) -> tuple[list[Finding], GpuRequest | None]:
    return pod_causes.causes(pod, status, resources, nodes, REPORT)


def answers(asked: Iterable[tuple[NodeView, GpuRequest, Kept]], policy: str, most: int) -> list[NodeAnswer]:
    return node_answers.answers(asked, policy, most, REPORT)


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
    return why_pod.why(pod, status, resources, nodes, followed=followed, features=REPORT, **more)

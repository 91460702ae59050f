"""Reports of nodes' agents, written by the codecs that the agents use."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpu_device_plugin.features.history.rules.ring import condition_gauges
from gpu_device_plugin.features.limits.node import LIMIT_STATES
from gpu_device_plugin.features.mps.node import MPS_READY
from gpu_device_plugin.features.over_use.node import CONTAINERS_OVER
from gpu_device_plugin.features.use.rules.use_report import use_gauges
from gpu_device_plugin.metrics import family
from gpu_device_plugin.model.contract.keys import NODE_LIMITS, NODE_USE
from gpu_device_plugin.model.contract.node_use import (
    ContainerUse,
    GpuUse,
    NodeReport,
    NodeUse,
    node_report,
    write_node_use,
)
from gpu_device_plugin.model.contract.nodelabels import NodeLimits, write_node_limits
from gpu_device_plugin.model.gauges import Gauges
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.node.rules.node import Node
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics

SINCE = "2026-11-22T09:56:00Z"
NO_LIMITS = "the driver has no memory limits, which come with r615"


@dataclass(frozen=True)
class AgentMetrics:
    """What an agent with all features knows of a node: of limits and daemons nothing, here."""

    node: NodeMetrics
    use: NodeUse = NodeUse("")  # noqa: RUF009 - frozen
    telemetry: Mapping[str, GpuTelemetry] = field(default_factory=dict)
    containers_over: int = 0

    def gauges(self) -> Gauges:
        """Return its gauges."""
        yield from self.node.gauges()
        yield from use_gauges(self.node, self.use)
        yield from condition_gauges(self.node, self.telemetry)
        yield CONTAINERS_OVER, [((), self.containers_over)]
        yield from ((gauge, ()) for gauge in (LIMIT_STATES, MPS_READY))


def idle_metrics(node: Node) -> AgentMetrics:
    """Return what an agent with all features shows of a node on which nothing happens."""
    return AgentMetrics(NodeMetrics(node))


def part(pod: str, gpu: int = 0, *, granted: int = 4096, used: int | None = 1000, **more: Any) -> ContainerUse:
    """Return a container `main` of a pod in the namespace `default`, or in the one before a slash."""
    namespace, _, name = pod.rpartition("/")
    return ContainerUse(namespace or "default", name, "main", gpu, granted, used, **more)


def written(
    *parts: ContainerUse,
    gpus: Mapping[int, GpuUse] | None = None,
    enforcements: Mapping[int, GpuEnforcement] | None = None,
    age_s: float = 10.0,
    blind: str = "",
    left_out: int = 0,
) -> dict[str, str]:
    """Return the annotations of a node whose agent read them so long ago."""
    at = datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    limits = NodeLimits({0: GpuEnforcement(Enforcement.ADVISORY, NO_LIMITS)} if enforcements is None else enforcements)
    return {
        NODE_LIMITS: write_node_limits(limits),
        NODE_USE: write_node_use(NodeUse(at, gpus or {}, parts, blind, left_out)),
    }


def report(*parts: ContainerUse, age_s: float = 10.0, **more: Any) -> NodeReport:
    """Return the same as inspect reads it."""
    # The annotation has whole seconds, so the age is given again.
    read, problems = node_report(written(*parts, age_s=age_s, **more), time.time())
    assert problems == ()
    return NodeReport(read.limits, read.use, age_s)


BORROWER = part("nb", used=7168, limit_mib=12288)
"""It is guaranteed 4 GiB, borrows 3 GiB and may use 12 GiB."""
ASKED = replace(BORROWER, asked_at=SINCE, return_by="2026-11-22T09:57:00Z", needed_by="ml/train")
"""The same, asked to return it."""


def lines(shown: NodeMetrics | ExtenderMetrics | AgentMetrics, *beginnings: str) -> list[str]:
    """Return the lines of gauges that begin so, without what they have in common."""
    text = "".join(piece for gauge, values in shown.gauges() for piece in family(gauge, values))
    return [
        line.removeprefix("gpushare_")
        for line in text.splitlines()
        if line.startswith(tuple(f"gpushare_{beginning}" for beginning in beginnings))
    ]

"""Reports of nodes' agents, written by the codecs that the agents use."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.report.rules.gauges import NodeMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.node.rules.node import Node

SINCE = "2026-11-22T09:56:00Z"
NO_LIMITS = "the driver has no memory limits, which come with r615"


def idle_metrics(node: Node) -> NodeMetrics:
    """Return what an agent with all features shows of a node on which nothing happens."""
    return NodeMetrics(node, NodeUse(""), limit_states={}, containers_over=0, mps={}, telemetry={})


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

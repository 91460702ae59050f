"""A node without the names of the pods that a reader may not see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.core.cluster.nodeview import NodeView
    from gpu_device_plugin.core.contract.nodereport import NodeReport

HIDDEN = "(hidden)"
"""In place of a name. No namespace and no pod can have this name."""


def redacted(node: NodeView, may_see: Callable[[str], bool]) -> NodeView:
    """Return a node with the same amounts, in which pods of namespaces that the reader may not see have no names.

    They come last: in the order of all names, names nearby would tell something of theirs.

    Args:
        node: the node.
        may_see: returns whether the reader may see the pods of a namespace.
    """
    pods = tuple(
        pod if may_see(pod.namespace) else replace(pod, uid="", namespace=HIDDEN, name=HIDDEN, claims=(), pods=())
        for pod in sorted(node.pods, key=lambda pod: not may_see(pod.namespace))
    )
    holders = sorted(node.instance_pods, key=lambda pod: not may_see(pod.namespace))
    return replace(
        node,
        pods=pods,
        report=_report(node.report, may_see),
        instance_pods=tuple(
            pod if may_see(pod.namespace) else replace(pod, uid=f"{HIDDEN} {number}", namespace=HIDDEN, name=HIDDEN)
            for number, pod in enumerate(holders)
        ),
    )


def _report(report: NodeReport, may_see: Callable[[str], bool]) -> NodeReport:
    if report.use is None:
        return report
    parts = tuple(
        part if may_see(part.namespace) else replace(part, namespace=HIDDEN, pod=HIDDEN, container="")
        for part in sorted(report.use.parts, key=lambda part: not may_see(part.namespace))
    )
    return replace(report, use=replace(report.use, parts=parts))

"""A node without the names of the pods that a reader may not see."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.usage import Occupant
from gpu_device_plugin.core.contract.nodereport import ContainerUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.core.cluster.node_report import NodeView

HIDDEN = "(hidden)"
"""In place of a namespace. No namespace can have this name."""

# A page writes the nodes anew for each group of readers, and `replace` takes three times as long.
_AMOUNTS = attrgetter(*[each.name for each in fields(ContainerUse)][3:])


def redacted(node: NodeView, may_see: Callable[[str], bool]) -> NodeView:
    """Return a node with the same amounts, in which pods of namespaces that the reader may not see have only numbers.

    They come last: in the order of all names, names nearby would tell something of theirs.
    """
    numbers: dict[tuple[str, str], str] = {}

    def number(namespace: str, name: str) -> str:
        return numbers.setdefault((namespace, name), str(len(numbers) + 1))

    pods = [pod for pod in node.pods if may_see(pod.namespace)]
    # By uid, which is random, so that the numbers tell nothing of the names.
    for pod in sorted((pod for pod in node.pods if not may_see(pod.namespace)), key=lambda pod: pod.uid):
        hidden = number(pod.namespace, pod.name)
        numbers |= dict.fromkeys(((pod.namespace, user) for user in pod.users), hidden)
        pods.append(Occupant("", pod.usage, pod.priority, pod.terminating, pod.requests, HIDDEN, hidden))
    holders = [pod for pod in node.instance_pods if may_see(pod.namespace)]
    for holder in sorted((pod for pod in node.instance_pods if not may_see(pod.namespace)), key=lambda pod: pod.uid):
        hidden = number(holder.namespace, holder.name)
        holders.append(replace(holder, uid=f"{HIDDEN} {hidden}", namespace=HIDDEN, name=hidden))
    report = node.report
    if report.use is not None:
        parts = tuple(
            part
            if may_see(part.namespace)
            else ContainerUse(HIDDEN, number(part.namespace, part.pod), "", *_AMOUNTS(part))
            for part in sorted(report.use.parts, key=lambda part: not may_see(part.namespace))
        )
        report = replace(report, use=replace(report.use, parts=parts))
    return replace(node, pods=tuple(pods), report=report, instance_pods=tuple(holders))

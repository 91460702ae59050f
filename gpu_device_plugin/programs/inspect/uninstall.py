"""`kubectl inspect gpushare uninstall`: remove the leftovers of sharing from nodes, and list them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NodeReader
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE
from gpu_device_plugin.core.report.leftovers import leftovers, mig_resources
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, items
from gpu_device_plugin.view.objects import Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec

    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

_AGENTS = "/api/v1/pods?labelSelector=app.kubernetes.io/name%3Dgpushare,app.kubernetes.io/component%3Dnode"
_KUBELET_FORGETS = (
    "the kubelet remembers an agent for five minutes after its end, and restores the capacity until then: "
    "run this again afterwards"
)


def uninstall(
    kubectl: Kubectl,
    raw_nodes: Iterable[msgspec.Raw],
    resources: Sequence[Resource],
    *,
    labelled_too: bool,
    dry_run: bool,
    agents_namespace: str = AGENT_NAMESPACE,
) -> tuple[list[str], bool]:
    """Remove the leftovers on these nodes; return a line for each node, and whether every removal succeeded.

    With `labelled_too` labelled nodes are cleaned, too, and lose their label, which ends sharing there.

    Raises:
        ClusterUnreadableError: the pods of the agents cannot be read.
    """
    # Anybody may give a pod of another namespace these labels.
    pods = [pod for pod in items(kubectl, _AGENTS, Pod) if pod.metadata.namespace == agents_namespace]
    agents = {pod.spec.node_name: f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods}
    lines: list[str] = []
    complete = True
    names = [resource.name for resource in resources]
    for raw in raw_nodes:
        node = NodeReader().read(raw)
        ours = [*names, *sorted(mig_resources(node.annotations, node.capacity, names))]
        condition = bool(node.gpu_condition)
        left = leftovers(node.name, node.labels, node.annotations, node.capacity, ours, condition=condition)
        if not left:
            continue
        if left.labelled and not labelled_too:
            lines.append(
                f"{left.node}: skipped, as it is labelled {SWITCH_LABEL}={SWITCHED_ON}; to end sharing there: "
                f"kubectl label node {left.node} {SWITCH_LABEL}-"
            )
        elif left.node in agents and not left.labelled:
            lines.append(f"{left.node}: skipped, as the agent {agents[left.node]} runs there; end that first")
        elif dry_run:
            lines.append(f"{left.node}: would remove {left}")
        else:
            try:
                if left.metadata_patch:
                    kubectl.patch("node", left.node, left.metadata_patch)
                if left.status_patch:
                    how = "strategic" if left.conditions else "merge"
                    kubectl.patch("node", left.node, left.status_patch, subresource="status", how=how)
            except ClusterUnreadableError as error:
                complete = False
                lines.append(f"{left.node}: the removal is incomplete: {error}")
                continue
            again = f"; {_KUBELET_FORGETS}" if any(left.capacity.values()) else ""
            lines.append(f"{left.node}: removed {left}{again}")
    return lines or ["There are no leftovers to remove."], complete

"""`kubectl inspect gpushare uninstall`: remove from nodes what sharing left there, and say what was removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.cleanup import leftovers
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError
from gpu_device_plugin.programs.inspect.objects import Named, Node, Shape, decoded, items

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl

_AGENTS = "/api/v1/pods?labelSelector=app.kubernetes.io/name%3Dgpushare,app.kubernetes.io/component%3Dnode"
_KUBELET_FORGETS = (
    "its kubelet knows the agent for five minutes after that has ended, and writes the capacity again until then: "
    "run this once more afterwards"
)


class _Spec(Shape):
    node_name: str = ""


class _Pod(Named):
    spec: _Spec


def uninstall(
    kubectl: Kubectl,
    raw_nodes: Iterable[msgspec.Raw],
    resources: Sequence[Resource],
    *,
    labelled_too: bool,
    dry_run: bool,
) -> tuple[list[str], bool]:
    """Remove what is left on these nodes; return a line for each, and whether all went well.

    Args:
        kubectl: through which to change them.
        raw_nodes: the nodes as JSON.
        resources: what was shared.
        labelled_too: end sharing also where it goes on: the label is removed with all else.
        dry_run: say only what would be done.

    Raises:
        ClusterUnreadableError: it cannot be read where agents run.
    """
    agents = _agents(kubectl)
    lines: list[str] = []
    well = True
    names = [resource.name for resource in resources]
    for raw in raw_nodes:
        node = decoded(raw, Node)
        left = leftovers(node.metadata.name, node.labels, node.annotations, node.capacity, names)
        if not left:
            continue
        if left.labelled and not labelled_too:
            lines.append(
                f"{left.node}: left alone, it is labelled {SWITCH_LABEL}={SWITCHED_ON}; to end sharing there: "
                f"kubectl label node {left.node} {SWITCH_LABEL}-"
            )
        elif left.node in agents and not left.labelled:
            lines.append(f"{left.node}: left alone, the agent {agents[left.node]} runs there; end that first")
        elif dry_run:
            lines.append(f"{left.node}: would remove {left}")
        else:
            try:
                if left.metadata_patch:
                    kubectl.patch("node", left.node, left.metadata_patch)
                if left.status_patch:
                    kubectl.patch("node", left.node, left.status_patch, subresource="status")
            except ClusterUnreadableError as error:
                well = False
                lines.append(f"{left.node}: not all was removed: {error}")
                continue
            again = f"; {_KUBELET_FORGETS}" if any(left.capacity.values()) else ""
            lines.append(f"{left.node}: removed {left}{again}")
    return lines or ["Nothing is left to be removed."], well


def _agents(kubectl: Kubectl) -> dict[str, str]:
    """Return by node the pod of the agent that runs there."""
    pods = items(kubectl, _AGENTS, _Pod)
    return {pod.spec.node_name: f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods}

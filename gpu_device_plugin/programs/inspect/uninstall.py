"""`kubectl inspect gpushare uninstall`: remove the leftovers of sharing from nodes, and list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NodeReader
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE
from gpu_device_plugin.core.contract.keeps import let_go
from gpu_device_plugin.model.contract.keys import CORDONS, GPU_CONDITION, HELD_ROOM, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.contract.nodegpus import gpus_of_node
from gpu_device_plugin.model.contract.nodelabels import our_annotations, our_labels, switched_on
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, items
from gpu_device_plugin.view.objects import Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.cluster.objects.decoding import NodeRecord
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl


def mig_resources(annotations: Mapping[str, str], capacity: Iterable[str], resources: Iterable[str]) -> frozenset[str]:
    """Return the resources of MIG profiles among a node's that our agent offers, or offered there.

    They are those of the domain of `resources`, which are ours, and those that the agent lists on the node: settings
    can give them another domain, which other plugins use as well.
    """
    domains = {name.partition("/")[0] for name in resources}
    listed = {
        gpu.instance.resource for gpu in gpus_of_node(annotations, {}, 0, 0).instances if gpu.instance is not None
    }
    own = {name for name in capacity if is_mig_resource(name) and name.partition("/")[0] in domains}
    return frozenset(own | listed)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The labels, annotations, capacity and conditions that sharing left on one node."""

    node: str
    labelled: bool
    """The node still has the label that enables sharing."""
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of our resources. The kubelet never removes these keys; it sets them to 0 once it has dropped the plugin."""
    conditions: tuple[str, ...] = ()
    """Their types."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.capacity or self.conditions)

    def __str__(self) -> str:
        """Return the leftovers in words."""
        kinds = ("labels", "annotations", "capacity", "conditions")
        return "; ".join(f"{kind} {', '.join(keys)}" for kind in kinds if (keys := getattr(self, kind)))

    @property
    def metadata_patch(self) -> Mapping[str, object]:
        """The merge patch that removes the labels, `SWITCH_LABEL` too, and the annotations; empty if there are none."""
        labels = (*self.labels, *([SWITCH_LABEL] if self.labelled else []))
        return _removing("metadata", {"labels": labels, "annotations": self.annotations})

    @property
    def status_patch(self) -> Mapping[str, object]:
        """The patch of the status that removes our resources and conditions; empty if there are none.

        With conditions it is a strategic merge patch, without them a merge patch.
        """
        patch = _removing("status", {"capacity": self.capacity, "allocatable": self.capacity})
        if not self.conditions:
            return patch
        gone = [{"type": each, "$patch": "delete"} for each in self.conditions]
        return {"status": {**patch.get("status", {}), "conditions": gone}}


def _removing(part: str, keys: Mapping[str, Iterable[str]]) -> Mapping[str, Mapping[str, object]]:
    found = {kind: nulls for kind, names in keys.items() if (nulls := dict.fromkeys(names))}
    return {part: found} if found else {}


def leftovers(node: NodeRecord, names: Sequence[str]) -> Leftovers:
    """Return the leftovers of a node; `names` are those of our resources, but for those of MIG profiles."""
    ours = (*names, *sorted(mig_resources(node.annotations, node.capacity, names)))
    capacity = {name: node.capacity[name] for name in ours if name in node.capacity}
    others = (*let_go(node.annotations), *sorted({CORDONS, HELD_ROOM} & node.annotations.keys()))
    notes = (*our_annotations(node.annotations), *others)
    kept = (GPU_CONDITION,) if node.gpu_condition else ()
    return Leftovers(node.name, switched_on(node.labels), our_labels(node.labels), notes, capacity, kept)


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
        left = leftovers(NodeReader().read(raw), names)
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

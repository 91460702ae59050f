"""`kubectl inspect gpushare uninstall`: what sharing left on nodes, and its removal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.capacity.contract import let_go
from gpu_device_plugin.kubernetes.agent_reader import AGENT_LABELS
from gpu_device_plugin.kubernetes.client.api_client import PatchType
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.kubernetes.objects.api_objects import Pod
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, NodeReader
from gpu_device_plugin.model.contract.keys import CORDONS, GPU_CONDITION, HELD_ROOM, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.contract.nodelabels import our_annotations, our_labels, switched_on
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.inspect.overview import nodes_named
from gpu_device_plugin.report.commands import DRY_RUN, NODE, Command, Output, argument, refusal, valued
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node

_REALLY = "really"
"""The word that a user has to write to end sharing on nodes that still share."""
_KUBELET_FORGETS = (
    "the kubelet remembers an agent for five minutes after it ends, and restores the capacity until then; run this "
    "again afterwards"
)


def mig_resources(node: NodeRecord, resources: Iterable[str]) -> frozenset[str]:
    """Return the resources of MIG profiles among a node's that our agent offers, or offered there.

    They are those of the domain of `resources`, which are ours, and those that the agent lists on the node: settings
    can give them another domain, which other plugins use as well.
    """
    domains = {name.partition("/")[0] for name in resources}
    gpus = gpus_of_node(node.annotations, {}, 0, 0)
    listed = {gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None}
    own = {name for name in node.capacity if is_mig_resource(name) and name.partition("/")[0] in domains}
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


def leftovers(node: NodeRecord, resources: Sequence[str]) -> Leftovers:
    """Return the leftovers of a node; `resources` are the names of ours, but for those of MIG profiles."""
    ours = [*resources, *sorted(mig_resources(node, resources))]
    amounts = {name: node.capacity[name] for name in ours if name in node.capacity}
    others = (*let_go(node.annotations), *sorted({CORDONS, HELD_ROOM} & node.annotations.keys()))
    notes = (*our_annotations(node.annotations), *others)
    conditions = (GPU_CONDITION,) if node.gpu_condition else ()
    return Leftovers(node.name, switched_on(node.labels), our_labels(node.labels), notes, amounts, conditions)


# --- The command ---------------------------------------------------------------------------------------------------


async def uninstall(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Remove the leftovers on nodes; return a line for each node, with the exit code.

    With ``--all`` labelled nodes are cleaned, too, and lose their label, which ends sharing there.

    Raises:
        ClusterUnreadableError: there is no such node.
        ApiError: nodes, or the pods of the agents, cannot be read.
    """
    raw_nodes, labelled_too = await nodes_named(arguments, access), arguments.all == _REALLY
    # Anybody may give a pod of another namespace these labels.
    pods = await access.every(PODS, Pod, namespace=arguments.agents_namespace, labels=AGENT_LABELS)
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
            lines.append(f"{left.node}: skipped, as the agent {agents[left.node]} runs there; stop it first")
        elif arguments.dry_run:
            lines.append(f"{left.node}: would remove {left}")
        else:
            try:
                if left.metadata_patch:
                    await access.client.patch(NODES, left.node, left.metadata_patch)
                if left.status_patch:
                    how = PatchType.STRATEGIC if left.conditions else PatchType.MERGE
                    await access.client.patch(NODES, left.node, left.status_patch, subresource="status", how=how)
            except ApiError as error:
                complete = False
                lines.append(f"{left.node}: the removal is incomplete: {refusal(error)}")
                continue
            again = f"; {_KUBELET_FORGETS}" if any(left.capacity.values()) else ""
            lines.append(f"{left.node}: removed {left}{again}")
    return lines or ["There are no leftovers to remove."], OK if complete else FAILED


UNINSTALL = Command(
    "uninstall",
    "clean up nodes that no longer share GPUs",
    uninstall,
    (
        NODE,
        DRY_RUN,
        argument(
            "--all",
            nargs="?",
            type=valued(
                str,
                lambda text: text in {"", _REALLY},
                f"this ends sharing on nodes that still share; to confirm, write --all={_REALLY}",
            ),
            const="no value",
            default="",
            metavar=_REALLY,
            help="also labelled nodes, which ends sharing there",
        ),
    ),
)

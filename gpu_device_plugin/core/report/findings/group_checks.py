"""The doctor's check of node groups: a node that an autoscaler adds shares its GPUs as its group's other nodes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import GROUP_LABELS, NODE_POOL, SWITCH_LABEL
from gpu_device_plugin.core.report.finding import Unknown, names_by, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.report.finding import Finding
    from gpu_device_plugin.core.report.findings.symptoms import ClusterSymptoms

GPU_LABELS = frozenset(
    {
        "k8s.amazonaws.com/accelerator",
        "cloud.google.com/gke-accelerator",
        "kubernetes.azure.com/accelerator",
        "cluster-api/accelerator",
    }
)
"""With one of these and no nvidia.com/gpu, a node is never ready for the Cluster Autoscaler (its GPULabel, 1.36)."""


def group_of(labels: Mapping[str, str]) -> str:
    """Return the label, with its value, that names a node's group; empty: none does."""
    return next((f"{label}={labels[label]}" for label in GROUP_LABELS if label in labels), "")


def groups(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Yield the node groups whose new nodes would share no GPUs, and those that Karpenter takes for useless."""
    sharing = {group_of(node.labels) for node in cluster.nodes if node.labelled}
    plain = names_by((group_of(node.labels), node.name) for node in cluster.nodes if SWITCH_LABEL not in node.labels)
    for group in sorted((plain.keys() & sharing) - {""}):
        yield warning(
            "group-partly-labelled",
            "{nodes} have no label gpushare, though others of {group} have: a node that is added to this group by an "
            "autoscaler may share no GPUs",
            "set gpushare=true in the node group (docs/platforms.md), or label nodes without sharing gpushare=false",
            nodes=plain[group],
            group=group,
        )
    if unready := tuple(
        node.name for node in cluster.nodes if node.labelled and not GPU_LABELS.isdisjoint(node.labels)
    ):
        text = "the Cluster Autoscaler, if it runs, never removes {nodes}: their cloud's label promises nvidia.com/gpu"
        yield note("label-of-gpus", text, "docs/platforms.md (From zero) names the labels to leave out", nodes=unready)
    found = cluster.karpenter
    if isinstance(found, Unknown):
        if any(NODE_POOL in node.labels for node in cluster.nodes):
            yield found
    elif found.pools and cluster.memory_resource not in found.resources:
        yield warning(
            "nodepool-without-shares",
            "Karpenter adds no node for pods that ask for {resource}: the nodes of {pools} share GPUs, and no "
            "NodeOverlay says so",
            "kubectl apply a NodeOverlay with the amounts of a node (docs/platforms.md)",
            resource=cluster.memory_resource,
            pools=found.pools,
        )

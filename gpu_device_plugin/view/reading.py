"""The cluster for display, read once: the first sync of what `following` keeps current."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import PodReader
from gpu_device_plugin.core.cluster.held_instances import instance_pod
from gpu_device_plugin.core.cluster.usage import NOTHING, usage_of
from gpu_device_plugin.features.claims.claim_objects import GROUP, read_claim
from gpu_device_plugin.model.contract.keys import READ_BY_AGENT
from gpu_device_plugin.view.following import FollowedCluster
from gpu_device_plugin.view.objects import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec

    from gpu_device_plugin.core.cluster.usage import Usage
    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource

ABSENT = f"this cluster has none ({GROUP}/v1 comes with Kubernetes 1.34)"
"""Why ResourceClaims cannot be read where the API server does not know them."""


def cluster(
    raw_nodes: Iterable[msgspec.Raw], raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]
) -> tuple[FollowedCluster, list[str]]:
    """Return nodes with the pods that hold GPUs by limits, and a sentence for each object that could not be read."""
    state = FollowedCluster(resources)
    warnings: list[str] = []
    for node in readable(raw_nodes, state.read_node, "node", warnings):
        state.put_node(node)
    for each in readable(raw_pods, state.read_pod, "pod", warnings):
        if each is not None:
            warnings += [f"pod {each.pod.namespace}/{each.pod.name}: {why}, and it is ignored" for why in each.problems]
            state.put_pod(each)
    warnings += state.problems()
    warnings += [f"node {view.name}: {fault}" for view in state.views if (fault := view.candidate.gpus.fault)]
    return state, warnings


def readable_claims(raw_claims: Iterable[msgspec.Raw]) -> tuple[list[Claim], list[str]]:
    """Return claims, and a sentence for each that cannot be read."""
    warnings: list[str] = []
    return list(readable(raw_claims, read_claim, "ResourceClaim", warnings)), warnings


def unseen(why: str) -> str:
    """Return what is missing without claims, as a sentence without its full stop."""
    return f"ResourceClaims are not shown, so GPUs may be fuller than they seem: {why}"


def gpu_pods(raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> list[tuple[Pod, Usage]]:
    """Return the pods that hold GPUs, each with its usage as its annotations tell it, by namespace and name.

    The usage of pods that hold only MIG instances is `NOTHING`. Pods that cannot be read are left out.
    """
    reader = PodReader([resource.name for resource in resources], READ_BY_AGENT.__contains__, mig=True)
    found = []
    for pod, _ in readable(raw_pods, reader.read):
        usage = usage_of(pod, resources) if pod.node_name and not pod.ended else NOTHING
        if usage != NOTHING or instance_pod(pod) is not None:
            found.append((pod, usage))
    return sorted(found, key=lambda each: (each[0].namespace, each[0].name))

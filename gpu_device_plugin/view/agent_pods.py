"""Read the pods of node agents, by their labels, from objects of the API."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import UnreadableObjectError
from gpu_device_plugin.core.cluster.agentpods import AgentPod
from gpu_device_plugin.view.objects import Pod, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    import msgspec

AGENT_LABELS = "app.kubernetes.io/name=gpushare,app.kubernetes.io/component=node"
"""Of an agent's pod, in our manifests."""


def agent_pods(raw_pods: Iterable[msgspec.Raw]) -> list[AgentPod]:
    """Return the agents among these pods, which have their labels."""
    found = []
    for raw in raw_pods:
        with suppress(UnreadableObjectError):  # it is no agent's
            found.append(_agent(decoded(raw, Pod)))
    return found


def _agent(pod: Pod) -> AgentPod:
    meta = pod.metadata
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    return AgentPod(
        meta.namespace,
        meta.name,
        pod.spec.node_name,
        next((port.container_port for port in ports if port.name == "http"), None),
        pod.status.phase == "Running" and meta.deletion_timestamp is None,
        meta.creation_timestamp or "",
    )

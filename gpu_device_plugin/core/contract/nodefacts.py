"""What a node says of itself, reduced to what placing a pod needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import NODE_GPUS, PLACEMENT_LABEL, MalformedAnnotationError
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS, NodeGpus, by_division, read_node_gpus
from gpu_device_plugin.core.model.policy import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from gpu_device_plugin.core.contract.nodegpus import Links

AWAY = "its GPU agent has ended, or is being restarted"
"""Until it is back the kubelet would refuse whoever comes, and for good."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The GPUs of a node, and how it wants them to be used."""

    gpus: NodeGpus = NO_GPUS
    policy: str | None = None
    """Which GPU is preferred on it, a name in `POLICIES`; None: as the scheduler's configuration says."""
    problem: str = ""
    """Why nothing is to be placed on it though it claims to have GPUs; empty: nothing stands in the way."""


def read_facts(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    memory: int,
    count: int,
    known: MutableMapping[str, Links] | None = None,
) -> NodeFacts:
    """Read a node.

    Args:
        annotations: of the node; that of its agent is believed before all else.
        labels: of the node.
        memory: shares in its capacity.
        count: GPUs in its capacity.
        known: see `read_node_gpus`.
    """
    gpus, problem = NO_GPUS, ""
    if NODE_GPUS in annotations:
        try:
            gpus = read_node_gpus(annotations[NODE_GPUS], known)
        except MalformedAnnotationError as error:
            problem = str(error)
        if gpus.away:
            problem = AWAY
    else:
        gpus = by_division(memory, count)
    policy = next((name for name in (labels.get(PLACEMENT_LABEL), gpus.policy) if name in POLICIES), None)
    return NodeFacts(gpus, policy, problem)

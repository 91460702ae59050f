"""The score of one node by itself, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.packing import Effort
from gpu_device_plugin.core.cluster.scoring import Scorer

if TYPE_CHECKING:
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.pod_demand import Ask


def score(ask: Ask, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return how well a node suits a pod, as long as it may take; 0 where the pod does not fit."""
    scorer = Scorer(ask, node_policy, gpu_policy, Effort(10**6))
    return 0 if unfit(ask, node) is not None else scorer.score(node)

"""The checks that are left to a reader who may not read a whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.diagnosing import Finding, Severity, examine, ok, warning
from gpu_device_plugin.core.telling.diagnosing_cluster import CHECKS
from gpu_device_plugin.core.telling.poduse import told_over_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms

_ALWAYS = frozenset({"API server", "policies"})
_BY_NODES = frozenset({"GPUs", "share size", "ResourceClaims", "other plugins", "limits held", "memory use"})
_BY_PODS = frozenset({"placement", "pending pods"})
_BY_ALL_PODS = frozenset({"extender", "scheduler version", "leader", "scheduler configuration"})


def examine_partly(
    symptoms: ClusterSymptoms, pods: Sequence[Pod], missing: Iterable[str], advice: str, *, nodes: bool, namespace: str
) -> tuple[Finding, ...]:
    """Return what was not examined, and the findings of the checks whose objects could be read.

    Args:
        symptoms: without the objects that could not be read.
        pods: the pods that ask for GPUs.
        missing: the rights that are missing, one clause each.
        advice: how to get them.
        nodes: whether nodes could be read.
        namespace: only its pods could be read; empty: all.
    """
    chosen = _ALWAYS | _BY_PODS | (_BY_NODES if nodes else frozenset()) | (frozenset() if namespace else _BY_ALL_PODS)
    left_out = [name for name in CHECKS if name not in chosen]
    said = "; ".join([f"not examined: {', '.join(left_out)}", *missing])
    found = examine({name: check for name, check in CHECKS.items() if name in chosen}, symptoms)
    return (Finding(Severity.UNKNOWN, said, advice, "rights"), *found, *(() if nodes else _over_use(pods, namespace)))


def _over_use(pods: Sequence[Pod], namespace: str) -> Iterable[Finding]:
    """Yield what agents wrote on pods that use more than they were granted."""
    over = [(pod, sentence) for pod in pods for sentence in told_over_use(pod)]
    where = f"in namespace {namespace} " if namespace else ""
    found = [
        warning(
            f"{pod.namespace}/{pod.name}: {sentence.rstrip('.')}",
            f"kubectl inspect gpushare why {pod.namespace}/{pod.name}",
        )
        for pod, sentence in over
    ] or [ok(f"no agent wrote on a pod {where}that it uses more GPU memory than it was granted")]
    return (Finding(each.severity, each.found, each.advice, "memory use") for each in found)

"""Tell who uses more than was granted, and the owner of a pod what its node's agent wrote on it of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.model.contract.node_use import ContainerUse, trespasses
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import Finding, note, ok, warning
from gpu_device_plugin.report.rules.node_view import NodeView, State

_MOST_OVER_USE = 1000
"""The characters that are shown of the annotation `OVER_USE`, which anybody who may change the pod can write."""


def told_over_use(pod: Pod) -> list[Finding]:
    """Return what the agent wrote on the pod of its over-use, which outlasts an eviction until the pod is gone."""
    written = pod.annotations.get(OVER_USE, "").rstrip(".")[:_MOST_OVER_USE]
    if not written:
        return []
    code, verb = ("used-over", "used") if pod.ended or pod.deleting else ("over-use", "uses")
    return [note(code, f"It {verb} more GPU memory than it was granted: {{written}}.", written=written)]


def over_use_states(_: NodeView, parts: Sequence[ContainerUse]) -> Iterable[State]:
    """Return whether containers use more than they were granted."""
    over = [part.over_since for part in parts if part.over_since]
    if not over or any(map(trespasses, parts)):
        return ()
    amounts = [part.used_mib for part in parts if part.used_mib is not None]
    used, given = sum(amounts) if len(amounts) == len(parts) else None, sum(part.granted_mib for part in parts)
    said = {"usedMiB": used, "givenMiB": given, "since": min(over)}
    return [State(1, "over", Tone.BAD, f"over its limit since {min(over)}", said, word="over", counted="over")]


def over_used(pods: Iterable[Pod], namespace: str) -> Iterable[Finding]:
    """Return what agents wrote on pods that use more than they were granted."""
    advice = "kubectl inspect gpushare why {pod}"
    over = [(pod, told) for pod in pods for told in told_over_use(pod)]
    where = " in namespace {namespace}" if namespace else ""
    within = f"no agent wrote on a pod{where} that it uses more GPU memory than it was granted"
    return [
        warning(told.code, f"{{pod}}: {told.text}", advice, pod=f"{pod.namespace}/{pod.name}", **told.parameters)
        for pod, told in over
    ] or [ok("use", within, namespace=namespace)]

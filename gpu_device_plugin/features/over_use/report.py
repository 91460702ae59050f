"""Tell the owner of a pod what its node's agent wrote on it of its over-use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.report.rules.finding import note

if TYPE_CHECKING:
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.report.rules.finding import Finding


_MOST_OVER_USE = 1000
"""The characters that are shown of the annotation `OVER_USE`, which anybody who may change the pod can write."""


def told_over_use(pod: Pod) -> list[Finding]:
    """Return what the agent wrote on the pod of its over-use, which outlasts an eviction until the pod is gone."""
    written = pod.annotations.get(OVER_USE, "").rstrip(".")[:_MOST_OVER_USE]
    if not written:
        return []
    verb = "used" if pod.ended or pod.deleting else "uses"
    return [note("over-use", f"It {verb} more GPU memory than it was granted: {{written}}.", written=written)]

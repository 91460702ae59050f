"""Leave out of histories and incidents what a reader may not see: containers and sentences of other namespaces.

`may_see` says of a namespace whether the reader may see its pods, and of the empty name whether of all namespaces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.core.contract.history import IncidentSummary, NodeHistory

    MaySee = Callable[[str], bool]


def seen_history(history: NodeHistory, may_see: MaySee, *, nodes: bool, pod: str = "") -> NodeHistory:
    """Return what may be seen of a history, of one pod if it is named; `nodes`: GPUs, with the sums on them, may be."""
    containers = tuple(each for each in history.containers if may_see(each.namespace) and pod in {"", each.pod})
    return replace(history, gpus=history.gpus if nodes else (), containers=containers)


def seen_summary(about: IncidentSummary, may_see: MaySee) -> IncidentSummary:
    """Return an incident; of a pod that may not be seen without names and sentence."""
    if not (about.pod or about.container) or may_see(about.namespace):
        return about
    return replace(about, sentence="", namespace="", pod="", container="")

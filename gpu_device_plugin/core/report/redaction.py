"""Leave out of histories and incidents what a reader may not see: containers and texts of other namespaces.

`may_see` says of a namespace whether the reader may see its pods, and of the empty name whether of all namespaces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.core.contract.history import Incident, IncidentSummary, NodeHistory
    from gpu_device_plugin.core.contract.nodereport import ContainerUse

    MaySee = Callable[[str], bool]


def seen_history(history: NodeHistory, may_see: MaySee, *, nodes: bool, pod: str = "") -> NodeHistory:
    """Return what may be seen of a history, of one pod if it is named; `nodes`: GPUs, with the sums on them, may be."""
    containers = tuple(each for each in history.containers if may_see(each.namespace) and pod in {"", each.pod})
    return replace(history, gpus=history.gpus if nodes else (), containers=containers)


def seen_summary(about: IncidentSummary, may_see: MaySee) -> IncidentSummary:
    """Return an incident without names and sentence, unless it happened to a pod that may be seen."""
    if may_see(about.namespace):
        return about
    return replace(about, sentence="", namespace="", pod="", container="")


def seen_incident(incident: Incident, may_see: MaySee) -> Incident:
    """Return what may be seen of the whole record. Decisions may name anybody: they need all namespaces."""

    def needs_seen(each: ContainerUse) -> ContainerUse:
        return each if may_see(each.needed_by.partition("/")[0]) else replace(each, needed_by="")

    use = tuple(needs_seen(each) for each in incident.use.parts if may_see(each.namespace))
    return replace(
        incident,
        summary=seen_summary(incident.summary, may_see),
        history=seen_history(incident.history, may_see, nodes=True),
        use=replace(incident.use, parts=use),
        processes=tuple(each for each in incident.processes if not each.pod or may_see(each.namespace)),
        decisions=incident.decisions if may_see("") else (),
    )


def concerned(incident: Incident) -> frozenset[str]:
    """Return the namespaces of the pods that a record names."""
    named = {incident.summary.namespace}
    for groups in (incident.history.containers, incident.use.parts, incident.processes):
        named |= {each.namespace for each in groups}
    return frozenset(named - {""})

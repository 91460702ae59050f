"""Choose the pods that are evicted next: one at a time on each GPU, the least important first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpu_device_plugin.model.pods import Pod

CRITICAL_PRIORITY = 2_000_000_000
"""Pods of this priority or a higher one keep a cluster or a node alive: `system-cluster-critical` and up
(k8s.io/kubernetes, pkg/apis/scheduling/types.go, SystemCriticalPriority)."""
SYSTEM_NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that should leave one GPU."""

    pod: Pod
    uuid: str
    """The GPU's."""
    weight: int = 0
    """Of two pods with one priority, the one with more goes first."""


def spared(pod: Pod | None) -> str:
    """Return why a pod is never evicted, as a clause about it; empty if it may be."""
    if pod is None:
        return "it is not known in the API"
    if pod.static_uid:
        return "it is a static pod, which its kubelet would start again"
    if pod.namespace == SYSTEM_NAMESPACE:
        return f"it is in the namespace {SYSTEM_NAMESPACE}"
    if pod.priority >= CRITICAL_PRIORITY:
        return f"its priority of {pod.priority} is that of a critical pod"
    return ""


def leaving(pod: Pod, most_grace_s: int) -> bool:
    """Return whether a pod is on its way, whoever wants that: it is being deleted, in no more than this many seconds.

    An owner who deletes a pod may give it years; an eviction shortens them.
    """
    return pod.deleting and pod.grace_s <= most_grace_s


def next_victims(
    candidates: Iterable[Candidate],
    *,
    most_grace_s: int,
    going: Mapping[str, Collection[str]],
    put_off: Collection[str] = (),
    overdue: Collection[str] = (),
) -> Mapping[str, tuple[Pod, frozenset[str]]]:
    """Return the pods to evict now by UID, each with the GPUs that it should leave: at most one for each GPU.

    The GPUs of a pod that is on its way wait for its end, until it is overdue.

    Args:
        candidates: the pods that should leave a GPU; a pod may be several of them.
        most_grace_s: the longest time that an evicted pod has to end.
        going: the GPUs of pods whose eviction was requested, by UID, until they have ended or are overdue.
        put_off: UIDs of pods whose eviction was refused a moment ago; the next in order get their turn meanwhile.
        overdue: UIDs of pods that should have ended by now. Another eviction would not hurry them.
    """
    candidates = tuple(each for each in candidates if each.pod.uid not in overdue)
    busy = {uuid for uuids in going.values() for uuid in uuids}
    busy.update(each.uuid for each in candidates if leaving(each.pod, most_grace_s) or each.pod.uid in going)
    wanted: dict[str, set[str]] = {}
    for each in candidates:
        wanted.setdefault(each.pod.uid, set()).add(each.uuid)
    victims: dict[str, tuple[Pod, frozenset[str]]] = {}
    for each in sorted(candidates, key=lambda one: (one.pod.priority, -one.weight, one.pod.uid, one.uuid)):
        if busy & wanted[each.pod.uid] or each.pod.uid in put_off or spared(each.pod) or each.pod.ended:
            continue
        busy |= wanted[each.pod.uid]
        victims[each.pod.uid] = (each.pod, frozenset(wanted[each.pod.uid]))
    return victims

"""Decide which GPUs have failed, and which pods are evicted next: one at a time on each GPU, the least important first.

A GPU that is not watched (the driver hangs, the agent is paused) has not failed: its grace begins anew when it is
watched again. So does that of a GPU that was reset and is on its way back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.gpu_health import GpuHealth, failure

CRITICAL_PRIORITY = 2_000_000_000
"""Pods of this priority or a higher one keep a cluster or a node alive: `system-cluster-critical` and up
(k8s.io/kubernetes, pkg/apis/scheduling/types.go, SystemCriticalPriority)."""
SYSTEM_NAMESPACE = "kube-system"
EVICTED = frozenset({"GPUMemoryEvicted", "GPUMemoryNotReturned", "GPUFailureEvicted"})
"""The reasons of the Events on evicted pods."""


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


@dataclass(frozen=True, slots=True)
class Failed:
    """A GPU that fails."""

    since: float
    """Monotonic seconds."""
    why: str


def failures(
    before: Mapping[str, Failed], healths: Mapping[str, GpuHealth], *, watched: bool, now: float
) -> Mapping[str, Failed]:
    """Return the GPUs (by UUID) that fail, after a look at the healths of all; `watched`: the driver answers."""
    return {
        uuid: Failed(min(before[uuid].since, now) if uuid in before else now, why)
        for uuid, health in healths.items()
        if watched and (why := failure(health))
    }


def lasting(failing: Mapping[str, Failed], grace_s: float, now: float) -> Mapping[str, Failed]:
    """Return the GPUs that have failed for the grace."""
    return {uuid: failed for uuid, failed in failing.items() if now - failed.since >= grace_s}


def on_failed(lasting: Mapping[str, Failed], holders: Iterable[ContainerGpus]) -> tuple[Candidate, ...]:
    """Return the pods that hold GPUs that failed, with shares or whole; those that the API does not know are left out.

    Of two pods with one priority the one with more memory of the GPU goes first.
    """
    return tuple(
        Candidate(holder.pod, uuid, granted)
        for holder in holders
        if holder.pod is not None
        for uuid, granted in holder.granted.items()
        if uuid in lasting
    )

"""Decide what becomes of idle pods: which are told what will happen to them, and for which that is due.

A pod is told first, and has the time of the warning to use its GPUs again, which cancels it. Who begins to lead among
the extenders tells all pods anew: the loss of a leader delays what happens, and never hastens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.features.eviction.rules import spared
from gpu_device_plugin.features.use.rules.use_report import AGAIN_S
from gpu_device_plugin.model.contract.keys import IDLE_SINCE, REPLICAS_BEFORE_IDLE, WHEN_IDLE
from gpu_device_plugin.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.model.pods import Pod

TRUSTED_S = 2 * AGAIN_S
"""Nothing happens on the word of an agent whose newest figures are older: it may have ended, and see no use."""


class WhenIdle(StrEnum):
    """What the owner of a pod, or of its namespace, wants to happen when it is idle."""

    REPORT = "report"
    EVICT = "evict"
    SCALE_TO_ZERO = "scale-to-zero"


@dataclass(frozen=True, slots=True)
class IdlePod:
    """An idle pod, and what its owner wants."""

    pod: Pod
    since: str
    """RFC 3339, as its agent wrote it."""
    action: WhenIdle
    why_not: str = ""
    """Why that never happens to this pod, as a clause about it; empty: it may."""


@dataclass(frozen=True, slots=True)
class Warned:
    """What a pod was told, and when."""

    since: str
    action: WhenIdle
    at: float
    """Monotonic seconds."""


def idle_since(pod: Pod) -> str:
    """Return since when a pod is idle, as its agent wrote it; empty: it is not, it ends, or that is no time."""
    text = pod.annotations.get(IDLE_SINCE, "")
    return "" if pod.ended or pod.deleting or epoch_s(text) is None else text


def idle_pod(pod: Pod, namespace: Mapping[str, str]) -> IdlePod:
    """Return what is wanted for an idle pod of a namespace with these annotations; its own annotation goes first."""
    text = pod.annotations.get(WHEN_IDLE) or namespace.get(WHEN_IDLE) or WhenIdle.REPORT
    known = {each.value: each for each in WhenIdle}
    if text not in known:
        why = f"{WHEN_IDLE}={text[:64]!r} is none of {', '.join(known)}"
        return IdlePod(pod, idle_since(pod), WhenIdle.REPORT, why)
    action = known[text]
    why = "" if action is WhenIdle.REPORT else spared(pod)
    if action is WhenIdle.SCALE_TO_ZERO and not why and pod.owner is None:
        why = "no controller owns it, so there is nothing to scale"
    return IdlePod(pod, idle_since(pod), action, why)


def warned_after(
    warned: Mapping[str, Warned], idle: Iterable[IdlePod], now: float, most: int
) -> tuple[Mapping[str, Warned], Sequence[IdlePod]]:
    """Return which pods are warned by now, by UID, and those of them, at most so many, that are to be told now.

    A pod whose idleness was interrupted, or whose owner wants something else, is told anew.
    """
    after, told = dict[str, Warned](), list[IdlePod]()
    for each in sorted(idle, key=lambda one: (one.since, one.pod.uid)):
        if each.action is WhenIdle.REPORT and not each.why_not:
            continue
        before = warned.get(each.pod.uid)
        if before is not None and (before.since, before.action) == (each.since, each.action):
            after[each.pod.uid] = before
        elif len(told) < most:
            after[each.pod.uid] = Warned(each.since, each.action, now)
            told.append(each)
    return after, told


def due(warned: Mapping[str, Warned], idle: Iterable[IdlePod], now: float, warning_s: float) -> Sequence[IdlePod]:
    """Return the pods for which it is time."""
    return [
        each
        for each in idle
        if not each.why_not and (told := warned.get(each.pod.uid)) is not None and now - told.at >= warning_s
    ]


def trusted(read_at: float | None, now: float) -> bool:
    """Return whether the figures of a node are new enough, both in seconds since the epoch; None: it has none."""
    return read_at is not None and now - read_at <= TRUSTED_S


def warning(idle: IdlePod, until: str) -> str:
    """Return what a pod is told; `until` is the time, in RFC 3339, at which it happens."""
    said = f"is idle since {idle.since}"
    if idle.why_not:
        return f"{said}, and nothing happens to it: {idle.why_not}"
    unless = f"unless it uses its GPUs before; {WHEN_IDLE}={WhenIdle.REPORT} on the pod keeps it"
    if idle.action is WhenIdle.EVICT:
        again = "" if idle.pod.owner is not None else ", and nothing makes it again, as no controller owns it"
        return f"{said}, and is evicted at {until}{again}, {unless}"
    return f"{said}, and its workload is scaled to zero at {until} if all of its pods are idle then, {unless}"


# --- Workloads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """What owns idle pods: a Deployment, a StatefulSet or a Notebook."""

    kind: str
    name: str
    replicas: int
    """That it is to have."""
    running: int
    """That it has, also those of a former template."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def why_not(self, idle: int) -> str:
        """Return why it is not scaled to zero while so many of its pods are idle; empty if it is."""
        if not self.replicas:
            return f"{self} is scaled to zero already"
        busy = max(self.replicas, self.running) - idle
        return f"{busy} of the pods of {self} {'is' if busy == 1 else 'are'} not idle" if busy > 0 else ""


def replicas_before(annotations: Mapping[str, str]) -> int | None:
    """Return how many replicas a workload had before it was scaled to zero; None: it was not, or that is no number."""
    text = annotations.get(REPLICAS_BEFORE_IDLE, "")
    return int(text) or None if text.isascii() and text.isdigit() and len(text) < 10 else None

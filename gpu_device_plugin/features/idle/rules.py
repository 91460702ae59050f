"""Decide which pods have left their GPUs idle, and since when; and what becomes of them.

A pod is idle since the first of the readings in a row that all show, of each GPU that it holds or uses, a use of the
multiprocessors at or below the threshold and no growth of its memory. Only what is known counts: one reading that does
not tell the use of one of its containers, or a pause in which none was made, ends the row. A container without any
process on its GPU uses none of it, if the reading lists processes at all. A pod whose init containers still run, or
whose images are pulled, does not count: what it waits for is often the data that it is about to use.

The scheduler extender acts on it. A pod is told first, and has the time of the warning to use its GPUs again, which
cancels it. Who begins to lead among the extenders tells all pods anew: the loss of a leader delays what happens, and
never hastens it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.features.eviction.rules import spared
from gpu_device_plugin.features.use.rules.use_report import AGAIN_S
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.keys import IDLE_SINCE, REPLICAS_BEFORE_IDLE, WHEN_IDLE
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s

if TYPE_CHECKING:
    from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading


@dataclass(frozen=True, slots=True)
class Idleness:
    """The evidence of idleness on a node. Times are monotonic seconds."""

    at: float = -math.inf
    """Of the newest reading."""
    since: Mapping[str, float] = field(default_factory=dict)
    """By UID of a pod, as the kubelet knows it: the first reading of the row that shows it idle."""
    used_mib: Mapping[Place, int | None] = field(default_factory=dict)
    """What each container used in the newest reading."""

    def after(self, reading: UseReading, pods: Iterable[Pod], *, below_percent: int, pause_s: float) -> Idleness:
        """Return the evidence after a newer reading.

        Args:
            reading: who used what.
            pods: those of the node in the API.
            below_percent: the most use of the multiprocessors, by a container, that counts as idle.
            pause_s: after more seconds without a reading the evidence begins anew.
        """
        of_pods: dict[str, list[AttributedUse]] = {}
        for use in reading.containers:
            of_pods.setdefault(use.pod_uid, []).append(use)
        in_a_row = reading.at - self.at <= pause_s
        since = {}
        for pod in pods:
            own = of_pods.get(pod.kubelet_uid, [])
            holds = any(use.holding is not None for use in own) and pod.kubelet_uid not in reading.left_out
            if not holds or pod.phase != "Running" or pod.deleting or any(_busy(use, below_percent) for use in own):
                continue
            # The first reading has nothing to compare with; a process that came since then has grown from nothing.
            grown = any((use.used_mib or 0) > (self.used_mib.get(use.place) or 0) for use in own)
            known = in_a_row and not grown and pod.kubelet_uid in self.since
            since[pod.kubelet_uid] = self.since[pod.kubelet_uid] if known else reading.at
        return Idleness(reading.at, since, {use.place: use.used_mib for use in reading.containers})

    def idle(self, after_s: float) -> Mapping[str, float]:
        """Return since when each pod is idle that has been so for at least this long, by its UID."""
        return {uid: since for uid, since in self.since.items() if self.at - since >= after_s}


def _busy(use: AttributedUse, below_percent: int) -> bool:
    """Return whether a container used its GPU, or may have."""
    return use.sm_percent is None or use.used_mib is None or use.sm_percent > below_percent


# --- What becomes of them ---------------------------------------------------------------------------------------------

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
        return f"{said}, and is left alone: {idle.why_not}"
    unless = f"unless it uses its GPUs before then; {WHEN_IDLE}={WhenIdle.REPORT} on the pod keeps it"
    if idle.action is WhenIdle.EVICT:
        again = "" if idle.pod.owner is not None else ", and nothing recreates it, as no controller owns it"
        return f"{said}, and is evicted at {until}{again}, {unless}"
    return f"{said}, and its workload is scaled to zero at {until} if all of its pods are idle then, {unless}"


def replicas_before(annotations: Mapping[str, str]) -> int | None:
    """Return how many replicas a workload had before it was scaled to zero; None: it was not, or that is no number."""
    text = annotations.get(REPLICAS_BEFORE_IDLE, "")
    return int(text) or None if text.isascii() and text.isdigit() and len(text) < 10 else None

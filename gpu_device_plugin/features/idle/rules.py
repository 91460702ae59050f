"""Decide which pods have left their GPUs idle, and since when.

A pod is idle since the first of the readings in a row that all show, of each GPU that it holds or uses, a use of the
multiprocessors at or below the threshold and no growth of its memory. Only what is known counts: one reading that does
not tell the use of one of its containers, or a pause in which none was made, ends the row. A container without any
process on its GPU uses none of it, if the reading lists processes at all. A pod whose init containers still run, or
whose images are pulled, does not count: what it waits for is often the data that it is about to use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
    from gpu_device_plugin.model.allocations import Place
    from gpu_device_plugin.model.pods import Pod


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

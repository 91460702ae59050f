"""The pods that wait, by the latest answers to kube-scheduler about them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.gauges import WaitingReason
from gpu_device_plugin.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.fleet import Fleet

_SPARE = 256
"""Remembered verdicts beyond two for each waiting pod, before those of pods that no longer wait are forgotten."""
_NEWEST = 64
"""Verdicts that are kept then anyway: the scheduler may know a pod before our watch shows it."""


@dataclass(eq=False, repr=False)
class WaitingObserved:
    """The last verdict on each waiting pod. Only a leader is asked for verdicts.

    kube-scheduler asks about the nodes that pass its own checks, with the sums of resources among them. So a pod that
    it never asks about has room on no node by the sums.
    """

    _fleet: Fleet
    _wall: Callable[[], float] = time.time
    """Returns seconds since the epoch."""

    def __post_init__(self) -> None:
        self._reasons: dict[str, WaitingReason] = {}
        """By pod UID, the latest verdict at the end."""

    def refused(self, uid: str) -> bool:
        """Return whether none of the nodes that kube-scheduler has named last for a pod had room for it."""
        return self._reasons.get(uid) in {WaitingReason.NO_ROOM, WaitingReason.NEVER_FITS}

    def filtered(self, uid: str, reason: WaitingReason) -> None:
        """Remember the result of a filter call about a pod."""
        self._reasons.pop(uid, None)
        self._reasons[uid] = reason
        if len(self._reasons) > 2 * len(self._fleet.pending) + _SPARE:
            newest = frozenset(list(self._reasons)[-_NEWEST:])
            self._reasons = {
                uid: reason for uid, reason in self._reasons.items() if uid in newest or uid in self._fleet.pending
            }

    def preempted(self, uid: str, *, helps: bool) -> None:
        """Remember whether an eviction that the scheduler proposed makes room for a pod.

        It proposes only pods of a lower priority: without one that helps, other pods may still end. It asks also about
        a pod that was never filtered, because the sums of no node are sufficient.
        """
        never = self._reasons.get(uid) is WaitingReason.NEVER_FITS and not helps
        self.filtered(uid, WaitingReason.NEVER_FITS if never else WaitingReason.NO_ROOM)

    def counts(self) -> Mapping[WaitingReason, int]:
        """Return the number of waiting pods by reason."""
        return Counter(self._reasons.get(pod.uid, WaitingReason.NOT_ASKED) for pod in self._fleet.pending.values())

    def oldest_s(self) -> float:
        """Return the age of the oldest waiting pod in seconds; 0 if no pod waits."""
        # Times in UTC sort as texts do. The clock of the API server may be ahead of ours.
        created = (pod.created for pod in self._fleet.pending.values() if pod.created.endswith("Z"))
        first_s = epoch_s(min(created, default=""))
        return 0.0 if first_s is None else max(0.0, self._wall() - first_s)

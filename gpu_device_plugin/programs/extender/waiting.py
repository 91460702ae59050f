"""Remember what the scheduler was last told about each waiting pod, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.waiting import Reason, after_preemption, oldest_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.fleet import Fleet

_SPARE = 256
"""Remembered verdicts beyond two for each waiting pod, before those of pods that no longer wait are forgotten."""
_NEWEST = 64
"""Verdicts that are kept then anyway: the scheduler may know a pod before our watch shows it."""


class Waiting:
    """The last verdict on each waiting pod. Only a leader is asked for verdicts."""

    def __init__(self, fleet: Fleet, wall: Callable[[], float] = time.time) -> None:
        """Begin without a verdict.

        Args:
            fleet: knows which pods wait.
            wall: returns seconds since the epoch.
        """
        self._fleet = fleet
        self._wall = wall
        self._reasons: dict[str, Reason] = {}
        """By pod UID, the latest verdict at the end."""

    def __repr__(self) -> str:
        return f"<Waiting: {len(self._reasons)} verdicts, {self._fleet.waiting} pods>"

    @property
    def remembered(self) -> int:
        """The number of verdicts that are remembered."""
        return len(self._reasons)

    def filtered(self, uid: str, reason: Reason) -> None:
        """Remember the result of a filter call about a pod."""
        self._reasons.pop(uid, None)
        self._reasons[uid] = reason
        if len(self._reasons) > 2 * self._fleet.waiting + _SPARE:
            newest = frozenset(list(self._reasons)[-_NEWEST:])
            self._reasons = {
                uid: reason
                for uid, reason in self._reasons.items()
                if uid in newest or self._fleet.pending(uid) is not None
            }

    def preempted(self, uid: str, *, helps: bool) -> None:
        """Remember the result of a preempt call about a pod: whether an eviction helps it."""
        self.filtered(uid, after_preemption(self._reasons.get(uid), helps=helps))

    def counts(self) -> Mapping[Reason, int]:
        """Return the number of waiting pods by reason."""
        return Counter(self._reasons.get(pod.uid, Reason.NOT_ASKED) for pod in self._fleet.waiting_pods)

    def oldest_s(self) -> float:
        """Return the age of the oldest waiting pod in seconds; 0 if no pod waits."""
        return oldest_s((pod.created for pod in self._fleet.waiting_pods), self._wall())

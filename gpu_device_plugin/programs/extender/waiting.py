"""The pods that wait, by the latest answers to kube-scheduler about them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.times import epoch_s
from gpu_device_plugin.core.report.gauges import WaitingReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.fleet import Fleet

_SPARE = 256
"""Remembered verdicts beyond two for each waiting pod, before those of pods that no longer wait are forgotten."""
_NEWEST = 64
"""Verdicts that are kept then anyway: the scheduler may know a pod before our watch shows it."""
_MOST_CONSTRAINTS = 256
"""Kinds of pods of which the nodes that kube-scheduler named are kept."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that has room on no GPU of the nodes that kube-scheduler named for it."""

    pod: Pod
    ask: Ask
    constraints: int
    """Of `wire.Placing`."""
    since: float
    """Monotonic seconds."""


@dataclass(eq=False, repr=False)
class WaitingObserved:
    """The last verdict on each waiting pod. Only a leader is asked for verdicts.

    kube-scheduler asks about the nodes that pass its own checks, with the sums of resources among them. So a pod that
    it never asks about has room on no node by the sums, which a cluster's autoscaler sees as well.
    """

    _fleet: Fleet
    _wall: Callable[[], float] = time.time
    """Returns seconds since the epoch."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""

    def __post_init__(self) -> None:
        self._reasons: dict[str, WaitingReason] = {}
        """By pod UID, the latest verdict at the end."""
        self._refused: dict[str, Refused] = {}
        """By pod UID."""
        self.names: dict[int, Sequence[str]] = {}
        """By the constraints of refused pods, the nodes named for the latest of them; the latest constraints last.

        Those of other pods may go whenever somebody awaits.
        """

    def filtered(self, uid: str, reason: WaitingReason) -> None:
        """Remember the result of a filter call about a pod."""
        self._refused.pop(uid, None)
        self._reasons.pop(uid, None)
        self._reasons[uid] = reason
        if len(self._reasons) > 2 * len(self._fleet.pending) + _SPARE:
            newest = frozenset(list(self._reasons)[-_NEWEST:])
            self._reasons = {
                uid: reason for uid, reason in self._reasons.items() if uid in newest or uid in self._fleet.pending
            }
            self._forget_others()

    def refused(self, pod: Pod, ask: Ask, constraints: int, names: Sequence[str], since: float | None) -> None:
        """Remember that a pod has room on none of the named nodes, and (`first_refused`) since when."""
        self._refused[pod.uid] = Refused(pod, ask, constraints, self.clock() if since is None else since)
        self.names.pop(constraints, None)
        self.names[constraints] = list(map(sys.intern, names))
        if len(self.names) > _MOST_CONSTRAINTS:
            del self.names[next(iter(self.names))]

    def first_refused(self, uid: str) -> float | None:
        """Return since when each answer about a pod has refused it, monotonic seconds; None: the last one did not."""
        refused = self._refused.get(uid)
        return None if refused is None else refused.since

    def without_room(self, for_s: float) -> Sequence[Refused]:
        """Return the pods that have been refused for so many seconds, and still wait."""
        self._forget_others()
        before = self.clock() - for_s
        return [each for each in self._refused.values() if each.since <= before]

    def _forget_others(self) -> None:
        self._refused = {uid: each for uid, each in self._refused.items() if uid in self._fleet.pending}

    def undecided(self, for_s: float) -> bool:
        """Return whether a pod waits that nobody has asked about, or that has not been refused for so many seconds."""
        before = self.clock() - for_s
        return any(
            uid not in self._reasons or ((refused := self._refused.get(uid)) is not None and refused.since > before)
            for uid in self._fleet.pending
        )

    def preempted(self, uid: str, *, helps: bool) -> None:
        """Remember whether an eviction that the scheduler proposed makes room for a pod.

        It proposes only pods of a lower priority: without one that helps, other pods may still end. It asks also about
        a pod that was never filtered, because the sums of no node are sufficient.
        """
        refused = self._refused.get(uid)
        never = self._reasons.get(uid) is WaitingReason.NEVER_FITS and not helps
        self.filtered(uid, WaitingReason.NEVER_FITS if never else WaitingReason.NO_ROOM)
        if refused is not None and not helps:
            self._refused[uid] = refused

    def counts(self) -> Mapping[WaitingReason, int]:
        """Return the number of waiting pods by reason."""
        return Counter(self._reasons.get(pod.uid, WaitingReason.NOT_ASKED) for pod in self._fleet.pending.values())

    def oldest_s(self) -> float:
        """Return the age of the oldest waiting pod in seconds; 0 if no pod waits."""
        # Times in UTC sort as texts do. The clock of the API server may be ahead of ours.
        created = (pod.created for pod in self._fleet.pending.values() if pod.created.endswith("Z"))
        first_s = epoch_s(min(created, default=""))
        return 0.0 if first_s is None else max(0.0, self._wall() - first_s)

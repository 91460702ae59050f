"""Offer fewer free shares while demands of one size are refused again and again.

A scheduler that knows only the sum of free memory sends a pod to a node on which no single GPU has room for it. The
pod is refused, its controller makes another, and so on: users of other plugins counted 5,000 failed pods in an hour.
The remedy is to show the scheduler less: as long as no GPU has room for the refused size, one share less than it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.admitting import Why

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW_S = 60.0
"""Refusals of one size within this time count together."""
HOLD_S = 300.0
"""The bound is lifted after this time without a refusal, so that it never outlives its reason for good."""

ADVICE: Mapping[Why, str] = MappingProxyType(
    {
        Why.NO_ROOM: "the scheduler sees only the sum of free memory, and no single GPU has room for them; install a "
        "scheduler extender, or ask for less than the emptiest GPU has free",
        Why.TOO_LARGE: "no GPU of this node is as large; ask for less, or choose nodes by the label "
        "gpu-device-plugin/memory-mib",
    }
)
"""Advice to a pod's owner on a run of refusals; refusals for other reasons make no run."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The recent refusals, and whether they have become a run."""

    limit: int = 10
    """The number of one size within `WINDOW_S` that makes a run; 0 turns the bound off."""
    times: tuple[tuple[float, int], ...] = ()
    """(monotonic seconds, shares asked)."""
    run: int | None = None
    """The size, in shares, that is being refused again and again."""
    last: float = 0.0

    def refused(self, shares: int, now: float) -> Refusals:
        """Return the state after a demand for `shares` found no GPU with room."""
        times = (*((at, size) for at, size in self.times if now - at < WINDOW_S), (now, shares))
        same = sum(size == shares for _, size in times)
        run = self.run if now - self.last < HOLD_S else None
        # A smaller size than the present run's is the stronger bound.
        begins = 0 < self.limit <= same and (run is None or shares < run)
        return replace(self, times=times, run=shares if begins else run, last=now)

    def most_free(self, emptiest: int, now: float) -> int | None:
        """Return how many free shares may be shown, None for all; `emptiest` is the most free shares of one GPU."""
        if self.run is None or emptiest >= self.run or now - self.last >= HOLD_S:
            return None
        return self.run - 1

    def settled(self, emptiest: int, now: float) -> Refusals:
        """Return the state without a run whose reason is gone."""
        if self.run is not None and self.most_free(emptiest, now) is None:
            return Refusals(self.limit)
        return self

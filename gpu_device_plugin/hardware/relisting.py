"""Decide when an inventory that is outdated is listed again: at once, and ever more rarely while it stays outdated."""

from __future__ import annotations

import math


class Relisting:
    """The listings of the GPUs that readings have asked for.

    MIG instances that come and go all the time, or that a listing finds and a reading does not, must not have one
    process after the other list the GPUs.
    """

    def __init__(self) -> None:
        self._times = 0
        """How often in a row the inventory was found outdated, and listed again."""
        self._seen_s = -math.inf
        self._due_s: float | None = None

    def __repr__(self) -> str:
        return f"<Relisting: {self._times} in a row>"

    def due_s(self, now_s: float, from_s: float, to_s: float) -> float:
        """Return when the GPUs are to be listed again, after a reading at `now_s` that found the inventory outdated.

        Args:
            now_s: monotonic seconds.
            from_s: how long the second listing in a row waits; the first does not. The wait doubles each time.
            to_s: the longest wait. After as long without a reading like that, the next listing is a first one.
        """
        if self._due_s is None:
            if now_s - self._seen_s > to_s:
                self._times = 0
            self._due_s = now_s + (min(from_s * 2 ** (self._times - 1), to_s) if self._times else 0)
            self._times += 1
        self._seen_s = now_s
        return self._due_s

    def listed(self) -> None:
        """Record that a listing begins."""
        self._due_s = None

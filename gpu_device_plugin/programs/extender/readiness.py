"""Decide readiness: the watches of nodes and pods are current, and this extender is the leader."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.api import NodeRecord
    from gpu_device_plugin.cluster.lease import Lease
    from gpu_device_plugin.cluster.reflector import Reflector
    from gpu_device_plugin.core.cluster.other_pods import OtherPod
    from gpu_device_plugin.core.model.pods import Pod

    Watches = Mapping[str, Reflector[NodeRecord] | Reflector[Pod | OtherPod]]


class Readiness:
    """The reasons why this extender is not ready. All are temporary but its shutdown."""

    def __init__(self, watches: Watches, lease: Lease | None, clock: Callable[[], float], unfollowed_s: float) -> None:
        """Derive readiness from these parts.

        Args:
            watches: the reflectors of the cluster, by the plural of the kind.
            lease: elects the leader of several extenders; None: this one has no replicas.
            clock: monotonic seconds.
            unfollowed_s: how old the view of the cluster may be while a watch is broken, seconds.
        """
        self._watches = watches
        self._lease = lease
        self._clock = clock
        self._unfollowed_s = unfollowed_s
        self._followed_at: dict[str, float] = {}
        """By kind, when its watch was last without a problem, monotonic seconds."""
        self.shutting_down = False
        """The extender is shutting down, and accepts no new work."""

    def __repr__(self) -> str:
        return f"<Readiness: {'; '.join(self.unready()) or 'ready'}>"

    @property
    def leading(self) -> bool:
        """Whether the lease allows this extender to act."""
        return self._lease is None or self._lease.leading

    def record_watches(self) -> None:
        """Record which watches are current; to be called periodically."""
        now = self._clock()
        for what, watch in self._watches.items():
            if watch.live or watch.problem is None or what not in self._followed_at:
                self._followed_at[what] = now

    def unready(self) -> tuple[str, ...]:
        """Return why this extender is not ready to answer the scheduler; empty if it is."""
        shutdown = ("this extender is shutting down, another one takes over",) if self.shutting_down else ()
        return (*shutdown, *self.unknown(), *self._not_leading())

    def unknown(self) -> tuple[str, ...]:
        """Return for each kind why its objects are unknown or out of date; empty if all are current."""
        oldest = self._clock() - self._unfollowed_s
        found = []
        for what, watch in self._watches.items():
            why = f": {watch.problem}" if watch.problem is not None else ""
            if not watch.synced:
                found.append(f"the cluster's {what} have not all been read yet{why}")
            elif why and not watch.live and self._followed_at.get(what, math.inf) < oldest:
                found.append(f"the cluster's {what} cannot be followed{why}")
        return tuple(found)

    def _not_leading(self) -> tuple[str, ...]:
        if self._lease is None or self._lease.leading:
            return ()
        if self._lease.problem is not None:
            return (f"whether this extender may lead is unknown: {self._lease.problem}",)
        return (f"another extender leads: {self._lease.holder or 'none yet'}",)

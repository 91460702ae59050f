"""Whether the scheduler may be answered: nodes and pods are followed, and of several extenders this one leads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.api import NodeRecord
    from gpu_device_plugin.cluster.lease import Lease
    from gpu_device_plugin.cluster.reflector import Reflector
    from gpu_device_plugin.core.model.pods import Pod

    Watches = Mapping[str, Reflector[NodeRecord] | Reflector[Pod]]


class Readiness:
    """The reasons against answering. They come and go, but for the end of the extender."""

    def __init__(self, watches: Watches, lease: Lease | None, clock: Callable[[], float], unfollowed_s: float) -> None:
        """Judge by these parts.

        Args:
            watches: what follows the cluster, by the plural of the kind.
            lease: decides who of several leads; None: this extender is alone.
            clock: monotonic seconds.
            unfollowed_s: how old the view of the cluster may be once it cannot be followed, seconds.
        """
        self._watches = watches
        self._lease = lease
        self._clock = clock
        self._unfollowed_s = unfollowed_s
        self._followed_at: dict[str, float] = {}
        """By kind, when nothing was last wrong with following it, monotonic seconds."""
        self.ending = False
        """The extender ends, and takes up nothing new."""

    def __repr__(self) -> str:
        return f"<Readiness: {'; '.join(self.unready()) or 'ready'}>"

    @property
    def leading(self) -> bool:
        """Whether this extender may act, as far as the lease goes."""
        return self._lease is None or self._lease.leading

    def look(self) -> None:
        """Take note of what is followed at this moment; to be called every now and then."""
        now = self._clock()
        for what, watch in self._watches.items():
            if watch.live or watch.problem is None or what not in self._followed_at:
                self._followed_at[what] = now

    def unready(self) -> tuple[str, ...]:
        """Return why the scheduler had better not be answered; nothing if it can be."""
        ending = ("this extender is ending, another one takes over",) if self.ending else ()
        return (*ending, *self.unknown(), *self._unled())

    def unknown(self) -> tuple[str, ...]:
        """Return of which kinds too little is known."""
        oldest = self._clock() - self._unfollowed_s
        found = []
        for what, watch in self._watches.items():
            why = f": {watch.problem}" if watch.problem is not None else ""
            if not watch.synced:
                found.append(f"the cluster's {what} have not all been read yet{why}")
            elif why and not watch.live and self._followed_at.get(what, math.inf) < oldest:
                found.append(f"the cluster's {what} cannot be followed{why}")
        return tuple(found)

    def _unled(self) -> tuple[str, ...]:
        if self._lease is None or self._lease.leading:
            return ()
        if self._lease.problem is not None:
            return (f"whether this extender may lead is unknown: {self._lease.problem}",)
        return (f"another extender leads: {self._lease.holder or 'none yet'}",)

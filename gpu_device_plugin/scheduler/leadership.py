"""Whether an extender may answer the scheduler, and whether it is the active one of several."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT
from gpu_device_plugin.kubernetes.lease import Lease, holder_of
from gpu_device_plugin.kubernetes.reflector import Reflector
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod

Watches = Mapping[str, Reflector[NodeRecord] | Reflector[Pod | OtherPod]]

_TERM_S = 1.0
"""How long the holder of kube-scheduler's Lease is remembered. Another needs more than 10 s to take it."""
_READ_S = 2.0
"""Timeout of reading it."""


@dataclass(eq=False, repr=False)
class Readiness:
    """The reasons why this extender is not ready, or not the active one. All are temporary but its shutdown."""

    _context: ControllerContext
    _watches: Watches
    _lease: Lease | None
    """None: this extender has no replicas."""
    shutting_down: bool = field(default=False, init=False)
    """The extender is shutting down, and accepts no new work."""

    def __post_init__(self) -> None:
        settings = self._context.settings()
        self._scheduler_lease = settings.namespace(SERVICE_ACCOUNT), settings.scheduler_lease
        """Namespace and name of that of the kube-scheduler beside this extender; without a name no other extender is
        there, or they elect the active one themselves."""
        self._identity = settings.holder()
        """The host name of this pod, with which kube-scheduler's own identity begins."""
        self._read: tuple[float, Hashable | None] | None = None
        self._followed_at: dict[str, float] = {}
        """By kind, when its watch was last without a problem, monotonic seconds."""

    @property
    def leading(self) -> bool:
        """Whether the lease allows this extender to act."""
        return self._lease is None or self._lease.leading

    @property
    def term(self) -> int:
        """A number that changes whenever the lease is acquired or lost."""
        return 0 if self._lease is None else self._lease.leader.version

    def record_watches(self) -> None:
        """Record which watches are current; to be called periodically."""
        now = self._context.clock()
        for what, watch in self._watches.items():
            if watch.live or watch.problem is None or what not in self._followed_at:
                self._followed_at[what] = now

    def unready(self) -> tuple[str, ...]:
        """Return why this extender is not ready to answer the scheduler; empty if it is."""
        shutdown = ("this extender is shutting down, another one takes over",) if self.shutting_down else ()
        return (*shutdown, *self.unknown(), *self._not_leading())

    def unknown(self) -> tuple[str, ...]:
        """Return for each kind why its objects are unknown or out of date; empty if all are current."""
        oldest = self._context.clock() - self._context.timings.unfollowed_s
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

    async def catch_up(self) -> None:
        """Return once all that other extenders have done is known, of pods and of nodes.

        Raises ApiError or TimeoutError.
        """
        timeout_s = self._context.timings.catch_up_s
        await asyncio.gather(*(watch.caught_up(timeout_s) for watch in self._watches.values()))

    async def active_term(self, within_s: float = _TERM_S) -> Hashable | None:
        """Return what stays equal for as long as no other extender can have been active; None: this one is not.

        Of several, that is the one whose kube-scheduler leads.

        The Lease was read at most `within_s` ago. Raises ApiError.
        """
        if self.unready():
            return None
        if not self._scheduler_lease[1]:
            return ("elected", self.term)
        now = self._context.clock()
        if self._read is None or now - self._read[0] > within_s:
            holder, transitions = await holder_of(self._context.client, *self._scheduler_lease, timeout_s=_READ_S)
            ours = holder.rpartition("_")[0] == self._identity
            self._read = now, (holder, transitions) if ours else None
        return self._read[1]

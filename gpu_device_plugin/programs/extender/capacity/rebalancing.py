"""Move pods so that one that waits has room, by itself and within a budget of evictions an hour."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.core.capacity.movable import Fits, Resident, Site, Stays
from gpu_device_plugin.core.capacity.plans import planning
from gpu_device_plugin.core.contract.moves import Destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.capacity.movable import Move, Residents
    from gpu_device_plugin.fleet import FleetEntry
    from gpu_device_plugin.programs.extender.capacity.moving import Mover
    from gpu_device_plugin.programs.extender.capacity.waiters import Waiter, Waiters
    from gpu_device_plugin.programs.extender.controller_context import ControllerContext
    from gpu_device_plugin.programs.extender.followed import Followed

_log = logging.getLogger(__name__)

_AGAIN = 12
"""A pod for which there was no plan, or whose plan was stopped, is looked at again after so many times `settled_s`."""
_HOUR_S = 3600.0
_REST = 20.0
"""The next plan is made after so many times what one took, or what it took to see that none is to be made."""
_NODES_AT_ONCE = 16


@dataclass(eq=False)
class Rebalancer:
    """Carries out one plan at a time, one move after the other, and stops it at the first surprise."""

    _context: ControllerContext
    _followed: Followed
    _mover: Mover
    _waiters: Waiters
    _: KW_ONLY
    patience_s: float = 120.0
    """How long after the eviction a plan waits for the replacement: the pod may take hours to end, and its controller
    not exist."""

    def __post_init__(self) -> None:
        self._moves: deque[Move] = deque()
        """Those that are left of the plan."""
        self._for = ""
        """The UID of the waiting pod that the plan makes room for."""
        self._under_way = ""
        """The UID of the pod that was evicted last, until its replacement is bound."""
        self._evicted_at: deque[float] = deque()
        self._plan_at = 0.0
        """When the next plan may be made, monotonic seconds."""
        self._tried_at: dict[str, float] = {}
        """By UID of a waiting pod."""
        self._turn_at: dict[str, float] = {}
        """By namespace, when a plan was made last for a pod of it, in the last hour."""

    def forget(self) -> None:
        """Drop the plan: another extender has been active."""
        self._moves.clear()
        self._under_way = ""

    async def look(self) -> None:
        """Take the next step, if one is due. Raises ApiError."""
        if not self._context.settings().rebalance:
            return
        if self._under_way in self._followed.holds.rooms:  # its replacement is not bound yet
            if self._context.clock() - self._evicted_at[-1] < self.patience_s:
                return
            self._stop(self._under_way, f"its replacement was not bound within {self.patience_s:g} s")
        elif self._under_way and not self._followed.holds.was_taken(self._under_way):
            self._stop(self._under_way, "its replacement was not bound in its room")
        self._under_way = ""
        if self._moves and self._for not in self._followed.unschedulable:
            self._stop(self._for, "the pod that it is for does not wait for room any more")
        elif self._moves:
            await self._next()
        elif self._left() and self._context.clock() >= self._plan_at:
            began = self._context.clock()
            await self._plan()
            now = self._context.clock()
            self._plan_at = now + _REST * (now - began)

    def _left(self) -> int:
        """Return how many pods may be evicted now."""
        begin = self._context.clock() - _HOUR_S
        while self._evicted_at and self._evicted_at[0] <= begin:
            self._evicted_at.popleft()
        return self._context.settings().rebalance - len(self._evicted_at)

    async def _next(self) -> None:
        move = self._moves.popleft()
        pod = self._followed.pods.get(move.pod.pod.uid)
        why = "it is gone already"
        if pod is not None and pod.node_name == move.origin:
            why = await self._mover.move(pod, Destination(move.node, tuple(move.shares.items())))
        if why:
            self._stop(str(move.pod), why)
        else:
            self._under_way = move.pod.pod.uid
            self._evicted_at.append(self._context.clock())

    def _stop(self, pod: str, why: str) -> None:
        left = len(self._moves)
        self._moves.clear()
        _log.warning("a plan is stopped", extra={"pod": pod, "why": why, "moves_left": left})

    async def _plan(self) -> None:
        now = self._context.clock()
        again_s = _AGAIN * self._context.timings.settled_s
        self._tried_at = {uid: at for uid, at in self._tried_at.items() if now - at < again_s}
        waiting = self._waiters.unschedulable()
        due = await self._waiters.without_room([each for each in waiting if each.pod.uid not in self._tried_at])
        if not due:
            return
        self._turn_at = {namespace: at for namespace, at in self._turn_at.items() if now - at < _HOUR_S}
        first = min(due, key=self._importance)
        self._tried_at[first.pod.uid] = self._turn_at[first.pod.namespace] = now
        plan = await last_of(planning(await self._sites(), self._goal(first)))
        if plan.moves and len(plan.moves) <= self._left():
            about = {"pod": str(first), "moves": len(plan.moves)}
            _log.info("pods are moved so that one that waits has room", extra=about)
            self._moves.extend(plan.moves)
            self._for = first.pod.uid

    def _importance(self, waiter: Waiter) -> tuple[int, float, str, str]:
        """Return a key by which the pods sort that a plan may be made for: of equal priority, namespaces take turns."""
        pod = waiter.pod
        return -pod.priority, self._turn_at.get(pod.namespace, -math.inf), pod.created, pod.uid

    def _goal(self, waiter: Waiter) -> Fits:
        needs = waiter.needs
        open_ = [name for name in self._followed.sharing() if self._followed.nodes[name].open]
        return Fits(needs.ask, needs.amounts, self._followed.residents(open_).allowed(needs.terms), waiter.pod.priority)

    async def _sites(self) -> Sequence[Site]:
        fleet, followed = self._context.fleet, self._followed
        nodes = self._followed.sharing()
        open_ = {name for name in nodes if followed.nodes[name].open}
        residents = self._followed.residents(open_)
        sites = []
        for number, (name, node) in enumerate(nodes.items()):
            if not number % _NODES_AT_ONCE:
                await asyncio.sleep(0)
            there = tuple(self._resident(residents, entry) for entry in fleet.on_node(name) if not entry.settling)
            sites.append(Site(node, there, name in open_))
        return sites

    def _resident(self, residents: Residents, entry: FleetEntry) -> Resident:
        occupant = entry.occupant
        pod = self._followed.pods.get(entry.uid)
        if pod is None or entry.temporary:
            return Resident(occupant, stays=Stays.HELD if entry.held_for else Stays.ENDING)
        return residents.of(pod, self._followed.facts(entry.uid), occupant)

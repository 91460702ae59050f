"""Move running pods: hold room for the replacement, evict the pod, and have the replacement bound there.

Where somebody wants it; and by itself, within a budget of evictions an hour, so that one that waits has room.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.turns import in_turns
from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.features.audit.contract import LOGGER, AuditKind, AuditRecord
from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache, Waiter, replaceable
from gpu_device_plugin.features.capacity.contract import MANIFEST, Destination, HeldRoom, read_destination
from gpu_device_plugin.features.capacity.rules.movable import (
    Fits,
    Move,
    PlannedNode,
    PlannedPod,
    UnmovableReason,
    shares_of,
)
from gpu_device_plugin.features.capacity.rules.plans import planning
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from gpu_device_plugin.kubernetes.writers.evictions import EvictionOutcome, evict
from gpu_device_plugin.model.contract.keys import MOVE_REFUSED, MOVE_TO, MalformedAnnotationError
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.scheduler.cluster_state import FleetEntry
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import fit
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, NOWHERE, obstacles
from gpu_device_plugin.scheduler.rules.pod_demand import Impossible, ask

Shares = tuple[tuple[int, int], ...]

_log = logging.getLogger(__name__)
_records = logging.getLogger(LOGGER)

_HELD_S, _LONGEST_GRACE_S = 300.0, 3600.0
"""How long room is held once the pod has ended (its controller makes the replacement within seconds), and how long the
pod may take to end, of which its owner can write any number."""
_MOST = 10
"""Wishes that are looked at in one round: other pods wait meanwhile for what else the extender does."""
_AGAIN_S, _LATEST_AGAIN_S = 1.0, 300.0
"""A wish that could neither be fulfilled nor refused is looked at again after so long, then after twice as long."""
_CALL_S = 5.0
_POLICY = "binpack"


@dataclass(eq=False)
class Mover:
    """Moves one pod after the other."""

    _context: ControllerContext
    _cache: CapacityCache
    _before_taking: Callable[[str, object], Awaitable[str]]
    """Awaited once room of a node is held, as before a binding (`Capacity.before_bind`)."""
    moving: set[str] = field(default_factory=set, init=False)
    """The UIDs of the pods that are evicted, until the watch shows it."""
    _tried: dict[str, tuple[str, float, float]] = field(default_factory=dict, init=False)
    """By UID of a pod, the wish that was not fulfilled, how long it waits, and until when, monotonic seconds."""

    async def obey(self) -> None:
        """Move some of the pods that somebody wants to move, or write on them why not.

        Raises the first ApiError once all of these have been tried.
        """
        pods, rooms = self._cache.pods, self._cache.holds.rooms
        self.moving = {uid for uid in self.moving if uid in rooms and uid in pods and not pods[uid].deleting}
        failed: ApiError | None = None
        due = self._due()
        blocked = self._blocked() if due else set()
        for pod in [pod for pod in due if pod.namespace not in blocked][:_MOST]:
            if pod.namespace in blocked:
                continue
            text = pod.annotations[MOVE_TO]
            try:
                why = await self.move(pod, read_destination(text))
                if not why:
                    blocked.add(pod.namespace)
            except MalformedAnnotationError as error:
                why = str(error)
            # It is tried again after ever longer, whatever keeps the refusal from the pod, or the pod from going.
            _, wait_s, _ = self._tried.get(pod.uid, ("", 0.0, 0.0))
            wait_s = min(max(_AGAIN_S, 2 * wait_s), _LATEST_AGAIN_S)
            self._tried[pod.uid] = text, wait_s, self._context.clock() + wait_s
            if not why:
                continue
            body = {"metadata": {"uid": pod.uid, "annotations": {MOVE_TO: None, MOVE_REFUSED: why[:1000]}}}
            try:
                with suppress(ConflictError, InvalidError, NotFoundError):  # it is gone
                    await self._context.client.patch(PODS, pod.name, body, namespace=pod.namespace, timeout_s=_CALL_S)
            except ApiError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _due(self) -> Sequence[Pod]:
        wishes = [pod for pod in self._cache.pods.values() if MOVE_TO in pod.annotations and not pod.deleting]
        uids = {pod.uid for pod in wishes}
        self._tried = {uid: tried for uid, tried in self._tried.items() if uid in uids}
        now = self._context.clock()
        due = [
            pod
            for pod in wishes
            if pod.uid not in self.moving
            and ((tried := self._tried.get(pod.uid)) is None or tried[0] != pod.annotations[MOVE_TO] or tried[2] <= now)
        ]
        return in_turns(due, lambda pod: pod.namespace)

    def _blocked(self) -> set[str]:
        """Return the namespaces with room of a pod that goes or has gone, for which no replacement waits.

        Whoever makes a pod names its controller, which may not exist: of such pods each would have its room.
        """
        entries = self._context.fleet.entries

        def stays(uid: str) -> bool:
            entry = entries.get(uid)
            return entry is not None and entry.until is None and not entry.deleting and uid not in self.moving

        return {room.namespace for room in self._cache.holds.unclaimed() if not stays(room.uid)}

    async def move(self, pod: Pod, to: Destination) -> str:
        """Hold room for the replacement of a pod and evict the pod; return an empty text, or why it stays."""
        # What is held for it, perhaps by an extender that was active before, is no obstacle.
        self._cache.holds.let_go(pod.uid)
        owner, place = replaceable(pod), self._place(pod, to)
        if owner is None:
            why = "no controller would replace it on another node"
        elif isinstance(place, str):
            why = place
        else:
            why = await self._hold(pod, owner, to.node, place) or await self._evicted(pod)
        where = {"pod": str(pod), "from": pod.node_name, "to": to.node}
        self._context.metrics.count(m.MOVES, "refused" if why else "evicted")
        if why:
            _log.warning("a pod is not moved", extra=where | {"why": why, "once_per_s": 60})
        else:
            self.moving.add(pod.uid)
            moved = AuditRecord(AuditKind.MOVED, pod.node_name, pod_uid=pod.kubelet_uid, to_node=to.node)
            moved.naming(pod).write(_records.info)
            _log.info("a pod is moved: room for its replacement is held, and it is evicted", extra=where)
        return why

    def _place(self, pod: Pod, to: Destination) -> Shares | str:
        """Return the shares that the replacement takes, by position and no more than asked for, or why it cannot."""
        asked = ask(pod, self._context.resources)
        if isinstance(asked, Impossible):
            return asked.sentence
        if not asked.parts:
            return "it asks for no GPU"
        there = self._destination(pod, to.node)
        if isinstance(there, str):
            return there
        found = fit(asked, there.restricted(dict(to.shares)), _POLICY)
        if isinstance(found, FilterFailure):
            return f"node {to.node} no longer has the room: {found.sentence}"
        return tuple(shares_of(found.placements).items())

    def _destination(self, pod: Pod, name: str) -> Candidate | str:
        """Return the node that a pod is to be moved to, or why it cannot go there whatever GPUs are free."""
        there, node = self._context.fleet.candidates.get(name), self._cache.nodes.get(name)
        if there is None or node is None:
            return f"node {name} is not known to the GPU scheduler"
        terms = self._cache.facts(pod.uid).terms
        if not self._cache.every_pod and terms != NOWHERE:
            terms = replace(NO_TERMS, tolerations=terms.tolerations)  # the labels of nodes are not known
        why = {code for code, _ in obstacles(node, terms)}
        if node.going or why & {"cordoned", "not-ready"}:
            return f"node {name} is cordoned, not ready, or about to be removed"
        if there.left is not None and pod.node_name != name and not there.left.cover(pod.amounts):
            return f"node {name} has too little CPU or memory left"
        if why:
            return f"node affinity, selector or taints exclude node {name}"
        return there

    async def _hold(self, pod: Pod, owner: Owner, node: str, shares: Shares) -> str:
        """Hold room so that the next active extender knows of it before the pod goes; return why it is not held."""
        if not self._cache.holds.hold(node, room_for(pod, owner, shares, self._context.wall())):
            return f"the room could not be held: node {node} has no space left to record it"
        try:
            await self._cache.holds.write(node)
        except ApiError as error:
            self._cache.holds.let_go(pod.uid)
            hint = f"; apply {MANIFEST}" if isinstance(error, ForbiddenError) else ""
            return f"the room could not be held: {error}{hint}"
        why = await self._before_taking(node, pod)
        if why:
            self._cache.holds.let_go(pod.uid)
        return why

    async def _evicted(self, pod: Pod) -> str:
        """Evict a pod for which room is held; return an empty text, or why it stays."""
        done = await evict(self._context.client, pod, most_grace_s=pod.grace_s, timeout_s=_CALL_S, manifest=MANIFEST)
        if done.outcome is EvictionOutcome.EVICTED:
            return ""
        if done.outcome is EvictionOutcome.FAILED:
            try:
                # Its answer may be lost.
                now = await self._context.binder.read(pod.namespace, pod.name, timeout_s=_CALL_S)
            except NotFoundError:
                return ""
            except ApiError:
                return f"{done.why}; the room is held meanwhile, as the pod may be evicted still"
            if now.uid != pod.uid or now.deleting:
                return ""
        self._cache.holds.let_go(pod.uid)
        return done.why or "it is gone already"


def room_for(pod: Pod, owner: Owner, shares: Shares, now_s: float) -> HeldRoom:
    """Return the room for the replacement of a pod that is evicted at `now_s`, in seconds since the epoch."""
    until_s = now_s + min(pod.grace_s, _LONGEST_GRACE_S) + _HELD_S
    return HeldRoom(pod.uid, pod.namespace, owner.uid, shares, until_s, now_s)


# --- By itself, so that one that waits has room ----------------------------------------------------------------------

_PLAN_AGAIN = 12
"""A pod for which there was no plan, or whose plan was stopped, is looked at again after so many times `settled_s`."""
_HOUR_S = 3600.0
_NODES_AT_ONCE = 16


@dataclass(eq=False)
class Rebalancer:
    """Carries out one plan at a time, one move after the other, and stops it at the first surprise."""

    _context: ControllerContext
    _cache: CapacityCache
    _mover: Mover
    patience_s: float = field(default=120.0, init=False)
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
        self._tried_at: dict[str, float] = {}
        """By UID of a waiting pod."""
        self._turn_at: dict[str, float] = {}
        """By namespace, when a plan was made last for a pod of it, in the last hour."""

    def forget(self) -> None:
        """Drop the plan: another extender has been active."""
        self._moves.clear()
        self._under_way = ""

    async def may_plan(self) -> bool:
        """Take the next step of a plan, or return whether another one may be made. Raises ApiError."""
        if not self._context.settings().of(CapacitySettings).rebalance:
            return False
        if self._under_way in self._cache.holds.rooms:  # its replacement is not bound yet
            if self._context.clock() - self._evicted_at[-1] < self.patience_s:
                return False
            self._stop(self._under_way, f"its replacement was not bound within {self.patience_s:g} s")
        elif self._under_way and not self._cache.holds.was_taken(self._under_way):
            self._stop(self._under_way, "its replacement was not bound in its room")
        self._under_way = ""
        if self._moves and self._for not in self._cache.unschedulable:
            self._stop(self._for, "the pod that it was for no longer needs room")
        elif self._moves:
            await self._next()
        else:
            return self._left() > 0
        return False

    def _left(self) -> int:
        """Return how many pods may be evicted now."""
        begin = self._context.clock() - _HOUR_S
        while self._evicted_at and self._evicted_at[0] <= begin:
            self._evicted_at.popleft()
        return self._context.settings().of(CapacitySettings).rebalance - len(self._evicted_at)

    async def _next(self) -> None:
        move = self._moves.popleft()
        pod = self._cache.pods.get(move.pod.pod.uid)
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

    async def plan(self) -> None:
        """Make a plan for one of the pods that wait, if one is of use."""
        now = self._context.clock()
        again_s = _PLAN_AGAIN * self._context.timings.settled_s
        self._tried_at = {uid: at for uid, at in self._tried_at.items() if now - at < again_s}
        waiting = self._cache.waiters()
        due = await self._cache.without_room([each for each in waiting if each.pod.uid not in self._tried_at])
        if not due:
            return
        self._turn_at = {namespace: at for namespace, at in self._turn_at.items() if now - at < _HOUR_S}
        first = min(due, key=self._importance)
        self._tried_at[first.pod.uid] = self._turn_at[first.pod.namespace] = now
        plan = await last_of(planning(await self._sites(), self._goal(first), {}))
        if plan and len(plan) <= self._left():
            about = {"pod": str(first.pod), "moves": len(plan)}
            _log.info("pods are moved to make room for a pending pod", extra=about)
            self._moves.extend(plan)
            self._for = first.pod.uid

    def _importance(self, waiter: Waiter) -> tuple[int, float, str, str]:
        """Return a key by which the pods sort that a plan may be made for: of equal priority, namespaces take turns."""
        pod = waiter.pod
        return -pod.priority, self._turn_at.get(pod.namespace, -math.inf), pod.created, pod.uid

    def _goal(self, waiter: Waiter) -> Fits:
        needs = waiter.needs
        allowed = self._cache.residents(self._cache.sharing_open()).allowed(needs.terms)
        return Fits(needs.ask, needs.amounts, allowed, waiter.pod.priority)

    async def _sites(self) -> Sequence[PlannedNode]:
        cache = self._cache
        nodes, open_ = cache.sharing(), cache.sharing_open()
        residents = cache.residents(open_)

        def resident(entry: FleetEntry) -> PlannedPod:
            pod = cache.pods.get(entry.uid)
            if pod is None or entry.temporary:
                why = UnmovableReason.HELD if entry.held_for else UnmovableReason.ENDING
                return PlannedPod(entry.occupant, stays=why)
            return residents.of(pod, cache.facts(entry.uid), entry.occupant)

        sites = []
        for number, (name, node) in enumerate(nodes.items()):
            if not number % _NODES_AT_ONCE:
                await asyncio.sleep(0)
            there = tuple([resident(entry) for entry in self._context.fleet.on_node(name) if not entry.settling])
            sites.append(PlannedNode(node, there, name in open_))
        return sites

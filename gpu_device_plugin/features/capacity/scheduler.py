"""Run the care for the cluster's capacity while this extender is the active one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn, TypeVar

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.features.capacity.autoscaler import Autoscaler
from gpu_device_plugin.features.capacity.growing import Grower
from gpu_device_plugin.features.capacity.keeping import Keeper
from gpu_device_plugin.features.capacity.known_kinds import KnownKinds
from gpu_device_plugin.features.capacity.moving import MANIFEST, Mover, Rebalancer
from gpu_device_plugin.features.capacity.settings import CapacitySettings
from gpu_device_plugin.features.capacity.waiters import Waiters
from gpu_device_plugin.features.idle.scheduler import IdleActions
from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.kubernetes.writers.events import EventWriter
from gpu_device_plugin.settings.common import own_namespace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from gpu_device_plugin.scheduler.controller_context import ControllerContext
    from gpu_device_plugin.scheduler.extender_routes import Readiness
    from gpu_device_plugin.scheduler.followed_objects import CapacityCache
    from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REST = 20.0
"""What nodes are needed, which may go and which pods move is decided anew after so many times what it took: it takes a
twentieth of a CPU at most."""


_KEEP_S = 2.0
"""Timeout of marking nodes before a pod is bound."""


class Capacity:
    """Does one thing after the other, so that none of them meets the half-done work of another."""

    def __init__(
        self,
        context: ControllerContext,
        followed: CapacityCache,
        evaluator: NodeEvaluator,
        refused: Callable[[str], bool],
        readiness: Readiness,
        *,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare to do it.

        `catch_up` returns once all that other extenders have done is known, of pods and of nodes; it raises ApiError or
        TimeoutError.
        """
        self._context = context
        self._followed = followed
        self._readiness = readiness
        self._catch_up = catch_up
        self._events = EventWriter(context.client, instance=context.settings().holder())
        namespace = own_namespace(SERVICE_ACCOUNT, "kube-system")
        waiters = Waiters(context, followed, evaluator, refused)
        self.mover = Mover(context, followed, self.before_bind)
        self.keeper = Keeper(context, followed)
        self.rebalancer = Rebalancer(context, followed, self.mover, waiters)
        self.idle = IdleActions(context, followed, self._events)
        self._kinds = KnownKinds(context, followed, evaluator, namespace)
        self.grower = Grower(context, followed, self._kinds, waiters, self._events)
        self._autoscaler = Autoscaler(context, followed, namespace)
        self._term: Hashable | None = None
        self._marked: Observable[Hashable | None] = Observable(None)
        """The term for which it has been decided which nodes may go, or tried to."""
        self._decided: tuple[int, int] | None = None
        """The state of fleet and nodes for which it was decided last which nodes may go."""
        self._rested_at: dict[str, float] = {}
        """By name of a step, when it may be taken again, monotonic seconds."""

    async def run(self) -> NoReturn:
        """Take care. Ends only by cancellation."""
        await together(self._rounds(), self._events.run())

    async def _rounds(self) -> NoReturn:
        while True:
            try:
                if await self._leads():
                    for step in (
                        self._autoscaler.open,
                        self._shelter,
                        self._keep,
                        self.mover.obey,
                        self._rebalance,
                        self.idle.look,
                        self._grow,
                    ):
                        await self._done(step)
            except (ApiError, TimeoutError) as error:
                _told(error)
            await asyncio.sleep(self._context.timings.capacity_s)

    async def _leads(self) -> bool:
        """Return whether this extender is the active one, and knows what others have done. Raises ApiError."""
        term = await self._readiness.active_term()
        if term is not None and term != self._term:
            await self._catch_up()
            self._followed.holds.forget()
            self._autoscaler.forget()
            self.idle.forget()
            self.rebalancer.forget()
            self.keeper.forget()
            self._rested_at.clear()
            self._decided = None
            self._kinds.forget()
        self._term = term
        return term is not None

    async def _done(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take one step, whose failure keeps none of the others."""
        try:
            await step()
        except ApiError as error:
            _told(error)
        except Exception:  # noqa: BLE001 - whatever is wrong here, pods have to be scheduled
            _log.exception("a step of the care for the cluster's capacity failed", extra={"once_per_s": 60})

    async def _shelter(self) -> None:
        self._followed.holds.expire()
        self._followed.holds.release()
        if self._context.settings().of(CapacitySettings).keep_nodes:
            await self.keeper.reserve_for_drain(self.mover.moving)
        await self._followed.holds.write()

    async def _grow(self) -> None:
        how = self._context.settings().of(CapacitySettings).grow
        if how != "off":
            # The time of the API's answers does not count: what is wanted no longer has to go soon.
            wanted = await self._resting("grow", self.grower.wanted)
            if wanted is not None:
                await self._autoscaler.ask(wanted, how)
        else:
            await self._autoscaler.clear()

    async def _rebalance(self) -> None:
        if await self.rebalancer.may_plan():
            await self._resting("rebalance", self.rebalancer.plan)

    async def _keep(self) -> None:
        before = 0 if self._decided is None else self._decided[0]
        state = self._context.fleet.now.changed_since(before)[0], self._followed.changes
        try:
            if state == self._decided:
                return
            if not self._context.settings().of(CapacitySettings).keep_nodes:
                done = await self.keeper.release()
            else:
                # The time of the API's answers does not count here either.
                decision = await self._resting("keep", self.keeper.decide)
                done = decision is not None and await self.keeper.mark(decision, state[0])
            if done:
                self._decided = state
        finally:
            self._marked.change(self._term)

    async def before_bind(self, node: str, pod: object) -> str:
        """Have all nodes kept that a pod leaves without room elsewhere, which counts on its node but is not bound yet.

        Return an empty text, or why the pod must not come: pods that leave their node need its room. Never raises:
        where nodes cannot be marked within `_KEEP_S`, scheduling goes first.
        """
        if not self._context.settings().of(CapacitySettings).keep_nodes:
            return ""
        try:
            async with asyncio.timeout(_KEEP_S):
                # What was read before the scheduler asked for a binding may be older than its Lease.
                term = await self._readiness.active_term() or await self._readiness.active_term(within_s=0.0)
                if term is None:
                    return ""
                await self._marked.wait_until(lambda marked: marked == term)
                marked = await self.keeper.secure(node, f"pod {pod} takes room on node {node}")
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"it took longer than {_KEEP_S:g} s"
            _log.warning("nodes that must stay are not marked yet", extra={"why": why, "once_per_s": 60})
            return ""
        gone = await self.keeper.going(marked)
        return f"node {node}: an autoscaler is removing node {gone}, whose pods need the room" if gone else ""

    async def _resting(self, name: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do what may take seconds in a large cluster, and return its result; None: it was done a moment ago."""
        began = self._context.clock()
        if began < self._rested_at.get(name, began):
            return None
        try:
            return await work()
        finally:
            now = self._context.clock()
            self._rested_at[name] = now + _REST * (now - began)


def _told(error: Exception) -> None:
    hint = f"; apply {MANIFEST}" if isinstance(error, ForbiddenError) else ""
    _log.warning("the care for the cluster's capacity waits", extra={"why": f"{error}{hint}", "once_per_s": 60})

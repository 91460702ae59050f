"""The capacity controller: what the active extender does so that pods have nodes, and nodes pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.capacity.autoscaler import Autoscaler
from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.capacity.contract import MANIFEST
from gpu_device_plugin.features.capacity.growing import Grower
from gpu_device_plugin.features.capacity.keeping import Keeper
from gpu_device_plugin.features.capacity.known_kinds import KnownKinds
from gpu_device_plugin.features.capacity.moving import Mover, Rebalancer
from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import Reserved, SchedulerFeature
from gpu_device_plugin.scheduler.leader_tasks import LeaderStep
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics
from gpu_device_plugin.settings.common import own_namespace

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REST = 20.0
"""What nodes are needed, which may go and which pods move is decided anew after so many times what it took: it takes a
twentieth of a CPU at most."""


_KEEP_S = 2.0
"""Timeout of marking nodes before a pod is bound."""


class Capacity(SchedulerFeature):
    """Does one thing after the other, so that none of them meets the half-done work of another."""

    def __init__(self, context: ControllerContext) -> None:
        """Prepare to do it."""
        self._context = context
        self.cache = cache = CapacityCache(context)
        context.features.add(cache)
        namespace = own_namespace(SERVICE_ACCOUNT, "kube-system")
        self.mover = Mover(context, cache, self.before_bind)
        self.keeper = Keeper(context, cache)
        self.rebalancer = Rebalancer(context, cache, self.mover)
        self._kinds = KnownKinds(context, cache, namespace)
        self.grower = Grower(context, cache, self._kinds)
        self._autoscaler = Autoscaler(context, cache, namespace)
        self._term: Hashable | None = None
        self._marked: Observable[Hashable | None] = Observable(None)
        """The term for which it has been decided which nodes may go, or tried to."""
        self._decided: tuple[int, int] | None = None
        """The state of fleet and nodes for which it was decided last which nodes may go."""
        self._rested_at: dict[str, float] = {}
        """By name of a step, when it may be taken again, monotonic seconds."""

    def reserved(self, pod: Pod, asked: GpuRequest, nodes: Sequence[str]) -> Reserved | None:  # noqa: D102
        holds = self.cache.holds
        held = holds.for_pod(pod, asked, nodes)
        return None if held is None else Reserved(*held, partial(holds.taken, held[0]))

    def measured(self, metrics: ExtenderMetrics) -> ExtenderMetrics:  # noqa: D102
        stay = self.keeper.latest.stay
        return replace(metrics, wanted=len(self.grower.latest), kept=len(stay), held=len(self.cache.holds.rooms))

    def leader_steps(self) -> Iterable[LeaderStep]:  # noqa: D102
        step = partial(
            LeaderStep,
            "capacity controller",
            pause_s=self._context.timings.capacity_s,
            waits="the capacity controller failed; retrying",
            manifest=MANIFEST,
        )
        yield step(self._autoscaler.remove_startup_taints, self._forget)
        for run in self._shelter, self._keep, self.mover.obey, self._rebalance, self._grow:
            yield step(run)

    def _forget(self, term: Hashable) -> None:
        self._term = term
        for part in (self.cache.holds, self._autoscaler, self.rebalancer, self.keeper, self._kinds):
            part.forget()
        self._rested_at.clear()
        self._decided = None

    async def _shelter(self) -> None:
        self.cache.holds.expire()
        self.cache.holds.release()
        if self._context.settings().of(CapacitySettings).keep_nodes:
            await self.keeper.reserve_for_drain(self.mover.moving)
        await self.cache.holds.write()

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
        state = self._context.fleet.now.changed_since(before)[0], self.cache.changes
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
                term = await self._context.active_term() or await self._context.active_term(0.0)
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

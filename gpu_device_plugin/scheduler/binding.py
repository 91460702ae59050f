"""Bind a pod: choose its GPUs, claim them, and send the binding to the API server, in this order."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

from gpu_device_plugin.kubernetes.client.api_client import LATEST_COMMIT_S
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError
from gpu_device_plugin.kubernetes.writers.binder import BindError, PodRef
from gpu_device_plugin.model.contract.keys import ALLOCATION, IDX, INIT_ALLOCATION, MEMORY_HELD
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import Fit, by_claims, fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.scheduler.rules.usage import promise

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Names become part of a URL path; the API server accepts no others than these."""

_VOID: Mapping[str, str] = MappingProxyType({IDX: "0", ALLOCATION: "{}", INIT_ALLOCATION: "{}", MEMORY_HELD: "{}"})
"""Annotations without a promise. `IDX` is ignored where the others cover every container, as a promise does."""

_NO_CLAIM = (
    "its GPUs are allocated through ResourceClaims (DRA), and kube-scheduler has made no claim of the pod's limits; "
    "kube-scheduler chooses a node again"
)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A binding that the API server may have made, or may still make. All requests for it are identical."""

    ref: PodRef
    claimed: Pod
    """The pod with the node and the promise that it has if the binding was made."""
    promised: Mapping[str, str]
    since: float
    """When we gave up on the last request that may still take effect, monotonic seconds."""


@dataclass(eq=False, repr=False)
class Binding:
    """Binds pods within a fleet, many concurrently. The only writer of claims in it."""

    _context: ControllerContext
    current: Callable[[], Awaitable[None]]
    """Returns once the fleet has the bindings of other extenders made since our last one; it raises ApiError or
    TimeoutError."""

    def __post_init__(self) -> None:
        self._underway: dict[str, asyncio.Future[str]] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._doubted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Binding: {len(self._underway)} under way, {len(self._doubts)} in doubt>"

    @property
    def doubts(self) -> int:
        """The number of pods for which it is unknown whether they are bound; their claims stand."""
        return len(self._doubts)

    async def bind(self, ref: PodRef, node: str) -> str:
        """Bind a pod to `node`; return an empty text, or a sentence for the pod's owner on why it is not bound.

        A scheduler that got no answer in time retries: the second call waits for the first, then starts over.
        """
        if not all(map(_NAME.fullmatch, (ref.namespace, ref.name))):
            return "the pod's name or namespace is invalid: only lowercase letters, digits, dashes and dots are allowed"
        try:
            async with asyncio.timeout(self._context.settings().bind_timeout_s):
                while (first := self._underway.get(ref.uid)) is not None:
                    await asyncio.wait({first})
                done = self._underway[ref.uid] = asyncio.get_running_loop().create_future()
                try:
                    return await self._bind(ref, node)
                finally:
                    del self._underway[ref.uid]
                    done.set_result("")
        except ApiError as error:
            return str(error)
        except TimeoutError as error:
            return str(error) or f"the API server did not answer within {self._context.settings().bind_timeout_s:g} s"

    async def _bind(self, ref: PodRef, node: str) -> str:
        await self.current()
        pod = self._context.fleet.pending.get(ref.uid)
        if pod is None or not pod.containers or (pod.namespace, pod.name) != (ref.namespace, ref.name):
            pod = await self._context.binder.read(ref.namespace, ref.name)
        if (why := self._unbindable(pod, ref, node)) is not None:
            return why
        doubt = self._doubts.get(ref.uid)
        if doubt is not None and not self._stands(doubt):
            del self._doubts[ref.uid]
        elif doubt is not None and doubt.claimed.node_name != node:
            where = doubt.claimed.node_name
            return f"pod {ref} may still be bound to node {where}: the API server has not answered; wait for it"
        elif doubt is not None:
            # The same request is sent again: of two identical bindings it does not matter which is made.
            return await self._claimed(pod, ref, node, doubt.promised)
        return await self._chosen(pod, ref, node)

    async def _chosen(self, pod: Pod, ref: PodRef, node: str) -> str:
        """Choose the GPUs of a pod, unless kube-scheduler has, and bind it."""
        asked = ask(pod, self._context.resources)
        if isinstance(asked, Impossible):
            return asked.sentence
        there = self._context.fleet.candidates.get(node)
        if there is None:
            return f"node {node} is not known to the GPU scheduler"
        if (reserved := self._context.features.first(SchedulerFeature.reserved, pod, asked, (node,))) is not None:
            there = reserved.node
        if by_claims(asked, there):
            return await self._without_promise(asked, pod, ref, there)
        found = self._promise(asked, pod, there, "" if reserved is None else reserved.uid)
        if isinstance(found, str):
            return found
        promised, wait_s = found
        why = await self._claimed(pod, ref, node, promised, wait_s)
        if reserved is not None and not why:
            # Until now the room counted twice. If the binding had failed, it would still be held.
            reserved.taken(ref.uid)
        return why

    def _unbindable(self, pod: Pod, ref: PodRef, node: str) -> str | None:
        """Return why the pod cannot be bound, an empty text if it is bound to `node` already, None if it can be."""
        if pod.uid != ref.uid:
            return f"pod {ref} was deleted, and another pod now has its name"
        entry, there = self._context.fleet.entries.get(pod.uid), self._context.fleet.candidates.get(node)
        promised = entry is not None and not entry.usage.unplaced
        if pod.node_name == node and (promised or (there is not None and there.gpus.claims)):
            return ""  # the answer to an earlier call was lost
        if pod.node_name:
            return f"pod {ref} is already bound to node {pod.node_name}"
        if pod.deleting:
            return f"pod {ref} is being deleted"
        return None

    async def _without_promise(self, asked: GpuRequest, pod: Pod, ref: PodRef, there: Candidate) -> str:
        """Bind a pod whose GPUs kube-scheduler itself has allocated: we give out nothing, and count nothing."""
        if isinstance(found := self._fit(asked, there, pod), FilterFailure):
            return f"node {there.name}: {found.sentence}"
        claim = await self._context.binder.made_claim(ref.namespace, ref.name)
        if not claim:
            # The node has begun to serve claims since kube-scheduler looked at it. Its kubelet would reject the pod.
            return f"node {there.name}: {_NO_CLAIM}"
        await self._context.binder.bind(ref, there.name, {})
        _log.info("bound", extra={"pod": str(ref), "node": there.name, "claim": claim})
        return ""

    def _promise(
        self, asked: GpuRequest, pod: Pod, there: Candidate, held: str
    ) -> tuple[Mapping[str, str], float] | str:
        """Return the promise for a pod, and in how many seconds its GPUs are available; or why the pod does not fit."""
        found, wait_s = self._fit(asked, there, pod), 0.0
        if (settling := self._context.fleet.settling(there.name, held)) is not None:
            rest, opens = settling
            at_once = self._fit(asked, rest, pod)
            found, wait_s = (
                (found, opens - self._context.clock()) if isinstance(at_once, FilterFailure) else (at_once, 0.0)
            )
        if isinstance(found, FilterFailure):
            return f"node {there.name}: {found.sentence}"
        promised = promise(asked, found.placements, there.gpus, round(self._context.wall() * 1e9))
        # A binding can overwrite an annotation but not remove one. An annotation by the pod's owner would stand beside
        # the promise and, if malformed, make the promise unreadable.
        void = {key: text for key, text in _VOID.items() if key in pod.annotations} if promised else {}
        return {**void, **promised}, wait_s

    def _fit(self, asked: GpuRequest, node: Candidate, pod: Pod) -> Fit | FilterFailure:
        found = fit(asked, node, self._context.settings().gpu_policy, self._context.evaluator.ranks(node, pod.amounts))
        if isinstance(found, FilterFailure):
            return found
        for prefer in self._context.features.at(SchedulerFeature.prefer):
            found = prefer(found, asked, node, pod)
        return found

    async def _claimed(self, pod: Pod, ref: PodRef, node: str, promised: Mapping[str, str], wait_s: float = 0.0) -> str:
        # No await between the choice and this line: the next request finds the GPU claimed.
        claimed = replace(pod, node_name=node, annotations={**pod.annotations, **promised})
        self._context.fleet.claim(claimed)
        again = ref.uid in self._doubts
        sent = False
        try:
            if why := await self._context.before_bind(node, ref):
                return why
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            sent = True
        finally:
            if not (sent or again):
                self._context.fleet.release(ref.uid)
        try:
            await self._context.binder.bind(ref, node, promised)
        except BindError:
            # This request certainly failed; earlier ones may still take effect.
            if not again:
                self._context.fleet.release(ref.uid)
            raise
        except BaseException:
            self._doubts[ref.uid] = _Doubt(ref, claimed, promised, self._context.clock())
            self._context.fleet.doubt(ref.uid)
            self._doubted.set()
            raise
        self._doubts.pop(ref.uid, None)
        self._context.fleet.confirm(ref.uid)
        where = promised.get(ALLOCATION) or promised.get(INIT_ALLOCATION, "")
        _log.info("bound", extra={"pod": str(ref), "node": node, "gpus": where})
        return ""

    # --- Doubts -------------------------------------------------------------------------------------------------------

    async def resolve_doubts(self) -> NoReturn:
        """Resolve the bindings that are in doubt. Ends only by cancellation."""
        while True:
            await self._doubted.wait()
            await asyncio.sleep(self._context.timings.check_doubts_s)
            await self.check_doubts()
            if not self._doubts:
                self._doubted.clear()

    async def check_doubts(self) -> None:
        """Check each binding that is in doubt once."""
        for doubt in tuple(self._doubts.values()):
            if await self._resolved(doubt) and self._doubts.get(doubt.ref.uid) is doubt:
                del self._doubts[doubt.ref.uid]

    async def _resolved(self, doubt: _Doubt) -> bool:
        if not self._stands(doubt):
            return True  # the watch has shown the outcome
        asked_at = self._context.clock()
        try:
            pod: Pod | None = await self._context.binder.read(doubt.ref.namespace, doubt.ref.name)
        except NotFoundError:
            pod = None
        except ApiError:
            return False
        # Meanwhile the watch may have shown the outcome, or another request for it may have been answered.
        return not self._stands(doubt) or self._apply(doubt, pod, asked_at)

    def _apply(self, doubt: _Doubt, pod: Pod | None, asked_at: float) -> bool:
        """Apply the state of a pod, read at `asked_at` or later, to the fleet; return whether the doubt is resolved."""
        if pod is None or pod.uid != doubt.ref.uid:
            # It may have been bound and then deleted by force, and its containers may still run.
            self._context.fleet.remove_pod(doubt.claimed, self._context.clock())
        elif pod.node_name:
            self._context.fleet.put_pod(pod, self._context.clock())
        elif not pod.deleting and (doubt.ref.uid in self._underway or asked_at - doubt.since < LATEST_COMMIT_S):
            return False
        else:  # no request can still take effect, or the pod is being deleted, and the API server binds no such pod
            where = {"pod": str(doubt.ref), "node": doubt.claimed.node_name}
            _log.warning("an unanswered binding has not been made", extra=where)
            self._context.fleet.release(doubt.ref.uid)
        return True

    def _stands(self, doubt: _Doubt) -> bool:
        entry = self._context.fleet.entries.get(doubt.ref.uid)
        return self._doubts.get(doubt.ref.uid) is doubt and entry is not None and entry.claimed


PAUSE_S = 2.0
"""An extender that bound a pod less than this long ago has been the leader since: candidates try to acquire the lease
every 2 s (kube-scheduler's default), and another one would have had to acquire it, bind a pod and release it."""


@dataclass(eq=False, repr=False)
class Freshness:
    """Catches up before the first of a series of bindings; the later ones proceed at once."""

    _catch_up: Callable[[], Awaitable[None]]
    """Raises if it cannot."""
    _clock: Callable[[], float]
    """Returns monotonic seconds."""
    _term: Callable[[], int]
    """Returns a number that changes whenever others may have bound pods until now."""

    def __post_init__(self) -> None:
        self._fresh_at = -math.inf
        self._known_term: int | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self) -> None:
        """Return once the bindings of others are known; to be called before every binding.

        Raises:
            The errors of `catch_up`; the next call then retries.
        """
        if not self._is_fresh():
            # The lock spans an await on purpose: all callers wait for the same catch-up.
            async with self._one_at_a_time:
                term = self._known_term if self._is_fresh() else None
                while term != self._term():
                    term = self._term()
                    await self._catch_up()
                self._known_term = term
        self._fresh_at = self._clock()

    def _is_fresh(self) -> bool:
        return self._known_term == self._term() and self._clock() - self._fresh_at < PAUSE_S

"""Evict pods one at a time, retrying refused evictions, and evict those on failed GPUs if the settings say so."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.worker import Backoff, Worker
from gpu_device_plugin.features.eviction import EvictionSettings, GpuFailureSettings
from gpu_device_plugin.features.eviction.rules import (
    Candidate,
    Failed,
    failures,
    lasting,
    leaving,
    next_victims,
    on_failed,
)
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.gpu_health import with_cards
from gpu_device_plugin.report.rules.printing import duration

if TYPE_CHECKING:
    # At run time only where a pod is evicted: 1 MiB that an agent without API access, which evicts none, does not pay.
    from gpu_device_plugin.kubernetes.writers.evictions import Eviction, EvictionOutcome

_log = logging.getLogger(__name__)

_MOST_RETRY_S = 300.0
_CLEANUP_S = 30.0
"""A pod that is still there so many seconds after its containers should have been killed is overdue. Until then its
kubelet may be busy with volumes and networks."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A pod to evict, and why."""

    pod: Pod
    uuids: frozenset[str]
    reason: str
    why: str
    counted: m.Count


@dataclass(slots=True)
class _RefusedEviction:
    """A pod whose eviction did not succeed."""

    backoff: Backoff
    not_before: float
    outcome: EvictionOutcome


class Evictor(NodeFeature):
    """Evicts the pods that are ordered. Who orders asks `next_victims` before, and orders again later."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to evict pods of `node`, which has the API."""
        self._cluster, self._metrics, self._settings = node.reached_cluster, node.metrics, node.settings
        self.alone: Callable[[], bool] = node.other_plugins.alone
        """Returns whether nobody else hands out GPUs of this node. Otherwise no pod is evicted: what it uses, and of
        whom there is too much on a GPU, is not ours alone to say."""
        self.first_retry_s = 5.0
        """After the first refusal of a pod; after the next one twice that, and so on."""
        self.clock: Callable[[], float] = time.monotonic
        self._orders: dict[str, _Order] = {}
        self._worker = Worker(self._evict)
        self._going: dict[str, frozenset[str]] = {}
        self._due: dict[str, float] = {}
        """When each pod that is on its way should be gone, in monotonic seconds."""
        self._refused: dict[str, _RefusedEviction] = {}

    def __repr__(self) -> str:
        return f"<Evictor: {len(self._orders)} ordered, {len(self._going)} going, {len(self.refused)} refused>"

    @property
    def going(self) -> Mapping[str, frozenset[str]]:
        """The GPUs of the pods whose eviction is ordered or was accepted, by UID, until they end or are overdue."""
        ordered = {uid: order.uuids for uid, order in self._orders.items()}
        return {uid: uuids for uid, uuids in self._going.items() if self._goes(uid)} | ordered

    @property
    def refused(self) -> frozenset[str]:
        """UIDs of the pods whose eviction was refused the last time that it was tried."""
        return frozenset(self._refused.keys() & self._cluster.pods.keys())

    @property
    def put_off(self) -> frozenset[str]:
        """Those of them that are not to be ordered again yet."""
        now = self.clock()
        return frozenset(uid for uid in self.refused if self._refused[uid].not_before > now)

    @property
    def overdue(self) -> frozenset[str]:
        """UIDs of the pods that should be gone: nothing that this agent could ask for ends them sooner."""
        now = self.clock()
        return frozenset(uid for uid, at in self._due.items() if at <= now and uid in self._cluster.pods)

    def _goes(self, uid: str) -> bool:
        pod = self._cluster.pods.get(uid)
        return pod is not None and not pod.ended and uid not in self.overdue

    def _follow_pods(self) -> None:
        """Forget the pods that have ended, and note when those that are on their way should have."""
        pods, now, most_s = self._cluster.pods, self.clock(), self._most_grace_s
        due = {uid: at for uid, at in self._due.items() if uid in pods and (uid in self._going or pods[uid].deleting)}
        new = {uid: now + pod.grace_s + _CLEANUP_S for uid, pod in pods.items() if leaving(pod, most_s)}
        self._due = new | due
        self._going = {uid: uuids for uid, uuids in self._going.items() if self._goes(uid)}
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in pods}

    @property
    def _most_grace_s(self) -> int:
        """In whole seconds, and at least one: with 0 the API server forgets a pod whose containers still run."""
        return max(1, math.ceil(self._settings.value.of(EvictionSettings).eviction_grace_s))

    def next_victims(self, candidates: Iterable[Candidate]) -> Mapping[str, tuple[Pod, frozenset[str]]]:
        """Return the pods among these to order the eviction of, see `features.eviction.rules.next_victims`."""
        self._follow_pods()
        candidates, overdue = tuple(candidates), self.overdue
        if candidates and not self.alone():
            text = "no pod is evicted while another plugin hands out GPUs of this node"
            _log.warning(text, extra={"once_per_s": 600})
            return {}
        for pod in {each.pod.uid: each.pod for each in candidates if each.pod.uid in overdue}.values():
            text = "pod %s should have ended but still uses its GPU; check its node's kubelet"
            _log.warning(text, pod, extra={"once_per_s": 600})
        return next_victims(
            candidates,
            most_grace_s=self._most_grace_s,
            going=self.going,
            put_off=self.put_off,
            overdue=overdue,
        )

    def order(self, pod: Pod, uuids: frozenset[str], reason: str, why: str, counted: m.Count) -> None:
        """Have a pod evicted that should leave these GPUs. Returns at once; a pod is not ordered twice.

        The Event on the pod has the `reason`, and `why` is a clause about the pod for people.
        """
        self._orders.setdefault(pod.uid, _Order(pod, uuids, reason, why, counted))
        self._worker.wake()

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._worker.run()]

    async def _evict(self) -> None:
        while self._orders:
            order = next(iter(self._orders.values()))
            answer = await self._cluster.evict(order.pod, self._most_grace_s)
            self._metrics.count(order.counted, answer.outcome)
            self._settle(order, answer)
            del self._orders[order.pod.uid]

    def _settle(self, order: _Order, answer: Eviction) -> None:
        from gpu_device_plugin.kubernetes.writers.evictions import EvictionOutcome  # noqa: PLC0415 - see above

        pod = order.pod
        if answer.outcome is EvictionOutcome.EVICTED:
            self._going[pod.uid] = order.uuids
            self._due[pod.uid] = self.clock() + min(pod.grace_s, self._most_grace_s) + _CLEANUP_S
            _log.warning("pod %s is evicted: %s", pod, order.why)
            failure = order.counted is m.GPU_FAILURE_EVICTIONS  # which has a record
            self._cluster.event(
                order.reason,
                f"evicted: {order.why}",
                "Evict",
                summary="" if failure else f"pod {pod} is evicted: {order.why}",
                pod=pod,
                gpus=tuple(sorted(order.uuids)),
            )
        if answer.outcome in {EvictionOutcome.EVICTED, EvictionOutcome.GONE}:
            self._refused.pop(pod.uid, None)
            return
        before = self._refused.get(pod.uid)
        backoff = Backoff(self.first_retry_s, _MOST_RETRY_S) if before is None else before.backoff
        not_before = self.clock() + backoff.next_s(answer.retry_after_s)
        self._refused[pod.uid] = _RefusedEviction(backoff, not_before, answer.outcome)
        if before is not None and before.outcome is answer.outcome:
            return  # told before; the counter has the repetitions
        _log.warning("pod %s is not evicted, and this is retried: %s", pod, answer.why)
        if answer.outcome is EvictionOutcome.BLOCKED:
            note = f"should be evicted: {order.why}; {answer.why}, so this is retried"
            self._cluster.event("GPUEvictionBlocked", note, "Evict", pod=pod)
        elif answer.outcome is EvictionOutcome.FORBIDDEN:
            note = f"The agent of this node cannot evict pod {pod}: {answer.why}"
            self._cluster.event("GPUEvictionForbidden", note, "Evict")


class GpuFailures(NodeFeature):
    """Follows the health of the GPUs, and has the evictor take the pods off those that failed."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare to follow the GPUs of `node`."""
        self._view, self._state, self._settings = node.hardware.view, node.state, node.settings
        self._use, self._evictor = node.features.of(Use), node.features.of(Evictor)
        self.again_s = 5.0
        """Seconds between two choices of the pod that goes next, while a GPU fails."""
        self._failing: Mapping[str, Failed] = {}

    def tasks(self) -> Tasks:  # noqa: D102
        return [Worker(self._check_view).run(self._view)]

    def _check_view(self) -> float | None:
        view = self._view.value
        watched = view.state is State.WATCHING
        healths = with_cards(view.health_by_uuid, view.inventory.gpus)
        self._failing = failures(self._failing, healths, watched=watched, now=time.monotonic())
        if self._settings.value.of(GpuFailureSettings).on_gpu_failure == "evict":
            self._evict()
        return self.again_s if self._failing else None

    def _evict(self) -> None:
        now, called = time.monotonic(), self._state.node.shares.called
        failed = lasting(self._failing, self._settings.value.of(GpuFailureSettings).gpu_failure_grace_s, now)
        if not failed:
            return
        victims = self._evictor.next_victims(on_failed(failed, self._use.holders()))
        for pod, uuids in victims.values():
            why = "; ".join(
                f"{called(uuid)} has failed, for {duration(now - failed[uuid].since)}: {failed[uuid].why}"
                for uuid in sorted(uuids)
            )
            self._evictor.order(pod, uuids, "GPUFailureEvicted", why, m.GPU_FAILURE_EVICTIONS)

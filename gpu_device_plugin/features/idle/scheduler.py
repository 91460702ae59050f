"""Warn idle pods, then evict them or scale their workloads to zero."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from gpu_device_plugin import metrics as m
from gpu_device_plugin.features.idle import IdleActionSettings
from gpu_device_plugin.features.idle.rules import (
    IdlePod,
    Warned,
    WhenIdle,
    due,
    idle_pod,
    idle_since,
    trusted,
    warned_after,
    warning,
)
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, read_metadata
from gpu_device_plugin.kubernetes.writers.events import EventSubject
from gpu_device_plugin.kubernetes.writers.evictions import EvictionOutcome, evict
from gpu_device_plugin.kubernetes.writers.workloads import NotScalableError, pods_of, scale_to_zero, workload_of
from gpu_device_plugin.model.contract.keys import IDLE_SINCE, NODE_USE, WHEN_IDLE
from gpu_device_plugin.model.contract.node_use import used_mib
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.leader_tasks import LeaderStep

_log = logging.getLogger(__name__)

_MANIFEST = "deploy/optional/idle.yaml (chart: scheduler.idle)"
_MOST_TOLD = 10
"""Pods that are warned in one look: the writer of Events posts one a second, and drops what waits too long."""
_AGAIN_S = 60.0
"""After this time something is tried again, however the first attempt ended."""
_REMEMBERED_S = 60.0
"""How long the annotations of a namespace are remembered."""
_CALL_S = 5.0
"""Timeout of a call."""


@dataclass(eq=False, repr=False)
class IdleActions(SchedulerFeature):
    """Does what the owners of idle pods want. Whom it has warned it keeps in memory alone."""

    _context: ControllerContext
    _: KW_ONLY
    look_s: float = 10.0
    """Least seconds between two looks at the idle pods."""

    def __post_init__(self) -> None:
        self._events = self._context.events
        self._pods: dict[str, Pod] = {}
        """By UID those of which their agents say that they are idle."""
        self._use: dict[str, str] = {}
        """By node, as its agent tells it; read for a pod that something is due for."""
        self._looked_at = -math.inf
        self._warned: Mapping[str, Warned] = {}
        self._not_before: dict[str, float] = {}
        """By UID of a pod or of the controller of some, when something is tried again, monotonic seconds."""
        self._namespaces: dict[str, tuple[float, Mapping[str, str]]] = {}

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def keys_of_nodes(self) -> frozenset[str] | None:  # noqa: D102
        return frozenset({NODE_USE})

    def put_pod(self, pod: Pod) -> None:  # noqa: D102
        self._pods.pop(pod.uid, None)
        if IDLE_SINCE in pod.annotations and pod.node_name and not pod.ended:
            kept = {key: text for key, text in pod.annotations.items() if key in {IDLE_SINCE, WHEN_IDLE}}
            self._pods[pod.uid] = replace(pod, annotations=kept)

    def remove_pod(self, uid: str) -> None:  # noqa: D102
        self._pods.pop(uid, None)

    def kept_pods(self, pods: Mapping[str, Pod]) -> None:  # noqa: D102
        self._pods.clear()
        for pod in pods.values():
            self.put_pod(pod)

    def put_node(self, node: NodeRecord) -> None:  # noqa: D102
        self.remove_node(node.name)
        if NODE_USE in node.annotations:
            self._use[node.name] = node.annotations[NODE_USE]

    def remove_node(self, name: str) -> None:  # noqa: D102
        self._use.pop(name, None)

    # --- By the active extender ---------------------------------------------------------------------------------------

    def leader_steps(self) -> Iterable[LeaderStep]:  # noqa: D102
        pause_s = self._context.timings.capacity_s
        return (LeaderStep("idle controller", self.look, self._forget, pause_s=pause_s, waits="idle pods wait"),)

    def _forget(self, _term: Hashable) -> None:
        self._warned = {}  # others may have acted meanwhile

    async def look(self) -> None:
        """Warn the pods that became idle, and do what is due, if the last look was long ago. Raises ApiError."""
        if self._context.clock() - self._looked_at < self.look_s:
            return
        self._looked_at = self._context.clock()
        pods = [pod for pod in self._pods.values() if idle_since(pod)]
        self._namespaces = self._namespaces if pods else {}
        idle = [idle_pod(pod, await self._namespace_of(pod)) for pod in pods]
        now, warning_s = self._context.clock(), self._context.settings().of(IdleActionSettings).idle_warning_s
        self._warned, told = warned_after(self._warned, idle, now, _MOST_TOLD)
        for each in told:
            self._tell(each.pod, "GPUIdleWarning", warning(each, rfc3339(self._context.wall() + warning_s)))
            self._count(each, "warned")
        self._not_before = {uid: at for uid, at in self._not_before.items() if at > now}
        workloads: dict[Owner, list[IdlePod]] = {}
        for each in due(self._warned, idle, now, warning_s):
            owner = each.pod.owner
            read_at = used_mib(self._use.get(each.pod.node_name, ""))[1]
            if not trusted(read_at, self._context.wall()):
                why = f"the agent of node {each.pod.node_name} has not reported for a long time whether it is used"
                _log.info("an idle pod stays", extra={"pod": str(each.pod), "why": why, "once_per_s": 600})
            elif each.action is WhenIdle.EVICT:
                await self._try(each.pod.uid, partial(self._evict, each))
            elif owner is not None:
                workloads.setdefault(owner, []).append(each)
        for owner, its_pods in workloads.items():
            await self._try(owner.uid, partial(self._scale, owner, its_pods))

    async def _try(self, uid: str, act: Callable[[], Awaitable[None]]) -> None:
        if uid in self._not_before:
            return
        self._not_before[uid] = self._context.clock() + _AGAIN_S
        try:
            await act()
        except ForbiddenError as error:
            hint = "" if error.denied else f"; apply {_MANIFEST}, which grants it"
            _log.warning("idle pods stay", extra={"why": f"{error}{hint}", "once_per_s": 3600})
        except (ConflictError, NotFoundError):
            return  # something has changed, and the watch shows what
        except ApiError as error:
            _log.warning("idle pods stay, and this is retried", extra={"why": str(error), "once_per_s": 60})

    async def _evict(self, idle: IdlePod) -> None:
        pod = idle.pod
        if not await self._is_still(idle):
            return
        # Nobody is in a hurry for an idle GPU: the pod has all the time of its own to end.
        answer = await evict(self._context.client, pod, most_grace_s=pod.grace_s, timeout_s=_CALL_S, manifest=_MANIFEST)
        self._count(idle, answer.outcome)
        if answer.outcome is EvictionOutcome.EVICTED:
            _log.info("an idle pod is evicted", extra={"pod": str(pod), "idle_since": idle.since})
            self._tell(pod, "GPUIdleEvicted", f"evicted: it is idle since {idle.since}")
        elif answer.outcome is EvictionOutcome.BLOCKED:
            self._tell(pod, "GPUEvictionBlocked", f"should be evicted, as it is idle since {idle.since}; {answer.why}")
        elif answer.outcome is not EvictionOutcome.GONE:
            _log.warning("an idle pod is not evicted", extra={"pod": str(pod), "why": answer.why, "once_per_s": 600})

    async def _scale(self, owner: Owner, pods: Sequence[IdlePod]) -> None:
        try:
            found = await workload_of(self._context.client, owner, pods[0].pod.namespace, timeout_s=_CALL_S)
        except NotScalableError as why:
            self._tell_not_scaled(pods[0], str(why))
            return
        selected = await pods_of(self._context.client, found)
        for each in pods:
            if each.pod.uid not in selected:
                self._tell_not_scaled(each, f"its labels are not those that {found} selects")
        pods = [each for each in pods if each.pod.uid in selected]
        if not pods:
            return
        # A StatefulSet does not count those of other names than it gives.
        workload = replace(found, running=max(found.running, len(selected)))
        if why_not := workload.why_not(len(pods)):
            extra = {"workload": f"{found.namespace}/{workload}", "why": why_not, "once_per_s": 600}
            _log.info("a workload with idle pods is not scaled to zero", extra=extra)
            return
        for each in pods:
            if not await self._is_still(each):
                return
        await scale_to_zero(self._context.client, found, now=rfc3339(self._context.wall()), timeout_s=_CALL_S)
        self._count(pods[0], "scaled")
        extra = {"workload": f"{found.namespace}/{workload}", "replicas": workload.replicas}
        _log.info("a workload with idle pods is scaled to zero", extra=extra)
        wake = f"kubectl inspect gpushare wake {workload.kind.lower()}/{workload.name} -n {found.namespace}"
        for each in pods:
            note = f"{workload} is scaled to zero, as all of its pods are idle, this one since {each.since}; {wake}"
            self._tell(each.pod, "GPUIdleScaled", f"{note} brings it back")

    def _tell_not_scaled(self, idle: IdlePod, why: str) -> None:
        self._tell(idle.pod, "GPUIdleNotScaled", f"is idle since {idle.since}, and not scaled to zero: {why}")
        self._count(idle, "not_scalable")

    async def _is_still(self, idle: IdlePod) -> bool:
        """Return whether a pod is idle now, and its owner wants the same; the watch may lag."""
        pod = idle.pod
        now = await self._context.binder.read(pod.namespace, pod.name, timeout_s=_CALL_S)
        same_wish = now.annotations.get(WHEN_IDLE) == pod.annotations.get(WHEN_IDLE)
        return now.uid == pod.uid and idle_since(now) == idle.since and same_wish

    async def _namespace_of(self, pod: Pod) -> Mapping[str, str]:
        """Return the annotations of a pod's namespace, if they matter to it."""
        name = pod.namespace
        if pod.annotations.get(WHEN_IDLE):
            return {}
        known = self._namespaces.get(name)
        if known is None or self._context.clock() - known[0] > _REMEMBERED_S:
            answer = await self._context.client.get(NAMESPACES, name, timeout_s=_CALL_S)
            found = answer.read(read_metadata).annotations or {}
            kept = {key: found[key] for key in (WHEN_IDLE,) if key in found}
            known = self._namespaces[name] = self._context.clock(), kept
        return known[1]

    def _tell(self, pod: Pod, reason: str, note: str) -> None:
        about = EventSubject("Pod", pod.name, pod.namespace, pod.uid)
        self._events.post(about, reason=reason, note=note, action="Reclaim", warning=True)

    def _count(self, idle: IdlePod, outcome: str) -> None:
        self._context.metrics.count(m.IDLE_ACTIONS, idle.action.value, str(outcome))

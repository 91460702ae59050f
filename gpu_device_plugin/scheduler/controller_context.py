"""What the parts of an extender share: the fleet, the ways to the API server, the settings, timings and clocks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpu_device_plugin.feature_list import FeatureList
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.lease import LeaseTiming
from gpu_device_plugin.kubernetes.reflector import ReflectorTiming
from gpu_device_plugin.kubernetes.writers.binder import Binder, BinderTiming
from gpu_device_plugin.kubernetes.writers.events import EventWriter
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator, Search
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.settings.extender import ExtenderSettings


@dataclass(frozen=True, slots=True)
class ExtenderTimings:
    """The timeouts and intervals of an extender's parts, in seconds."""

    api: Timing = field(default_factory=Timing)
    follow: ReflectorTiming = field(default_factory=ReflectorTiming)
    bind: BinderTiming | None = None
    """None: derived from the setting `bind_timeout_s`."""
    lease: LeaseTiming = field(default_factory=LeaseTiming)
    catch_up_s: float = 3.0
    """Timeout of catching up with the bindings of others. A scheduler gives up on a binding after 5 s."""
    check_doubts_s: float = 5.0
    """Interval at which bindings in doubt are checked."""
    settle_s: float = 2.0
    """How long a GPU stays closed to the other resource after a pod on it has ended. The agent reads the kubelet's
    records and the driver, and updates the kubelet, within 16 to 25 ms; on a busy node it takes longer."""
    nominate_s: float = 0.5
    """How long a nomination waits for what kube-scheduler writes of the pod's failure, which would remove it."""
    resize_s: float = 0.2
    """Pause between the decisions on resizes of a few pods."""
    capacity_s: float = 0.5
    """Pause between the rounds of the capacity controller."""
    settled_s: float = 5.0
    """How long a pod has been refused before nodes are asked for, or other pods moved, for it."""
    tick_s: float = 0.5
    """Interval at which vanished pods are expired."""
    quiet_s: float = 1.0
    """How much longer than a binding `/quiet` waits for the shutdown that its caller, kube-scheduler, has begun too."""
    unfollowed_s: float = 60.0
    """Once a watch of nodes or pods has been broken for this long, the extender is not ready."""


DEFAULT_TIMINGS = ExtenderTimings()


async def _alone(_within_s: float = 0.0) -> Hashable | None:
    return "alone"


@dataclass(frozen=True, eq=False)
class ControllerContext:
    """What a part of an extender gets, beside what is its own."""

    fleet: Fleet
    client: Client
    binder: Binder
    resources: Sequence[Resource]
    metrics: Metrics
    settings: Callable[[], ExtenderSettings]
    """Returns those in force: some change at run time."""
    timings: ExtenderTimings = DEFAULT_TIMINGS
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""
    wall: Callable[[], float] = time.time
    """Returns seconds since the epoch."""
    features: FeatureList[SchedulerFeature] = field(default_factory=FeatureList)
    """Those made so far, the ones before it in the list; a feature may need only those that the list says."""
    refused: Callable[[str], bool] = lambda _uid: False
    """Returns whether no node that kube-scheduler has named last for a pod, by UID, had room for it."""
    active_term: Callable[..., Awaitable[Hashable | None]] = _alone
    """See `Readiness.active_term`. By default this extender has no replicas."""
    catch_up: Callable[[], Awaitable[object]] = _alone
    """See `Readiness.catch_up`."""

    @cached_property
    def events(self) -> EventWriter:
        """What writes Events, one a second for all parts."""
        return EventWriter(self.client, instance=self.settings().holder())

    @cached_property
    def evaluator(self) -> NodeEvaluator:
        """What judges nodes for all parts, which share its results."""
        return NodeEvaluator(self.fleet.now)

    def best(self, search: Search, pod: Pod, besides: Collection[str] = ()) -> list[str]:
        """Return the nodes that suit a pod best, by the policies in force; see `NodeEvaluator.best`."""
        settings = self.settings()
        return self.evaluator.best(search, settings.node_policy, settings.gpu_policy, pod.amounts, besides)

    def scores(self, pod: Pod, asked: GpuRequest, nodes: Sequence[str]) -> Sequence[int]:
        """Return the score of a pod for each of these nodes, by the policies in force; see `NodeEvaluator.scores`."""
        settings = self.settings()
        return self.evaluator.scores(asked, nodes, settings.node_policy, settings.gpu_policy, pod.amounts)

    async def before_bind(self, node: str, pod: object) -> str:
        """Have features prepare a binding, or a promise that grows; return why it must not be, of the first that says.

        See `SchedulerFeature.before_bind`.
        """
        for prepare in self.features.at(SchedulerFeature.before_bind):
            if why := await prepare(node, pod):
                return why
        return ""

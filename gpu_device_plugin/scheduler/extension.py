"""The extension points: where features plug into the scheduler extender.

The extender's own parts (cluster state, evaluator, verbs, binding) know no feature. They call each method below for
every feature, in the order of the extender's list of features.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.leader_tasks import LeaderStep
from gpu_device_plugin.scheduler.node_evaluator import Ranker
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics, WaitingReason
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer
from gpu_device_plugin.scheduler.wire import Placing

if TYPE_CHECKING:
    from msgspec import Raw


Tasks: TypeAlias = "Iterable[Coroutine[Any, Any, NoReturn]]"
Proposals: TypeAlias = "Iterable[tuple[Candidate, Sequence[GpuConsumer], frozenset[str]]]"
"""Nodes, each with all pods that count there and the uids of those that kube-scheduler would evict."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Room that is held for one pod."""

    uid: str
    """Under which the fleet counts it."""
    node: Candidate
    """Its node without other room."""
    taken: Callable[[str], None]
    """Called with the UID of the pod once that is bound there. If the binding fails, the room stays held."""


class SchedulerFeature:
    """What one capability adds to the extender. Each method does nothing unless a feature says otherwise.

    All are called on the extender's event loop, and none but `before_bind` and `finished` waits for anything.
    """

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def keys_of_nodes(self) -> frozenset[str] | None:
        """Return the annotations and labels of nodes that the feature reads; None: all. Asked once."""
        return frozenset()

    def read_pod(self, pod: Pod, raw: Raw) -> Pod:
        """Return a pod with what the feature needs of its JSON, before it is put anywhere."""
        return pod

    def bound(self, pod: Pod | OtherPod) -> None:
        """Learn of a pod that is seen bound for the first time; before `put_pod`."""

    def put_pod(self, pod: Pod) -> None:
        """Add or update a pod, which the fleet knows already."""

    def remove_pod(self, uid: str) -> None:
        """Forget a pod, which the fleet has removed already."""

    def kept_pods(self, pods: Mapping[str, Pod]) -> None:
        """Forget all pods but these, by UID, and take up these: the watch has listed all of them."""

    def put_node(self, node: NodeRecord) -> None:
        """Add or update a node, which the fleet knows already."""

    def remove_node(self, name: str) -> None:
        """Forget a node, which the fleet has removed already."""

    # --- The scheduler's calls ----------------------------------------------------------------------------------------

    def ranker(self) -> Ranker | None:
        """Return what scores nodes by the policy `fit`. Asked once; the first counts."""
        return None

    def reserved(self, pod: Pod, asked: GpuRequest, nodes: Sequence[str]) -> Reserved | None:
        """Return the room that is held for a pod on one of these nodes: it may go nowhere else. The first counts."""
        return None

    def sampled(self, uid: str, constraints: int, nodes: Sequence[str]) -> None:
        """Learn that kube-scheduler names these nodes for a pod with these constraints (`wire.Placing`)."""

    def retry(
        self, pod: Pod, asked: GpuRequest, placing: Placing, sample: Sequence[str]
    ) -> tuple[str, WaitingReason] | None:
        """Return why kube-scheduler should retry a pod that has no room in a sample of the nodes; None: no reason.

        With what the pod waits for. The first counts.
        """
        return None

    def refused(self, pod: Pod, placing: Placing) -> None:
        """Learn that a pod was refused by all nodes that kube-scheduler named, and is not to be retried."""

    def victims(
        self, pod: Pod, asked: GpuRequest, requests: Mapping[str, int] | None, proposals: Proposals
    ) -> Iterable[tuple[Candidate, frozenset[str]]] | None:
        """Return the nodes on which evicting helps a pod, with the uids of the pods to evict; None: no opinion.

        `requests` are those for other resources, None if they cannot be summed. The first counts.
        """
        return None

    # --- Binding ------------------------------------------------------------------------------------------------------

    def prefer(self, fit: Fit, asked: GpuRequest, node: Candidate, pod: Pod) -> Fit:
        """Return where a pod goes on a node, which may be equally good GPUs in place of these."""
        return fit

    async def before_bind(self, node: str, pod: object) -> str:
        """Do what has to be done before a pod is bound that the fleet counts on a node; return why it must not be.

        Also awaited before a pod's promise grows. `pod` as a text is its name. Never raises.
        """
        return ""

    # --- While the extender runs --------------------------------------------------------------------------------------

    def leader_steps(self) -> Iterable[LeaderStep]:
        """Return what the active extender does again and again, in this order. Asked once."""
        return ()

    def tasks(self) -> Tasks:
        """Return what runs as long as the extender does. An exception of one ends the extender."""
        return ()

    async def finished(self) -> None:
        """Wait, at a shutdown, for what must not be cut off: the next leader would not know of it."""

    def measured(self, metrics: ExtenderMetrics) -> ExtenderMetrics:
        """Return the state for the gauges with what the feature knows. Called for each scrape."""
        return metrics

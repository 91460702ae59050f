"""The extension points: where features plug into what people read of the cluster.

The report's own parts (the followed cluster, node views, the core of `why`, tables) know no feature.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.finding import Finding
from gpu_device_plugin.report.rules.node_view import Ends, NodeView, StatePoints
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

if TYPE_CHECKING:
    PodCheck = Callable[[Iterable[Pod], str], Iterable[Finding]]
    """Examines pods of a namespace, empty: of all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod waits that does not ask by limits, or where it is."""

    asks: tuple[Finding, ...]
    """What it waits for, as ends of a sentence; none: it does not wait for GPUs."""
    facts: Sequence[Finding]
    nodes: Iterable[tuple[NodeView, GpuRequest, tuple[Finding, ...]]]
    """The nodes as the pod meets them, with its demand there, and the reasons besides, see `Kept`."""


@dataclass(frozen=True, slots=True)
class ReportPoints(StatePoints):
    """What features add to what people read of nodes and pods, each as functions, in the order of their list.

    All are pure. Nodes are as the reader may see them (`overview_document.redacted`): a feature names no pod that it
    does not find there.
    """

    malformed: tuple[Callable[[Pod], Iterable[Finding]], ...] = ()
    """Each returns a sentence for each annotation of a pod's owner that cannot be parsed."""
    corrections: tuple[
        Callable[[Pod, SchedulingStatus, Sequence[Resource], Collection[str]], Iterable[Finding]], ...
    ] = ()
    """What a pod should ask for instead of what it does, given the resources of the MIG instances that nodes offer."""
    placed: tuple[Callable[[Pod, Sequence[Resource], NodeView | None, Sequence[int]], Iterable[Finding]], ...] = ()
    """What is known of a pod on a node, with shares of GPUs at these positions; or of one that has ended, without
    both. None: the node is not known."""
    unoffered: tuple[
        Callable[[Mapping[str, int], Sequence[NodeView], Mapping[str, tuple[Finding, ...]]], Iterable[Finding]], ...
    ] = ()
    """Why no node gives a pod its MIG instances, by resource; with the reasons by node for which kube-scheduler does
    not consider it."""
    otherwise: tuple[Callable[[GpuRequest, Sequence[NodeView]], Iterable[Finding]], ...] = ()
    """How else a pod that waits could ask for the same on these nodes, which are all that share GPUs."""
    explanations: tuple[
        Callable[[Pod, SchedulingStatus, Mapping[str, Iterable[Any]], Sequence[NodeView] | None], Explanation], ...
    ] = ()
    """Of a pod that names ResourceClaims; at most one. The mapping has further objects by the plural name of their
    kind, without those that cannot be read."""
    ending: tuple[Callable[[GpuRequest, NodeView], Ends], ...] = ()
    """At most one: which pods would have to end for a pod to fit on a node."""


class AgentFacts(NamedTuple):
    """What the agent of a running pod's node is asked, and what follows of it for the pod."""

    kind: Any
    """Of the agent's answers, as a type."""
    read: Callable[[Pod, Callable[[str], Awaitable[Any]]], Awaitable[Any]]
    """Reads what is needed of a pod, given what reads a path of the agent."""
    tell: Callable[..., Iterable[Finding]]
    """Tells it, given what was read, namespace and name of the pod, and the time in seconds since the epoch; at the
    end may follow whether the reader may see the pods of a namespace."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the doctor."""

    name: str
    after: str
    """The checks behind which it stands, with commas: behind the last of those that there are."""
    find: Callable[..., Iterable[Finding]]
    reads: str
    """What it gets of the symptoms, as the names of their attributes with spaces."""
    partly: str = ""
    """Whose reader it serves who may not read the whole cluster: of ``nodes`` or of ``pods``; empty: it needs both."""

    def __call__(self, symptoms: object) -> Iterable[Finding]:
        """Return what it finds."""
        return self.find(*(attrgetter(each)(symptoms) for each in self.reads.split()))


def placed(own: Mapping[str, T], more: Iterable[Any]) -> dict[str, T]:
    """Return all by their names, of `more` each behind the last of those in its `after`, with commas, in turn."""
    found = [*own.items()]
    for each in more:
        behind = {*each.after.split(", ")}
        at = max((number for number, (other, _) in enumerate(found, 1) if other in behind), default=len(found))
        found.insert(at, (each.name, each))
    return dict(found)

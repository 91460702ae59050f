"""The extension points: where features plug into what people read of the cluster.

The report's own parts (the followed cluster, node views, the core of `why`, tables) know no feature. They call each
method below for every feature, in the order of the list of features.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.model.pods import Pod, PodClaim
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.finding import Finding
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.node_view import Ends, GpuView, NodeView
    from gpu_device_plugin.report.rules.state_words import State

    Excluded = Callable[[NodeView], tuple[Finding, ...]]
    """Returns why kube-scheduler does not consider a node for the pod at all, as clauses about the node."""
    PodCheck = Callable[[Iterable[Pod], str], Iterable[Finding]]
    """Examines pods of a namespace, empty: of all."""

T = TypeVar("T")

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class SchedulingStatus:
    """A pod's status from schedulers and kubelets, and the parts of its spec that concern scheduling."""

    scheduler: str = DEFAULT_SCHEDULER
    reason: str = ""
    """The reason in the pod's status: why it ended, or was rejected."""
    message: str = ""
    condition_reason: str = ""
    """The reason of its condition PodScheduled, if that is not true."""
    condition: str = ""
    gates: tuple[str, ...] = ()
    """Its scheduling gates: a scheduler considers it once all are removed."""
    terms: Terms = NO_TERMS
    ignored: tuple[str, ...] = ()
    """Its invalid limits, one sentence each."""
    limits: tuple[str, ...] = ()
    """The names of all resources that its containers ask for."""
    of_others: tuple[str, ...] = ()
    """Its annotations for other systems that share GPUs."""
    events: tuple[str, ...] = ()
    """The latest warnings about it, one sentence each."""
    claims: tuple[PodClaim, ...] = ()
    """The ResourceClaims that it names, in the order of its spec."""
    controller: str = ""
    """The kind and name of the object that made it; empty: none did."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The reasons other than GPUs that keep a pod from a node, as clauses about the node."""

    excluded: tuple[Finding, ...] = ()
    """Why kube-scheduler does not consider the node at all."""
    besides: tuple[Finding, ...] = ()
    """The other reasons."""

    @property
    def all(self) -> tuple[Finding, ...]:
        """All of them."""
        return (*self.excluded, *self.besides)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod waits that does not ask by limits, or where it is."""

    asks: tuple[Finding, ...]
    """What it waits for, as ends of a sentence; none: it does not wait for GPUs."""
    facts: Sequence[Finding]
    nodes: Iterable[tuple[NodeView, GpuRequest, Kept]] = ()
    """The nodes as the pod meets them, with its demand there."""


class ReportFeature:
    """What one capability adds to what people read. Each method does nothing unless a feature says otherwise.

    All are pure. Nodes are as the reader may see them (`overview_document.redacted`): a feature names no pod that it
    does not find there.
    """

    # --- What should be known of nodes, GPUs and parts ----------------------------------------------------------------

    def node_states(self, node: NodeView) -> Iterable[State]:  # noqa: ARG002
        """Return the states of a node itself."""
        return ()

    def gpu_states(self, node: NodeView, view: GpuView) -> Iterable[State]:  # noqa: ARG002
        """Return the states of a GPU itself."""
        return ()

    def part_states(self, node: NodeView, parts: Sequence[ContainerUse]) -> Iterable[State]:  # noqa: ARG002
        """Return the states of a pod's part of a GPU, by what its containers use there."""
        return ()

    # --- Why a pod waits, or where it is ------------------------------------------------------------------------------

    def foreign_annotations(self, keys: Iterable[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return those annotations of a pod by which other systems are asked for GPUs, a few of them."""
        return ()

    def malformed(self, pod: Pod) -> Iterable[Finding]:  # noqa: ARG002
        """Return a sentence for each annotation of a pod's owner that cannot be parsed."""
        return ()

    def corrections(
        self,
        pod: Pod,  # noqa: ARG002
        status: SchedulingStatus,  # noqa: ARG002
        resources: Sequence[Resource],  # noqa: ARG002
        offered: Collection[str],  # noqa: ARG002
    ) -> Iterable[Finding]:
        """Return what a pod should ask for instead of what it does; nodes offer the MIG instances `offered`."""
        return ()

    def ended(self, pod: Pod) -> Iterable[Finding]:  # noqa: ARG002
        """Return what is known of a pod that has ended."""
        return ()

    def placed(
        self,
        pod: Pod,  # noqa: ARG002
        resources: Sequence[Resource],  # noqa: ARG002
        node: NodeView | None,  # noqa: ARG002
        positions: Sequence[int],  # noqa: ARG002
    ) -> Iterable[Finding]:
        """Return what is known of a pod on a node, with shares of GPUs at these positions. None: it is not known."""
        return ()

    def unoffered(self, pod: Pod, nodes: Sequence[NodeView], excluded: Excluded) -> Iterable[Finding]:  # noqa: ARG002
        """Return why no node gives a pod devices that the extender does not place; people look for it first."""
        return ()

    def otherwise(self, asked: GpuRequest, nodes: Sequence[NodeView]) -> Iterable[Finding]:  # noqa: ARG002
        """Return how else a pod that waits could ask for the same on these nodes, which are all that share GPUs."""
        return ()

    def explanation(
        self,
        pod: Pod,  # noqa: ARG002
        status: SchedulingStatus,  # noqa: ARG002
        followed: Mapping[str, Iterable[object]],  # noqa: ARG002
        nodes: Sequence[NodeView] | None,  # noqa: ARG002
        excluded: Excluded,  # noqa: ARG002
    ) -> Explanation | None:
        """Explain a pod that asks otherwise than by limits alone; None: that is not the feature's. The first counts.

        `followed` has further objects by the plural name of their kind, without those that cannot be read.
        """
        return None

    def ending(self, asked: GpuRequest, node: NodeView) -> Ends | None:  # noqa: ARG002
        """Return pods that would have to end for a pod to fit on a node; None: not known. The first counts."""
        return None


def foreign_annotations(features: Iterable[ReportFeature]) -> Callable[[Iterable[str]], tuple[str, ...]]:
    """Return what finds those annotations of a pod that ask other systems for GPUs, a few of them."""
    return lambda keys: tuple(key for feature in features for key in feature.foreign_annotations(keys))


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

"""The symptoms of a cluster that shares GPUs, as its API shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import SWITCHED_ON
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.node.others import Sighting
    from gpu_device_plugin.core.telling.diagnosing import Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """One node that shares GPUs, did, or has the label by which people switch that on and off."""

    name: str
    switch: str | None = None
    """The value of the label by which people switch sharing on; None: it has none."""
    profile: str = ""
    """Of settings, as its label says; empty: it has none."""
    annotated: bool = False
    """An agent has written its GPUs on it."""
    problem: str = ""
    """Why that cannot be read."""
    gpus: NodeGpus = NO_GPUS
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of our resources, those that it has."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    others: tuple[Sighting, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether it is meant to share its GPUs."""
        return self.switch == SWITCHED_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSeen:
    """A pod of ours, or of the original gpushare."""

    name: str
    """With its namespace."""
    node: str = ""
    ready: bool = False
    why: str = ""
    """Why it is not, as far as Kubernetes says."""
    container: str = ""
    """The one of its containers that holds it up; empty: none is known to."""
    reason: str = ""
    """Why that does not run, in the one word of Kubernetes (`ImagePullBackOff`); empty: it runs, and is not ready."""
    version: str = ""
    """The tag of its image."""
    kube_scheduler: str | None = None
    """The tag of the image of kube-scheduler beside it; None: there is none."""
    original: bool = False
    """Of Alibaba's gpushare."""
    asked: int | None = None
    """How often a scheduler had this extender filter nodes since it started; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that asks for GPUs."""

    name: str
    """With its namespace."""
    node: str = ""
    scheduler: str = ""
    promised: bool = False
    """A scheduler wrote on it which GPU it gets."""
    seen: bool = True
    """A scheduler has said something of it."""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads."""

    holder: str
    age_s: float
    """Since it was last renewed, by our clock."""
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSymptoms:
    """Everything that the API shows of sharing GPUs."""

    memory_resource: str
    count_resource: str
    version: str | Unknown = ""
    nodes: tuple[NodeSeen, ...] = ()
    agents: tuple[PartSeen, ...] = ()
    extenders: tuple[PartSeen, ...] = ()
    own_scheduler: bool = False
    """The extender runs beside a kube-scheduler of its own."""
    runtime_class: str = ""
    """The one that the DaemonSet's pods ask for; empty: none is known."""
    daemonset: bool | Unknown = True
    runtime_classes: frozenset[str] | Unknown = frozenset()
    pods: tuple[PodSeen, ...] = ()
    meddling: tuple[str, ...] = ()
    """Pods on sharing nodes that set NVIDIA_VISIBLE_DEVICES themselves."""
    leases: Mapping[str, Lease] | Unknown = field(default_factory=dict)
    """By the name that they should have; those that are missing are not there."""
    configurations: Mapping[str, str] | Unknown = field(default_factory=dict)
    """Versions of the scheduler's configurations, by where they stand."""
    policies: frozenset[str] | Unknown = frozenset()

"""The state of a cluster that shares GPUs, read from its API, as input of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import SWITCHED_ON
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS
from gpu_device_plugin.core.contract.nodereport import NO_REPORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.contract.nodereport import NodeReport
    from gpu_device_plugin.core.model.claims import Claim
    from gpu_device_plugin.core.node.others import Sighting
    from gpu_device_plugin.core.telling.diagnosing import Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """One node that shares GPUs, shared them before, or has the label that switches sharing on and off."""

    name: str
    switch: str | None = None
    """The value of the label that switches sharing on; None: the node has no such label."""
    profile: str = ""
    """The settings profile that its label names; empty: it has no such label."""
    annotated: bool = False
    """Whether an agent has annotated it with its GPUs."""
    problem: str = ""
    """Why that annotation cannot be read."""
    gpus: NodeGpus = NO_GPUS
    capacity: Mapping[str, int] = field(default_factory=dict)
    """By name of each of our resources that it has."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    others: tuple[Sighting, ...] = ()
    report: NodeReport = NO_REPORT
    """What its agent reports of limits and of real use."""
    report_problems: tuple[str, ...] = ()
    """Why a part of that cannot be read."""
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""
    """Its container runtime with the version, as its kubelet names it: ``containerd://2.1.4``."""

    @property
    def labelled(self) -> bool:
        """Whether its label switches sharing on."""
        return self.switch == SWITCHED_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSeen:
    """An agent's or an extender's pod, of this project or of the original gpushare."""

    name: str
    """``namespace/name``."""
    node: str = ""
    ready: bool = False
    why: str = ""
    """Why it is not ready, if Kubernetes says so."""
    container: str = ""
    """The container that is not ready or not running; empty: none is known."""
    reason: str = ""
    """Kubernetes' reason why that container does not run (`ImagePullBackOff`); empty: it runs but is not ready."""
    version: str = ""
    """The tag of its image."""
    kube_scheduler: str | None = None
    """The image tag of the kube-scheduler in the same pod; None: there is none."""
    original: bool = False
    """Whether it belongs to Alibaba's gpushare."""
    asked: int | None = None
    """The number of filter calls to this extender since it started; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that asks for GPUs."""

    name: str
    """``namespace/name``."""
    node: str = ""
    scheduler: str = ""
    promised: bool = False
    """Whether a scheduler has annotated it with its GPU."""
    seen: bool = True
    """Whether a scheduler has set a condition on it."""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSeen:
    """A ResourceSlice of our driver: a part of a pool of devices."""

    pool: str
    """Our pools have the names of their nodes."""
    generation: int = 0
    """The slices of a pool with the highest one are valid."""
    of: int = 1
    """The number of slices of this generation that make the pool complete."""
    devices: int = 0
    shared: bool = False
    """Whether claims can have parts of one of its devices."""
    counters: bool = False
    """Whether it has counters, which keep the parts of a GPU and the whole of it apart."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leader-election lease."""

    holder: str
    age_s: float
    """Since it was last renewed, by our clock."""
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSymptoms:
    """Everything in the API that concerns GPU sharing."""

    memory_resource: str
    count_resource: str
    version: str | Unknown = ""
    nodes: tuple[NodeSeen, ...] = ()
    agents: tuple[PartSeen, ...] = ()
    extenders: tuple[PartSeen, ...] = ()
    own_scheduler: bool = False
    """Whether a kube-scheduler of its own runs beside the extender."""
    runtime_class: str = ""
    """The runtime class of the DaemonSet's pods; empty: none is known."""
    daemonset: bool | Unknown = True
    runtime_classes: frozenset[str] | Unknown = frozenset()
    pods: tuple[PodSeen, ...] = ()
    meddling: tuple[str, ...] = ()
    """Pods on sharing nodes that set NVIDIA_VISIBLE_DEVICES themselves."""
    leases: Mapping[str, Lease] | Unknown = field(default_factory=dict)
    """By name, those of the expected leases that exist."""
    configurations: Mapping[str, str] | Unknown = field(default_factory=dict)
    """The apiVersion of each scheduler configuration, by its location."""
    policies: frozenset[str] | Unknown = frozenset()
    supervisors: tuple[PartSeen, ...] = ()
    """The pods of the MPS supervisor."""
    limits_by_profile: Mapping[str, str] = field(default_factory=dict)
    """The setting `limits` of the agents, by settings profile, as far as the ConfigMap can be read and has it."""
    claims: tuple[Claim, ...] | Unknown = ()
    """All ResourceClaims."""
    slices: tuple[SliceSeen, ...] | Unknown = ()
    device_classes: Mapping[str, str] | Unknown = field(default_factory=dict)
    """The extended resource that each DeviceClass serves, by the name of the class; empty: none."""

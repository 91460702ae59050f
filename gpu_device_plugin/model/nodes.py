"""A node of the cluster, reduced to the fields that decisions about GPUs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from gpu_device_plugin.model.contract.keys import HOSTNAME, STARTUP_TAINT
from gpu_device_plugin.model.contract.nodelabels import switched_on
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.model.times import epoch_s

_GOING = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
"""Keys of the taints of a node whose pods an autoscaler evicts before it removes the node."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The fields of a node that we use. Nodes that differ only in versions and heartbeats are equal."""

    name: str
    uid: str
    resource_version: str = field(default="", compare=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Amounts of the selected resources, in whole numbers; resources that the node lacks are absent."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    """The extended resources of which it has more to give, besides the selected ones."""
    cpu_and_memory: Amounts | None = None
    """Its allocatable CPU and memory; None if it does not name them."""
    ready: bool = False
    unschedulable: bool = False
    """Cordoned."""
    address: str = ""
    """The first internal IP address."""
    kubelet_version: str = ""
    """As the kubelet reports it, like ``v1.31.14+k3s1``; empty before its first report."""
    gpu_condition: str = ""
    """The status of its condition `GPU_CONDITION`; empty: it has none."""
    runtime: str = ""
    """Its container runtime with the version, as the kubelet reports it: ``containerd://2.1.4``."""
    taints: tuple[Taint, ...] = ()
    created: str = ""
    """RFC 3339, in UTC."""

    @classmethod
    def of(cls, node: NodeRecord, **changes: Any) -> Self:
        """Return a node as one of this class, with other or more fields."""
        return cls(**{each.name: getattr(node, each.name) for each in fields(node)} | changes)

    @property
    def shares_gpus(self) -> bool:
        """Whether its label enables sharing, whether or not its agent runs yet."""
        return switched_on(self.labels)

    @property
    def offers(self) -> bool:
        """Whether its kubelet has some of our resources to give."""
        return any(self.allocatable.values())

    @property
    def created_s(self) -> float:
        """When it was made, seconds since the epoch."""
        return epoch_s(self.created) or 0.0

    @property
    def hostname(self) -> str:
        """Its host name by its label."""
        return self.labels.get(HOSTNAME, self.name)

    @property
    def starting(self) -> bool:
        """Whether it is closed to pods until its GPUs are offered."""
        return any(taint.key == STARTUP_TAINT for taint in self.taints)

    @property
    def going(self) -> bool:
        """Whether an autoscaler is about to remove it."""
        return any(taint.key in _GOING for taint in self.taints)

    @property
    def draining(self) -> bool:
        """Whether it is cordoned, or an autoscaler is about to remove it."""
        return self.unschedulable or self.going

    @property
    def open(self) -> bool:
        """Whether pods may come to it."""
        return self.ready and not self.draining

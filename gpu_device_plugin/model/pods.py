"""Pods and their containers, reduced to the fields that decisions about GPUs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.model.sharing import weight

_MOST_CONTAINERS, MOST_WRITTEN = 16, 1024
"""Containers, and bytes of annotations, of a pod that is not `Pod.bulky`."""


class ContainerKind(StrEnum):
    """How the kubelet treats a container's devices."""

    INIT = "init"
    """Ends before the others begin; the containers after it reuse its devices."""
    SIDECAR = "sidecar"
    """An init container with ``restartPolicy: Always``: it keeps its devices."""
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, reduced to the fields that we use."""

    name: str
    kind: ContainerKind
    index: int
    """Its place within ``initContainers`` or within ``containers``."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Whole numbers of the resources that we manage; resources that it does not request are absent."""

    @property
    def devices_reused_by_later(self) -> bool:
        """Whether the containers after it reuse its devices: it is an ordinary init container."""
        return self.kind is ContainerKind.INIT

    def allocated(self, kept: int, reusable: int, amount: int) -> tuple[int, int]:
        """Return the devices that containers keep, and those left for reuse, once this one was allocated `amount`.

        The kubelet reuses the devices of an ordinary init container for the containers after it, before any others.
        """
        return (
            (kept, max(reusable, amount))
            if self.devices_reused_by_later
            else (kept + amount, max(0, reusable - amount))
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod: the object that replaces it if it goes."""

    kind: str
    name: str
    uid: str
    api_version: str


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container last ended, as the kubelet reports it."""

    exit_code: int
    """0: well; above 128: by the signal of that number less 128."""
    reason: str
    """A word, such as ``Error`` or ``OOMKilled``."""
    at: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the Kubernetes API describes it, reduced to the fields that we use."""

    uid: str
    namespace: str
    name: str
    node_name: str = ""
    phase: str = "Pending"
    running: bool = False
    """A container was running when the kubelet last reported."""
    static_uid: str = ""
    """Of the mirror pod of a static pod the UID by which the kubelet itself knows it; empty for all others."""
    deleting: bool = False
    """A deletion timestamp is set; the containers may still run."""
    grace_s: int = 30
    """Seconds that its containers have to end, once asked: of its deletion if that was requested, else of its spec."""
    priority: int = 0
    """Pods of a higher priority may preempt pods of a lower one."""
    created: str = ""
    """RFC 3339, in UTC, so that texts sort like times."""
    resource_version: str = field(default="", compare=False)
    """Not compared: the kubelet patches the status of every GPU pod about once a minute, in no field that we use."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    """In the order in which the kubelet allocates for them: init containers and sidecars, then the others."""
    container_ids: Mapping[str, str] = field(default_factory=dict)
    """The ID of each running container, 64 hexadecimal digits, by the container's name. Only where the reader asks for
    them."""
    ends: Mapping[str, ContainerEnd] = field(default_factory=dict)
    """The newest end of each container that has ended, by the container's name. Only where the reader asks for the IDs
    of containers."""
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the ResourceClaims that each container uses, by the container's name. Only where the reader asks for
    them."""
    owner: Owner | None = None
    """Its controller; None: it has none. Only where the reader asks for it."""
    requests: Mapping[str, int] | None = field(default_factory=dict, compare=False)
    """The requests for other resources as kube-scheduler adds them up, CPU in thousandths; None: the amount that the
    pod's end frees is unknown. Only where the reader asks for it."""

    amounts: Amounts = field(default=NO_AMOUNTS, compare=False)
    """The CPU and memory among the requests, likewise; also where the amount that its end frees is unknown."""

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def bulky(self) -> bool:
        """Whether its owner has written more on it than can be kept of each of thousands of pods."""
        return len(self.containers) > _MOST_CONTAINERS or self.overwritten

    @property
    def overwritten(self) -> bool:
        """The same of its annotations alone."""
        return sum(map(weight, self.annotations.values())) > MOST_WRITTEN

    @property
    def kubelet_uid(self) -> str:
        """The UID by which the kubelet's own records and cgroups know the pod."""
        return self.static_uid or self.uid

    @property
    def ended(self) -> bool:
        """Whether all containers have terminated for good."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, which keeps pods away that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        """Return the taint in kubectl's notation."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod, as the pod names it."""

    entry: str
    """Its name in the pod; empty: kube-scheduler made the claim of an extended resource that the pod asks for."""
    claim: str = ""
    """The name of the ResourceClaim; empty: it was not made from its template yet."""
    template: str = ""
    """The name of the ResourceClaimTemplate; empty: the pod names the claim itself."""

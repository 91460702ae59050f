"""Pods as their owners write them, and as a kubelet runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Kind(Enum):
    """How a container of a pod runs, which decides whether its devices are handed on."""

    INIT = "init"
    """Runs to its end before the next one starts; its devices are used again by later containers."""
    SIDECAR = "sidecar"
    """An init container with `restartPolicy: Always`: keeps running, and keeps its devices."""
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container as its pod's owner wrote it. Quantities are whole devices; 0 is a quantity too."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: Kind = Kind.APP


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod bound to the node. `containers` holds init containers and sidecars first, as the kubelet walks them."""

    name: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    uid: str | None = None
    """Made up from the kubelet's seed when not given."""
    created: int | None = None
    """Place in the order of creation; by default pods are created in the order in which they are admitted."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path that a plugin mounts into a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node that a plugin hands into a container."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Received:
    """What one start of a container got from all plugins together, after the kubelet's merge."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """One container of an admitted pod."""

    spec: ContainerSpec
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The device IDs the kubelet booked for it, by resource."""
    received: Received = field(default_factory=Received)
    """What its latest start got."""
    started: bool = False
    """It was started, and an init container also ended well."""
    running: bool = False
    restarts: int = 0
    waiting: str | None = None
    """Why it does not start: the kubelet's reason, a colon, its message. None when it started."""

    @property
    def name(self) -> str:
        """The name in the pod's spec."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server would show it at one moment, with the devices that only the kubelet knows."""

    spec: PodSpec
    uid: str
    created: int
    phase: str = "Pending"
    """Pending, Running, Succeeded or Failed."""
    reason: str = ""
    message: str = ""
    containers: tuple[Container, ...] = ()
    terminating: bool = False

    @property
    def name(self) -> str:
        """The name in the pod's metadata."""
        return self.spec.name

    @property
    def terminal(self) -> bool:
        """Nothing of it will run again."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def active(self) -> bool:
        """The kubelet counts its devices as in use."""
        return not self.terminal or self.terminating

    @property
    def process_running(self) -> bool:
        """Some process of it is alive, whatever the kubelet's records say."""
        return any(container.running for container in self.containers)

    @property
    def only(self) -> Container:
        """The container of a pod that has just one."""
        (container,) = self.containers
        return container

    def container(self, name: str) -> Container:
        """Return the container called `name`. KeyError: the pod has none of that name."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(f"pod {self.name} has no container {name}")

    def devices(self, resource: str) -> frozenset[str]:
        """Return all IDs of `resource` booked for any container of the pod."""
        return frozenset[str]().union(*(container.devices.get(resource, ()) for container in self.containers))


def pod(
    name: str,
    *apps: Mapping[str, int],
    init: Iterable[Mapping[str, int]] = (),
    sidecars: Iterable[Mapping[str, int]] = (),
    uid: str | None = None,
    created: int | None = None,
    namespace: str = "default",
) -> PodSpec:
    """Write a pod in one line, each container as its limits: init containers i0, i1, sidecars s0, then apps c0, c1."""
    groups = ((Kind.INIT, "i", init), (Kind.SIDECAR, "s", sidecars), (Kind.APP, "c", apps))
    containers = tuple(
        ContainerSpec(f"{letter}{number}", dict(limits), kind)
        for kind, letter, group in groups
        for number, limits in enumerate(group)
    )
    return PodSpec(name, containers, namespace=namespace, uid=uid, created=created)


def effective_requests(spec: PodSpec) -> dict[str, int]:
    """Return what the pod takes of each resource at its peak, counted as the scheduler does."""
    staying, peak = Counter[str](), Counter[str]()
    for container in spec.containers:
        for resource, wanted in container.limits.items():
            if container.kind is Kind.INIT:
                peak[resource] = max(peak[resource], staying[resource] + wanted)
            else:
                staying[resource] += wanted
    return {resource: max(peak[resource], staying[resource]) for resource in sorted(peak.keys() | staying.keys())}

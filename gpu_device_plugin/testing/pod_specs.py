"""Pod specs, pods in the states that a kubelet gives them, and the pods of a node, which outlive its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.model.pods import ContainerKind


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container of a pod's spec. Quantities are whole devices; 0 is allowed."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod bound to the node. `containers` has init containers and sidecars first, in the kubelet's order."""

    name: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    uid: str | None = None
    """None: generated from the kubelet's seed."""
    created: int | None = None
    """Place in the order of creation; by default pods are created in the order in which they are admitted."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of an admitted pod."""

    spec: ContainerSpec
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The device IDs that the kubelet allocated to it, by resource."""
    received: ContainerAllocateResponse = field(default_factory=ContainerAllocateResponse)
    """The merged answers of all plugins for its latest start."""
    started: bool = False
    """It was started; an init container has also succeeded."""
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
    """A snapshot of a pod in the API, with the devices that only the kubelet knows."""

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
        """None of its containers will run again."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def active(self) -> bool:
        """The kubelet counts its devices as in use."""
        return not self.terminal or self.terminating

    @property
    def process_running(self) -> bool:
        """Whether one of its processes runs, regardless of the kubelet's records."""
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
        """Return all IDs of `resource` that are allocated to containers of the pod."""
        return frozenset[str]().union(*(container.devices.get(resource, ()) for container in self.containers))


# --- The pods of a node -----------------------------------------------------------------------------------------------


class NodePods:
    """Pods by UID."""

    def __init__(self) -> None:
        """Start without pods."""
        self.in_api: dict[str, Pod] = {}

    def known(self, uid: str) -> Pod | None:
        """Return a pod; None if there is none."""
        return self.in_api.get(uid)

    def put(self, pod: Pod) -> Pod:
        """Store a pod's current state."""
        self.in_api[pod.uid] = pod
        return pod

    def put_container(self, uid: str, container: Container) -> None:
        """Store a container's current state. KeyError: its pod does not exist."""
        pod = self.in_api[uid]
        self.put(replace(pod, containers=tuple(container if c.name == container.name else c for c in pod.containers)))

    def remove(self, uid: str) -> Pod:
        """Delete a pod from the API and return its last state."""
        return stopped(self.in_api.pop(uid))


def stopped(pod: Pod) -> Pod:
    """Return the pod with all its containers stopped."""
    return replace(
        pod, containers=tuple(replace(container, started=False, running=False) for container in pod.containers)
    )

"""Objects of the Kubernetes API as people's tools read them, with the fields that several of them need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpu_device_plugin.cluster.objects import decoding
from gpu_device_plugin.cluster.objects.decoding import ObjectMeta, Page
from gpu_device_plugin.cluster.objects.quantity import whole_quantity
from gpu_device_plugin.core.report.why.scheduler_checks import Taint  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class ApiObject(msgspec.Struct, rename="camel", gc=False):
    """Base of all objects: JSON names are in camel case, and unknown fields are ignored."""


class Named(ApiObject):
    """Any object."""

    metadata: ObjectMeta


class Condition(ApiObject):
    """One of an object's conditions."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Resources(ApiObject):
    """The limits and requests of a container."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _NodeSpec(ApiObject):
    taints: tuple[Taint, ...] = ()


class _NodeInfo(ApiObject):
    container_runtime_version: str = ""


class _NodeStatus(ApiObject):
    node_info: _NodeInfo | None = None
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(Named):
    """A node."""

    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def labels(self) -> Mapping[str, str]:
        """Return its labels."""
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return its annotations."""
        return self.metadata.annotations or {}

    @property
    def capacity(self) -> Mapping[str, int]:
        """Return its capacity in those resources that are whole numbers."""
        return _amounts(self.status.capacity)

    @property
    def runtime(self) -> str:
        """Return its container runtime with the version."""
        return "" if self.status.node_info is None else self.status.node_info.container_runtime_version

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return the types of its conditions."""
        return tuple(each.type for each in self.status.conditions or ())

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Return its allocatable resources that are whole numbers."""
        return _amounts(self.status.allocatable)


class Env(ApiObject):
    """A variable of a container."""

    name: str = ""
    value: str | None = None


class Port(ApiObject):
    """A port of a container."""

    name: str = ""
    container_port: int = 0


class Container(ApiObject):
    """A container of a pod."""

    name: str = ""
    image: str = ""
    env: list[Env] | None = None
    ports: list[Port] | None = None
    resources: Resources | None = None


class PodSpec(ApiObject):
    """The spec of a pod, or of a template of pods."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    runtime_class_name: str = ""
    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None


class _PodStatus(ApiObject):
    phase: str = ""


class Pod(Named):
    """A pod with its environment, of which only the doctor and programs that look for our own pods may know."""

    spec: PodSpec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class ConfigMap(Named):
    """A ConfigMap."""

    data: dict[str, str] | None = None


def _amounts(quantities: Mapping[str, str] | None) -> dict[str, int]:
    amounts = ((name, whole_quantity(text)) for name, text in (quantities or {}).items())
    return {name: amount for name, amount in amounts if amount is not None}


def decoded(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return an object of this kind.

    Raises:
        UnreadableObjectError: `raw` is no such object.
    """
    noun = "list" if kind is Page else kind.__name__.strip("_").lower()
    return decoding.decoded(msgspec.json.Decoder(kind), raw, noun)

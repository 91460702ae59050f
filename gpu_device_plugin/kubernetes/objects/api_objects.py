"""Objects of the Kubernetes API as people's tools read them, with the fields that several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from gpu_device_plugin.kubernetes.objects.decoding import ObjectMeta, UnreadableObjectError
from gpu_device_plugin.kubernetes.objects.requests import Resources

R = TypeVar("R")
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
    last_transition_time: str | None = None


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


def readable(
    raw_objects: Iterable[R], read: Callable[[R], T], what: str = "", warnings: list[str] | None = None
) -> Iterator[T]:
    """Yield objects as they are read, without those that cannot be; for each of these add a sentence to `warnings`."""
    for raw in raw_objects:
        try:
            yield read(raw)
        except UnreadableObjectError as error:
            if warnings is not None:
                warnings.append(f"{what} is left out: {error}")


def escaped(text: str) -> str:
    """Escape a text for a field selector."""
    return "".join(f"\\{char}" if char in "\\,=" else char for char in text)

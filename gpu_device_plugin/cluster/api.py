"""What we read of the Kubernetes API's objects, and the compact values we keep of them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gpu_device_plugin.core.pods import Container, ContainerKind, Pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PodRecord: TypeAlias = Pod
"""A pod reduced to what concerns us; `PodReader` makes them."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object as the API serves it."""

    plural: str
    group: str = ""
    """API group; empty for the core group."""
    version: str = "v1"

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object or, without a name, of all of a namespace or of the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if namespace else ""
        return root + inside + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


PODS = Kind("pods")
NODES = Kind("nodes")
EVENTS = Kind("events", group="events.k8s.io")


class UnreadableObjectError(ValueError):
    """An object that is not what its kind promises. The message names the field and no value."""


class ObjectMeta(msgspec.Struct, rename="camel", gc=False):
    """The part of an object's metadata that we read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, Any] | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    restart_policy: str | None = None
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    # The API server writes null here in bookmarks.
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: ObjectMeta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_QUANTITY = re.compile(
    r"(?P<number>\+?(?:[0-9]{1,19}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?",
    re.ASCII,
)
_SUFFIXES = {
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_MOST = 2**63 - 1


def whole_quantity(text: str) -> int | None:
    """Read a Kubernetes quantity; None unless it is a whole number from 0 to 2^63-1.

    The API server rewrites quantities: a pod that asks for 1000 shares is served as asking for ``1k``.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    scale = _SUFFIXES.get(match["suffix"] or "", Decimal(10) ** int(match["exponent"] or 0))
    value = Decimal(match["number"]) * scale
    return int(value) if value == value.to_integral_value() and 0 <= value <= _MOST else None


class PodReader:
    """Turns a pod's JSON into a `PodRecord` that keeps only what was asked for."""

    def __init__(self, resources: Iterable[str], keep: Callable[[str], bool]) -> None:
        """Keep limits of `resources`, and those annotations and labels whose key `keep` accepts."""
        self._resources = frozenset(resources)
        self._keep = keep
        self._decoder = msgspec.json.Decoder(_Pod)

    def read(self, raw: bytes | msgspec.Raw) -> tuple[PodRecord, tuple[str, ...]]:
        """Return the pod and, one sentence each, the limits that were ignored because they are no whole numbers.

        Containers that ask for none of our resources are left out; each names its own index.

        Raises:
            UnreadableObjectError: this is no pod.
        """
        try:
            pod = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # UnicodeDecodeError carries the bytes themselves, so it is not attached.
            raise UnreadableObjectError(f"not a pod: {_without_values(error)}") from None
        meta, spec = pod.metadata, pod.spec
        if not meta.uid or not meta.name:
            raise UnreadableObjectError("not a pod: without a uid or a name")
        containers: list[Container] = []
        ignored: list[str] = []
        # The order in which the kubelet allocates: init containers and sidecars as they stand, then the others.
        for ours, kinds in ((spec.init_containers, _init_kind), (spec.containers, _app_kind)):
            for index, container in enumerate(ours or ()):
                limits, bad = self._limits(container)
                ignored += bad
                if limits:
                    containers.append(Container(container.name, kinds(container), index, limits))
        record = Pod(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node_name=spec.node_name or "",
            # Interned is what there are few of, and what repeats on every pod; some Pythons never forget such a text.
            phase=sys.intern(pod.status.phase or "Pending"),
            deleting=meta.deletion_timestamp is not None,
            created=meta.creation_timestamp or "",
            resource_version=meta.resource_version,
            annotations=self._kept(meta.annotations),
            labels=self._kept(meta.labels),
            containers=tuple(containers),
        )
        return record, tuple(ignored)

    def _kept(self, values: Mapping[str, str] | None) -> Mapping[str, str]:
        return {sys.intern(key): value for key, value in (values or {}).items() if self._keep(key)}

    def _limits(self, container: _Container) -> tuple[dict[str, int], list[str]]:
        wanted = container.resources.limits if container.resources is not None else None
        limits: dict[str, int] = {}
        ignored: list[str] = []
        for name, quantity in (wanted or {}).items():
            if name in self._resources:
                amount = whole_quantity(str(quantity))
                if amount is None:
                    ignored.append(f"container {container.name!r}: the limit of {name} is not a whole number")
                else:
                    limits[sys.intern(name)] = amount
        return limits, ignored


def _init_kind(container: _Container) -> ContainerKind:
    return ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT


def _app_kind(_: _Container) -> ContainerKind:
    return ContainerKind.APP


def _without_values(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.DecodeError) else "not UTF-8"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node's metadata."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class _MetadataOnly(msgspec.Struct, gc=False):
    metadata: ObjectMeta


def read_metadata(raw: bytes | msgspec.Raw) -> ObjectMeta:
    """Read the metadata of any object.

    Raises:
        UnreadableObjectError: this is no object of the Kubernetes API.
    """
    try:
        return msgspec.json.decode(raw, type=_MetadataOnly).metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableObjectError(f"not a Kubernetes object: {_without_values(error)}") from None


def read_node(raw: bytes | msgspec.Raw) -> NodeRecord:
    """Read a node.

    Raises:
        UnreadableObjectError: this is no node.
    """
    meta = read_metadata(raw)
    return NodeRecord(meta.name, meta.uid, meta.resource_version, meta.labels or {}, meta.annotations or {})


class ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    """Where a list stands."""

    resource_version: str = ""
    continue_: str = ""


class Page(msgspec.Struct):
    """One page of a list; its items are read one by one, so that one bad object does not hide the others."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    """``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK`` or ``ERROR``."""
    object: msgspec.Raw


def micro_time(moment: datetime) -> str:
    """Write a moment as the API's ``MicroTime``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

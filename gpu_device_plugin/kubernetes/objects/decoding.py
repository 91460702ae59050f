"""Decode objects of the Kubernetes API into the compact values that we keep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from gpu_device_plugin.kubernetes.objects.quantity import RequestSums, allocatable_amounts, whole_quantity
from gpu_device_plugin.kubernetes.objects.requests import (
    LONGEST_KEY,
    LONGEST_LABEL,
    LONGEST_NAME,
    ContainerSpec,
    OwnerReference,
    PodSpec,
    PodStatus,
    bounded,
    claims_of,
    container_ids_of,
    controller_of,
    ends_of,
    fits,
    repels,
    requests_of,
    running,
    static_uid,
)
from gpu_device_plugin.model.contract.keys import GPU_CONDITION, OVER_USE, STAND_IN, kept
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Container, ContainerKind, Owner, Pod, Taint
from gpu_device_plugin.model.resources import NO_AMOUNTS
from gpu_device_plugin.model.sharing import Shared, weight
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod

T = TypeVar("T")

_DEFAULT_GRACE_S = 30
"""The default of ``terminationGracePeriodSeconds``, which the API server writes."""
_MOST_NAMES, _MOST_SHARED, _LONGEST_SHARED = 50_000, 8, 256
"""How many names of nodes and namespaces are one object each, and of how many containers, or characters of annotations,
pods share equal ones at most."""
_MOST_LIMITS = 32
"""Our resources in the limits of one container: MIG has some 20 profiles, and each may be of any domain."""
_MOST_REQUESTED, _LONGEST_REQUESTED = 16, 2048
"""Resources that a pod requests, and bytes of their names: which of more its end frees is not known."""
_PHASES = {each: each for each in ("Pending", "Running", "Succeeded", "Failed", "Unknown")}
_NONE: Mapping[str, Any] = MappingProxyType({})
OF_ONE_NODE = frozenset({"DaemonSet", "Node"})
"""The kinds of owners of pods that can run on one node only: the node itself owns the mirrors of its static pods."""
_MOST_IGNORED = 8
"""How many invalid limits the message about one pod lists."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object in one version of its API group."""

    plural: str
    group: str = ""
    """API group; empty for the core group."""
    version: str = "v1"

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object or, without a name, of all objects in a namespace or in the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = ("namespaces", namespace) if namespace else ()
        # Names come from other objects; an invalid name must not lead to another path.
        parts = (*inside, self.plural, name, subresource)
        return root + "".join(f"/{quote(part, safe='')}" for part in parts if part)


PODS = ObjectKind("pods")
NODES = ObjectKind("nodes")
NOT_ENDED = ("status.phase!=Succeeded", "status.phase!=Failed")
"""The field selectors of pods that may still run."""
NAMESPACES = ObjectKind("namespaces")
EVENTS = ObjectKind("events", group="events.k8s.io")
LEASES = ObjectKind("leases", group="coordination.k8s.io")


class UnreadableObjectError(ValueError):
    """An object that does not match its kind's schema. The message names the field, but no value."""


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


M = TypeVar("M", bound=ObjectMeta)


class OwnedMeta(ObjectMeta, rename="camel", gc=False):
    """The metadata of an object with its owners."""

    owner_references: list[OwnerReference] | None = None


class _PodMeta(OwnedMeta, rename="camel", gc=False):
    deletion_grace_period_seconds: int | None = None


class _Pod(msgspec.Struct, gc=False):
    metadata: _PodMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodReader:
    """Decodes a pod's JSON into a `Pod` with only the selected fields."""

    def __init__(
        self,
        resources: Iterable[str],
        keep: Callable[[str], bool],
        *,
        sums: bool = False,
        every: bool = False,
        ids: bool = False,
        claims: bool = False,
        mig: bool = False,
        owners: bool = False,
    ) -> None:
        """Read pods.

        Args:
            resources: the resources whose limits are kept for each container.
            keep: returns whether an annotation or label with this key is kept.
            sums: also keep the pod's requests of all other resources, added up as by kube-scheduler.
            every: add up the requests of pods without our resources too.
            ids: also keep the IDs of the running containers, and how containers last ended.
            claims: also keep the names of the claims that the containers use.
            mig: also keep the limits of resources of MIG profiles, of any domain.
            owners: also keep the controller of the pod.
        """
        self._ids, self._claims, self._mig, self._controllers = ids, claims, mig, owners
        self._resources = {name: name for name in resources}
        self._keep = keep
        self._sums = RequestSums(self._resources) if sums else None
        self._every = every
        self._other_sums = RequestSums()
        self._containers: Shared[tuple[object, ...], tuple[Container, ...]] = Shared()
        self._values: Shared[tuple[object, ...], Mapping[str, str]] = Shared()
        self._limits_made: Shared[tuple[object, ...], Mapping[str, int]] = Shared()
        self._names: Shared[str, str] = Shared(_MOST_NAMES)
        self._owners: Shared[tuple[str, ...], Owner] = Shared(_MOST_NAMES)

    def read(self, raw: bytes | msgspec.Raw) -> tuple[Pod, tuple[str, ...]]:
        """Return the pod, and a sentence each for the first limits that were ignored as they are not whole numbers.

        Containers that request none of our resources are omitted; each container carries its index.
        Raises UnreadableObjectError.
        """
        pod = decoded(raw, _Pod, "pod")
        containers, ignored = self._containers_of(pod.spec)
        return self._pod(pod, containers), tuple(ignored)

    def read_other(self, raw: bytes | msgspec.Raw) -> OtherPod:
        """Return a pod that asks for none of our resources, reduced to what its node must spare for it.

        Requests that are invalid, or of too many containers, count as none. Raises UnreadableObjectError.
        """
        return self._other(decoded(raw, _Pod, "pod"))

    def read_either(self, raw: bytes | msgspec.Raw) -> tuple[Pod | OtherPod, tuple[str, ...]]:
        """Return `read`; or `read_other` of a pod that neither asks for our resources nor stands for wanted room."""
        pod = decoded(raw, _Pod, "pod")
        containers, ignored = self._containers_of(pod.spec)
        stands_in = STAND_IN in (pod.metadata.labels or ()) and not pod.spec.node_name
        return (self._pod(pod, containers) if containers or stands_in else self._other(pod)), tuple(ignored)

    def _containers_of(self, spec: PodSpec) -> tuple[list[Container], list[str]]:
        containers: list[Container] = []
        ignored: list[str] = []
        # The kubelet's order of allocation: init containers and sidecars as listed, then the others.
        for ours, kind in ((spec.init_containers, ContainerKind.INIT), (spec.containers, ContainerKind.APP)):
            for index, container in enumerate(ours or ()):
                limits, bad = self._limits(container)
                ignored += bad[: _MOST_IGNORED - len(ignored)]
                if limits:
                    sidecar = kind is ContainerKind.INIT and container.always_restarts
                    kept_kind = ContainerKind.SIDECAR if sidecar else kind
                    containers.append(Container(container.name, kept_kind, index, limits))
        return containers, ignored

    def _pod(self, pod: _Pod, containers: list[Container]) -> Pod:
        meta, spec = named(pod.metadata, "pod"), pod.spec
        phase = _PHASES.get(pod.status.phase or "Pending", "Unknown")
        ended = phase in {"Succeeded", "Failed"}
        if not spec.node_name or ended:
            del containers[MOST_CONTAINERS + 1 :]  # enough to see that it has too many for any node
        placed = len(containers) if spec.node_name else 0
        sums = self._sums if containers or self._every else None
        claims = claims_of(spec, pod.status) if self._claims else _NONE
        requests = {} if sums is None else requests_of(spec, sums)
        owner = controller_of(meta.owner_references or ()) if self._controllers else None
        return Pod(
            uid=meta.uid,
            namespace=self._names.one(meta.namespace, lambda: meta.namespace),
            name=meta.name,
            node_name=self._names.one(spec.node_name or "", lambda: spec.node_name or ""),
            phase=phase,
            running=running(pod.status, bound=bool(spec.node_name)),
            static_uid=static_uid(meta.annotations or {}, meta.owner_references or (), spec.node_name or ""),
            deleting=meta.deletion_timestamp is not None,
            grace_s=_grace_s(meta, spec),
            priority=spec.priority or 0,
            created=meta.creation_timestamp or "",
            resource_version=meta.resource_version,
            annotations=self._kept(meta.annotations, placed, ended=ended),
            labels=self._kept(meta.labels, placed, ended=ended),
            containers=self._equal(containers),
            container_ids=container_ids_of(pod.status) if self._ids and (containers or claims) else _NONE,
            ends=ends_of(pod.status) if self._ids and (containers or claims) else _NONE,
            claims=claims,
            owner=owner and self._owners.one((owner.kind, owner.name, owner.uid, owner.api_version), lambda: owner),
            requests=None if sums is not None and (repels(spec) or _is_large(requests)) else requests,
            amounts=NO_AMOUNTS if sums is None else sums.amounts(requests),
        )

    def _other(self, pod: _Pod) -> OtherPod:
        meta = named(pod.metadata, "pod")
        return OtherPod(
            meta.uid,
            meta.resource_version,
            pod.spec.node_name or "",
            self._other_sums.amounts(requests_of(pod.spec, self._other_sums)),
            pod.status.phase in {"Succeeded", "Failed"},
            any(owner.kind in OF_ONE_NODE for owner in meta.owner_references or ()),
            meta.creation_timestamp or "",
        )

    def _kept(self, values: Mapping[str, str] | None, placed: int, *, ended: bool) -> Mapping[str, str]:
        # Only strings with few different values are interned; some Python versions never free interned strings.
        ours = {sys.intern(key): kept(key, value, placed) for key, value in (values or {}).items() if self._keep(key)}
        if ended:  # thousands may be left
            ours = {key: text for key, text in ours.items() if len(text) <= _LONGEST_SHARED or key == OVER_USE}
        long = sum(map(len, ours.values())) > _LONGEST_SHARED
        return ours if long else self._values.one(tuple(ours.items()), lambda: ours)

    def _equal(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers, those of pods with equal ones as one object."""
        key = tuple([(each.name, each.kind, each.index, *each.limits.items()) for each in containers])
        return tuple(containers) if len(key) > _MOST_SHARED else self._containers.one(key, lambda: tuple(containers))

    def _limits(self, container: ContainerSpec) -> tuple[Mapping[str, int], list[str]]:
        wanted = container.resources.limits if container.resources is not None else None
        limits: dict[str, int] = {}
        ignored: list[str] = []
        for name, quantity in (wanted or {}).items():
            ours = self._resources.get(name)
            if ours or (self._mig and fits(name, LONGEST_KEY) and is_mig_resource(name)):
                amount = whole_quantity(str(quantity))
                if amount is None:
                    ignored.append(f"container {container.name!r}: the limit of {name} is not a whole number")
                elif ours or len(limits) < _MOST_LIMITS:
                    limits[ours or self._names.one(name, lambda name=name: name)] = amount  # type: ignore[misc]
        return self._limits_made.one(tuple(limits.items()), lambda: limits) if limits else limits, ignored


def _is_large(requests: Mapping[str, int] | None) -> bool:
    """Return whether there are more requests, or with longer names, than are kept of each of thousands of pods."""
    return requests is not None and (len(requests) > _MOST_REQUESTED or weight(tuple(requests)) > _LONGEST_REQUESTED)


decoder_of = cache(msgspec.json.Decoder)  # to make one takes as long as to decode a pod


def decoded(raw: bytes | msgspec.Raw, form: type[T], what: str = "") -> T:
    """Decode an object; `what` is what people call it, by default the name of `form`. Raises UnreadableObjectError."""
    try:
        found: T = decoder_of(form).decode(raw)  # type: ignore[arg-type]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # UnicodeDecodeError contains the bytes themselves, so it is not attached.
        undecodable = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "nested too deeply"
        why = str(error) if isinstance(error, msgspec.DecodeError) else undecodable
        what = what or form.__name__.strip("_").removesuffix("Object").lower()
        raise UnreadableObjectError(f"not a {what}: {why}") from None
    return found


def named(meta: M, what: str) -> M:
    """Return the metadata of an object of kind `what`. Raises UnreadableObjectError if it has no uid or no name."""
    if not meta.uid or not meta.name:
        raise UnreadableObjectError(f"not a {what}: its uid or its name is missing")
    return meta


def _grace_s(meta: _PodMeta, spec: PodSpec) -> int:
    """Return the seconds that a pod has to end, by its deletion or by its spec; the kubelet takes less than 0 for 1."""
    found = spec.termination_grace_period_seconds
    if meta.deletion_timestamp is not None:
        found = meta.deletion_grace_period_seconds or 0
    return _DEFAULT_GRACE_S if found is None else found if found >= 0 else 1


class _NodeSpec(msgspec.Struct, gc=False):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""


class _Address(msgspec.Struct, gc=False):
    type: str = ""
    address: str = ""


class _NodeInfo(msgspec.Struct, gc=False, rename="camel"):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class _NodeStatus(msgspec.Struct, gc=False, rename="camel"):
    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    node_info: _NodeInfo | None = None


class _Node(msgspec.Struct, gc=False):
    metadata: ObjectMeta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class NodeReader:
    """Decodes a node's JSON into a `NodeRecord` with only the selected fields."""

    def __init__(
        self,
        resources: Iterable[str] | None = None,
        keep: Callable[[str], bool] = lambda _key: True,
        *,
        labels: bool = False,
    ) -> None:
        """Keep amounts of `resources` (None: of all), annotations whose key `keep` accepts, and such labels or all."""
        self._resources = None if resources is None else tuple(sys.intern(name) for name in resources)
        self._keep, self._all_labels = keep, labels

    def read(self, raw: bytes | msgspec.Raw) -> NodeRecord:
        """Return the node; an amount that is not a whole number counts as absent. Raises UnreadableObjectError."""
        node = decoded(raw, _Node, "node")
        meta, status = named(node.metadata, "node"), node.status
        info = status.node_info or _NodeInfo()
        return NodeRecord(
            meta.name,
            meta.uid,
            meta.resource_version,
            meta.labels or {} if self._all_labels else self._kept(meta.labels),
            self._kept(meta.annotations),
            self._amounts(status.capacity),
            self._amounts(status.allocatable),
            self._others(status.allocatable),
            allocatable_amounts(status.allocatable or {}),
            ready=any(one.type == "Ready" and one.status == "True" for one in status.conditions or ()),
            unschedulable=bool(node.spec.unschedulable),
            address=bounded(
                next((one.address for one in status.addresses or () if one.type == "InternalIP"), ""), LONGEST_NAME
            ),
            kubelet_version=bounded(info.kubelet_version, LONGEST_NAME),
            gpu_condition=bounded(
                next((one.status for one in status.conditions or () if one.type == GPU_CONDITION), ""), LONGEST_LABEL
            ),
            runtime=sys.intern(bounded(info.container_runtime_version, LONGEST_NAME)),
            taints=node.spec.taints or (),
            created=meta.creation_timestamp or "",
        )

    def _kept(self, values: Mapping[str, str] | None) -> Mapping[str, str]:
        return {sys.intern(key): value for key, value in (values or {}).items() if self._keep(key)}

    def _amounts(self, values: Mapping[str, Any] | None) -> Mapping[str, int]:
        amounts = values or {}
        names = amounts if self._resources is None else self._resources
        found = ((name, whole_quantity(str(amounts[name]))) for name in names if name in amounts)
        return {name: amount for name, amount in found if amount is not None}

    def _others(self, values: Mapping[str, Any] | None) -> frozenset[str]:
        ours = self._resources or ()
        names = [sys.intern(name) for name, amount in (values or {}).items() if "/" in name and str(amount) != "0"]
        return frozenset([name for name in names[:_MOST_REQUESTED] if name not in ours])


class _MetadataOnly(msgspec.Struct, gc=False):
    metadata: ObjectMeta


def read_metadata(raw: bytes | msgspec.Raw) -> ObjectMeta:
    """Read the metadata of any object. Raises UnreadableObjectError."""
    return decoded(raw, _MetadataOnly, "Kubernetes object").metadata


def read_version(raw: bytes | msgspec.Raw) -> int:
    """Read the resource version of any object; 0 if it has none. Raises UnreadableObjectError."""
    return version_number(read_metadata(raw).resource_version)


def version_number(version: str) -> int:
    """Return a resource version as a number, 0 if it is not one. Versions grow; Kubernetes guarantees it since 1.35."""
    return int(version) if version.isascii() and version.isdigit() else 0

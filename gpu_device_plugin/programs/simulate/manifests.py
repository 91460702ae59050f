"""The pods that Deployments, Jobs and their like make of their templates."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_device_plugin.cluster.api import UnreadableObjectError, decoded
from gpu_device_plugin.programs.simulate.arrivals import MOST_ARRIVALS

_REPLICAS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})
KINDS = _REPLICAS | {"Job", "CronJob"}
"""The kinds whose pods are known from the object alone."""


class _Template(msgspec.Struct, gc=False):
    metadata: dict[str, Any] | None = None
    spec: dict[str, Any] | None = None


class _JobTemplate(msgspec.Struct, gc=False):
    spec: msgspec.Raw = msgspec.Raw()


class _Spec(msgspec.Struct, rename="camel", gc=False):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    template: _Template | None = None
    job_template: _JobTemplate | None = None


class _Owner(msgspec.Struct, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, Any] | None = None
    owner_references: list[_Owner] | None = None


class Workload(msgspec.Struct, gc=False):
    """What is read of an object that makes pods, or of a pod."""

    metadata: _Metadata
    kind: str = ""
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def owners(self) -> frozenset[tuple[str, str, str]]:
        """The kind, namespace and name of the objects that made it."""
        meta = self.metadata
        return frozenset([(each.kind, meta.namespace, each.name) for each in meta.owner_references or ()])

    @property
    def name(self) -> str:
        """The name that people know it by: of a pod of a cluster that of the object that made it."""
        meta = self.metadata
        owner = next((each for each in meta.owner_references or () if each.controller), None)
        name = meta.name or meta.generate_name.removesuffix("-") or "without a name"
        if self.kind != "Pod":
            name = f"{self.kind} {name}"
        elif owner is not None:
            # A Deployment names its ReplicaSets by itself and this label.
            of_template = str((meta.labels or {}).get("pod-template-hash", ""))
            name = owner.name.removesuffix(f"-{of_template}") if owner.kind == "ReplicaSet" else owner.name
        return f"{meta.namespace}/{name}" if meta.namespace else name


_WORKLOADS = msgspec.json.Decoder(Workload)


def workload(raw: bytes | msgspec.Raw, kind: str) -> Workload:
    """Read an object of one of the `KINDS`, or a pod; the items of a typed list do not name their kind themselves.

    Raises:
        UnreadableObjectError: it is none.
    """
    found = decoded(_WORKLOADS, raw, kind)
    found.kind = kind
    return found


def template_of(found: Workload) -> tuple[bytes, int]:
    """Return one of the pods of a workload, as JSON of the API and as if it waited, and how many there are.

    Raises:
        UnreadableObjectError: it has no template, or the number is negative.
    """
    spec = found.spec
    if found.kind == "CronJob" and spec.job_template is not None:
        spec = decoded(_SPECS, spec.job_template.spec or b"{}", "CronJob")
    number = _number(found.kind, spec)
    if spec.template is None or not spec.template.spec:
        raise UnreadableObjectError(f"not a {found.kind}: it has no template with a spec")
    if number < 0:
        raise UnreadableObjectError(f"not a {found.kind}: it asks for {number:,} pods")
    return _waiting(spec.template.metadata or {}, spec.template.spec, found), min(number, MOST_ARRIVALS + 1)


def waiting(raw: bytes | msgspec.Raw, found: Workload) -> bytes:
    """Return a pod that no cluster has yet as one that waits.

    Raises:
        UnreadableObjectError: it is none.
    """
    pod = decoded(_OBJECTS, raw, "Pod")
    return _waiting(pod["metadata"], pod.get("spec") or {}, found)


def _waiting(metadata: dict[str, Any], spec: dict[str, Any], of: Workload) -> bytes:
    named = {"name": of.metadata.name or "pod", "namespace": of.metadata.namespace or "default", "uid": f"of {of.name}"}
    return msgspec.json.encode({"kind": "Pod", "metadata": {**metadata, **named}, "spec": {**spec, "nodeName": ""}})


_OBJECTS = msgspec.json.Decoder(dict[str, Any])
_SPECS = msgspec.json.Decoder(_Spec)


def _number(kind: str, spec: _Spec) -> int:
    """Return how many of its pods run at once."""
    if kind in _REPLICAS:
        return 1 if spec.replicas is None else spec.replicas
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return at_once if spec.completions is None else min(at_once, spec.completions)

"""Find the workload that owns a pod, and scale it to zero so that its replicas before are remembered on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NOT_ENDED, PODS, ObjectKind, OwnedMeta, read_metadata
from gpu_device_plugin.kubernetes.objects.requests import controller_of
from gpu_device_plugin.model.contract.keys import NOTEBOOK_STOPPED, REPLICAS_BEFORE_IDLE
from gpu_device_plugin.model.pods import Owner

_SCALED = {"Deployment": ObjectKind("deployments", "apps"), "StatefulSet": ObjectKind("statefulsets", "apps")}
SCALED: Mapping[str, ObjectKind] = MappingProxyType(_SCALED)
"""The workloads with the subresource ``scale``, by kind."""
NOTEBOOK = ObjectKind("notebooks", "kubeflow.org")
"""Kubeflow's controllers stop one by an annotation."""
OWNERS: Mapping[str, ObjectKind] = MappingProxyType(
    {**_SCALED, "ReplicaSet": ObjectKind("replicasets", "apps"), "Notebook": NOTEBOOK}
)
"""The controllers that are looked at on the way from a pod to its workload, by kind."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What owns idle pods, in one state: a Deployment, a StatefulSet or a Notebook."""

    kind: str
    name: str
    replicas: int
    """That it is to have."""
    running: int
    """That it has, also those of a former template."""
    namespace: str = ""
    version: str = ""
    """Its resourceVersion."""
    selector: str = ""
    """The labels of its pods, as it and the controllers between them select these."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def why_not(self, idle: int) -> str:
        """Return why it is not scaled to zero while so many of its pods are idle; empty if it is."""
        if not self.replicas:
            return f"{self} is scaled to zero already"
        busy = max(self.replicas, self.running) - idle
        return f"{busy} of the pods of {self} {'is' if busy == 1 else 'are'} not idle" if busy > 0 else ""


class NotScalableError(Exception):
    """Why a pod has no workload that can be scaled to zero, as a clause about the pod."""


class _Replicas(msgspec.Struct, gc=False):
    replicas: int | None = None


class _Expression(msgspec.Struct, gc=False):
    key: str
    operator: str
    values: list[str] | None = None

    def __str__(self) -> str:
        """Return it as the API reads it, which refuses an operator that it does not know."""
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key} {self.operator.lower()} ({','.join(self.values or ())})"


class _Selector(msgspec.Struct, rename="camel", gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None

    def __str__(self) -> str:
        labels = [f"{key}={value}" for key, value in (self.match_labels or {}).items()]
        return ",".join([*labels, *map(str, self.match_expressions or ())])


class _Spec(_Replicas):
    selector: _Selector | None = None


class _Controller(msgspec.Struct, gc=False):
    metadata: OwnedMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Replicas = msgspec.field(default_factory=_Replicas)


async def workload_of(client: Client, owner: Owner, namespace: str, *, timeout_s: float) -> Workload:
    """Return the workload of the pods of a controller.

    Raises:
        NotScalableError: it is no Deployment, StatefulSet or Notebook, another controller scales it, or it selects no
            pods by labels.
        ApiError: it cannot be read; NotFoundError: it is gone.
    """
    selectors: list[str] = []
    while True:
        kind = OWNERS.get(owner.kind)
        if kind is None or not owner.api_version.startswith(f"{kind.group}/"):
            raise NotScalableError(f"{owner.kind} {owner.name} ({owner.api_version}) owns it, and decides its replicas")
        answer = await client.get(OWNERS[owner.kind], owner.name, namespace=namespace, timeout_s=timeout_s)
        found = answer.decoded(_Controller, f"a {owner.kind}")
        meta = found.metadata
        if meta.uid != owner.uid:
            raise NotFoundError(answer.call, "another one has its name")
        if owner.kind != "Notebook":
            selectors.append(str(found.spec.selector or ""))
            if not selectors[-1]:
                raise NotScalableError(f"{owner.kind} {owner.name} owns it, and selects no pods")
        above = controller_of(meta.owner_references or ())
        if above is not None:
            owner = above
            continue
        if owner.kind == "Notebook":
            replicas = running = 0 if NOTEBOOK_STOPPED in (meta.annotations or {}) else 1
        elif owner.kind in SCALED:
            replicas = 1 if found.spec.replicas is None else found.spec.replicas
            running = found.status.replicas or 0
        else:
            raise NotScalableError(f"{owner.kind} {owner.name} owns it, and no Deployment owns that")
        known = owner.kind, owner.name, replicas, running, namespace, meta.resource_version
        return Workload(*known, ",".join(selectors))


async def pods_of(client: Client, workload: Workload) -> frozenset[str]:
    """Return the UIDs of the pods that a workload selects and that have not ended. Raises ApiError.

    Whoever may make pods may name any controller on them.
    """
    selected = client.objects(
        PODS, read_metadata, namespace=workload.namespace, labels=workload.selector, fields=",".join(NOT_ENDED)
    )
    return frozenset([pod.uid async for pod in selected])


async def scale_to_zero(client: Client, workload: Workload, *, now: str, timeout_s: float) -> None:
    """Scale a workload to zero if it still is in the state in which it was found; `now` in RFC 3339.

    Its replicas are written on it first: whatever ends this program in between, the number is not lost, and whoever
    tries again finds the workload with all of its replicas.

    Raises:
        ConflictError: it has changed since then.
        ApiError: it is not scaled, or that is not known.
    """
    kind, namespace = workload.kind, workload.namespace
    annotations = {REPLICAS_BEFORE_IDLE: str(workload.replicas)}
    meta = {"resourceVersion": workload.version, "annotations": annotations}
    if kind == "Notebook":
        annotations[NOTEBOOK_STOPPED] = now
        await client.patch(NOTEBOOK, workload.name, {"metadata": meta}, namespace=namespace, timeout_s=timeout_s)
        return
    answer = await client.patch(
        SCALED[kind], workload.name, {"metadata": meta}, namespace=namespace, timeout_s=timeout_s
    )
    body = {"metadata": {"resourceVersion": answer.read(read_metadata).resource_version}, "spec": {"replicas": 0}}
    await client.patch(SCALED[kind], workload.name, body, namespace=namespace, subresource="scale", timeout_s=timeout_s)

"""Find the workload that owns a pod, and scale it to zero so that its replicas before are remembered on it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.client.answers import answered
from gpu_device_plugin.cluster.client.errors import Call, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import ObjectKind, ObjectMeta, read_metadata
from gpu_device_plugin.cluster.objects.requests import OwnerReference, controller_of
from gpu_device_plugin.core.capacity.idle import Workload
from gpu_device_plugin.core.contract.keys import NOTEBOOK_STOPPED, REPLICAS_BEFORE_IDLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.model.pods import Owner

_SCALED = {"Deployment": ObjectKind("deployments", "apps"), "StatefulSet": ObjectKind("statefulsets", "apps")}
SCALED: Mapping[str, ObjectKind] = MappingProxyType(_SCALED)
"""The workloads with the subresource ``scale``, by kind."""
NOTEBOOK = ObjectKind("notebooks", "kubeflow.org")
"""Kubeflow's controllers stop one by an annotation."""
OWNERS: Mapping[str, ObjectKind] = MappingProxyType(
    {**_SCALED, "ReplicaSet": ObjectKind("replicasets", "apps"), "Notebook": NOTEBOOK}
)
"""The controllers that are looked at on the way from a pod to its workload, by kind."""


class NotScalableError(Exception):
    """Why a pod has no workload that can be scaled to zero, as a clause about the pod."""


class _Meta(ObjectMeta, rename="camel", gc=False):
    owner_references: list[OwnerReference] | None = None


class _Replicas(msgspec.Struct, gc=False):
    replicas: int | None = None


class _Controller(msgspec.Struct, gc=False):
    metadata: _Meta
    spec: _Replicas = msgspec.field(default_factory=_Replicas)
    status: _Replicas = msgspec.field(default_factory=_Replicas)


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """A workload in one state."""

    workload: Workload
    namespace: str
    version: str
    """Its resourceVersion."""


async def workload_of(client: Client, owner: Owner, namespace: str, *, timeout_s: float) -> FoundWorkload:
    """Return the workload of the pods of a controller.

    Raises:
        NotScalableError: it is no Deployment, StatefulSet or Notebook, or another controller scales it.
        ApiError: it cannot be read; NotFoundError: it is gone.
    """
    while True:
        kind = OWNERS.get(owner.kind)
        if kind is None or not owner.api_version.startswith(f"{kind.group}/"):
            raise NotScalableError(f"{owner.kind} {owner.name} ({owner.api_version}) owns it, and decides its replicas")
        call = Call("get", kind.plural, kind.group, namespace, owner.name)
        answer = await client.get(OWNERS[owner.kind], owner.name, namespace=namespace, timeout_s=timeout_s)
        found = answered(call, answer, _Controller, f"a {owner.kind}")
        meta = found.metadata
        if meta.uid != owner.uid:
            raise NotFoundError(call, "another one has its name")
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
        return FoundWorkload(Workload(owner.kind, owner.name, replicas, running), namespace, meta.resource_version)


async def scale_to_zero(client: Client, found: FoundWorkload, *, now: str, timeout_s: float) -> None:
    """Scale a workload to zero if it still is in the state in which it was found; `now` in RFC 3339.

    Its replicas are written on it first: whatever ends this program in between, the number is not lost, and whoever
    tries again finds the workload with all of its replicas.

    Raises:
        ConflictError: it has changed since then.
        ApiError: it is not scaled, or that is not known.
    """
    workload, namespace = found.workload, found.namespace
    annotations = {REPLICAS_BEFORE_IDLE: str(workload.replicas)}
    meta = {"resourceVersion": found.version, "annotations": annotations}
    if workload.kind == "Notebook":
        annotations[NOTEBOOK_STOPPED] = now
        await client.patch(NOTEBOOK, workload.name, {"metadata": meta}, namespace=namespace, timeout_s=timeout_s)
        return
    kind = workload.kind
    answer = await client.patch(
        SCALED[kind], workload.name, {"metadata": meta}, namespace=namespace, timeout_s=timeout_s
    )
    body = {"metadata": {"resourceVersion": read_metadata(answer).resource_version}, "spec": {"replicas": 0}}
    await client.patch(SCALED[kind], workload.name, body, namespace=namespace, subresource="scale", timeout_s=timeout_s)

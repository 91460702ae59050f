"""ResourceClaims beside nodes and pods, read through kubectl as far as the cluster has them and the reader may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.objects.decoding import ObjectKind
from gpu_device_plugin.cluster.objects.resource_claims import CLAIMS, GROUP, SLICES
from gpu_device_plugin.core.contract.dra import DRIVER
from gpu_device_plugin.core.report.findings.symptoms import SliceSeen
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.view.objects import ApiObject, Named, decoded
from gpu_device_plugin.view.reading import ABSENT, readable_claims, unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.model.resource_claims import Claim
    from gpu_device_plugin.programs.kubectl import Kubectl
    from gpu_device_plugin.view.following import FollowedCluster

_NO_API = "the server could not find the requested resource"
"""As kubectl says that the API server does not know a path (404)."""


def raw_claims(kubectl: Kubectl, namespace: str = "") -> tuple[list[msgspec.Raw], str]:
    """Return all claims as JSON, or those of one namespace; and why they cannot be read, empty if they were.

    Only after a call that may log in: kubectl's stderr is not shown.
    """
    try:
        return kubectl.items(CLAIMS.path(namespace=namespace), optional=True), ""
    except ClusterUnreadableError as error:
        return [], ABSENT if _NO_API in str(error) else str(unread(error))


def add_claims(cluster: FollowedCluster, kubectl: Kubectl, namespace: str = "") -> list[str]:
    """Add the claims of a namespace, or of all, if a node serves claims; return a sentence for each unreadable one."""
    if not cluster.serves_claims:
        return []
    raw, why = raw_claims(kubectl, namespace)
    claims, warnings = readable_claims(raw)
    cluster.replace_claims(claims)
    return [unseen(why)] if why else warnings


def claims_of_pod(
    kubectl: Kubectl, namespace: str, cluster: FollowedCluster | None, missing: list[str]
) -> Sequence[Claim] | None:
    """Return the claims of a pod's namespace; None if they cannot be read, and why is added to `missing`."""
    if cluster is not None and (claims := cluster.claims_of()):
        return claims
    raw, why = raw_claims(kubectl, namespace)
    if why:
        missing.append(why)
        return None
    return readable_claims(raw)[0]


# --- For the doctor ---------------------------------------------------------------------------------------------------


class _Pool(ApiObject):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _Device(ApiObject):
    allow_multiple_allocations: bool | None = None


class _SliceSpec(ApiObject):
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None
    shared_counters: list[msgspec.Raw] | None = None


class _Slice(Named):
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


class _ClassSpec(ApiObject):
    extended_resource_name: str | None = None


class _Class(Named):
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


def slices(kubectl: Kubectl) -> tuple[SliceSeen, ...]:
    """Return the ResourceSlices of our driver; raises as `kubectl.items`."""
    raw = kubectl.items(SLICES.path(), [f"spec.driver={DRIVER}"], optional=True)
    return tuple(
        SliceSeen(
            pool=spec.pool.name,
            generation=spec.pool.generation,
            of=spec.pool.resource_slice_count,
            devices=len(spec.devices or ()),
            shared=any(device.allow_multiple_allocations for device in spec.devices or ()),
            counters=bool(spec.shared_counters),
        )
        for spec in (decoded(each, _Slice).spec for each in raw)
    )


def device_classes(kubectl: Kubectl) -> dict[str, str]:
    """Return the extended resource of each DeviceClass by the name of the class, empty: none; raises as `slices`."""
    found = [
        decoded(each, _Class) for each in kubectl.items(ObjectKind("deviceclasses", group=GROUP).path(), optional=True)
    ]
    return {each.metadata.name: each.spec.extended_resource_name or "" for each in found}

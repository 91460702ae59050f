"""ResourceClaims beside nodes and pods, read through kubectl as far as the cluster has them and the reader may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.claims import CLAIMS
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.view.claims import ABSENT, readable_claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from gpu_device_plugin.core.model.claims import Claim
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl
    from gpu_device_plugin.view.reading import Cluster

_NO_API = "the server could not find the requested resource"
"""As kubectl says that the API server does not know a path (404)."""


def raw_claims(kubectl: Kubectl, namespace: str = "") -> tuple[list[msgspec.Raw], str]:
    """Return all claims as JSON, or those of one namespace; and why they cannot be read, empty if they were.

    Only after a call that may log in: kubectl's stderr is not shown.
    """
    try:
        return kubectl.items(CLAIMS.path(namespace=namespace), optional=True), ""
    except ClusterUnreadableError as error:
        return [], ABSENT if _NO_API in str(error) else unread(str(error)).found


def with_claims(found: Cluster, kubectl: Kubectl, namespace: str = "") -> Cluster:
    """Return a cluster with the claims of a namespace, or of all, which are read only where a node serves claims."""
    if not found.serves_claims:
        return found
    claims, why = raw_claims(kubectl, namespace)
    return found.without_claims(why) if why else found.with_claims(claims)


def claims_alone(kubectl: Kubectl, namespace: str) -> list[Claim]:
    """Return the claims of a namespace where nodes cannot be read; none if claims cannot be read either."""
    return readable_claims(raw_claims(kubectl, namespace)[0])[0]


def claims_of_pod(
    kubectl: Kubectl, namespace: str, found: Cluster | None, missing: list[str]
) -> Sequence[Claim] | None:
    """Return the claims of a pod's namespace; None if they cannot be read, and why is added to `missing`."""
    if found is not None and found.claims:
        return found.claims
    raw, why = raw_claims(kubectl, namespace)
    if why:
        missing.append(why)
        return None
    return readable_claims(raw)[0]

"""What commands read of a cluster with the rights of a user, and the sentences about what they may not read."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from gpu_device_plugin.commandline import say
from gpu_device_plugin.features.claims.claim_objects import ABSENT, CLAIMS, readable_claims, unseen
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NOT_ENDED, PODS
from gpu_device_plugin.kubernetes.objects.pod_details import pod_and_status
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.rules.extension import foreign_annotations
from gpu_device_plugin.report.rules.finding import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import msgspec

    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.kubernetes.kubectl import Access
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.followed_cluster import FollowedCluster
    from gpu_device_plugin.report.rules.extension import ReportFeature, SchedulingStatus

MISSING_RIGHT = "right-missing"
"""The code of the finding that the reader lacks a right."""
GRANT = (
    "an administrator gives it with the ClusterRole gpushare-viewer (deploy/viewer.yaml): "
    "kubectl create clusterrolebinding gpushare-viewer --clusterrole=gpushare-viewer --user=USER"
)
"""How a right comes that a reader lacks."""


def unread(error: Exception) -> Unknown:
    """Return the missing right if a call failed for one; else the message of the failure, or of who denied it."""
    if not isinstance(error, ForbiddenError) or error.denied:
        said = f"{error.call}: {error.said}" if isinstance(error, ForbiddenError) and error.said else str(error)
        return Unknown("unreadable", "{problem}", problem=said)
    return Unknown(
        MISSING_RIGHT,
        "{problem}",
        "ask an administrator of the cluster for it; docs/doctor.md has the commands that grant all rights needed here",
        problem=error.call.missing_right,
    )


@contextlib.contextmanager
def needed(why: str) -> Iterator[None]:
    """Read what needs rights to the whole cluster; if one is missing, say which, and why it is needed.

    Raises:
        ClusterUnreadableError: a right is missing.
    """
    try:
        yield
    except ForbiddenError as error:
        raise ClusterUnreadableError(f"{error.call.missing_right}: {why}; {GRANT}") from error


async def every_node_and_pod(access: Access, why: str) -> tuple[list[msgspec.Raw], list[msgspec.Raw]]:
    """Return all nodes and all pods that have not ended; `why` says in the error what all of them are needed for.

    Raises:
        ClusterUnreadableError: a right is missing.
    """
    with needed(why):
        return await access.items(NODES), await access.items(PODS, NOT_ENDED)


async def cluster_of(
    raw_nodes: Sequence[msgspec.Raw],
    raw_pods: Sequence[msgspec.Raw],
    resources: Sequence[Resource],
    access: Access,
    namespace: str = "",
    *,
    features: Sequence[ReportFeature] = (),
) -> FollowedCluster:
    """Return the cluster with its claims, of one namespace or all, and warn of objects that cannot be read."""
    found, warnings = cluster(raw_nodes, raw_pods, resources, features)
    for warning in (*warnings, *await add_claims(found, access, namespace)):
        say(sys.stderr, f"warning: {warning}")
    return found


async def claims_in(access: Access, namespace: str = "") -> tuple[list[Claim] | None, list[str]]:
    """Return the claims of a namespace, or all, and a sentence for each unreadable one; None, and why: none is read."""
    try:
        return readable_claims(await access.items(CLAIMS, namespace=namespace))
    except ApiError as error:
        return None, [ABSENT if isinstance(error, NotFoundError) else str(unread(error))]


async def add_claims(cluster: FollowedCluster, access: Access, namespace: str = "") -> list[str]:
    """Add the claims of a namespace, or of all, if a node serves claims; return a sentence for each unreadable one."""
    if not cluster.serves_claims:
        return []
    claims, warnings = await claims_in(access, namespace)
    cluster.claims.replace(claims or [])
    return [unseen(warnings[0])] if claims is None else warnings


async def named_pod(
    access: Access, namespace: str, name: str, resources: Sequence[Resource], features: Sequence[ReportFeature] = ()
) -> tuple[Pod, SchedulingStatus]:
    """Return one pod.

    Raises:
        ClusterUnreadableError: it cannot be read, or does not exist.
    """
    try:
        return pod_and_status(
            await access.get(PODS, name, namespace=namespace), resources, foreign_annotations(features)
        )
    except ApiError as error:
        raise ClusterUnreadableError(
            f"pod {namespace}/{name} cannot be read: {unread(error)}; if it is in another namespace, name that with -n"
        ) from error

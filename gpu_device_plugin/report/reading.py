"""What commands read of a cluster with the rights of a user, and the sentences about what they may not read."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.commandline import say
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NOT_ENDED, PODS
from gpu_device_plugin.kubernetes.objects.pod_details import pod_and_status
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.rules.extension import foreign_annotations
from gpu_device_plugin.report.rules.finding import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import msgspec

    from gpu_device_plugin.kubernetes.kubectl import Access
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.followed_cluster import FollowedCluster, FollowedKind
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
    kind: FollowedKind | None = None,
) -> FollowedCluster:
    """Return the cluster with a further kind, of one namespace or all, and warn of objects that cannot be read."""
    found, warnings = cluster(raw_nodes, raw_pods, resources, kind=kind)
    for warning in (*warnings, *await add_more(found, access, namespace)):
        say(sys.stderr, f"warning: {warning}")
    return found


async def all_of(kind: FollowedKind | None, access: Access, namespace: str = "") -> tuple[list[Any] | None, list[str]]:
    """Return the objects of a kind, and a sentence for each unreadable one; None, and why: none is read."""
    if kind is None:
        return [], []
    warnings: list[str] = []
    try:
        raw = await access.items(kind.kind, namespace=namespace)
    except ApiError as error:
        return None, [kind.absent if isinstance(error, NotFoundError) else str(unread(error))]
    return list(readable(raw, kind.read, kind.called, warnings)), warnings


async def add_more(cluster: FollowedCluster, access: Access, namespace: str = "") -> list[str]:
    """Add the objects of its further kind, if a node needs these; return a sentence for each unreadable one."""
    if not cluster.needs_more or cluster.kind is None:
        return []
    found, warnings = await all_of(cluster.kind, access, namespace)
    cluster.more.replace(found or [])
    return [cluster.kind.unseen(warnings[0])] if found is None else warnings


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

"""Commands of `kubectl inspect gpushare`: their arguments, what runs them, and what they read with a user's rights."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin.commandline import say
from gpu_device_plugin.kubernetes.client.errors import READING, ApiError, Call, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NOT_ENDED, PODS
from gpu_device_plugin.kubernetes.objects.pod_details import pod_and_status
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.followed_cluster import FollowedCluster, FollowedKind, cluster
from gpu_device_plugin.report.rules.columns import Line
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.report.rules.node_view import NO_STATES, StatePoints
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus

if TYPE_CHECKING:
    import msgspec

    Arguments = Callable[[argparse._ActionsContainer], object]
    """Adds arguments to a parser."""

T = TypeVar("T")

Output = tuple[Sequence[str | Line], int]
"""Lines, and the exit code."""

PODS_OF_KUBECTL = frozenset({"", "pod", "pods", "po"})
"""The words that kubectl accepts before the name of a pod."""


CONTROLLERS = frozenset({"deployment", "deploy", "statefulset", "sts", "replicaset", "rs", "daemonset", "ds"})
"""kubectl's words for what makes pods."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line. Of its arguments `pod` and `node` may stand there as kubectl accepts them."""

    name: str
    what: str
    """What it is for, as a phrase."""
    run: Callable[[argparse.Namespace, Access, Sequence[Resource]], Awaitable[Output]] | None
    """Does it; None: the host does."""
    arguments: Sequence[Arguments] = ()
    """In the order of its help."""
    check: Callable[[argparse.Namespace], None] = lambda _: None
    """Completes what was parsed; raises UsageError if the arguments contradict each other."""
    after: str = "why"
    """The command behind which that of a feature stands, or which does this instead with the flag of this name."""


def argument(names: str, **options: Any) -> Arguments:
    """Return an argument, as of argparse, by all its names with spaces between."""
    return lambda parser: parser.add_argument(*names.split(), **options)


def switch(names: str, what: str) -> Arguments:
    """Return a flag without a value."""
    return argument(names, action="store_true", help=what)


def either(*arguments: Arguments) -> Arguments:
    """Return arguments of which one excludes the others."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


def valued(kind: Callable[[str], T], valid: Callable[[T], bool], advice: str) -> Callable[[str], T]:
    """Return what reads a value of a flag, and gives an advice if it cannot be read or is not valid."""

    def value(text: str) -> T:
        with suppress(ValueError):
            if valid(read := kind(text)):
                return read
        raise argparse.ArgumentTypeError(advice)

    return value


NODE = argument("node", nargs="?", metavar="NODE", help="this node alone")
NAMESPACE = argument("-n --namespace", help="of the pod or workload; default: that of kubectl's context")
AS_JSON = argument("-o --output", choices=("json",), default="summary", help="all data, for machines")
YES = switch("--yes", "with --apply or --drain: do not ask")
DRY_RUN = switch("--dry-run", "only print what would be done")


# --- What they read with the rights of a user ------------------------------------------------------------------------

MISSING_RIGHT = "right-missing"
"""The code of the finding that the reader lacks a right."""
GRANT = (
    "an administrator grants it with the ClusterRole gpushare-viewer (deploy/viewer.yaml): "
    "kubectl create clusterrolebinding gpushare-viewer --clusterrole=gpushare-viewer --user=USER"
)
"""How a right comes that a reader lacks."""
_ANYWHERE = frozenset({Call("list", "nodes"), Call("list", "pods")})
"""What every API server has."""
VIEWED = frozenset(
    {
        *("nodes", "pods", "pods/proxy", "events", "configmaps", "resourceclaims", "resourceslices", "deviceclasses"),
        *("poddisruptionbudgets", "daemonsets", "leases", "runtimeclasses", "validatingadmissionpolicies"),
        *("nodepools", "nodeoverlays"),
    }
)
"""What the roles of deploy/viewer.yaml let people read."""


def unread(error: Exception) -> Unknown:
    """Return the missing right if a call failed for one; else the message of the failure, or of who denied it."""
    if not isinstance(error, ForbiddenError) or error.denied:
        said = f"{error.call}: {error.said}" if isinstance(error, ForbiddenError) and error.said else str(error)
        return Unknown("unreadable", "{problem}", problem=said)
    return Unknown(
        MISSING_RIGHT,
        "{problem}",
        _who_grants(error.call),
        problem=error.call.missing_right,
    )


def _who_grants(call: Call) -> str:
    asked = "ask an administrator of the cluster"
    if call.resource in VIEWED and call.verb in READING:
        return f"{asked} for it; docs/doctor.md has the commands that grant all rights needed here"
    return f"{asked} to grant it; gpushare-viewer does not"


def refusal(error: Exception, otherwise: str = "") -> str:
    """Return why a call failed, and who grants the right that was missing; if none was, an advice."""
    unknown = unread(error)
    said = str(unknown)
    if isinstance(error, NotFoundError):
        said = error.said or said
        if not error.reason and error.call in _ANYWHERE:  # no object of the API's own says so
            otherwise = "no Kubernetes API server answers there: see the server in kubectl config view"
    return "; ".join(filter(None, (said, unknown.remedy or otherwise)))


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
    features: StatePoints = NO_STATES,
    kind: FollowedKind | None = None,
) -> FollowedCluster:
    """Return the cluster with a further kind, of one namespace or all, and warn of objects that cannot be read."""
    found, warnings = cluster(raw_nodes, raw_pods, resources, features, kind)
    for warning in (*warnings, *await add_more(found, access, namespace)):
        say(sys.stderr, f"warning: {warning}")
    return found


async def all_of(
    kind: FollowedKind | None, access: Access, namespace: str = ""
) -> tuple[list[Any], Sequence[str]] | Unknown:
    """Return the objects of a kind, and a sentence for each unreadable one; or why none is read."""
    if kind is None:
        return [], ()
    warnings: list[str] = []
    try:
        raw = await access.items(kind.kind, namespace=namespace)
    except NotFoundError:
        return Unknown("unreadable", "{problem}", problem=kind.absent)
    except ApiError as error:
        return unread(error)
    return list(readable(raw, kind.read, kind.called, warnings)), warnings


async def add_more(cluster: FollowedCluster, access: Access, namespace: str = "") -> Sequence[str]:
    """Add the objects of its further kind, if a node needs these; return a sentence for each unreadable one."""
    if not cluster.needs_more or cluster.kind is None:
        return []
    read = await all_of(cluster.kind, access, namespace)
    found, warnings = ([], [cluster.kind.unseen(str(read))]) if isinstance(read, Unknown) else read
    cluster.more.replace(found)
    return warnings


async def named_pod(
    access: Access, namespace: str, name: str, resources: Sequence[Resource]
) -> tuple[Pod, SchedulingStatus]:
    """Return one pod.

    Raises:
        ClusterUnreadableError: it cannot be read, or does not exist.
    """
    try:
        return pod_and_status(await access.get(PODS, name, namespace=namespace), resources)
    except ApiError as error:
        advice = "if it is in another namespace, name that with -n"
        if namespace in CONTROLLERS:
            advice = "a pod is wanted here: kubectl get pods lists those of a workload"
        raise ClusterUnreadableError(f"pod {namespace}/{name} cannot be read: {refusal(error)}; {advice}") from error

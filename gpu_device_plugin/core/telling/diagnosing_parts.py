"""The checks of the system's own pods: agents, extenders, and the kube-scheduler beside the extender."""

from __future__ import annotations

import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, warning
from gpu_device_plugin.core.telling.printing import MOST_NAMED, counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms, PartSeen

_IMAGE = (
    "correct image: in the manifest, push the image there, or load it on the node (docs/install-image.md); "
    "a registry with a password needs imagePullSecrets"
)

_RUNTIME = (
    "the node's container runtime could not start it; if its message names nvidia, run nvidia-smi on the node, and see "
    "what a node needs (docs/install.md)"
)

_LOG = "kubectl -n {namespace} logs {pod}{flag} says why"

_ASK = "kubectl -n {namespace} exec {pod} -- gpu-device-plugin doctor says why; so does kubectl logs"

_LOOK = "kubectl -n {namespace} describe pod {pod}: its Events name the reason"

_STUCK: Mapping[str, str] = MappingProxyType(
    {
        "ErrImagePull": _IMAGE,
        "ImagePullBackOff": _IMAGE,
        "ErrImageNeverPull": _IMAGE,
        "InvalidImageName": _IMAGE,
        "CreateContainerConfigError": "correct the object that the message names; kubectl diff -f deploy/ shows how "
        "the cluster differs from the manifests",
        "CreateContainerError": _RUNTIME,
        "RunContainerError": _RUNTIME,
        "StartError": _RUNTIME,
        "CrashLoopBackOff": "kubectl -n {namespace} logs {pod}{flag} --previous says why it ended",
        "OOMKilled": "it needs more memory than its limit: raise that in the manifest",
        "Unschedulable": "make room for its requests, or lower them",
    }
)
"""The remedy by Kubernetes' reason why a container does not run; `_LOOK` for any other reason."""


def _unready(part: PartSeen) -> str:
    container = f"container {part.container}" if part.container and part.reason else ""
    return ": ".join(filter(None, ("is not ready", container, part.reason, part.why)))


def _remedy(part: PartSeen, otherwise: str) -> str:
    """Return the advice about a part that is not ready; `otherwise` where all of its containers run."""
    namespace, _, pod = part.name.partition("/")
    advice = _STUCK.get(part.reason, _LOOK) if part.reason else otherwise
    return advice.format(namespace=namespace, pod=pod, flag=f" -c {part.container}" if part.container else "")


def agents(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the agents are ready."""
    unready = [agent for agent in cluster.agents if not agent.ready]
    for agent in unready[:MOST_NAMED]:
        yield error(
            f"{agent.name} on {agent.node or 'no node'} {_unready(agent)}",
            _remedy(agent, _LOG if agent.original else _ASK),
        )
    if len(unready) > MOST_NAMED:
        more = counted(len(unready) - MOST_NAMED, "more agent is", "more agents are")
        yield error(f"{more} not ready", "begin with the first")
    if cluster.agents and not unready:
        yield ok(f"{len(cluster.agents)} ready")


def extender(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the extenders are ready, and that schedulers call them."""
    if not cluster.extenders:
        yield warning(
            "no scheduler extender runs: free memory of a node is added up, and pods that fit on no single GPU fail",
            "kubectl apply -f deploy/scheduler.yaml (docs/scheduler.md)",
        )
        return
    ready = [part for part in cluster.extenders if part.ready]
    for part in cluster.extenders:
        if not part.ready:
            # Behind a Service only the leader is ready, by design.
            yield (error if not ready else warning if cluster.own_scheduler or part.reason else note)(
                f"{part.name} {_unready(part)}",
                _remedy(part, _LOG),
            )
    if ready:
        yield ok(f"{listed(part.name for part in ready)} {'is' if len(ready) == 1 else 'are'} ready")
    counts = [part.asked for part in cluster.extenders if part.asked is not None]
    if not counts:
        if any(not part.original for part in ready):
            yield Unknown(
                "the number of scheduler calls to the extender cannot be read",
                "reading it needs the right to get pods/proxy (docs/doctor.md)",
            )
    elif sum(counts):
        yield ok(f"schedulers called it {counted(sum(counts), 'time')} since it started")
    elif cluster.pods:
        yield warning(
            "no scheduler has called it since it started",
            "set schedulerName: gpushare-scheduler on GPU pods, or configure the cluster's own scheduler "
            "(docs/scheduler.md)",
        )
    else:
        yield note("no scheduler has called it yet, and there is no GPU pod")


def scheduler_versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check Kubernetes' version skew policy: as new as the API server, or one minor version older."""
    tags = {part.kube_scheduler for part in cluster.extenders if part.kube_scheduler is not None}
    server = None if isinstance(cluster.version, Unknown) else _minor(cluster.version)
    if server is None:
        return
    for tag in sorted(tags):
        minor = _minor(tag)
        if minor is None:
            yield Unknown(f"the tag of kube-scheduler's image is no version, and the API server is {cluster.version}")
        elif minor > server or minor < (server[0], server[1] - 1):
            why = (
                "newer than the API server, and may wait forever for APIs that the server lacks"
                if minor > server
                else "more than one minor version older than the API server"
            )
            yield warning(
                f"kube-scheduler {tag} is {why} ({cluster.version})",
                f"set the image of kube-scheduler to v{server[0]}.{server[1]}.x in deploy/scheduler.yaml, or "
                "scheduler.kubeScheduler.tag in the chart",
            )
        else:
            yield ok(f"kube-scheduler {tag}, API server {cluster.version}")


def versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Compare the versions of agents and extenders."""
    ours = [part for part in (*cluster.agents, *cluster.extenders) if not part.original]
    versions = {part.version: _minor(part.version) for part in ours if _minor(part.version)}
    if len(versions) < len({part.version for part in ours}):
        yield Unknown("the tags of some images are no versions")
    if not versions:
        return
    every = listed(f"{count} x {version}" for version, count in Counter(part.version for part in ours).items())
    minors = [minor for minor in versions.values() if minor is not None]
    if max(minors)[0] != min(minors)[0] or max(minors)[1] - min(minors)[1] > 1:
        yield warning(f"agents and extenders are more than one minor version apart: {every}", "upgrade the older ones")
    elif len(versions) > 1:
        yield note(f"agents and extenders are of several versions: {every}", "one minor version apart is supported")
    else:
        yield ok(every)


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return (int(found[1]), int(found[2])) if found else None


def original(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check for parts of Alibaba's gpushare beside this project's."""
    agents = [part for part in cluster.agents if part.original]
    extenders = [part for part in cluster.extenders if part.original]
    ours = {part.node for part in cluster.agents if not part.original}
    if both := [part.node for part in agents if part.node in ours]:
        yield error(
            f"gpushare's own device plugin runs beside our agent on {listed(both)}",
            "delete it: kubectl -n kube-system delete daemonset gpushare-device-plugin-ds",
        )
    if extenders and len(extenders) < len(cluster.extenders):
        yield error(
            f"gpushare's own extender runs beside ours ({listed(part.name for part in extenders)}): pods of one are "
            "unknown to the other until they are bound",
            "leave one of them: docs/operations.md explains how gpushare's works with our agent",
        )
    elif extenders:
        yield note("gpushare's own extender is in use, which knows gpu-mem only", "docs/operations.md lists its limits")

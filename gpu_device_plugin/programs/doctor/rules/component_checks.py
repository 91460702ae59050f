"""The checks of the system's own pods (agents, extenders, the kube-scheduler beside the extender) and of node groups.

A node that an autoscaler adds is to share its GPUs as its group's other nodes do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpu_device_plugin.model.contract.keys import GROUP_LABELS, NODE_POOL, SWITCH_LABEL
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, ComponentStatus, Lease, PodSeen
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, grouped, note, ok, warning
from gpu_device_plugin.report.rules.printing import MOST_NAMED

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

_STUCK: Mapping[str, str] = {
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
"""The remedy by Kubernetes' reason why a container does not run; `_LOOK` for any other reason."""


def _unready(
    severity: Callable[..., Finding], part: ComponentStatus, remedy: str, *, is_agent: bool = False
) -> Finding:
    """Return a finding about a part that is not ready, with `remedy` where all of its containers run."""
    namespace, _, pod = part.name.partition("/")
    container = part.container if part.reason else ""
    facts = {"container": container, "reason": part.reason, "why": part.why}
    words = {"container": ": container {container}", "reason": ": {reason}", "why": ": {why}"}
    where = (" on {node}" if part.node else " on no node") if is_agent else ""
    return severity(
        "agent-not-ready" if is_agent else "extender-not-ready",
        "".join(["{part}", where, " is not ready", *(words[name] for name, fact in facts.items() if fact)]),
        _STUCK.get(part.reason, _LOOK) if part.reason else remedy,
        part=part.name,
        node=part.node,
        namespace=namespace,
        pod=pod,
        flag=f" -c {part.container}" if part.container else "",
        **facts,
    )


def agents(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the agents are ready."""
    unready = [agent for agent in cluster.agents if not agent.ready]
    for agent in unready[:MOST_NAMED]:
        yield _unready(error, agent, _LOG if agent.original else _ASK, is_agent=True)
    if (more := len(unready) - MOST_NAMED) > 0:
        yield error(
            "agents-not-ready", "{agents:more agent is|more agents are} not ready", "begin with the first", agents=more
        )
    if cluster.agents and not unready:
        yield ok("agents", "{agents} ready", agents=len(cluster.agents))


def extender(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the extenders are ready, and that schedulers call them."""
    if not cluster.extenders:
        text = "no scheduler extender runs: free memory of a node is added up, and pods that fit on no single GPU fail"
        yield warning("no-extender", text, "kubectl apply -f deploy/scheduler.yaml (docs/scheduler.md)")
        return
    ready = [part for part in cluster.extenders if part.ready]
    for part in cluster.extenders:
        if not part.ready:
            # Behind a Service only the leader is ready, by design.
            severity = error if not ready else warning if cluster.own_scheduler or part.reason else note
            yield _unready(severity, part, _LOG)
    if ready:
        verb = "is" if len(ready) == 1 else "are"
        yield ok("extender", f"{{extenders}} {verb} ready", extenders=tuple(part.name for part in ready))
    counts = [part.asked for part in cluster.extenders if isinstance(part.asked, int)]
    if not counts:
        if any(not part.original for part in ready):
            text = "the number of scheduler calls to the extender cannot be read"
            denied = any(isinstance(part.asked, Unknown) for part in ready)
            advice = "reading it needs the right to get pods/proxy (docs/doctor.md)" if denied else ""
            yield Unknown("calls-unknown", text, advice)
    elif sum(counts):
        yield ok("extender-asked", "schedulers called it {calls:time} since it started", calls=sum(counts))
    elif cluster.pods:
        advice = (
            "set schedulerName: gpushare-scheduler on GPU pods, or configure the cluster's own scheduler "
            "(docs/scheduler.md)"
        )
        yield warning("extender-never-asked", "no scheduler has called it since it started", advice)
    else:
        yield note("extender-idle", "no scheduler has called it yet, and there is no GPU pod")


def scheduler_versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check Kubernetes' version skew policy: as new as the API server, or one minor version older."""
    tags = {part.kube_scheduler for part in cluster.extenders if part.kube_scheduler is not None}
    server = None if isinstance(cluster.version, Unknown) else _minor(cluster.version)
    if server is None:
        return
    versions = {"server": str(cluster.version), "minor": f"v{server[0]}.{server[1]}"}
    advice = (
        "set the image of kube-scheduler to {minor}.x in deploy/scheduler.yaml, or scheduler.kubeScheduler.tag in the "
        "chart"
    )
    for tag in sorted(tags):
        minor = _minor(tag)
        if minor is None:
            text = "the tag of kube-scheduler's image is no version, and the API server is {server}"
            yield Unknown("scheduler-version-unknown", text, **versions)
        elif minor > server:
            text = (
                "kube-scheduler {scheduler} is newer than the API server, and may wait forever for APIs that the "
                "server lacks ({server})"
            )
            yield warning("scheduler-too-new", text, advice, scheduler=tag, **versions)
        elif minor < (server[0], server[1] - 1):
            text = "kube-scheduler {scheduler} is more than one minor version older than the API server ({server})"
            yield warning("scheduler-too-old", text, advice, scheduler=tag, **versions)
        else:
            yield ok("scheduler-version", "kube-scheduler {scheduler}, API server {server}", scheduler=tag, **versions)


def versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Compare the versions of agents and extenders."""
    ours = [part.version for part in (*cluster.agents, *cluster.extenders) if not part.original]
    minors = {minor for version in ours if (minor := _minor(version)) is not None}
    if not all(map(_minor, ours)):
        yield Unknown("versions-unknown", "the tags of some images are no versions")
    if not minors:
        return
    every = tuple(f"{count} x {version}" for version, count in Counter(ours).items())
    oldest, newest = min(minors), max(minors)
    if newest[0] != oldest[0] or newest[1] - oldest[1] > 1:
        text = "agents and extenders are more than one minor version apart: {versions}"
        yield warning("versions-apart", text, "upgrade the older ones", versions=every)
    elif len({version for version in ours if _minor(version)}) > 1:
        text = "agents and extenders are of several versions: {versions}"
        yield note("versions-differ", text, "one minor version apart is supported", versions=every)
    else:
        yield ok("versions", "{versions}", versions=every)


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return (int(found[1]), int(found[2])) if found else None


def original(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check for parts of Alibaba's gpushare beside this project's."""
    ours = {part.node for part in cluster.agents if not part.original}
    if both := tuple(part.node for part in cluster.agents if part.original and part.node in ours):
        text = "gpushare's own device plugin runs beside our agent on {nodes}"
        advice = "delete it: kubectl -n kube-system delete daemonset gpushare-device-plugin-ds"
        yield error("original-agent", text, advice, nodes=both)
    extenders = tuple(part.name for part in cluster.extenders if part.original)
    if extenders and len(extenders) < len(cluster.extenders):
        text = (
            "gpushare's own extender runs beside ours ({extenders}): pods of one are unknown to the other until they "
            "are bound"
        )
        advice = "leave one of them: docs/operations.md explains how gpushare's works with our agent"
        yield error("original-extender-beside-ours", text, advice, extenders=extenders)
    elif extenders:
        text = "gpushare's own extender is in use, which knows gpu-mem only"
        yield note("original-extender", text, "docs/operations.md lists its limits")


GPU_LABELS = frozenset(
    {
        "k8s.amazonaws.com/accelerator",
        "cloud.google.com/gke-accelerator",
        "kubernetes.azure.com/accelerator",
        "cluster-api/accelerator",
    }
)
"""With one of these and no nvidia.com/gpu, a node is never ready for the Cluster Autoscaler (its GPULabel, 1.36)."""


def group_of(labels: Mapping[str, str]) -> str:
    """Return the label, with its value, that names a node's group; empty: none does."""
    return next((f"{label}={labels[label]}" for label in GROUP_LABELS if label in labels), "")


def groups(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Yield the node groups whose new nodes would share no GPUs, and those that Karpenter takes for useless."""
    sharing = {group_of(node.labels) for node in cluster.nodes if node.shares_gpus}
    plain = grouped((group_of(node.labels), node.name) for node in cluster.nodes if SWITCH_LABEL not in node.labels)
    for group in sorted((plain.keys() & sharing) - {""}):
        yield warning(
            "group-partly-labelled",
            "{nodes} have no label gpushare, though others of {group} have: a node that is added to this group by an "
            "autoscaler may share no GPUs",
            "set gpushare=true in the node group (docs/platforms.md), or label nodes without sharing gpushare=false",
            nodes=plain[group],
            group=group,
        )
    if unready := tuple(
        node.name for node in cluster.nodes if node.shares_gpus and not GPU_LABELS.isdisjoint(node.labels)
    ):
        text = "the Cluster Autoscaler, if it runs, never removes {nodes}: their cloud's label announces nvidia.com/gpu"
        yield note("label-of-gpus", text, "docs/platforms.md (From zero) names the labels to leave out", nodes=unready)
    found = cluster.karpenter
    if isinstance(found, Unknown):
        if any(NODE_POOL in node.labels for node in cluster.nodes):
            yield found
    elif found.pools and cluster.memory_resource not in found.resources:
        yield warning(
            "nodepool-without-shares",
            "Karpenter adds no node for pods that ask for {resource}: the nodes of {pools} share GPUs, and no "
            "NodeOverlay says so",
            "kubectl apply a NodeOverlay with the amounts of a node (docs/platforms.md)",
            resource=cluster.memory_resource,
            pools=found.pools,
        )


# --- Scheduling ------------------------------------------------------------------------------------------------------

_UNSEEN_S = 30.0
"""A running scheduler sets a condition on its pods within this time."""
_STALE_S = 60.0
"""A lease that expired longer ago than this has no live holder, even if our clock is wrong."""
_CONFIGURATION = "kubescheduler.config.k8s.io/v1"
ADMISSION_POLICIES = frozenset(
    {
        "gpushare-variables",
        "gpushare-size",
        "gpushare-devices",
        "gpushare-one-resource",
        "gpushare-no-zero",
        "gpushare-units",
        "gpushare-node-name",
        "gpushare-placement",
        "gpushare-mirror-pods",
        "gpushare-guarantee",
        "gpushare-own-promise",
        "gpushare-own-scheduling",
        "gpushare-own-evictions",
        "gpushare-moves",
        "gpushare-own-node",
        "gpushare-own-events",
    }
)
"""The policies of deploy/policies.yaml."""


def leaders(cluster: ClusterSymptoms, leases: Mapping[str, Lease]) -> Iterator[Finding]:
    """Check that a replica leads."""
    for name, lease in leases.items():
        advice = "see whether the pods above run, and their logs"
        if not lease.holder:
            yield error("no-leader", "{lease}: no replica holds it, so no replica schedules", advice, lease=name)
        elif lease.age_s > lease.lasts_s + _STALE_S:
            text = "{lease}: {holder} has not renewed it for {seconds} s, so no replica schedules"
            yield error("leader-lost", text, advice, lease=name, holder=lease.holder, seconds=round(lease.age_s))
        else:
            yield ok("leader", "{lease} is held by {holder}", lease=name, holder=lease.holder)
    if cluster.own_scheduler and not leases:
        text = "the scheduler's lease does not exist: no replica has ever led"
        yield error("no-lease", text, "see the lines above, and the log of kube-scheduler in its pods")


def configuration(_: ClusterSymptoms, configurations: Mapping[str, str]) -> Iterator[Finding]:
    """Check that kube-scheduler can read its configuration."""
    for where, version in configurations.items():
        if version == _CONFIGURATION:
            yield ok("configuration", "{file} has version v1", file=where)
        else:
            text = "{file} has version {version}, which no supported kube-scheduler reads"
            advice = f"set apiVersion: {_CONFIGURATION}"
            yield error("configuration-version", text, advice, file=where, version=version or "(none)")


def placement(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that bound pods have the GPUs that a scheduler chose."""
    # On nodes that serve claims kube-scheduler itself allocates, for limits too.
    serving = {node.name for node in cluster.nodes if node.gpus.claims}
    bound = [seen for seen in cluster.pods if seen.pod.node_name and seen.pod.node_name not in serving]
    by_scheduler = _by_scheduler(seen for seen in bound if not seen.promised)
    for scheduler, pods in by_scheduler.items():
        text = "{scheduler} bound {pods:GPU pod} without asking the extender: {pods}"
        advice = (
            "configure {scheduler} to call it (docs/scheduler.md), or set schedulerName: gpushare-scheduler; no "
            "scheduler is asked about pods that set nodeName themselves"
        )
        yield warning("extender-not-asked", text, advice, scheduler=scheduler, pods=pods)
    if bound and not by_scheduler:
        yield ok("placement", "{pods:GPU pod} on nodes, each with a GPU chosen by a scheduler", pods=len(bound))


def _by_scheduler(pods: Iterable[PodSeen]) -> Mapping[str, tuple[str, ...]]:
    return grouped((seen.scheduler, str(seen.pod)) for seen in sorted(pods, key=lambda seen: seen.scheduler))


def pending(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that schedulers look at the pods that wait."""
    pending = [seen for seen in cluster.pods if not seen.pod.node_name]
    ignored = [each for each in pending if not each.seen and each.age_s > _UNSEEN_S]
    for scheduler, pods in _by_scheduler(ignored).items():
        yield error(
            "pods-ignored",
            "{scheduler} has not looked at {pods:GPU pod}: {pods}",
            "start a scheduler of that name (deploy/scheduler.yaml is gpushare-scheduler), or correct schedulerName",
            scheduler=scheduler,
            pods=pods,
        )
    if waiting := tuple(str(each.pod) for each in pending if each.seen or each.age_s <= _UNSEEN_S):
        advice = "kubectl inspect gpushare why POD names the reason"
        yield note("pods-pending", "{pods:GPU pod} pending: {pods}", advice, pods=waiting)
    if not pending:
        yield ok("none-pending", "no GPU pod is pending")


def variables(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that no pod sets the variable by which containers see GPUs."""
    if cluster.pods_overriding_visible_devices:
        text = "{pods} set NVIDIA_VISIBLE_DEVICES themselves, and may see GPUs of others"
        advice = "remove it from their env; deploy/policies.yaml refuses it in pods that ask for GPUs"
        yield warning("variable-set-by-pod", text, advice, pods=cluster.pods_overriding_visible_devices)
    else:
        yield ok("variables", "no pod on a sharing node sets NVIDIA_VISIBLE_DEVICES itself")


def policies(_: ClusterSymptoms, installed: frozenset[str]) -> Iterator[Finding]:
    """Check that the admission policies are installed."""
    if missing := tuple(sorted(ADMISSION_POLICIES - installed)):
        names = "" if len(missing) == len(ADMISSION_POLICIES) else " ({policies})"
        text = (
            "{policies:admission policy is|admission policies are} not installed" + names + ": pods may set requests "
            "and variables that break the sharing"
        )
        advice = "kubectl apply -f deploy/policies.yaml (Kubernetes 1.30 or newer)"
        yield note("policies-missing", text, advice, policies=missing)
    else:
        yield ok("policies", "all admission policies are installed")

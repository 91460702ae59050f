"""What is wrong in a cluster that shares GPUs, by what its API shows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, unknown, warning
from gpu_device_plugin.core.telling.nodeamounts import amiss, of_gpushare
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.node.others import Sighting

_NAMED = 5
"""So many of a kind are named, and the others are counted."""
_UNSEEN_S = 30.0
"""After so long a scheduler that serves a pod has looked at it."""
_STALE_S = 60.0
"""A lease that was not renewed for so much longer than it lasts has no holder, whatever our clock says."""
_CONFIGURATION = "kubescheduler.config.k8s.io/v1"
POLICIES = frozenset(
    {
        "gpushare-variables",
        "gpushare-size",
        "gpushare-devices",
        "gpushare-one-resource",
        "gpushare-no-zero",
        "gpushare-units",
        "gpushare-node-name",
        "gpushare-placement",
        "gpushare-own-node",
        "gpushare-own-events",
    }
)
"""What deploy/policies.yaml installs."""
_SWITCHED_OFF = "false"
"""What else than `SWITCHED_ON` people mean when they write it."""

_IMAGE = (
    "correct the line image: of the manifest, push the image to there, or load it on the node (docs/install-image.md); "
    "a registry with a password needs imagePullSecrets"
)
_RUNTIME = (
    "the node's container runtime could not start it; where that names nvidia: nvidia-smi on the node, and what a node "
    "needs (docs/install.md)"
)
_LOG = "kubectl -n {namespace} logs {pod}{flag} says why"
_ASK = "kubectl -n {namespace} exec {pod} -- gpu-device-plugin doctor says why; so does kubectl logs"
_LOOK = "kubectl -n {namespace} describe pod {pod}: its Events say what it waits for"
_STUCK: Mapping[str, str] = MappingProxyType(
    {
        "ErrImagePull": _IMAGE,
        "ImagePullBackOff": _IMAGE,
        "ErrImageNeverPull": _IMAGE,
        "InvalidImageName": _IMAGE,
        "CreateContainerConfigError": "mend what that names; kubectl diff -f deploy/ tells how the cluster differs "
        "from the manifests",
        "CreateContainerError": _RUNTIME,
        "RunContainerError": _RUNTIME,
        "StartError": _RUNTIME,
        "CrashLoopBackOff": "kubectl -n {namespace} logs {pod}{flag} --previous says why it ended",
        "OOMKilled": "it needs more memory than its limit: raise that in the manifest",
        "Unschedulable": "make room for what it requests, or let it request less",
    }
)
"""What helps, by the word of Kubernetes for why a container does not run; elsewhere `_LOOK`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """One node that shares GPUs, did, or has the label by which people switch that on and off."""

    name: str
    switch: str | None = None
    """What the label says by which people switch sharing on; None: it has none."""
    profile: str = ""
    """Of settings, as its label says; empty: it has none."""
    told: bool = False
    """An agent has written its GPUs on it."""
    problem: str = ""
    """Why that cannot be read."""
    gpus: NodeGpus = NO_GPUS
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of our resources, those that it has."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    others: tuple[Sighting, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether it is meant to share its GPUs."""
        return self.switch == SWITCHED_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSeen:
    """A pod of ours, or of the original gpushare."""

    name: str
    """With its namespace."""
    node: str = ""
    ready: bool = False
    why: str = ""
    """Why it is not, as far as Kubernetes says."""
    container: str = ""
    """The one of its containers that holds it up; empty: none is known to."""
    reason: str = ""
    """Why that does not run, in the one word of Kubernetes (`ImagePullBackOff`); empty: it runs, and is not ready."""
    version: str = ""
    """The tag of its image."""
    kube_scheduler: str | None = None
    """The tag of the image of kube-scheduler beside it; None: there is none."""
    original: bool = False
    """Of Alibaba's gpushare."""
    asked: int | None = None
    """How often a scheduler had this extender filter nodes since it started; None: it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that asks for GPUs."""

    name: str
    """With its namespace."""
    node: str = ""
    scheduler: str = ""
    promised: bool = False
    """A scheduler wrote on it which GPU it gets."""
    seen: bool = True
    """A scheduler has said something of it."""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads."""

    holder: str
    age_s: float
    """Since it was last renewed, by our clock."""
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSymptoms:
    """Everything that the API shows of sharing GPUs."""

    memory_resource: str
    count_resource: str
    version: str | Unknown = ""
    nodes: tuple[NodeSeen, ...] = ()
    agents: tuple[PartSeen, ...] = ()
    extenders: tuple[PartSeen, ...] = ()
    own_scheduler: bool = False
    """The extender runs beside a kube-scheduler of its own."""
    runtime_class: str = ""
    """What the DaemonSet's pods ask for; empty: nothing that is known."""
    daemonset: bool | Unknown = True
    runtime_classes: frozenset[str] | Unknown = frozenset()
    pods: tuple[PodSeen, ...] = ()
    meddling: tuple[str, ...] = ()
    """Pods on sharing nodes that set NVIDIA_VISIBLE_DEVICES themselves."""
    leases: Mapping[str, Lease] | Unknown = field(default_factory=dict)
    """By the name that they should have; those that are missing are not there."""
    configurations: Mapping[str, str] | Unknown = field(default_factory=dict)
    """Versions of the scheduler's configurations, by where they stand."""
    policies: frozenset[str] | Unknown = frozenset()


def _names(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f"{', '.join(every[:_NAMED])}{more}"


def _installed(cluster: ClusterSymptoms) -> Iterator[Finding]:
    absent = not cluster.daemonset and not cluster.agents
    if isinstance(cluster.daemonset, Unknown):
        yield unknown(cluster.daemonset)
    elif absent:
        yield error("no agent is installed", "kubectl apply -f deploy/daemonset.yaml")
    labelled = [node for node in cluster.nodes if node.labelled]
    if not labelled and not any(node.told for node in cluster.nodes):
        yield error(
            f"no node is labelled {SWITCH_LABEL}={SWITCHED_ON}",
            f"kubectl label node NODE {SWITCH_LABEL}={SWITCHED_ON} for every node whose GPUs are to be shared",
        )
    agents = {agent.node for agent in cluster.agents}
    silent = [node.name for node in labelled if not node.told and node.name in agents]
    deserted = [node.name for node in labelled if node.name not in agents]
    if silent:
        yield error(
            f"no GPUs are told of {_names(silent)}, though an agent runs there",
            "see its log, and kubectl -n gpushare exec POD -- gpu-device-plugin doctor",
        )
    if deserted and not absent:
        yield error(
            f"no agent runs on {_names(deserted)}, labelled {SWITCH_LABEL}={SWITCHED_ON}",
            "kubectl -n gpushare describe daemonset gpushare-node: its Events say why, most often a runtime class that "
            "the cluster lacks, or PodSecurity of the namespace",
        )
    if labelled and not silent and not deserted:
        yield ok(f"{counted(len(labelled), 'labelled node')} with an agent")
    yield from _mistyped(cluster)


def _mistyped(cluster: ClusterSymptoms) -> Iterator[Finding]:
    mistyped: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if node.switch is not None and node.switch not in {SWITCHED_ON, _SWITCHED_OFF}:
            mistyped.setdefault(node.switch, []).append(node.name)
    for value, names in sorted(mistyped.items()):
        yield warning(
            f"{SWITCH_LABEL}={value} on {_names(names)} switches nothing on: only {SWITCHED_ON} does, in small letters",
            f"kubectl label node -l {SWITCH_LABEL}={value} --overwrite {SWITCH_LABEL}={SWITCHED_ON}, or "
            f"={_SWITCHED_OFF} where no GPUs are to be shared",
        )


def _unready(part: PartSeen) -> str:
    container = f"container {part.container}" if part.container and part.reason else ""
    return ": ".join(filter(None, ("is not ready", container, part.reason, part.why)))


def _way_out(part: PartSeen, otherwise: str) -> str:
    """Return what helps a part that is not ready, and `otherwise` where all of its containers run."""
    namespace, _, pod = part.name.partition("/")
    advice = _STUCK.get(part.reason, _LOOK) if part.reason else otherwise
    return advice.format(namespace=namespace, pod=pod, flag=f" -c {part.container}" if part.container else "")


def _agents(cluster: ClusterSymptoms) -> Iterator[Finding]:
    unready = [agent for agent in cluster.agents if not agent.ready]
    for agent in unready[:_NAMED]:
        yield error(
            f"{agent.name} on {agent.node or 'no node'} {_unready(agent)}",
            _way_out(agent, _LOG if agent.original else _ASK),
        )
    if len(unready) > _NAMED:
        more = counted(len(unready) - _NAMED, "more agent is", "more agents are")
        yield error(f"{more} not ready", "begin with the first")
    if cluster.agents and not unready:
        yield ok(f"{len(cluster.agents)} ready")


def _runtime_class(cluster: ClusterSymptoms) -> Iterator[Finding]:
    wanted, known = cluster.runtime_class, cluster.runtime_classes
    if not wanted:
        return
    if isinstance(known, Unknown):
        yield unknown(known)
    elif wanted not in known:
        yield error(
            f"the agents ask for the runtime class {wanted}, which this cluster does not have",
            f"make it (handler: {wanted}), or take runtimeClassName out of the DaemonSet where NVIDIA's runtime is the "
            "default",
        )
    else:
        yield ok(f"{wanted} is there")


def _gpus(cluster: ClusterSymptoms) -> Iterator[Finding]:
    for node in cluster.nodes:
        if node.problem:
            yield error(f"{node.name}: {node.problem}", "upgrade the older of agent and scheduler")
        ill: dict[str, list[int]] = {}
        for gpu in node.gpus.gpus:
            if gpu.unhealthy:
                ill.setdefault(gpu.unhealthy, []).append(gpu.position)
        for why, positions in ill.items():
            which = f"GPU {', '.join(map(str, positions))} {'is' if len(positions) == 1 else 'are'}"
            yield warning(
                f"{node.name}: {which} out of service: {why}",
                "docs/operations.md says what ends that (A GPU is out of service)",
            )
    total = sum(len(node.gpus.gpus) for node in cluster.nodes)
    if total and not any(gpu.unhealthy for node in cluster.nodes for gpu in node.gpus.gpus):
        yield ok(f"{total} healthy on {counted(sum(bool(node.gpus.gpus) for node in cluster.nodes), 'node')}")


def _allocatable(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ready = {agent.node for agent in cluster.agents if agent.ready}
    sharing = [node for node in cluster.nodes if node.labelled and node.told]
    empty = [node.name for node in sharing if not node.allocatable.get(cluster.memory_resource)]
    lost = [name for name in empty if name not in ready]
    if lost:
        yield error(f"no {cluster.memory_resource} on {_names(lost)}: no agent is ready there", "see above")
    used = [name for name in empty if name in ready]
    if used:
        yield note(f"no {cluster.memory_resource} on {_names(used)}: all GPUs are in whole use, or out of service")
    if sharing and not empty:
        yield ok(f"{cluster.memory_resource} is offered by {counted(len(sharing), 'node')}")


def _capacity(cluster: ClusterSymptoms) -> Iterator[Finding]:
    memory, count = cluster.memory_resource, cluster.count_resource
    ready = {agent.node for agent in cluster.agents if agent.ready and not agent.original}
    gpushare = {agent.node for agent in cluster.agents if agent.original}
    by_number = any(part.original for part in cluster.extenders)
    found = False
    for node in cluster.nodes:
        findings: Iterable[Finding] = ()
        if node.name in ready and node.gpus.gpus:
            findings = amiss(node.name, node.gpus, node.capacity, memory, count, counted_on=by_number)
        elif node.name in gpushare - ready:
            findings = of_gpushare(node.name, node.capacity, node.allocatable, memory, count)
        for finding in findings:
            found = True
            yield finding
    checked = [node for node in cluster.nodes if node.name in ready | gpushare]
    if checked and not found:
        yield ok(f"that of its GPUs on {counted(len(checked), 'node')}")


def _share_sizes(cluster: ClusterSymptoms) -> Iterator[Finding]:
    sizes: dict[int, list[str]] = {}
    by_profile: dict[str, set[int]] = {}
    for node in cluster.nodes:
        if node.gpus.share_mib is not None:
            sizes.setdefault(node.gpus.share_mib, []).append(node.name)
            profile = "" if node.profile == DEFAULT_PROFILE else node.profile
            by_profile.setdefault(profile, set()).add(node.gpus.share_mib)
    told = "; ".join(f"{format_mib(size)} on {_names(names)}" for size, names in sorted(sizes.items()))
    differ = f"{cluster.memory_resource}: 1 is not the same memory on every node: {told}"
    choose = "have pods choose nodes by the label gpu-device-plugin/share-mib"
    if any(len(each) > 1 for each in by_profile.values()):
        yield warning(
            differ,
            "give all nodes one share_size, which an agent takes over when it is started anew; if it is meant, give "
            f"these nodes a profile of settings of their own (label {CONFIG_LABEL}, docs/settings.md), and {choose}",
        )
    elif len(sizes) > 1:
        yield note(f"{differ}, by their profiles of settings", choose)
    elif sizes:
        yield ok(f"{format_mib(next(iter(sizes)))} on every node")


def _others(cluster: ClusterSymptoms) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    advice: dict[str, str] = {}
    for node in cluster.nodes:
        for sighting in node.others if node.labelled else ():
            found.setdefault(sighting.other.name, []).append(node.name)
            advice[sighting.other.name] = sighting.other.off
    for name, nodes in found.items():
        yield error(f"{name} hands out GPUs too, on {_names(nodes)}", advice[name])
    if not found:
        yield ok("nobody else hands out GPUs of labelled nodes")


def _leftovers(cluster: ClusterSymptoms) -> Iterator[Finding]:
    agents = {agent.node for agent in cluster.agents}
    left = [
        node.name
        for node in cluster.nodes
        if not node.labelled and node.name not in agents and (node.told or node.capacity)
    ]
    if left:
        yield note(
            f"{_names(left)} shared GPUs once and still say so",
            "kubectl inspect gpushare uninstall removes it from nodes without the label",
        )


def _extender(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if not cluster.extenders:
        yield warning(
            "no scheduler extender runs: free memory of a node is added up, and pods that fit on no single GPU fail",
            "kubectl apply -f deploy/scheduler.yaml (docs/scheduler.md)",
        )
        return
    ready = [part for part in cluster.extenders if part.ready]
    for part in cluster.extenders:
        if not part.ready:
            # Behind a Service all but the leader are not ready, by intent.
            yield (error if not ready else warning if cluster.own_scheduler or part.reason else note)(
                f"{part.name} {_unready(part)}",
                _way_out(part, _LOG),
            )
    if ready:
        yield ok(f"{_names(part.name for part in ready)} {'is' if len(ready) == 1 else 'are'} ready")
    told = [part.asked for part in cluster.extenders if part.asked is not None]
    if not told:
        if any(not part.original for part in ready):
            yield unknown(
                Unknown(
                    "how often schedulers asked it cannot be read",
                    "that needs the right to get pods/proxy (docs/doctor.md)",
                )
            )
    elif sum(told):
        yield ok(f"schedulers asked it {counted(sum(told), 'time')} since it started")
    elif cluster.pods:
        yield warning(
            "no scheduler has asked it about any pod since it started",
            "set schedulerName: gpushare-scheduler on GPU pods, or configure the cluster's own scheduler "
            "(docs/scheduler.md)",
        )
    else:
        yield note("no scheduler has asked it yet, and there is no GPU pod")


def _scheduler_versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Compare as Kubernetes' version skew policy has it: as new as the API server, or one minor version older."""
    tags = {part.kube_scheduler for part in cluster.extenders if part.kube_scheduler is not None}
    server = None if isinstance(cluster.version, Unknown) else _minor(cluster.version)
    if server is None:
        return
    for tag in sorted(tags):
        minor = _minor(tag)
        if minor is None:
            yield unknown(
                Unknown(f"kube-scheduler's image has no version for a tag, and the API server is {cluster.version}")
            )
        elif minor > server or minor < (server[0], server[1] - 1):
            why = (
                "newer than the API server, and may wait for ever for what that lacks"
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


def _leases(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.leases, Unknown):
        yield unknown(cluster.leases)
        return
    for name, lease in cluster.leases.items():
        stale = lease.age_s > lease.lasts_s + _STALE_S
        if lease.holder and not stale:
            yield ok(f"{name} is held by {lease.holder}")
        else:
            late = f"{lease.holder} has not renewed it for {lease.age_s:.0f} s" if lease.holder else "nobody holds it"
            yield error(f"{name}: {late}, so nobody schedules", "see whether the pods above run, and their logs")
    if cluster.own_scheduler and not cluster.leases:
        yield error(
            "the scheduler's lease is not there: no replica ever led",
            "see the lines above, and the log of kube-scheduler in its pods",
        )


def _configuration(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.configurations, Unknown):
        yield unknown(cluster.configurations)
        return
    for where, version in cluster.configurations.items():
        if version == _CONFIGURATION:
            yield ok(f"{where} is of version v1")
        else:
            yield error(
                f"{where} is of version {version or '(none)'}, which no supported kube-scheduler reads",
                f"set apiVersion: {_CONFIGURATION}",
            )


def _placement(cluster: ClusterSymptoms) -> Iterator[Finding]:
    bound = [pod for pod in cluster.pods if pod.node]
    by_scheduler: dict[str, list[PodSeen]] = {}
    for pod in bound:
        if not pod.promised:
            by_scheduler.setdefault(pod.scheduler, []).append(pod)
    for scheduler, pods in sorted(by_scheduler.items()):
        names = _names(pod.name for pod in pods)
        yield warning(
            f"{scheduler} bound {counted(len(pods), 'GPU pod')} without asking the extender: {names}",
            f"configure {scheduler} to call it (docs/scheduler.md), or set schedulerName: gpushare-scheduler; of pods "
            "that set nodeName themselves nobody is asked",
        )
    if bound and not by_scheduler:
        yield ok(f"{counted(len(bound), 'GPU pod')} on nodes, placed by GPU")


def _pending(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ignored = [pod for pod in cluster.pods if not pod.node and not pod.seen and pod.age_s > _UNSEEN_S]
    for scheduler, count in sorted(Counter(pod.scheduler for pod in ignored).items()):
        names = _names(pod.name for pod in ignored if pod.scheduler == scheduler)
        yield error(
            f"{scheduler} has not looked at {counted(count, 'GPU pod')}: {names}",
            "start a scheduler of that name (deploy/scheduler.yaml is gpushare-scheduler), or correct schedulerName",
        )
    waiting = [pod for pod in cluster.pods if not pod.node and pod not in ignored]
    if waiting:
        names = _names(pod.name for pod in waiting)
        yield note(
            f"{counted(len(waiting), 'GPU pod')} waiting: {names}", "kubectl inspect gpushare why POD says for what"
        )
    if not waiting and not ignored:
        yield ok("no GPU pod waits")


def _variables(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if cluster.meddling:
        yield warning(
            f"{_names(cluster.meddling)} set NVIDIA_VISIBLE_DEVICES themselves, and may see GPUs of others",
            "take it out of their env; deploy/policies.yaml refuses it in pods that ask for GPUs",
        )
    else:
        yield ok("no pod on a sharing node sets NVIDIA_VISIBLE_DEVICES itself")


def _versions(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ours = [part for part in (*cluster.agents, *cluster.extenders) if not part.original]
    versions = {part.version: _minor(part.version) for part in ours if _minor(part.version)}
    if len(versions) < len({part.version for part in ours}):
        yield unknown(Unknown("some images have no version for a tag"))
    if not versions:
        return
    told = _names(f"{count} x {version}" for version, count in Counter(part.version for part in ours).items())
    minors = [minor for minor in versions.values() if minor is not None]
    if max(minors)[0] != min(minors)[0] or max(minors)[1] - min(minors)[1] > 1:
        yield warning(f"agents and extenders are more than one minor version apart: {told}", "upgrade the older ones")
    elif len(versions) > 1:
        yield note(f"agents and extenders are of several versions: {told}", "one minor version apart is supported")
    else:
        yield ok(told)


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _policies(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.policies, Unknown):
        yield unknown(cluster.policies)
    elif missing := POLICIES - cluster.policies:
        few = f"the admission {'policy' if len(missing) == 1 else 'policies'} {_names(missing)}"
        which = f"{'the admission policies' if missing == POLICIES else few} {'is' if len(missing) == 1 else 'are'}"
        yield note(
            f"{which} not installed: pods may ask for what breaks the sharing",
            "kubectl apply -f deploy/policies.yaml (Kubernetes 1.30 or newer)",
        )
    else:
        yield ok("all admission policies are installed")


def _original(cluster: ClusterSymptoms) -> Iterator[Finding]:
    agents = [part for part in cluster.agents if part.original]
    extenders = [part for part in cluster.extenders if part.original]
    ours = {part.node for part in cluster.agents if not part.original}
    if both := [part.node for part in agents if part.node in ours]:
        yield error(
            f"gpushare's own device plugin runs beside our agent on {_names(both)}",
            "delete it: kubectl -n kube-system delete daemonset gpushare-device-plugin-ds",
        )
    if extenders and len(extenders) < len(cluster.extenders):
        yield error(
            f"gpushare's own extender runs beside ours ({_names(part.name for part in extenders)}): pods of one are "
            "unknown to the other until they are bound",
            "leave one of them: docs/operations.md tells how gpushare's works with our agent",
        )
    elif extenders:
        yield note("gpushare's own extender is in use, which knows gpu-mem only", "docs/operations.md tells its limits")


def _server(cluster: ClusterSymptoms) -> Iterator[Finding]:
    yield unknown(cluster.version) if isinstance(cluster.version, Unknown) else ok(f"Kubernetes {cluster.version}")


CHECKS: Mapping[str, Callable[[ClusterSymptoms], Iterable[Finding]]] = MappingProxyType(
    {
        "API server": _server,
        "nodes": _installed,
        "agents": _agents,
        "runtime class": _runtime_class,
        "GPUs": _gpus,
        "allocatable": _allocatable,
        "capacity": _capacity,
        "share size": _share_sizes,
        "other plugins": _others,
        "leftovers": _leftovers,
        "extender": _extender,
        "scheduler version": _scheduler_versions,
        "leader": _leases,
        "scheduler configuration": _configuration,
        "placement": _placement,
        "pending pods": _pending,
        "variables": _variables,
        "versions": _versions,
        "policies": _policies,
        "gpushare's own parts": _original,
    }
)
"""In the order in which one thing needs the other."""

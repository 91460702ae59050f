"""The checks of a cluster that shares GPUs, based on the objects of its API, as far as these can be read."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.finding import Finding, Unknown, error, examine, names_by, note, ok, warning
from gpu_device_plugin.core.report.findings.claim_checks import claims
from gpu_device_plugin.core.report.findings.component_checks import (
    agents,
    extender,
    groups,
    original,
    scheduler_versions,
    versions,
)
from gpu_device_plugin.core.report.findings.condition_checks import condition_seen
from gpu_device_plugin.core.report.findings.container_checks import UNREAD_ADVICE
from gpu_device_plugin.core.report.findings.limit_checks import held, limits, supervisors, use, wishes
from gpu_device_plugin.core.report.findings.node_amounts import gpushare_count, mismatches
from gpu_device_plugin.core.report.text.printing import gpu_names, listed
from gpu_device_plugin.core.report.why.pod_use import told_over_use
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.report.findings.symptoms import ClusterSymptoms, NodeSeen, PodSeen
    from gpu_device_plugin.model.contract.nodegpus import ListedGpu
    from gpu_device_plugin.model.pods import Pod

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

_SWITCHED_OFF = "false"
"""The other valid value of the label."""


def _installed(cluster: ClusterSymptoms) -> Iterator[Finding]:
    absent = cluster.daemonset is None and not cluster.agents
    if isinstance(cluster.daemonset, Unknown):
        yield cluster.daemonset
    elif absent:
        yield error("not-installed", "no agent is installed", "kubectl apply -f deploy/daemonset.yaml")
    labelled = [node for node in cluster.nodes if node.labelled]
    if not labelled and not any(node.annotated for node in cluster.nodes):
        advice = "kubectl label node NODE gpushare=true for every node whose GPUs are to be shared"
        yield error("no-node-labelled", "no node is labelled gpushare=true", advice)
    agents = {agent.node for agent in cluster.agents}
    silent = tuple(node.name for node in labelled if not node.annotated and node.name in agents)
    deserted = tuple(node.name for node in labelled if node.name not in agents)
    if silent:
        advice = "see its log, and kubectl -n gpushare exec POD -- gpu-device-plugin doctor"
        yield error("no-gpus-listed", "no GPUs are listed on {nodes}, though an agent runs there", advice, nodes=silent)
    if deserted and not absent:
        advice = (
            "kubectl -n gpushare describe daemonset gpushare-node: its Events say why, most often a runtime class that "
            "the cluster lacks, or the PodSecurity level of the namespace"
        )
        yield error("no-agent-on-node", "no agent runs on {nodes}, labelled gpushare=true", advice, nodes=deserted)
    if labelled and not silent and not deserted:
        yield ok("nodes", "{nodes:labelled node} with an agent", nodes=len(labelled))
    switches = [(node.labels[SWITCH_LABEL], node.name) for node in cluster.nodes if SWITCH_LABEL in node.labels]
    for value, names in sorted(names_by(switches).items()):
        if value in {SWITCHED_ON, _SWITCHED_OFF}:
            continue
        text = "gpushare={value} on {nodes} switches nothing on: only true does, in small letters"
        advice = (
            "kubectl label node -l gpushare={value} --overwrite gpushare=true, or =false where no GPUs are to be shared"
        )
        yield warning("switch-mistyped", text, advice, value=value, nodes=names)


def _runtime_class(cluster: ClusterSymptoms) -> Iterator[Finding]:
    wanted, known = cluster.daemonset, cluster.runtime_classes
    if not wanted or isinstance(wanted, Unknown):
        return
    if isinstance(known, Unknown):
        yield known
    elif wanted not in known:
        text = "the agents need the runtime class {name}, which this cluster does not have"
        advice = (
            "create it (handler: {name}), or remove runtimeClassName from the DaemonSet if NVIDIA's runtime is the "
            "default"
        )
        yield error("no-runtime-class", text, advice, name=wanted)
    else:
        yield ok("runtime-class", "{name} exists", name=wanted)


def _unread(node: NodeSeen) -> Iterator[Finding]:
    if fault := node.gpus.unusable:
        advice = "upgrade the older of agent and scheduler"
        yield error("node-unreadable", "{node}: {problem}", advice, node=node.name, problem=fault)
    for why in node.gpus.unread:
        yield error("gpu-unread", "{node}: {why}", UNREAD_ADVICE, node=node.name, why=why)


def _gpus(cluster: ClusterSymptoms) -> Iterator[Finding]:
    for node in cluster.nodes:
        yield from _unread(node)
        ill: dict[str, list[ListedGpu]] = {}
        for gpu in node.gpus.all:
            if gpu.unhealthy:
                ill.setdefault(gpu.unhealthy, []).append(gpu)
        for why, gpus in ill.items():
            text = f"{{node}}: {{gpus}} {'is' if len(gpus) == 1 else 'are'} out of service: {{why}}"
            advice = "docs/operations.md has the remedy (A GPU is out of service)"
            yield warning("gpu-unhealthy", text, advice, node=node.name, gpus=gpu_names(gpus), why=why)
        if fault := node.gpus.cordons_fault:
            text, advice = "{node}: {problem}: no GPU of it is put aside", "look at it, remove it, and cordon again"
            yield warning("cordons-unreadable", text, advice, node=node.name, problem=fault)
        for gpu in node.gpus.all:
            if gpu.cordon is not None:
                advice = "kubectl inspect gpushare uncordon {node} {gpu} takes it back into use"
                text = "{node}: {name} takes no new pods: it is {why}"
                name, why = gpu_names([gpu]), str(gpu.cordon)
                yield note("gpu-cordoned", text, advice, node=node.name, gpu=gpu.position, name=name, why=why)
    every = [gpu for node in cluster.nodes for gpu in node.gpus.all]
    if every and not any(gpu.unhealthy for gpu in every):
        instances = sum(gpu.instance is not None for gpu in every)
        yield ok(
            "gpus-healthy",
            "{gpus} healthy on {nodes:node}" + (", {instances} of them MIG instances" if instances else ""),
            gpus=len(every),
            nodes=sum(bool(node.gpus.all) for node in cluster.nodes),
            instances=instances,
        )


def _allocatable(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ready = {agent.node for agent in cluster.agents if agent.ready}
    resource = cluster.memory_resource
    sharing = [
        node
        for node in cluster.nodes
        if node.labelled
        and node.annotated
        and not node.gpus.claims
        and (node.gpus.gpus or not node.gpus.instances)  # nodes that give only whole MIG instances have no shares
    ]
    empty = [node.name for node in sharing if not node.allocatable.get(resource)]
    if lost := tuple(name for name in empty if name not in ready):
        text = "no {resource} on {nodes}: no agent is ready there"
        yield error("not-offered", text, "see above", resource=resource, nodes=lost)
    if used := tuple(name for name in empty if name in ready):
        text = "no {resource} on {nodes}: all GPUs are in whole use, or out of service"
        yield note("all-in-use", text, resource=resource, nodes=used)
    if sharing and not empty:
        yield ok("offered", "{resource} is offered by {nodes:node}", resource=resource, nodes=len(sharing))


def _capacity(cluster: ClusterSymptoms) -> Iterator[Finding]:
    memory, count = cluster.memory_resource, cluster.count_resource
    ready = {agent.node for agent in cluster.agents if agent.ready and not agent.original}
    gpushare = {agent.node for agent in cluster.agents if agent.original}
    by_number = any(part.original for part in cluster.extenders)
    # The kubelet of a node that serves claims knows no amounts.
    checked = [node for node in cluster.nodes if node.name in ready | gpushare and not node.gpus.claims]
    findings: list[Finding] = []
    for node in checked:
        if node.name in gpushare - ready:
            findings += gpushare_count(node.name, node.capacity, node.allocatable, memory, count)
        elif node.gpus.all:
            findings += mismatches(node.name, node.gpus, node.capacity, memory, count, counted_on=by_number)
    yield from findings
    if checked and not findings:
        yield ok("capacity", "matches the GPUs on {nodes:node}", nodes=len(checked))


def _share_sizes(cluster: ClusterSymptoms) -> Iterator[Finding]:
    sized = [
        (size, node) for node in cluster.nodes if (size := node.gpus.share_mib) is not None and not node.gpus.claims
    ]
    sizes = names_by((size, node.name) for size, node in sized)
    profiles = [(size, node.labels.get(CONFIG_LABEL, "")) for size, node in sized]
    of_profiles = {(size, "" if profile == DEFAULT_PROFILE else profile) for size, profile in profiles}
    where = "; ".join(f"{format_mib(size)} on {listed(names)}" for size, names in sorted(sizes.items()))
    differ = "{resource}: 1 is not the same memory on every node: {sizes}"
    choose = "have pods choose nodes by the label gpu-device-plugin/share-mib"
    if len(of_profiles) > len({profile for _, profile in of_profiles}):
        advice = (
            "give all nodes one share_size, which an agent applies when it restarts; if the sizes differ on purpose, "
            "give these nodes a settings profile of their own (label gpu-device-plugin/config, docs/settings.md), and "
            f"{choose}"
        )
        yield warning("share-sizes-differ", differ, advice, resource=cluster.memory_resource, sizes=where)
    elif len(sizes) > 1:
        text = f"{differ}, by their settings profiles"
        yield note("share-sizes-by-profile", text, choose, resource=cluster.memory_resource, sizes=where)
    elif sizes:
        yield ok("share-size", "{size} on every node", size=format_mib(next(iter(sizes))))


def _others(cluster: ClusterSymptoms) -> Iterator[Finding]:
    labelled = [node for node in cluster.nodes if node.labelled]
    others = names_by((sighting.other, node.name) for node in labelled for sighting in node.others)
    for other, nodes in others.items():
        text = "{other} hands out GPUs too, on {nodes}"
        yield error("other-plugin", text, other.off, other=other.name, nodes=nodes)
    if not others:
        yield ok("no-other-plugin", "no other plugin hands out GPUs of labelled nodes")


def _leftovers(cluster: ClusterSymptoms) -> Iterator[Finding]:
    agents = {agent.node for agent in cluster.agents}
    left = tuple(
        node.name
        for node in cluster.nodes
        if not node.labelled and node.name not in agents and (node.annotated or node.capacity)
    )
    if left:
        advice = "kubectl inspect gpushare uninstall removes them from nodes without the label"
        yield note("leftovers", "{nodes}: annotations or capacity remain, though sharing is off", advice, nodes=left)


# --- Scheduling -------------------------------------------------------------------------------------------------------


def _leases(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.leases, Unknown):
        yield cluster.leases
        return
    for name, lease in cluster.leases.items():
        advice = "see whether the pods above run, and their logs"
        if not lease.holder:
            yield error("no-leader", "{lease}: no replica holds it, so no replica schedules", advice, lease=name)
        elif lease.age_s > lease.lasts_s + _STALE_S:
            text = "{lease}: {holder} has not renewed it for {seconds} s, so no replica schedules"
            yield error("leader-lost", text, advice, lease=name, holder=lease.holder, seconds=round(lease.age_s))
        else:
            yield ok("leader", "{lease} is held by {holder}", lease=name, holder=lease.holder)
    if cluster.own_scheduler and not cluster.leases:
        text = "the scheduler's lease does not exist: no replica has ever led"
        yield error("no-lease", text, "see the lines above, and the log of kube-scheduler in its pods")


def _configuration(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.configurations, Unknown):
        yield cluster.configurations
        return
    for where, version in cluster.configurations.items():
        if version == _CONFIGURATION:
            yield ok("configuration", "{file} has version v1", file=where)
        else:
            text = "{file} has version {version}, which no supported kube-scheduler reads"
            advice = f"set apiVersion: {_CONFIGURATION}"
            yield error("configuration-version", text, advice, file=where, version=version or "(none)")


def _placement(cluster: ClusterSymptoms) -> Iterator[Finding]:
    # On nodes that serve claims kube-scheduler itself allocates, for limits too.
    serving = {node.name for node in cluster.nodes if node.gpus.claims}
    bound = [pod for pod in cluster.pods if pod.node and pod.node not in serving]
    by_scheduler = _by_scheduler(pod for pod in bound if not pod.promised)
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
    return names_by((pod.scheduler, pod.name) for pod in sorted(pods, key=lambda pod: pod.scheduler))


def _pending(cluster: ClusterSymptoms) -> Iterator[Finding]:
    pending = [pod for pod in cluster.pods if not pod.node]
    ignored = [pod for pod in pending if not pod.seen and pod.age_s > _UNSEEN_S]
    for scheduler, pods in _by_scheduler(ignored).items():
        yield error(
            "pods-ignored",
            "{scheduler} has not looked at {pods:GPU pod}: {pods}",
            "start a scheduler of that name (deploy/scheduler.yaml is gpushare-scheduler), or correct schedulerName",
            scheduler=scheduler,
            pods=pods,
        )
    if waiting := tuple(pod.name for pod in pending if pod not in ignored):
        advice = "kubectl inspect gpushare why POD names the reason"
        yield note("pods-pending", "{pods:GPU pod} pending: {pods}", advice, pods=waiting)
    if not pending:
        yield ok("none-pending", "no GPU pod is pending")


def _variables(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if cluster.meddling:
        text = "{pods} set NVIDIA_VISIBLE_DEVICES themselves, and may see GPUs of others"
        advice = "remove it from their env; deploy/policies.yaml refuses it in pods that ask for GPUs"
        yield warning("variable-set-by-pod", text, advice, pods=cluster.meddling)
    else:
        yield ok("variables", "no pod on a sharing node sets NVIDIA_VISIBLE_DEVICES itself")


def _policies(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.policies, Unknown):
        yield cluster.policies
    elif missing := tuple(ADMISSION_POLICIES - cluster.policies):
        names = "" if len(missing) == len(ADMISSION_POLICIES) else " ({policies})"
        text = (
            "{policies:admission policy is|admission policies are} not installed" + names + ": pods may set requests "
            "and variables that break the sharing"
        )
        advice = "kubectl apply -f deploy/policies.yaml (Kubernetes 1.30 or newer)"
        yield note("policies-missing", text, advice, policies=missing)
    else:
        yield ok("policies", "all admission policies are installed")


def _server(cluster: ClusterSymptoms) -> Iterator[Finding]:
    version = cluster.version
    yield version if isinstance(version, Unknown) else ok("api", "Kubernetes {version}", version=version)


CHECKS: Mapping[str, Callable[[ClusterSymptoms], Iterable[Finding]]] = MappingProxyType(
    {
        "API server": _server,
        "nodes": _installed,
        "node groups": groups,
        "agents": agents,
        "runtime class": _runtime_class,
        "GPUs": _gpus,
        "GPU condition": condition_seen,
        "allocatable": _allocatable,
        "capacity": _capacity,
        "share size": _share_sizes,
        "ResourceClaims": claims,
        "other plugins": _others,
        "leftovers": _leftovers,
        "extender": extender,
        "scheduler version": scheduler_versions,
        "leader": _leases,
        "scheduler configuration": _configuration,
        "placement": _placement,
        "pending pods": _pending,
        "variables": _variables,
        "memory limits": limits,
        "MPS": supervisors,
        "limits held": held,
        "memory use": use,
        "memory wishes": wishes,
        "versions": versions,
        "policies": _policies,
        "gpushare's own parts": original,
    }
)
"""A check comes after those on which it depends."""


# --- For a reader who may not read the whole cluster ------------------------------------------------------------------

_ALWAYS = frozenset({"API server", "policies"})
_BY_NODES = frozenset({"GPUs", "share size", "ResourceClaims", "other plugins", "limits held", "memory use"})
_BY_PODS = frozenset({"placement", "pending pods", "memory wishes"})
_BY_ALL_PODS = frozenset({"extender", "scheduler version", "leader", "scheduler configuration"})


def examine_partly(
    symptoms: ClusterSymptoms, pods: Sequence[Pod], missing: Sequence[str], advice: str, *, nodes: bool, namespace: str
) -> tuple[Finding, ...]:
    """Return what was not examined, and the findings of the checks whose objects could be read.

    `pods` are those that ask for GPUs, in `namespace` or, where that is empty, in all. `missing` has a clause for each
    missing right, and `advice` tells how to get them. `nodes`: nodes could be read.
    """
    chosen = _ALWAYS | _BY_PODS | (_BY_NODES if nodes else frozenset()) | (frozenset() if namespace else _BY_ALL_PODS)
    left_out = ", ".join(name for name in CHECKS if name not in chosen)
    text = "not examined: {checks}; {rights}"
    rights = {"rights": lambda _: [Unknown("rights-missing", text, advice, checks=left_out, rights="; ".join(missing))]}
    on_pods = {} if nodes else {"memory use": lambda _: _over_use(pods, namespace)}
    return examine(rights | {name: check for name, check in CHECKS.items() if name in chosen} | on_pods, symptoms)


def _over_use(pods: Iterable[Pod], namespace: str) -> Iterable[Finding]:
    """Return what agents wrote on pods that use more than they were granted."""
    advice = "kubectl inspect gpushare why {pod}"
    over = [(pod, told) for pod in pods for told in told_over_use(pod)]
    where = " in namespace {namespace}" if namespace else ""
    within = f"no agent wrote on a pod{where} that it uses more GPU memory than it was granted"
    return [
        warning(told.code, f"{{pod}}: {told.text}", advice, pod=f"{pod.namespace}/{pod.name}", **told.parameters)
        for pod, told in over
    ] or [ok("use", within, namespace=namespace)]

"""The checks of a cluster that shares GPUs, based on the objects of its API."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, warning
from gpu_device_plugin.core.telling.diagnosing_claims import claims
from gpu_device_plugin.core.telling.diagnosing_limits import held, limits, use
from gpu_device_plugin.core.telling.diagnosing_mps import supervisors
from gpu_device_plugin.core.telling.diagnosing_parts import agents, extender, original, scheduler_versions, versions
from gpu_device_plugin.core.telling.miginstances import gpu_names
from gpu_device_plugin.core.telling.nodeamounts import gpushare_count, mismatches
from gpu_device_plugin.core.telling.printing import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.node.others import Other
    from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms, PodSeen

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
        "gpushare-own-node",
        "gpushare-own-events",
    }
)
"""The policies of deploy/policies.yaml."""

_SWITCHED_OFF = "false"
"""The other valid value of the label."""


def _installed(cluster: ClusterSymptoms) -> Iterator[Finding]:
    absent = not cluster.daemonset and not cluster.agents
    if isinstance(cluster.daemonset, Unknown):
        yield cluster.daemonset
    elif absent:
        yield error("no agent is installed", "kubectl apply -f deploy/daemonset.yaml")
    labelled = [node for node in cluster.nodes if node.labelled]
    if not labelled and not any(node.annotated for node in cluster.nodes):
        yield error(
            f"no node is labelled {SWITCH_LABEL}={SWITCHED_ON}",
            f"kubectl label node NODE {SWITCH_LABEL}={SWITCHED_ON} for every node whose GPUs are to be shared",
        )
    agents = {agent.node for agent in cluster.agents}
    silent = [node.name for node in labelled if not node.annotated and node.name in agents]
    deserted = [node.name for node in labelled if node.name not in agents]
    if silent:
        yield error(
            f"no GPUs are listed on {listed(silent)}, though an agent runs there",
            "see its log, and kubectl -n gpushare exec POD -- gpu-device-plugin doctor",
        )
    if deserted and not absent:
        yield error(
            f"no agent runs on {listed(deserted)}, labelled {SWITCH_LABEL}={SWITCHED_ON}",
            "kubectl -n gpushare describe daemonset gpushare-node: its Events say why, most often a runtime class that "
            "the cluster lacks, or the PodSecurity level of the namespace",
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
            f"{SWITCH_LABEL}={value} on {listed(names)} switches nothing on: only {SWITCHED_ON} does, in small letters",
            f"kubectl label node -l {SWITCH_LABEL}={value} --overwrite {SWITCH_LABEL}={SWITCHED_ON}, or "
            f"={_SWITCHED_OFF} where no GPUs are to be shared",
        )


def _runtime_class(cluster: ClusterSymptoms) -> Iterator[Finding]:
    wanted, known = cluster.runtime_class, cluster.runtime_classes
    if not wanted:
        return
    if isinstance(known, Unknown):
        yield known
    elif wanted not in known:
        yield error(
            f"the agents need the runtime class {wanted}, which this cluster does not have",
            f"create it (handler: {wanted}), or remove runtimeClassName from the DaemonSet if NVIDIA's runtime is the "
            "default",
        )
    else:
        yield ok(f"{wanted} exists")


def _gpus(cluster: ClusterSymptoms) -> Iterator[Finding]:
    for node in cluster.nodes:
        if node.problem:
            yield error(f"{node.name}: {node.problem}", "upgrade the older of agent and scheduler")
        ill: dict[str, list[ListedGpu]] = {}
        for gpu in node.gpus.all:
            if gpu.unhealthy:
                ill.setdefault(gpu.unhealthy, []).append(gpu)
        for why, gpus in ill.items():
            which = f"{gpu_names(gpus)} {'is' if len(gpus) == 1 else 'are'}"
            yield warning(
                f"{node.name}: {which} out of service: {why}",
                "docs/operations.md has the remedy (A GPU is out of service)",
            )
    every = [gpu for node in cluster.nodes for gpu in node.gpus.all]
    if every and not any(gpu.unhealthy for gpu in every):
        instances = sum(gpu.instance is not None for gpu in every)
        nodes = counted(sum(bool(node.gpus.all) for node in cluster.nodes), "node")
        yield ok(f"{len(every)} healthy on {nodes}" + (f", {instances} of them MIG instances" if instances else ""))


def _allocatable(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ready = {agent.node for agent in cluster.agents if agent.ready}
    sharing = [
        node
        for node in cluster.nodes
        if node.labelled
        and node.annotated
        and not node.gpus.claims
        and (node.gpus.gpus or not node.gpus.instances)  # nodes that give only whole MIG instances have no shares
    ]
    empty = [node.name for node in sharing if not node.allocatable.get(cluster.memory_resource)]
    lost = [name for name in empty if name not in ready]
    if lost:
        yield error(f"no {cluster.memory_resource} on {listed(lost)}: no agent is ready there", "see above")
    used = [name for name in empty if name in ready]
    if used:
        yield note(f"no {cluster.memory_resource} on {listed(used)}: all GPUs are in whole use, or out of service")
    if sharing and not empty:
        yield ok(f"{cluster.memory_resource} is offered by {counted(len(sharing), 'node')}")


def _capacity(cluster: ClusterSymptoms) -> Iterator[Finding]:
    memory, count = cluster.memory_resource, cluster.count_resource
    ready = {agent.node for agent in cluster.agents if agent.ready and not agent.original}
    gpushare = {agent.node for agent in cluster.agents if agent.original}
    by_number = any(part.original for part in cluster.extenders)
    found: list[Finding] = []
    for node in cluster.nodes:
        if node.gpus.claims:
            continue  # its kubelet knows no amounts
        if node.name in ready and node.gpus.all:
            found += mismatches(node.name, node.gpus, node.capacity, memory, count, counted_on=by_number)
        elif node.name in gpushare - ready:
            found += gpushare_count(node.name, node.capacity, node.allocatable, memory, count)
    yield from found
    checked = [node for node in cluster.nodes if node.name in ready | gpushare and not node.gpus.claims]
    if checked and not found:
        yield ok(f"matches the GPUs on {counted(len(checked), 'node')}")


def _share_sizes(cluster: ClusterSymptoms) -> Iterator[Finding]:
    sizes: dict[int, list[str]] = {}
    by_profile: dict[str, set[int]] = {}
    for node in cluster.nodes:
        if node.gpus.share_mib is not None and not node.gpus.claims:
            sizes.setdefault(node.gpus.share_mib, []).append(node.name)
            profile = "" if node.profile == DEFAULT_PROFILE else node.profile
            by_profile.setdefault(profile, set()).add(node.gpus.share_mib)
    where = "; ".join(f"{format_mib(size)} on {listed(names)}" for size, names in sorted(sizes.items()))
    differ = f"{cluster.memory_resource}: 1 is not the same memory on every node: {where}"
    choose = "have pods choose nodes by the label gpu-device-plugin/share-mib"
    if any(len(each) > 1 for each in by_profile.values()):
        yield warning(
            differ,
            "give all nodes one share_size, which an agent applies when it restarts; if the sizes differ on purpose, "
            f"give these nodes a settings profile of their own (label {CONFIG_LABEL}, docs/settings.md), and {choose}",
        )
    elif len(sizes) > 1:
        yield note(f"{differ}, by their settings profiles", choose)
    elif sizes:
        yield ok(f"{format_mib(next(iter(sizes)))} on every node")


def _others(cluster: ClusterSymptoms) -> Iterator[Finding]:
    found: dict[Other, list[str]] = {}
    for node in cluster.nodes:
        for sighting in node.others if node.labelled else ():
            found.setdefault(sighting.other, []).append(node.name)
    for other, nodes in found.items():
        yield error(f"{other.name} hands out GPUs too, on {listed(nodes)}", other.off)
    if not found:
        yield ok("no other plugin hands out GPUs of labelled nodes")


def _leftovers(cluster: ClusterSymptoms) -> Iterator[Finding]:
    agents = {agent.node for agent in cluster.agents}
    left = [
        node.name
        for node in cluster.nodes
        if not node.labelled and node.name not in agents and (node.annotated or node.capacity)
    ]
    if left:
        yield note(
            f"{listed(left)}: annotations or capacity remain, though sharing is off",
            "kubectl inspect gpushare uninstall removes them from nodes without the label",
        )


def _leases(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.leases, Unknown):
        yield cluster.leases
        return
    for name, lease in cluster.leases.items():
        stale = lease.age_s > lease.lasts_s + _STALE_S
        if lease.holder and not stale:
            yield ok(f"{name} is held by {lease.holder}")
        else:
            late = (
                f"{lease.holder} has not renewed it for {lease.age_s:.0f} s" if lease.holder else "no replica holds it"
            )
            yield error(f"{name}: {late}, so no replica schedules", "see whether the pods above run, and their logs")
    if cluster.own_scheduler and not cluster.leases:
        yield error(
            "the scheduler's lease does not exist: no replica has ever led",
            "see the lines above, and the log of kube-scheduler in its pods",
        )


def _configuration(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.configurations, Unknown):
        yield cluster.configurations
        return
    for where, version in cluster.configurations.items():
        if version == _CONFIGURATION:
            yield ok(f"{where} has version v1")
        else:
            yield error(
                f"{where} has version {version or '(none)'}, which no supported kube-scheduler reads",
                f"set apiVersion: {_CONFIGURATION}",
            )


def _placement(cluster: ClusterSymptoms) -> Iterator[Finding]:
    # On nodes that serve claims kube-scheduler itself allocates, for limits too.
    serving = {node.name for node in cluster.nodes if node.gpus.claims}
    bound = [pod for pod in cluster.pods if pod.node and pod.node not in serving]
    by_scheduler: dict[str, list[PodSeen]] = {}
    for pod in bound:
        if not pod.promised:
            by_scheduler.setdefault(pod.scheduler, []).append(pod)
    for scheduler, pods in sorted(by_scheduler.items()):
        names = listed(pod.name for pod in pods)
        yield warning(
            f"{scheduler} bound {counted(len(pods), 'GPU pod')} without asking the extender: {names}",
            f"configure {scheduler} to call it (docs/scheduler.md), or set schedulerName: gpushare-scheduler; no "
            "scheduler is asked about pods that set nodeName themselves",
        )
    if bound and not by_scheduler:
        yield ok(f"{counted(len(bound), 'GPU pod')} on nodes, each with a GPU chosen by a scheduler")


def _pending(cluster: ClusterSymptoms) -> Iterator[Finding]:
    ignored = [pod for pod in cluster.pods if not pod.node and not pod.seen and pod.age_s > _UNSEEN_S]
    for scheduler, count in sorted(Counter(pod.scheduler for pod in ignored).items()):
        names = listed(pod.name for pod in ignored if pod.scheduler == scheduler)
        yield error(
            f"{scheduler} has not looked at {counted(count, 'GPU pod')}: {names}",
            "start a scheduler of that name (deploy/scheduler.yaml is gpushare-scheduler), or correct schedulerName",
        )
    waiting = [pod for pod in cluster.pods if not pod.node and pod not in ignored]
    if waiting:
        names = listed(pod.name for pod in waiting)
        yield note(
            f"{counted(len(waiting), 'GPU pod')} pending: {names}", "kubectl inspect gpushare why POD names the reason"
        )
    if not waiting and not ignored:
        yield ok("no GPU pod is pending")


def _variables(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if cluster.meddling:
        yield warning(
            f"{listed(cluster.meddling)} set NVIDIA_VISIBLE_DEVICES themselves, and may see GPUs of others",
            "remove it from their env; deploy/policies.yaml refuses it in pods that ask for GPUs",
        )
    else:
        yield ok("no pod on a sharing node sets NVIDIA_VISIBLE_DEVICES itself")


def _policies(cluster: ClusterSymptoms) -> Iterator[Finding]:
    if isinstance(cluster.policies, Unknown):
        yield cluster.policies
    elif missing := ADMISSION_POLICIES - cluster.policies:
        few = "policy" if len(missing) == 1 else "policies"
        which = "policies" if missing == ADMISSION_POLICIES else f"{few} {listed(missing)}"
        verb = "is" if len(missing) == 1 else "are"
        yield note(
            f"the admission {which} {verb} not installed: pods may set requests and variables that break the sharing",
            "kubectl apply -f deploy/policies.yaml (Kubernetes 1.30 or newer)",
        )
    else:
        yield ok("all admission policies are installed")


def _server(cluster: ClusterSymptoms) -> Iterator[Finding]:
    yield cluster.version if isinstance(cluster.version, Unknown) else ok(f"Kubernetes {cluster.version}")


CHECKS: Mapping[str, Callable[[ClusterSymptoms], Iterable[Finding]]] = MappingProxyType(
    {
        "API server": _server,
        "nodes": _installed,
        "agents": agents,
        "runtime class": _runtime_class,
        "GPUs": _gpus,
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
        "versions": versions,
        "policies": _policies,
        "gpushare's own parts": original,
    }
)
"""A check comes after those on which it depends."""

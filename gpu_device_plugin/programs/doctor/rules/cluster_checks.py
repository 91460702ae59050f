"""The checks of a cluster that shares GPUs, based on the objects of its API, as far as these can be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.programs.doctor.rules import component_checks, container_checks
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, NodeSeen
from gpu_device_plugin.report.rules.extension import placed
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, examine, grouped, known, note, ok, warning
from gpu_device_plugin.report.rules.printing import gpu_names, listed

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.extension import Check, PodCheck


def _installed(cluster: ClusterSymptoms) -> Iterator[Finding]:
    absent = cluster.daemonset is None and not cluster.agents
    if isinstance(cluster.daemonset, Unknown):
        yield cluster.daemonset
    elif absent:
        yield error("not-installed", "no agent is installed", "kubectl apply -f deploy/daemonset.yaml")
    labelled = [node for node in cluster.nodes if node.shares_gpus]
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
    for value, names in sorted(grouped(switches).items()):
        if value in {SWITCHED_ON, "false"}:
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


def _gpus(cluster: ClusterSymptoms) -> Iterator[Finding]:
    for node in cluster.nodes:
        if fault := node.gpus.unusable:
            advice = "upgrade the older of agent and scheduler"
            yield error("node-unreadable", "{node}: {problem}", advice, node=node.name, problem=fault)
        for why in node.gpus.unread:
            yield error("gpu-unread", "{node}: {why}", container_checks.UNREAD_ADVICE, node=node.name, why=why)
        ill = grouped((gpu.unhealthy, gpu) for gpu in node.gpus.all if gpu.unhealthy)
        for why, gpus in ill.items():
            text = f"{{node}}: {{gpus}} {'is' if len(gpus) == 1 else 'are'} unhealthy: {{why}}"
            advice = "docs/operations.md has the remedy (A GPU is unhealthy)"
            yield warning("gpu-unhealthy", text, advice, node=node.name, gpus=gpu_names(gpus), why=why)
        if fault := node.gpus.cordons_fault:
            text, advice = "{node}: {problem}: none of its GPUs is cordoned", "look at it, remove it, and cordon again"
            yield warning("cordons-unreadable", text, advice, node=node.name, problem=fault)
        for gpu in node.gpus.all:
            if gpu.cordon is not None:
                advice = "kubectl inspect gpushare uncordon {node} {gpu} returns it to use"
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
    ready = cluster.ready
    resource = cluster.memory_resource
    sharing = [
        node
        for node in cluster.nodes
        if node.shares_gpus
        and node.annotated
        and not node.gpus.claims
        and (node.gpus.gpus or not node.gpus.instances)  # nodes that give only whole MIG instances have no shares
    ]
    empty = [node.name for node in sharing if not node.allocatable.get(resource)]
    if lost := tuple(name for name in empty if name not in ready):
        text = "no {resource} on {nodes}: no agent is ready there"
        yield error("not-offered", text, "see above", resource=resource, nodes=lost)
    if used := tuple(name for name in empty if name in ready):
        text = "no {resource} on {nodes}: all GPUs are exclusively allocated, or unhealthy"
        yield note("all-in-use", text, resource=resource, nodes=used)
    if sharing and not empty:
        yield ok("offered", "{resource} is offered by {nodes:node}", resource=resource, nodes=len(sharing))


def capacity(cluster: ClusterSymptoms, *, counted: bool | None = None) -> Iterator[Finding]:
    """Check that the amounts of kubelets match the GPUs; `counted`: the agent offers whole GPUs, None: not known."""
    memory, count = cluster.memory_resource, cluster.count_resource
    ready = {agent.node for agent in cluster.agents if agent.ready and not agent.original}
    gpushare = {agent.node for agent in cluster.agents if agent.original}
    by_number = counted or any(part.original for part in cluster.extenders)
    # The kubelet of a node that serves claims knows no amounts.
    checked = [node for node in cluster.nodes if node.name in ready | gpushare and not node.gpus.claims]
    findings: list[Finding] = []
    for node in checked:
        if node.name in gpushare - ready:
            findings += _gpushare_count(node, memory, count)
        elif node.gpus.all:
            findings += _mismatches(node, memory, count, counted_on=by_number)
        if counted is False and not findings:
            findings += _unoffered(node, count)
    yield from findings
    if checked and not findings:
        yield ok("capacity", "matches the GPUs on {nodes:node}", nodes=len(checked))


def _share_sizes(cluster: ClusterSymptoms) -> Iterator[Finding]:
    sized = [
        (size, node) for node in cluster.nodes if (size := node.gpus.share_mib) is not None and not node.gpus.claims
    ]
    sizes = grouped((size, node.name) for size, node in sized)
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


def _leftovers(cluster: ClusterSymptoms) -> Iterator[Finding]:
    agents = {agent.node for agent in cluster.agents}
    left = tuple(
        node.name
        for node in cluster.nodes
        if not node.shares_gpus and node.name not in agents and (node.annotated or node.capacity)
    )
    if left:
        advice = "kubectl inspect gpushare uninstall removes them from nodes without the label"
        yield note("leftovers", "{nodes}: annotations or capacity remain, though sharing is off", advice, nodes=left)


OWN: Mapping[str, Callable[[ClusterSymptoms], Iterable[Finding]]] = {
    "API server": known("version", lambda _, version: [ok("api", "Kubernetes {version}", version=version)]),
    "nodes": _installed,
    "node groups": component_checks.groups,
    "agents": component_checks.agents,
    "runtime class": _runtime_class,
    "GPUs": _gpus,
    "allocatable": _allocatable,
    "capacity": capacity,
    "share size": _share_sizes,
    "leftovers": _leftovers,
    "extender": component_checks.extender,
    "scheduler version": component_checks.scheduler_versions,
    "leader": known("leases", component_checks.leaders),
    "scheduler configuration": known("configurations", component_checks.configuration),
    "placement": component_checks.placement,
    "pending pods": component_checks.pending,
    "variables": component_checks.variables,
    "versions": component_checks.versions,
    "policies": known("policies", component_checks.policies),
    "gpushare's own parts": component_checks.original,
}
"""A check comes after those on which it depends."""


# --- For a reader who may not read the whole cluster ------------------------------------------------------------------

_ALWAYS = frozenset({"API server", "policies"})
_BY_NODES = frozenset({"GPUs", "share size"})
_BY_PODS = frozenset({"placement", "pending pods"})
_BY_ALL_PODS = frozenset({"extender", "scheduler version", "leader", "scheduler configuration"})


def examine_partly(
    symptoms: ClusterSymptoms,
    pods: Sequence[Pod],
    missing: Sequence[str],
    advice: str,
    *,
    nodes: bool,
    namespace: str,
    of_features: Sequence[Check],
    on_pods: Iterable[tuple[str, PodCheck]],
) -> tuple[Finding, ...]:
    """Return what was not examined, and the findings of the checks whose objects could be read.

    `pods` are those that ask for GPUs, in `namespace` or, where that is empty, in all. `missing` has a clause for each
    missing right, and `advice` tells how to get them. `nodes`: nodes could be read; if not, `on_pods` examine pods.
    """
    every, partly = placed(OWN, of_features), {"pods", "nodes"} if nodes else {"pods"}
    chosen = _ALWAYS | _BY_PODS | (_BY_NODES if nodes else frozenset()) | (frozenset() if namespace else _BY_ALL_PODS)
    chosen |= {check.name for check in of_features if check.partly in partly}
    left_out = ", ".join(name for name in every if name not in chosen)
    text = "not examined: {checks}; {rights}"
    rights = {"rights": lambda _: [Unknown("rights-missing", text, advice, checks=left_out, rights="; ".join(missing))]}
    instead = {} if nodes else {name: lambda _, find=find: find(pods, namespace) for name, find in on_pods}
    return examine(rights | {name: check for name, check in every.items() if name in chosen} | instead, symptoms)


_REMEMBERED = "the kubelet keeps the amount of a stopped plugin for five minutes, then sets it to 0"
_LATER = "five minutes after the last plugin that offered it has stopped"
_SOON = "the kubelet updates its node every 10 seconds; if this persists, see the logs of both"
_WHERE_OFFERED = (
    "where its agent offers it, the kubelet corrects it within 10 seconds, or its log says why not; else "
    f"{_LATER} ({_REMEMBERED}): {{command}}"
)


def set_count(node: str, count: str, number: int | str | None) -> str:
    """Return the command that sets the number of GPUs on a node; None removes it."""
    value = "null" if number is None else f'"{number}"'
    patch = f'{{"status":{{"capacity":{{"{count}":{value}}}}}}}'
    return f"kubectl patch node {node} --subresource=status --type=merge -p '{patch}'"


def _mismatches(node: NodeSeen, memory: str, count: str, *, counted_on: bool) -> Iterator[Finding]:
    """Yield the amounts that do not match the GPUs of a node on which an agent is ready.

    `memory` and `count` name the resources of shares and of GPUs. 0 GPUs are wrong only if pods or schedulers use that
    number (`counted_on`).
    """
    gpus, capacity = node.gpus, node.capacity
    shares, number = sum(gpu.shares for gpu in gpus.gpus), sum(gpu.instance is None for gpu in gpus.gpus)
    # The kubelet keeps the devices of instances that were shared before, and are not now.
    before = sum(gpu.shares for gpu in (*gpus.instances, *gpus.gone))
    instances = Counter(gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None)
    reported = capacity.get(count, number)
    differs = [(resource, capacity.get(resource, 0), there) for resource, there in sorted(instances.items())]
    wrong = [each for each in differs if each[1] < each[2]]
    if not shares <= capacity.get(memory, shares) <= shares + before:
        wrong.insert(0, (memory, capacity[memory], shares))
    if reported != number and (reported or counted_on):
        wrong.append((count, reported, number))
    for resource, kubelet, agent in wrong:
        command, advice = (set_count(node.name, count, number), _WHERE_OFFERED) if resource == count else ("", _SOON)
        text = "{node} has {kubelet} {resource} by its kubelet, but {agent} by its agent"
        yield warning("capacity-differs", text, advice, node=node.name, resource=resource, kubelet=kubelet, agent=agent,
                      command=command)  # fmt: skip


def _unoffered(node: NodeSeen, count: str) -> Iterator[Finding]:
    """Yield a note if a node has a number of GPUs, though its agent offers no whole ones."""
    if kubelet := node.capacity.get(count):
        yield note(
            "count-not-offered",
            "{node} has {kubelet} {resource}, and its agent offers none: pods that ask for it get no GPU here",
            "gpushare's own extender needs the number (docs/operations.md); where that does not run, remove it, "
            f"{_LATER}: {{command}}",
            node=node.name,
            resource=count,
            kubelet=kubelet,
            command=set_count(node.name, count, None),
        )


def _gpushare_count(node: NodeSeen, memory: str, count: str) -> Iterator[Finding]:
    """Check the number of GPUs on a node of gpushare's own device plugin; `count` is gpushare's name for it."""
    again = "{command} with N for its number of GPUs, or restart gpushare's plugin there"
    command, kubelet = set_count(node.name, count, "N"), node.capacity.get(count)
    if node.capacity.get(memory) and not kubelet:
        text = "{node} has no {resource}, without which gpushare's extender finds room on none of its GPUs"
        yield warning("no-count", text, again, node=node.name, resource=count, command=command)
    elif kubelet and node.allocatable.get(count) == 0:
        yield warning(
            "count-remembered",
            f"{{node}} has {{kubelet}} {{resource}} only because its kubelet remembers an agent: {_REMEMBERED}",
            f"wait until it is 0, and then {again}",
            node=node.name,
            resource=count,
            kubelet=kubelet,
            command=command,
        )

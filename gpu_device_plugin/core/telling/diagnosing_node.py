"""The checks of one node, based on the state that a process on it can read."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.cleanup import switched_on
from gpu_device_plugin.core.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.core.model.memory import MAX_DEVICE_IDS, format_mib
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import SHARES, Shares, TooManySharesError, unknown_exclusions
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, warning
from gpu_device_plugin.core.telling.diagnosing_containers import cdi, cgroups, device_nodes, images, limits, runtime
from gpu_device_plugin.core.telling.diagnosing_limits import used_here
from gpu_device_plugin.core.telling.diagnosing_mig import healthy, mig, name
from gpu_device_plugin.core.telling.diagnosing_mps import supervisor
from gpu_device_plugin.core.telling.node_symptoms import AgentSeen, NodeSymptoms
from gpu_device_plugin.core.telling.nodeamounts import mismatches, unoffered
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.model.gpus import Gpu

_FOR_SETTINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "create pods/eviction": ("the settings want pods evicted", "agent.evict"),
        "patch nodes/status": ("the settings want the node condition GPUHealthy", "agent.nodeCondition"),
    }
)
"""Rights that only some settings need: which, and the value of the chart that grants it."""
_SKEW_S = 30.0
"""Service account tokens and leases tolerate a clock skew of some seconds."""

_ALL_USED: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.MEMORY: "all GPUs are in whole use",
        Kind.COUNT: "all GPUs are in shared use",
        Kind.INSTANCE: "all instances of this profile are in shared use",
    }
)
_KUBELETS_LOG = "the kubelet's log on the node (journalctl -u kubelet)"


def _driver(node: NodeSymptoms) -> Iterator[Finding]:
    if node.driver_problem:
        yield error(*_split(node.driver_problem))
        return
    models = Counter(gpu.product for gpu in node.inventory.gpus if gpu.instance is None)
    cards = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    version = f"driver {node.inventory.driver_version}" if node.inventory.driver_version else "the driver answers"
    if not models:
        yield error(f"{version}, and lists no GPU", "see nvidia-smi -L on the node, and whether lspci shows the cards")
        return
    yield ok(f"{version}, {cards}{' (invented)' if node.invented else ''}")


def _split(sentence: str) -> tuple[str, str]:
    """Split a message into finding and advice, which all messages join by a semicolon."""
    found, _, advice = sentence.partition("; ")
    return found, advice or "see the agent's log"


def _gpus(node: NodeSymptoms) -> Iterator[Finding]:
    for gpu in node.inventory.gpus:
        if why := node.unhealthy.get(gpu.uuid):
            found = f"{name(gpu)} is out of service: {why}"
            yield error(found, "docs/operations.md has the remedy (A GPU is out of service)")
    if node.inventory.gpus and not node.unhealthy:
        yield ok(healthy(node.inventory.gpus))


def _shares(node: NodeSymptoms) -> Iterator[Finding]:
    in_force = node.share_mib_in_force or node.share_mib
    if in_force != node.share_mib:
        yield warning(
            f"one share is {format_mib(in_force)}, and a share_size of {format_mib(node.share_mib)} waits: containers "
            "held shares when the agent started",
            "drain the node, and restart its agent then",
        )
    try:
        shares = Shares(in_force, node.reserve_mib).with_inventory(
            node.inventory, node.exclude_gpus, mig=node.mig_in_force
        )
    except TooManySharesError as problem:
        found, _, advice = str(problem).rpartition("; ")
        yield error(found, advice)
        return
    if unknown_names := unknown_exclusions(node.exclude_gpus, node.inventory):
        yield warning(*_split(unknown_names))
    if shares.why_none:
        yield error(*_split(shares.why_none))
        return
    for gpu, why in shares.left_out:
        if gpu in node.given or gpu.uuid in node.exclude_gpus or gpu.label in node.exclude_gpus:
            yield note(f"{name(gpu)} is not shared: {why}")  # `mig` tells of the others
    cut = [shared.gpu for shared in shares.gpus if SHARES in shared.offered]
    whole = [shared for shared in shares.gpus if shared.offered and SHARES not in shared.offered]
    if not cut and not whole:
        yield Unknown("there is no GPU to share")
        return
    if cut:
        total = sum(len(shared.ids(SHARES)) for shared in shares.gpus)
        amounts = f"{_numbered(cut)}, {counted(total, 'share')} of {format_mib(in_force)}"
        yield ok(f"{amounts} ({MAX_DEVICE_IDS} are the most)")
    if whole:
        yield ok(f"{counted(len(whole), 'MIG instance')} one by one")


def _numbered(gpus: Iterable[Gpu]) -> str:
    kinds = Counter("GPU" if gpu.instance is None else "MIG instance" for gpu in gpus)
    return " and ".join(counted(number, kind) for kind, number in sorted(kinds.items()))


def _directory(node: NodeSymptoms) -> Iterator[Finding]:
    yield error(*_split(node.directory_problem)) if node.directory_problem else ok(f"{node.directory} can be written")


def _kubelet(node: NodeSymptoms) -> Iterator[Finding]:
    if node.kubelet_listens:
        yield ok(f"listens on {node.directory}/kubelet.sock")
    else:
        yield error(
            f"no process listens on {node.directory}/kubelet.sock",
            f"start the kubelet, or name its directory with --device-plugin-dir; see {_KUBELETS_LOG}",
        )


def _records(node: NodeSymptoms) -> Iterator[Finding]:
    for problem in filter(None, (node.pod_resources_problem, node.checkpoint_problem)):
        yield error(*_split(problem))
    if not node.pod_resources_problem and not node.checkpoint_problem:
        yield ok("PodResources answers, and the checkpoint can be read")


def _agent(node: NodeSymptoms) -> Iterator[Finding]:
    if node.agents_running == 0:
        yield error(
            "no agent runs here",
            f"kubectl label node {node.node_name or 'NODE'} {SWITCH_LABEL}={SWITCHED_ON}, and see "
            "kubectl -n gpushare get daemonset,pods -o wide",
        )
    elif isinstance(node.agent, Unknown):
        yield node.agent
    else:
        for sentence in node.agent.missing:
            yield error(*_split(sentence))
        if not node.agent.missing:
            version = f"version {node.agent.version} " if node.agent.version else ""
            yield ok(f"{version}is ready ({node.agent.where})")


_CORRECT = "correct it; until then a running agent keeps its settings, and one that starts shares no GPUs"


def _settings(node: NodeSymptoms) -> Iterator[Finding]:
    profiles = node.profiles
    if not profiles.folder:
        if profiles.problems:
            yield error(profiles.problems[""], _CORRECT)
        return
    api = None if isinstance(node.api, Unknown) or node.api.problem or node.api.node_problem else node.api
    if api is None and profiles.last is None and profiles.names:
        yield Unknown(f"which profile this node has: its label {CONFIG_LABEL} cannot be read from here")
        return
    label = (profiles.last or "") if api is None else api.labels.get(CONFIG_LABEL, "")
    found = f"those of {profiles.folder}/{label or DEFAULT_PROFILE}.yaml"
    if label not in {"", DEFAULT_PROFILE, *profiles.names}:
        yield error(
            f"the node label {CONFIG_LABEL}={label} names no profile: there is no {label}.yaml in {profiles.folder}",
            f"correct the label (kubectl label node {node.node_name or 'NODE'} --overwrite {CONFIG_LABEL}=...), or add "
            "the file",
        )
    elif problem := profiles.problems.get("" if label == DEFAULT_PROFILE else label):
        yield error(problem, _CORRECT)
    elif profiles.last not in {None, label}:
        yield warning(f"{found}, which the agent has not applied", "see its log for the reason")
    else:
        yield ok(found)


def _streams(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.agent, Unknown):
        return  # `_agent` yields the reason
    for resource in node.resources:
        if node.agent.streams.get(resource.name):
            yield ok(f"the kubelet listens to {resource.name}")
        else:
            yield error(
                f"the kubelet does not listen to {resource.name}",
                f"the agent registers again by itself in seconds; if this persists, see its log and {_KUBELETS_LOG}",
            )


def _others(node: NodeSymptoms) -> Iterator[Finding]:
    for sighting in node.others:
        if node.allow_other_plugins:
            yield warning(
                f"{sighting.found}, which is allowed", "make sure that each has GPUs of its own: --exclude-gpus"
            )
        else:
            yield error(f"{sighting.found}, so that the agent shares none", sighting.other.off)
    if not node.others:
        yield ok("no other plugin hands out GPUs here")


def _api(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown):
        yield node.api
    elif node.api.problem:
        yield error(
            node.api.problem,
            "see whether it runs and can be reached from here; without it the agent shares GPUs, but cannot follow the "
            "scheduler's choice of GPU",
        )
    else:
        yield ok(f"{node.api.where} answers{f', Kubernetes {node.api.version}' if node.api.version else ''}")
    if isinstance(node.agent, AgentSeen) and node.agent.api_errors:
        yield note(
            f"{counted(node.agent.api_errors, 'call')} of the agent failed since it started",
            "see its log for which, and why",
        )


def _rights(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem:
        return
    denied = [right for right, may in node.api.rights.items() if may is False]
    unknown = [right for right, may in node.api.rights.items() if may is None]
    for right, (why, value) in _FOR_SETTINGS.items():
        if right in denied:
            yield error(
                f"{why}, and the agent's account may not {right}",
                f"kubectl apply -f deploy/optional/evict.yaml (chart: {value}), which grants it",
            )
    if others := [right for right in denied if right not in _FOR_SETTINGS]:
        yield error(
            f"the agent's account may not {', '.join(others)}",
            "kubectl apply -f deploy/daemonset.yaml, whose ClusterRole gpushare-node grants it",
        )
    if unknown:
        yield Unknown(f"the API server does not say whether the agent may {', '.join(unknown)}")
    if not denied and not unknown:
        yield ok(f"the account has all {len(node.api.rights)} rights that the agent needs")


def _node(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem:
        return
    if node.api.node_problem:
        yield error(*_split(node.api.node_problem))
        return
    if switched_on(node.api.labels):
        yield ok(f"{node.node_name} is labelled {SWITCH_LABEL}={SWITCHED_ON}")
    else:
        missing = f"{node.node_name} is not labelled {SWITCH_LABEL}={SWITCHED_ON}, by which the DaemonSet selects nodes"
        yield note(missing, f"kubectl label node {node.node_name} {SWITCH_LABEL}={SWITCHED_ON}")


def _offered(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem or node.api.node_problem:
        return
    for resource in node.resources:
        amount = node.api.allocatable.get(resource.name)
        if amount:
            yield ok(f"{amount} {resource.name} can be allocated")
        elif amount == 0:
            yield note(
                f"no {resource.name} can be allocated: {_ALL_USED[resource.kind]} or out of service, or see above"
            )
        else:
            yield error(f"the node has no {resource.name}", "the kubelet reports it within 10 s of the registration")


def _capacity(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or not isinstance(node.agent, AgentSeen) or node.agent.missing:
        return
    gpus, count = node.api.gpus, node.count_resource
    offered = count in {resource.name for resource in node.resources}
    found: list[Finding] = []
    if gpus.all:
        found += mismatches(node.node_name, gpus, node.api.capacity, node.memory_resource, count, counted_on=offered)
    if not found and not offered:
        found += unoffered(node.node_name, node.api.capacity, count)
    yield from found
    if gpus.all and not found:
        yield ok("matches the GPUs")


def _clock(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem:
        return
    skew = node.api.skew_s
    if skew is None:
        yield Unknown("the API server's answer has no date")
    elif abs(skew) < _SKEW_S:
        yield ok("agrees with the API server's")
    else:
        yield warning(
            f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's: certificates and leases may "
            "fail, and timestamps on pods are wrong",
            "synchronize both clocks by NTP",
        )


def _use(node: NodeSymptoms) -> Iterator[Finding]:
    if not isinstance(node.api, Unknown):
        yield from used_here(node.node_name, node.api.report, node.api.report_problems)


CHECKS: Mapping[str, Callable[[NodeSymptoms], Iterable[Finding]]] = MappingProxyType(
    {
        "driver": _driver,
        "GPUs": _gpus,
        "MIG": mig,
        "device nodes": device_nodes,
        "container runtime": runtime,
        "CDI": cdi,
        "images": images,
        "cgroups": cgroups,
        "memory limits": limits,
        "MPS": supervisor,
        "shares": _shares,
        "kubelet directory": _directory,
        "kubelet": _kubelet,
        "kubelet's records": _records,
        "settings": _settings,
        "agent": _agent,
        "registration": _streams,
        "other plugins": _others,
        "API server": _api,
        "rights": _rights,
        "node": _node,
        "allocatable": _offered,
        "capacity": _capacity,
        "clock": _clock,
        "memory use": _use,
    }
)
"""A check comes after those on which it depends."""

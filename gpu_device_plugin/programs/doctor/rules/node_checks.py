"""The checks of one node, based on the state that a process on it can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE
from gpu_device_plugin.model.memory import MAX_DEVICE_IDS, format_mib
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SHARES, Shares, TooManySharesError, unknown_exclusions
from gpu_device_plugin.programs.doctor.rules import container_checks
from gpu_device_plugin.programs.doctor.rules.cluster_checks import capacity
from gpu_device_plugin.programs.doctor.rules.symptoms import AgentSeen, ApiSeen, NodeSymptoms
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, known, note, ok, warning
from gpu_device_plugin.report.rules.printing import counted

_FOR_SETTINGS: Mapping[str, tuple[str, str]] = {
    "create pods/eviction": ("the settings require evictions", "agent.evict"),
    "patch nodes/status": ("the settings require the node condition GPUHealthy", "agent.nodeCondition"),
}
"""Rights that only some settings need: which, and the value of the chart that grants it."""
_SKEW_S = 30.0
"""Service account tokens and leases tolerate a clock skew of some seconds."""

_ALL_USED: Mapping[Kind, str] = {
    Kind.MEMORY: "all GPUs are exclusively allocated",
    Kind.COUNT: "all GPUs are in shared use",
    Kind.INSTANCE: "all instances of this profile are in shared use",
}
_KUBELETS_LOG = "the kubelet's log on the node (journalctl -u kubelet)"
_CORRECT = "correct it; until then a running agent keeps its settings, and one that starts shares no GPUs"


def _shares(node: NodeSymptoms) -> Iterator[Finding]:
    settings, excluded = node.settings, node.settings.exclude_gpus
    in_force = node.share_mib_in_force or settings.share_size_mib
    if (waiting := settings.share_size_mib) != in_force:
        text = "one share is {size}, and a share_size of {waiting} waits: containers held shares when the agent started"
        advice = "drain the node, and restart its agent then"
        yield warning("share-size-waits", text, advice, size=format_mib(in_force), waiting=format_mib(waiting))
    try:
        shares = Shares(in_force, settings.reserve_mib).with_inventory(
            node.inventory.with_unified(settings.unified_memory_mib), excluded, mig=node.mig_in_force
        )
    except TooManySharesError as excess:
        yield error("too-many-shares", "{problem}", problem=str(excess))
        return
    if problem := unknown_exclusions(excluded, node.inventory):
        yield warning("excluded-gpu-unknown", "{problem}", problem=problem)
    if shares.why_none:
        yield error("no-gpu-shared", "{problem}", problem=shares.why_none)
        return
    for gpu, why in shares.left_out:
        if gpu in node.given or gpu.uuid in excluded or gpu.label in excluded:
            yield note(
                "gpu-left-out", "{gpu} is not shared: {why}", gpu=node.name(gpu), why=why
            )  # `mig` tells of the others
    yield from _given_as(node, shares, format_mib(in_force))


def _given_as(node: NodeSymptoms, shares: Shares, size: str) -> Iterator[Finding]:
    cut = [shared.gpu for shared in shares.gpus if SHARES in shared.offered]
    whole = [shared for shared in shares.gpus if shared.offered and SHARES not in shared.offered]
    unified = [shared for shared in whole if shared.gpu.unified]
    if not cut and not whole:
        yield Unknown("nothing-to-share", "there is no GPU to share")
    if cut:
        kinds = Counter("GPU" if gpu.instance is None else "MIG instance" for gpu in cut)
        yield ok(
            "shares",
            f"{{gpus}}, {{shares:share}} of {{size}} ({MAX_DEVICE_IDS} are the most)",
            gpus=" and ".join(counted(number, kind) for kind, number in sorted(kinds.items())),
            shares=sum(len(shared.ids(SHARES)) for shared in shares.gpus),
            size=size,
        )
    for shared in unified:
        text = (
            "{gpu} is allocated whole, as its memory is the machine's; --unified-memory says how much of that is shared"
        )
        yield ok("unified", text, gpu=node.name(shared.gpu))
    if instances := len(whole) - len(unified):
        yield ok("whole-instances", "{instances:MIG instance} one by one", instances=instances)


# --- The kubelet and the agent ----------------------------------------------------------------------------------------


def _directory(node: NodeSymptoms) -> Iterator[Finding]:
    if node.directory_problem:
        yield error("directory-unusable", "{problem}", problem=node.directory_problem)
    else:
        yield ok("directory", "{directory} can be written", directory=str(node.settings.device_plugin_dir))


def _kubelet(node: NodeSymptoms) -> Iterator[Finding]:
    socket = f"{node.settings.device_plugin_dir}/kubelet.sock"
    if node.kubelet_listens:
        yield ok("kubelet", "listens on {socket}", socket=socket)
    else:
        advice = f"start the kubelet, or name its directory with --device-plugin-dir; see {_KUBELETS_LOG}"
        yield error("no-kubelet", "no process listens on {socket}", advice, socket=socket)


def _records(node: NodeSymptoms) -> Iterator[Finding]:
    if node.pod_resources_problem:
        advice = "check that the kubelet runs, and that --pod-resources-socket names its socket"
        yield error("pod-resources-unreadable", "{problem}", advice, problem=node.pod_resources_problem)
    if node.checkpoint_problem:
        yield error("checkpoint-unreadable", "{problem}", "see the agent's log", problem=node.checkpoint_problem)
    if not node.pod_resources_problem and not node.checkpoint_problem:
        yield ok("records", "PodResources answers, and the checkpoint can be read")


def _agent(node: NodeSymptoms) -> Iterator[Finding]:
    if node.agents_running == 0:
        advice = "kubectl label node {node} gpushare=true, and see kubectl -n gpushare get daemonset,pods -o wide"
        yield error("no-agent", "no agent runs here", advice, node=node.settings.node_name or "NODE")
    elif isinstance(node.agent, Unknown):
        yield node.agent
    else:
        for reason in node.agent.missing:
            yield error("agent-not-ready", "{reason}", "see the agent's log", reason=reason)
        if not node.agent.missing:
            text = ("version {version} " if node.agent.version else "") + "is ready ({address})"
            yield ok("agent-ready", text, version=node.agent.version, address=node.agent.where)


def _settings(node: NodeSymptoms) -> Iterator[Finding]:
    if node.followed:
        agent, *others = node.followed
        more = "; {others:other agent runs|other agents run} here" if others else ""
        yield note(
            "settings-of-agent",
            f"those of the agent that runs on this machine: {{agent}}{more}",
            "flags of gpu-device-plugin doctor come before them",
            agent=agent,
            **({"others": len(others)} if others else {}),
        )
    profiles = node.profiles
    if not profiles.folder:
        if profiles.problems:
            yield error("settings-unusable", "{problem}", _CORRECT, problem=profiles.problems[""])
        return
    api = None if isinstance(node.api, Unknown) or node.api.problem or node.api.node_problem else node.api
    if api is None and profiles.last is None and profiles.names:
        yield Unknown(
            "profile-unknown", f"which profile this node has: its label {CONFIG_LABEL} cannot be read from here"
        )
        return
    label = (profiles.last or "") if api is None else api.node.labels.get(CONFIG_LABEL, "")
    file = f"{profiles.folder}/{label or DEFAULT_PROFILE}.yaml"
    if label not in {"", DEFAULT_PROFILE, *profiles.names}:
        yield error(
            "no-such-profile",
            f"the node label {CONFIG_LABEL}={{profile}} names no profile: there is no {{profile}}.yaml in {{folder}}",
            f"correct the label (kubectl label node {{node}} --overwrite {CONFIG_LABEL}=...), or add the file",
            profile=label,
            folder=profiles.folder,
            node=node.settings.node_name or "NODE",
        )
    elif problem := profiles.problems.get("" if label == DEFAULT_PROFILE else label):
        yield error("settings-unusable", "{problem}", _CORRECT, problem=problem)
    elif profiles.last not in {None, label}:
        text = "those of {file}, which the agent has not applied"
        yield warning("settings-not-applied", text, "see its log for the reason", file=file)
    else:
        yield ok("settings", "those of {file}", file=file)


def _streams(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.agent, Unknown):
        return  # `_agent` yields the reason
    for resource in node.resources:
        if node.agent.streams.get(resource.name):
            yield ok("registered", "the kubelet listens to {resource}", resource=resource.name)
        else:
            yield error(
                "not-registered",
                "the kubelet does not listen to {resource}",
                f"the agent registers again by itself in seconds; if this persists, see its log and {_KUBELETS_LOG}",
                resource=resource.name,
            )


# --- The API ----------------------------------------------------------------------------------------------------------


def _readable(node: NodeSymptoms) -> ApiSeen | None:
    """Return the API server's answers; None: `_api` yields why there are none."""
    return None if isinstance(node.api, Unknown) or node.api.problem else node.api


def _api(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown):
        yield node.api
    elif node.api.problem:
        advice = (
            "see whether it runs and can be reached from here; without it the agent shares GPUs, but cannot follow the "
            "scheduler's choice of GPU"
        )
        yield error("api-unreachable", "{problem}", advice, problem=node.api.problem)
    else:
        text = "{address} answers" + (", Kubernetes {version}" if node.api.version else "")
        yield ok("api", text, address=node.api.where, version=node.api.version)
    if isinstance(node.agent, AgentSeen) and node.agent.api_errors:
        text = "{calls:call} of the agent failed since it started"
        yield note("api-errors", text, "see its log for which, and why", calls=node.agent.api_errors)


def _rights(node: NodeSymptoms) -> Iterator[Finding]:
    if (api := _readable(node)) is None:
        return
    denied = [right for right, may in api.rights.items() if may is False]
    unknown = [right for right, may in api.rights.items() if may is None]
    for right, (why, value) in _FOR_SETTINGS.items():
        if right in denied:
            text = "{why}, and the agent's account may not {right}"
            advice = "kubectl apply -f deploy/optional/evict.yaml (chart: {value}), which grants it"
            yield error("rights-for-settings-missing", text, advice, why=why, right=right, value=value)
    if others := [right for right in denied if right not in _FOR_SETTINGS]:
        advice = "kubectl apply -f deploy/daemonset.yaml, whose ClusterRole gpushare-node grants it"
        yield error("rights-missing", "the agent's account may not {rights}", advice, rights=", ".join(others))
    if unknown:
        text = "the API server does not say whether the agent may {rights}"
        yield Unknown("rights-unknown", text, rights=", ".join(unknown))
    if not denied and not unknown:
        yield ok("rights", "the account has all {number} rights that the agent needs", number=len(api.rights))


def _node(node: NodeSymptoms) -> Iterator[Finding]:
    if (api := _readable(node)) is None:
        return
    if api.node_problem:
        advice = "see whether NODE_NAME, or --node-name, is the name of this node"
        yield error("node-unreadable", "{problem}", advice, problem=api.node_problem)
    elif api.node.shares_gpus:
        yield ok("node-labelled", "{node} is labelled gpushare=true", node=node.settings.node_name)
    else:
        text = "{node} is not labelled gpushare=true, by which the DaemonSet selects nodes"
        yield note("node-not-labelled", text, "kubectl label node {node} gpushare=true", node=node.settings.node_name)


def _offered(node: NodeSymptoms) -> Iterator[Finding]:
    api = _readable(node)
    if api is None or api.node_problem:
        return
    for resource in node.resources:
        amount = api.node.allocatable.get(resource.name)
        if amount:
            yield ok("offered", "{amount} {resource} can be allocated", amount=amount, resource=resource.name)
        elif amount == 0:
            text = f"no {{resource}} can be allocated: {_ALL_USED[resource.kind]} or unhealthy, or see above"
            yield note("all-in-use", text, resource=resource.name)
        else:
            advice = "the kubelet reports it within 10 s of the registration"
            yield error("not-offered", "the node has no {resource}", advice, resource=resource.name)


def _capacity(node: NodeSymptoms) -> Iterable[Finding]:
    return capacity(node.alone, counted=any(each.kind is Kind.COUNT for each in node.resources))


def _clock(node: NodeSymptoms) -> Iterator[Finding]:
    if (api := _readable(node)) is None:
        return
    skew = api.skew_s
    if skew is None:
        yield Unknown("clock-unknown", "the API server's answer has no date")
    elif abs(skew) < _SKEW_S:
        yield ok("clock", "agrees with the API server's")
    else:
        text = (
            f"{{seconds}} s {'ahead of' if skew > 0 else 'behind'} the API server's: certificates and leases may fail, "
            "and timestamps on pods are wrong"
        )
        yield warning("clock-skewed", text, "synchronize both clocks by NTP", seconds=round(abs(skew)))


def _of_nvidia(check: Callable[[NodeSymptoms], Iterable[Finding]]) -> Callable[[NodeSymptoms], Iterable[Finding]]:
    """Return a check that finds nothing on a node whose GPUs need nothing of NVIDIA's toolkit."""
    return lambda node: check(node) if node.of_nvidia else ()


OWN: Mapping[str, Callable[[NodeSymptoms], Iterable[Finding]]] = {
    "driver": container_checks.driver,
    "GPUs": container_checks.gpus,
    "device nodes": container_checks.device_nodes,
    "container runtime": _of_nvidia(container_checks.runtime),
    "CDI": _of_nvidia(container_checks.cdi),
    "images": _of_nvidia(known("obeys_images", container_checks.images)),
    "cgroups": known("cgroup", container_checks.cgroups),
    "kernel": container_checks.kernel,
    "shares": _shares,
    "kubelet directory": _directory,
    "kubelet": _kubelet,
    "kubelet's records": _records,
    "settings": _settings,
    "agent": _agent,
    "registration": _streams,
    "API server": _api,
    "rights": _rights,
    "node": _node,
    "allocatable": _offered,
    "capacity": _capacity,
    "clock": _clock,
}
"""A check comes after those on which it depends."""

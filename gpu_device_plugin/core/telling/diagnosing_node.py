"""What is wrong on one node, by what can be seen there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.annotations import CONFIG_LABEL, DEFAULT_PROFILE
from gpu_device_plugin.core.contract.leaving import SWITCH_LABEL, SWITCHED_ON, switched_on
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS
from gpu_device_plugin.core.model.memory import MAX_DEVICE_IDS, format_mib
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import Shares, TooManySharesError, unknown_exclusions
from gpu_device_plugin.core.node.grants import CONTROL_NODES, MEMORY_LIMIT
from gpu_device_plugin.core.node.limiting import enforcement, unlimited
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, unknown, warning
from gpu_device_plugin.core.telling.nodeamounts import amiss, unoffered
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.others import Sighting

_LIMITING_TOOLKIT = (1, 20, 1)
_SKEW_S = 30.0
"""Service account tokens and leases bear clocks that are some seconds apart."""
_KUBELETS_LOG = "the kubelet's log on the node (journalctl -u kubelet)"
_NOBODY_LOOKED = Unknown("nobody looked")


@dataclass(frozen=True, slots=True)
class Runtime:
    """One container runtime, by its configuration."""

    engine: str
    """``containerd``, ``CRI-O`` or ``Docker``."""
    path: str
    """Where its configuration stands."""
    handlers: tuple[str, ...] = ()
    """Names under which it runs NVIDIA's runtime."""
    default: bool = False
    """Whether that is what pods without a runtime class get."""
    cdi: bool = False
    """Whether it understands CDI names."""


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The running agent, by its own pages."""

    where: str
    missing: tuple[str, ...] = ()
    """What its readiness lacks."""
    streams: Mapping[str, bool] = field(default_factory=dict)
    """By resource, whether the kubelet listens."""
    version: str = ""
    api_errors: int = 0


@dataclass(frozen=True, slots=True)
class ApiSeen:
    """The API server, as the agent's account sees it."""

    where: str
    problem: str = ""
    """Why it cannot be spoken to."""
    version: str = ""
    skew_s: float | None = None
    """Seconds that our clock is ahead of the server's; None: it did not tell the time."""
    rights: Mapping[str, bool | None] = field(default_factory=dict)
    """By what the agent does (``patch nodes``), whether it may; None: nobody said."""
    node_problem: str = ""
    """Why our node could not be read."""
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    gpus: NodeGpus = NO_GPUS
    """What the agent has written on our node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSymptoms:
    """Everything that a node shows."""

    # How the agent is set up
    resources: tuple[Resource, ...]
    memory_resource: str = ""
    """What it is called, also where it is not offered."""
    count_resource: str = ""
    share_mib: int
    share_mib_in_force: int | None = None
    """What the agent goes by; None: it has written nothing down."""
    reserve_mib: int = 0
    exclude_gpus: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("envvar",)
    cdi_kind: str = "nvidia.com/gpu"
    allow_other_plugins: bool = False
    invented: bool = False
    """The GPUs are a description's."""
    in_container: bool = False
    settings_in: str = ""
    """The directory of its settings; empty: there is none."""
    profiles: tuple[str, ...] = ()
    """The names in it that a node's label may have."""
    profile: str | None = None
    """The one that the agent had last, empty for none; None: nobody remembers."""
    settings_problems: Mapping[str, str] = field(default_factory=dict)
    """Why what is written cannot be used, by profile, empty for none."""

    # The hardware
    driver_problem: str = ""
    """Why the driver cannot be used, with what to do."""
    inventory: Inventory
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """By UUID, why a GPU is out of service."""
    device_nodes: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with each device node; empty: nothing."""
    unlinked_nodes: tuple[str, ...] = ()
    """Device nodes that systemd does not know under ``/dev/char``."""

    # The container runtime
    runtimes: tuple[Runtime, ...] | Unknown = ()
    cdi_devices: frozenset[str] | Unknown = frozenset()
    """Full names of the devices in CDI files."""
    toolkit: str | Unknown = ""
    """Version of NVIDIA's container toolkit; empty: it is not there."""
    obeys_images: bool | Unknown = False
    """Whether the toolkit heeds NVIDIA_VISIBLE_DEVICES of images and pods that are not privileged."""
    cgroup: int | Unknown = 2

    # The kubelet
    directory: str = ""
    directory_problem: str = ""
    kubelet_listens: bool = True
    pod_resources_problem: str = ""
    checkpoint_problem: str = ""
    others: tuple[Sighting, ...] = ()

    # The agent and the API
    agent: AgentSeen | Unknown = _NOBODY_LOOKED
    agents_running: int | None = None
    """How many processes of the agent are seen; None: processes are not to be seen."""
    api: ApiSeen | Unknown = _NOBODY_LOOKED
    node_name: str = ""


def _driver(node: NodeSymptoms) -> Iterator[Finding]:
    if node.driver_problem:
        yield error(*_split(node.driver_problem))
        return
    models: dict[str, int] = {}
    for gpu in node.inventory.gpus:
        models[gpu.product] = models.get(gpu.product, 0) + 1
    what = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    version = f"driver {node.inventory.driver_version}" if node.inventory.driver_version else "the driver answers"
    if not models:
        yield error(f"{version}, and lists no GPU", "see nvidia-smi -L on the node, and whether lspci shows the cards")
        return
    yield ok(f"{version}, {what}{' (invented)' if node.invented else ''}")


def _split(sentence: str) -> tuple[str, str]:
    """Take what is found apart from what to do, as the messages of our edges join them."""
    found, _, advice = sentence.partition("; ")
    return found, advice or "see the agent's log"


def _gpus(node: NodeSymptoms) -> Iterator[Finding]:
    for gpu in node.inventory.gpus:
        if why := node.unhealthy.get(gpu.uuid):
            found = f"GPU {gpu.index} ({gpu.uuid}) is out of service: {why}"
            yield error(found, "docs/operations.md says what ends that (A GPU is out of service)")
    for gpu in node.inventory.gpus:
        if gpu.mig:
            yield note(f"GPU {gpu.index} ({gpu.uuid}) is in MIG mode, whose instances are not shared")
    if node.inventory.gpus and not node.unhealthy:
        yield ok(f"{len(node.inventory.gpus)} healthy")


def _device_nodes(node: NodeSymptoms) -> Iterator[Finding]:
    if node.invented:
        yield ok("invented GPUs have none")
        return
    wrong = {path: why for path, why in node.device_nodes.items() if why}
    uvm = CONTROL_NODES[1]
    if uvm in wrong and node.in_container:
        # Who is given NVML alone (NVIDIA_DRIVER_CAPABILITIES=utility) is not given this one.
        yield unknown(Unknown(f"{uvm} is for CUDA, and this container is not given it", "run the doctor on the node"))
    elif uvm in wrong:
        yield error(f"{uvm} {wrong[uvm]}", "nvidia-modprobe -u -c 0 on the node makes it; containers with CUDA need it")
    for why in sorted({why for path, why in wrong.items() if path != uvm}):
        paths = ", ".join(path for path in wrong if path != uvm and wrong[path] == why)
        yield error(f"{paths} {why}", "nvidia-smi as root on the node makes it, and nvidia-persistenced keeps it")
    if right := [path for path, why in node.device_nodes.items() if not why]:
        yield ok(", ".join(right))
    if node.unlinked_nodes and not {"device-specs", "cdi"} & set(node.devices):
        yield warning(
            f"/dev/char does not lead to {', '.join(node.unlinked_nodes)}: with systemd cgroups a systemctl "
            "daemon-reload takes GPUs from running containers",
            "nvidia-ctk system create-dev-char-symlinks --create-all on the node, or --devices device-specs or cdi",
        )


def _runtime(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.runtimes, Unknown):
        if node.in_container and not node.driver_problem and not node.invented:
            yield ok("it gave this container the driver")
        else:
            yield unknown(node.runtimes)
        return
    if node.invented:
        yield ok("invented GPUs need none")
        return
    fit = [runtime for runtime in node.runtimes if runtime.handlers]
    for runtime in fit:
        name = runtime.handlers[0]
        how = "is its default" if runtime.default else f"needs runtimeClassName: {name} on every GPU pod"
        yield ok(f"{runtime.engine} knows NVIDIA's runtime as {name}, which {how} ({runtime.path})")
    if not fit and "envvar" in node.devices:
        seen = ", ".join(f"{runtime.engine} ({runtime.path})" for runtime in node.runtimes) or "no container runtime"
        yield error(
            f"of what is configured here nothing knows NVIDIA's runtime: {seen}",
            "install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=containerd (docker, crio), and "
            "restart that; or --devices cdi",
        )


def _cdi(node: NodeSymptoms) -> Iterator[Finding]:
    if "cdi" not in node.devices:
        if not isinstance(node.cdi_devices, Unknown):
            yield note(
                f"{counted(len(node.cdi_devices), 'device')} in CDI files; without cdi in --devices none is asked for"
            )
        return
    if isinstance(node.cdi_devices, Unknown):
        yield unknown(node.cdi_devices)
        return
    wanted = [f"{node.cdi_kind}={gpu.uuid}" for gpu in node.inventory.gpus]
    missing = [name for name in wanted if name not in node.cdi_devices]
    if missing:
        yield error(
            f"no CDI file names {', '.join(missing)}",
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, and once more after "
            "every change of cards or driver; --cdi-kind says which kind is asked for",
        )
    else:
        yield ok(f"CDI files name {'the GPU' if len(wanted) == 1 else f'all {len(wanted)} GPUs'} by UUID")
    if not isinstance(node.runtimes, Unknown) and not any(runtime.cdi for runtime in node.runtimes):
        yield warning(
            "no container runtime configured here is told to use CDI",
            "containerd before 2.0: enable_cdi = true; Docker: the feature cdi; CRI-O and containerd 2 need nothing",
        )


def _images(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.obeys_images, Unknown):
        yield unknown(node.obeys_images)
    elif not node.obeys_images:
        yield ok("NVIDIA_VISIBLE_DEVICES of images and pods counts for privileged containers only")
    elif isinstance(node.runtimes, Unknown) or not any(runtime.default for runtime in node.runtimes):
        yield note(
            "a container that is run with NVIDIA's runtime and asks for no GPU sees every GPU, if its image or pod "
            "sets NVIDIA_VISIBLE_DEVICES=all",
            "deploy/policies.yaml refuses it in pods; against images help --devices cdi and "
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml",
        )
    else:
        yield warning(
            "NVIDIA's runtime is the default here, so every container of an image with NVIDIA_VISIBLE_DEVICES=all (all "
            "of CUDA's) sees every GPU, also if it asks for none",
            "do not make it the default and use runtimeClassName: nvidia; or --devices cdi and "
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml",
        )


def _cgroups(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.cgroup, Unknown):
        yield unknown(node.cgroup)
    elif node.cgroup == 2:
        yield ok("version 2")
    else:
        yield warning(
            f"version {node.cgroup}: no memory limits of the driver, and kubelets from 1.35 on do not start on it "
            "unless failCgroupV1 is false",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )


def _limits(node: NodeSymptoms) -> Iterator[Finding]:
    if node.invented:
        yield ok("invented GPUs have none")
        return
    if node.driver_problem:
        yield unknown(Unknown("advisory as long as no driver answers"))
        return
    inventory, toolkit = node.inventory, node.toolkit
    version = f"driver {inventory.driver_version}"
    gpus = [gpu for gpu in inventory.gpus if not gpu.mig]
    if any(unlimited(gpu, inventory.cgroup) for gpu in gpus) or not gpus:
        yield note(
            f"{enforcement(gpus, inventory.cgroup)} ({version})",
            f"a container reads in {MEMORY_LIMIT} how much memory it may use, and nothing holds it to that; limits of "
            "MPS are not set by this version",
        )
    elif isinstance(toolkit, Unknown):
        yield unknown(
            Unknown(
                f"{version} can limit memory (cgroup), if nvidia-container-toolkit is 1.20.1 or newer: {toolkit.why}",
                toolkit.advice,
            )
        )
    elif _numbers(toolkit) < _LIMITING_TOOLKIT:
        yield note(
            f"advisory: {version} can limit memory (cgroup), and only nvidia-container-toolkit asks it to, from 1.20.1 "
            f"on (now {toolkit or 'none'})",
            "install a newer nvidia-container-toolkit on the node",
        )
    else:
        yield ok(f"cgroup: {version} and nvidia-container-toolkit {toolkit} hold containers to their memory")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])


def _shares(node: NodeSymptoms) -> Iterator[Finding]:
    in_force = node.share_mib_in_force or node.share_mib
    if in_force != node.share_mib:
        yield warning(
            f"one share is {format_mib(in_force)}, and a share_size of {format_mib(node.share_mib)} waits: containers "
            "held shares when the agent started",
            "drain the node, and restart its agent then",
        )
    try:
        shares = Shares(in_force, node.reserve_mib).with_inventory(node.inventory, node.exclude_gpus)
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
        yield note(f"GPU {gpu.index} ({gpu.uuid}) is not shared: {why}")
    total = sum(len(shared.shares) for shared in shares.gpus)
    if not total:
        yield unknown(Unknown("no GPU is there to be shared"))
        return
    amounts = f"{counted(len(shares.gpus), 'GPU')}, {counted(total, 'share')} of {format_mib(in_force)}"
    yield ok(f"{amounts} ({MAX_DEVICE_IDS} are the most)")


def _directory(node: NodeSymptoms) -> Iterator[Finding]:
    yield error(*_split(node.directory_problem)) if node.directory_problem else ok(f"{node.directory} can be written")


def _kubelet(node: NodeSymptoms) -> Iterator[Finding]:
    if node.kubelet_listens:
        yield ok(f"listens on {node.directory}/kubelet.sock")
    else:
        yield error(
            f"nobody listens on {node.directory}/kubelet.sock",
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
        yield unknown(node.agent)
    else:
        for sentence in node.agent.missing:
            yield error(*_split(sentence))
        if not node.agent.missing:
            version = f"version {node.agent.version} " if node.agent.version else ""
            yield ok(f"{version}is ready ({node.agent.where})")


_CORRECT = "correct it; until then an agent that runs keeps what it had, and one that starts shares nothing"


def _settings(node: NodeSymptoms) -> Iterator[Finding]:
    if not node.settings_in:
        if node.settings_problems:
            yield error(node.settings_problems[""], _CORRECT)
        return
    api = None if isinstance(node.api, Unknown) or node.api.problem or node.api.node_problem else node.api
    if api is None and node.profile is None and node.profiles:
        yield unknown(Unknown(f"which profile this node has: its label {CONFIG_LABEL} is not to be seen from here"))
        return
    label = (node.profile or "") if api is None else api.labels.get(CONFIG_LABEL, "")
    found = f"those of {node.settings_in}/{label or DEFAULT_PROFILE}.yaml"
    if label not in {"", DEFAULT_PROFILE, *node.profiles}:
        yield error(
            f"the node label {CONFIG_LABEL}={label} names no profile: there is no {label}.yaml in {node.settings_in}",
            f"correct the label (kubectl label node {node.node_name or 'NODE'} --overwrite {CONFIG_LABEL}=...), or add "
            "the file",
        )
    elif problem := node.settings_problems.get("" if label == DEFAULT_PROFILE else label):
        yield error(problem, _CORRECT)
    elif node.profile not in {None, label}:
        yield warning(f"{found}, which the agent has not taken over", "see its log for why")
    else:
        yield ok(found)


def _streams(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.agent, Unknown):
        return  # told above
    for resource in node.resources:
        if node.agent.streams.get(resource.name):
            yield ok(f"the kubelet listens to {resource.name}")
        else:
            yield error(
                f"the kubelet does not listen to {resource.name}",
                f"the agent registers anew by itself within seconds; if it stays so, see its log and {_KUBELETS_LOG}",
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
        yield ok("nobody else hands out GPUs here")


def _api(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown):
        yield unknown(node.api)
    elif node.api.problem:
        yield error(
            node.api.problem,
            "see whether it runs and can be reached from here; without it a node shares its GPUs, and keeps no promise "
            "of a scheduler",
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
    untold = [right for right, may in node.api.rights.items() if may is None]
    if denied:
        yield error(
            f"the agent's account may not {', '.join(denied)}",
            "kubectl apply -f deploy/daemonset.yaml, whose ClusterRole gpushare-node grants it",
        )
    if untold:
        yield unknown(Unknown(f"the API server does not say whether the agent may {', '.join(untold)}"))
    if not denied and not untold:
        yield ok(f"the account may do all {len(node.api.rights)} things that the agent does")


def _node(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem:
        return
    if node.api.node_problem:
        yield error(*_split(node.api.node_problem))
        return
    if switched_on(node.api.labels):
        yield ok(f"{node.node_name} is labelled {SWITCH_LABEL}={SWITCHED_ON}")
    else:
        missing = f"{node.node_name} is not labelled {SWITCH_LABEL}={SWITCHED_ON}, by which the DaemonSet chooses nodes"
        yield note(missing, f"kubectl label node {node.node_name} {SWITCH_LABEL}={SWITCHED_ON}")


def _offered(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem or node.api.node_problem:
        return
    for resource in node.resources:
        amount = node.api.allocatable.get(resource.name)
        if amount:
            yield ok(f"{amount} {resource.name} can be allocated")
        elif amount == 0:
            used = "in shared use" if resource.kind is Kind.COUNT else "in whole use"
            yield note(f"no {resource.name} can be allocated: all GPUs are {used} or out of service, or see above")
        else:
            yield error(f"the node has no {resource.name}", "the kubelet tells of it within 10 s of the registration")


def _capacity(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or not isinstance(node.agent, AgentSeen) or node.agent.missing:
        return
    gpus, count = node.api.gpus, node.count_resource
    offered = count in {resource.name for resource in node.resources}
    found: list[Finding] = []
    if gpus.gpus:
        found += amiss(node.node_name, gpus, node.api.capacity, node.memory_resource, count, counted_on=offered)
    if not found and not offered:
        found += unoffered(node.node_name, node.api.capacity, count)
    yield from found
    if gpus.gpus and not found:
        yield ok("that of its GPUs")


def _clock(node: NodeSymptoms) -> Iterator[Finding]:
    if isinstance(node.api, Unknown) or node.api.problem:
        return
    skew = node.api.skew_s
    if skew is None:
        yield unknown(Unknown("the API server did not tell the time"))
    elif abs(skew) < _SKEW_S:
        yield ok("agrees with the API server's")
    else:
        yield warning(
            f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's: certificates and leases may "
            "fail, and times on pods are wrong",
            "have both set by NTP",
        )


CHECKS: Mapping[str, Callable[[NodeSymptoms], Iterable[Finding]]] = MappingProxyType(
    {
        "driver": _driver,
        "GPUs": _gpus,
        "device nodes": _device_nodes,
        "container runtime": _runtime,
        "CDI": _cdi,
        "images": _images,
        "cgroups": _cgroups,
        "memory limits": _limits,
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
    }
)
"""In the order in which one thing needs the other."""

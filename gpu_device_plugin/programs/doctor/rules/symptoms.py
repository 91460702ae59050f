"""The state of a cluster and of a node that share GPUs, as input of the doctor's checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.claims.contract import Claim
from gpu_device_plugin.features.claims.rules.pool import Present
from gpu_device_plugin.features.conflicts.rules import Detection
from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.features.limits.rules.enforcement import Facts
from gpu_device_plugin.features.mps.contract import MpsGpu
from gpu_device_plugin.features.mps.rules.mps_admission import lack
from gpu_device_plugin.model.contract.keys import ELASTIC, MIG_LABEL
from gpu_device_plugin.model.contract.node_use import node_report
from gpu_device_plugin.model.gpus import NVIDIA, Gpu, Inventory
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.node.rules.node_config import mig_mode
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.report.rules.node_view import ExaminedNode
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.settings.forms import DRIVERS

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_NOT_EXAMINED = Unknown("not-examined", "not examined")


# --- The cluster, read from its API -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen(ExaminedNode):
    """A node that shares GPUs or shared them before, has the label that switches this, or is of a group that shares."""

    annotated: bool = False
    """Whether an agent has annotated it with its GPUs."""
    other_plugins: tuple[Detection, ...] = ()


def node_seen(node: NodeRecord, now_s: float, **changes: Any) -> NodeSeen:
    """Return a node as it was read at `now_s`, in seconds since the epoch, with other fields where these say so."""
    report, problems = node_report(node.annotations, now_s)
    gpus = gpus_of_node(node.annotations, node.labels, 0, 0)
    return NodeSeen.of(node, gpus=gpus, report=report, report_problems=problems, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """An agent's or an extender's pod, of this project or of the original gpushare."""

    name: str
    """``namespace/name``."""
    node: str = ""
    ready: bool = False
    why: str = ""
    """Why it is not ready, if Kubernetes says so."""
    container: str = ""
    """The container that is not ready or not running; empty: none is known."""
    reason: str = ""
    """Kubernetes' reason why that container does not run (`ImagePullBackOff`); empty: it runs but is not ready."""
    version: str = ""
    """The tag of its image."""
    kube_scheduler: str | None = None
    """The image tag of the kube-scheduler in the same pod; None: there is none."""
    original: bool = False
    """Whether it belongs to Alibaba's gpushare."""
    asked: int | Unknown | None = None
    """The number of filter calls to this extender since it started, or the right that is missing; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that asks for GPUs."""

    pod: Pod
    scheduler: str
    promised: bool
    """Whether a scheduler has annotated it with its GPU."""
    seen: bool
    """Whether a scheduler has set a condition on it."""
    age_s: float


@dataclass(frozen=True, slots=True)
class Karpenter:
    """What Karpenter knows of nodes that share GPUs."""

    pools: tuple[str, ...] = ()
    """Its NodePools that label their nodes gpushare=true."""
    resources: frozenset[str] = frozenset()
    """The resources that its NodeOverlays add to nodes."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leader-election lease."""

    holder: str
    age_s: float
    """Since it was last renewed, by our clock."""
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSymptoms:
    """Everything in the API that concerns GPU sharing."""

    memory_resource: str
    count_resource: str
    version: str | Unknown = ""
    nodes: tuple[NodeSeen, ...] = ()
    agents: tuple[ComponentStatus, ...] = ()
    extenders: tuple[ComponentStatus, ...] = ()
    own_scheduler: bool = False
    """Whether a kube-scheduler of its own runs beside the extender."""
    daemonset: str | Unknown | None = ""
    """The runtime class of the DaemonSet's pods, empty if they have none; None: there is no DaemonSet."""
    runtime_classes: frozenset[str] | Unknown = frozenset()
    pods: tuple[PodSeen, ...] = ()
    pods_overriding_visible_devices: tuple[str, ...] = ()
    """Pods on sharing nodes that set NVIDIA_VISIBLE_DEVICES themselves."""
    leases: Mapping[str, Lease] | Unknown = field(default_factory=dict)
    """By name, those of the expected leases that exist."""
    configurations: Mapping[str, str] | Unknown = field(default_factory=dict)
    """The apiVersion of each scheduler configuration, by its location."""
    policies: frozenset[str] | Unknown = frozenset()
    supervisors: tuple[ComponentStatus, ...] = ()
    """The pods of the MPS supervisor."""
    limits_by_profile: Mapping[str, str] = field(default_factory=dict)
    """The setting `limits` of the agents, by settings profile, as far as the ConfigMap can be read and has it."""
    claims: tuple[Claim, ...] | Unknown = ()
    """All ResourceClaims."""
    slices: tuple[Present, ...] | Unknown = ()
    """Those of our driver: its pools have the names of their nodes, and of each the newest generation is valid."""
    device_classes: Mapping[str, str] | Unknown = field(default_factory=dict)
    """The extended resource that each DeviceClass serves, by the name of the class; empty: none."""
    karpenter: Karpenter | Unknown = Karpenter()
    histories: Mapping[str, NodeHistory | str] | Unknown = field(default_factory=dict)
    """What agents remember of the last hour, by node, or why it cannot be read, of some nodes at most."""

    @property
    def ready(self) -> frozenset[str]:
        """The nodes on which an agent is ready."""
        return frozenset(agent.node for agent in self.agents if agent.ready)

    @property
    def supervised(self) -> frozenset[str]:
        """The nodes on which an MPS supervisor is ready."""
        return frozenset(part.node for part in self.supervisors if part.ready)

    @property
    def others(self) -> list[tuple[Detection, str]]:
        """The other plugins on nodes that share GPUs, with the names of these."""
        return [(each, node.name) for node in self.nodes if node.shares_gpus for each in node.other_plugins]

    @property
    def elastic_pods(self) -> list[Pod]:
        """The pods whose memory annotations change while they run."""
        return [seen.pod for seen in self.pods if not ELASTIC.isdisjoint(seen.pod.annotations)]


# --- A node, read on it -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runtime:
    """The configuration of one container runtime."""

    engine: str
    """``containerd``, ``CRI-O`` or ``Docker``."""
    path: str
    """The path of its configuration file."""
    handlers: tuple[str, ...] = ()
    """The names of its handlers that run NVIDIA's runtime."""
    default: bool = False
    """Whether pods without a runtime class get NVIDIA's runtime."""
    cdi: bool = False
    """Whether it supports CDI names."""
    without_effect: tuple[str, ...] = ()
    """Files that name NVIDIA's runtime, although it has no handler for it."""


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The running agent, by its HTTP endpoints."""

    where: str
    missing: tuple[str, ...] = ()
    """Its reasons why it is not ready."""
    streams: Mapping[str, bool] = field(default_factory=dict)
    """By resource, whether the kubelet has an open ListAndWatch stream."""
    version: str = ""
    api_errors: int = 0


@dataclass(frozen=True, slots=True)
class ApiSeen:
    """The API server, as the agent's account sees it."""

    where: str
    problem: str = ""
    """Why it cannot be reached."""
    version: str = ""
    skew_s: float | None = None
    """By how many seconds our clock is ahead of the server's; None: its answer has no date."""
    rights: Mapping[str, bool | None] = field(default_factory=dict)
    """By right (``patch nodes``), whether the agent has it; None: unknown."""
    node_problem: str = ""
    """Why our node could not be read."""
    node: NodeSeen = NodeSeen(name="")
    """Our node, with all of its labels and amounts."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """The settings profiles that a node can choose by its label."""

    folder: str = ""
    """The directory of the profiles; empty: there is none."""
    names: tuple[str, ...] = ()
    last: str | None = None
    """The profile that the agent used last, empty for none; None: no record of it exists."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a profile cannot be used, by its name; the key is empty for the settings without a profile."""


NO_PROFILES = Profiles()


@dataclass(frozen=True, slots=True)
class KernelSeen:
    """What the node's kernel has for GPUs of drivers of its own, as a process here sees it."""

    release: str = ""
    topology_hidden: bool = False
    """The partitions of GPUs, and the links between them, may not be read here."""
    traces: bool = True
    """The use of GPUs by other processes may be read here."""
    alone: bool = False
    """It drives GPUs, and there is none of NVIDIA's beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSymptoms:
    """Everything on a node that concerns GPU sharing."""

    # The agent's settings
    settings: NodeSettings
    resources: tuple[Resource, ...]
    """Those that it offers, with those of MIG profiles."""
    share_mib_in_force: int | None = None
    """The share size that the agent uses; None: it has recorded none."""
    in_container: bool = False
    profiles: Profiles = NO_PROFILES
    followed: tuple[str, ...] = ()
    """The agents of this machine, each as its process and command line: the settings are those of the first."""
    extra_grant_problem: str = ""
    """Why the file of the setting `extra_grant` cannot be used, with advice."""
    mps: Mapping[str, MpsGpu] | str = ""
    """The daemons of the MPS supervisor, by the GPU's UUID, or why there is none."""
    mps_left: tuple[str, ...] = ()
    """The GPUs (by UUID) that a supervisor ran which no longer runs, and did not give back."""
    dmem: Facts = field(default_factory=Facts)
    """Why there are no limits by the kernel's controller dmem."""

    # The hardware
    driver_problem: str = ""
    """Why the driver cannot be used, with advice."""
    driver_missing: bool = False
    """The reason is that its library is not here."""
    left_out: str = ""
    """What it lacks, and which GPUs are left out for good."""
    inventory: Inventory
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """Why a GPU is out of service, by UUID."""
    telemetry: tuple[GpuTelemetry, ...] | Unknown = ()
    """As the driver tells them now, in the groups that the settings want read."""
    device_nodes: Mapping[str, str] = field(default_factory=dict)
    """The fault of each device node, by path; empty: it has none."""
    unlinked_nodes: tuple[str, ...] = ()
    """Device nodes without the link under ``/dev/char`` that systemd needs."""
    node_groups: Mapping[str, int] = field(default_factory=dict)
    """The group of each device node, by path, that is closed to users outside of it, of drivers other than NVIDIA's."""
    kernel: KernelSeen = KernelSeen()
    mig_present: Mapping[str, int] = field(default_factory=dict)
    """The number of GPU instances by their GPU's UUID, as the kernel module lists them to everybody."""

    # The container runtime
    runtimes: tuple[Runtime, ...] | Unknown = ()
    """The one that the kubelet uses, if it is configured."""
    cdi_devices: frozenset[str] | Unknown = frozenset()
    """Fully qualified names of the devices in CDI files."""
    toolkit: str | Unknown = ""
    """The version of NVIDIA's container toolkit; empty: it is not installed."""
    obeys_images: bool | Unknown = False
    """Whether the toolkit obeys NVIDIA_VISIBLE_DEVICES of unprivileged images and pods."""
    cgroup: int | Unknown = 2

    # The kubelet
    directory_problem: str = ""
    kubelet_listens: bool = True
    pod_resources_problem: str = ""
    checkpoint_problem: str = ""
    with_driver_limits: tuple[str, ...] = ()
    """Containers that were given the variables of the driver's limits, as ``<pod's UID>/<name>``."""
    others: tuple[Detection, ...] = ()

    # The agent and the API
    agent: AgentSeen | Unknown = _NOT_EXAMINED
    agents_running: int | None = None
    """The number of the agent's processes; None: processes are not visible from here."""
    api: ApiSeen | Unknown = _NOT_EXAMINED

    @property
    def invented(self) -> bool:
        """Whether the GPUs come from a description file."""
        return self.settings.gpus not in DRIVERS

    @property
    def of_nvidia(self) -> bool:
        """Whether it has GPUs of NVIDIA's driver, which its toolkit gives to containers; where none is known, too."""
        drivers = {gpu.driver for gpu in self.inventory.gpus}
        return NVIDIA in drivers or not (drivers or self.kernel.alone)

    def name(self, gpu: Gpu) -> str:
        """Return a GPU or an instance with its UUID, as people know it: by its number in the node's list, if any."""
        if gpu.instance is not None:
            return f"MIG instance {gpu.label} ({gpu.uuid})"
        listed = () if isinstance(self.api, Unknown) else (*self.api.node.gpus.gpus, *self.api.node.gpus.gone)
        numbers = {each.uuid: each.position for each in listed if each.uuid}
        number = numbers.get(gpu.uuid)
        if number is None and numbers and gpu.driver != NVIDIA:
            return f"the GPU {gpu.uuid}"
        if number is None and numbers:
            return f"the GPU {gpu.uuid} (nvidia-smi counts it as {gpu.index})"
        return f"GPU {gpu.index if number is None else number} ({gpu.uuid})"

    @property
    def names(self) -> Mapping[str, str]:
        """The same of all GPUs, by UUID."""
        return {gpu.uuid: self.name(gpu) for gpu in self.inventory.gpus}

    def mps_lack(self, gpu: Gpu) -> str:
        """Return why MPS cannot limit a GPU, as a clause; empty: it can."""
        return lack(self.mps, gpu)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node; empty if they could not be read."""
        return {} if isinstance(self.api, Unknown) else self.api.node.labels

    @property
    def alone(self) -> ClusterSymptoms:
        """A cluster of this node and its agent, as far as they are known here."""
        node = NodeSeen(name="") if isinstance(self.api, Unknown) else self.api.node
        ready = isinstance(self.agent, AgentSeen) and not self.agent.missing
        names = {resource.kind: resource.name for resource in self.settings.managed}  # also where they are not offered
        return ClusterSymptoms(
            memory_resource=names[Kind.MEMORY],
            count_resource=names[Kind.COUNT],
            nodes=(node,) if node.name else (),
            agents=(ComponentStatus(name="", node=node.name, ready=ready),),
        )

    @property
    def mig_in_force(self) -> MigMode:
        """How pods get MIG instances."""
        return mig_mode(self.settings.mig, self.labels.get(MIG_LABEL, ""))

    @property
    def given(self) -> tuple[Gpu, ...]:
        """The GPUs and MIG instances that pods can get, those that the settings exclude included."""
        instances = self.mig_in_force is not MigMode.OFF
        return tuple(
            gpu
            for gpu in self.inventory.gpus
            if (not gpu.mig if gpu.instance is None else instances and gpu.instance.alone)
        )

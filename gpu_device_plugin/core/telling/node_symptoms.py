"""The symptoms of a node that shares its GPUs, as a doctor sees them there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodegpus import NO_GPUS
from gpu_device_plugin.core.telling.diagnosing import Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.others import Sighting

_NOT_EXAMINED = Unknown("not examined")


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
    """Whether pods without a runtime class get that one."""
    cdi: bool = False
    """Whether it understands CDI names."""


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The running agent, by its own pages."""

    where: str
    missing: tuple[str, ...] = ()
    """The sentences by which it says that it is not ready."""
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
    """Seconds that our clock is ahead of the server's; None: its answer has no date."""
    rights: Mapping[str, bool | None] = field(default_factory=dict)
    """By right (``patch nodes``), whether the agent has it; None: unknown."""
    node_problem: str = ""
    """Why our node could not be read."""
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    gpus: NodeGpus = NO_GPUS
    """Those that the agent has written on our node."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """The settings that a node may have by its label."""

    folder: str = ""
    """Where they are; empty: there are none."""
    names: tuple[str, ...] = ()
    last: str | None = None
    """The one that the agent had last, empty for none; None: no record of it is left."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why settings cannot be used, by profile, empty for none."""


NO_PROFILES = Profiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSymptoms:
    """Everything that a node shows."""

    # How the agent is set up
    resources: tuple[Resource, ...]
    memory_resource: str = ""
    """Its name, also where it is not offered."""
    count_resource: str = ""
    share_mib: int
    share_mib_in_force: int | None = None
    """The size that the agent goes by; None: it has written none down."""
    reserve_mib: int = 0
    exclude_gpus: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("envvar",)
    cdi_kind: str = "nvidia.com/gpu"
    allow_other_plugins: bool = False
    invented: bool = False
    """The GPUs are a description's."""
    in_container: bool = False
    profiles: Profiles = NO_PROFILES

    # The hardware
    driver_problem: str = ""
    """Why the driver cannot be used, with advice."""
    inventory: Inventory
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """By UUID, why a GPU is out of service."""
    device_nodes: Mapping[str, str] = field(default_factory=dict)
    """The fault of each device node; empty: none."""
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
    agent: AgentSeen | Unknown = _NOT_EXAMINED
    agents_running: int | None = None
    """How many processes of the agent are seen; None: processes are not to be seen."""
    api: ApiSeen | Unknown = _NOT_EXAMINED
    node_name: str = ""

"""Derive from a container's placement its variables, device nodes, mounts and CDI names: the answer to Allocate."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.contract.keys import FRAMEWORKS, LONGEST, too_long
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.extra_grant import NOBODY, Mount, Part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gpu_device_plugin.model.contract.mpsfiles import MpsGpu
    from gpu_device_plugin.model.gpus import Gpu
    from gpu_device_plugin.model.limits import GpuEnforcement
    from gpu_device_plugin.model.placing import Placement
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.rules.extra_grant import ExtraGrant, GrantOwner

ENVVAR, DEVICE_SPECS = "envvar", "device-specs"
DELIVERIES = (ENVVAR, DEVICE_SPECS, "cdi")
"""How a container can get its GPUs."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device nodes without which CUDA does not start."""
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

SHM = "/dev/shm"  # noqa: S108 - a mount point in the container, not a file of ours
"""Client and server of MPS share memory there."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How new containers of a node get their GPUs, and are kept within their parts."""

    enforcements: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """By UUID; a GPU that is not among them has advisory limits."""
    mps: Mapping[str, MpsGpu] = field(default_factory=dict)
    """The MPS daemons of GPUs, by UUID. They change with every container, and are known to who asks for them alone."""
    mps_shm: str = ""
    """The directory of the host that clients of MPS have as /dev/shm."""
    mps_compute: bool = False
    """Under MPS the multiprocessors are limited in proportion to the memory."""
    soft_is_share: bool = False
    """The driver's soft limit is the container's part; otherwise zero."""
    extra: ExtraGrant | None = None
    """What the setting `extra_grant` adds under `CUSTOM`."""
    refuse: bool = False
    """A container to which the enforcement of its GPUs cannot apply is refused; otherwise its limits are advisory."""
    methods: frozenset[str] = frozenset({"envvar"})
    """Some of `DELIVERIES`."""
    cdi_kind: str = "nvidia.com/gpu"
    cgpu_disable: bool = False
    """The node's label turns cGPU's isolation off in every container."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why every container is refused shares, by the UUIDs of the GPUs."""
        return {uuid: gpu.refusal for uuid, gpu in self.enforcements.items() if gpu.refusal}

    @property
    def names_pods(self) -> bool:
        """Whether what it adds for one container is wrong for any other."""
        custom = any(gpu.enforcement is Enforcement.CUSTOM for gpu in self.enforcements.values())
        return custom and self.extra is not None and bool(self.extra.of_the_pod)

    def of(self, part: Part) -> Enforcement:
        """Return what keeps a container within its part of one GPU."""
        if part.partition:
            return Enforcement.PARTITION
        return self.enforcements[part.uuid].enforcement if part.uuid in self.enforcements else Enforcement.ADVISORY

    @property
    def device_specs(self) -> bool:
        """Whether containers are given device nodes by their paths."""
        return DEVICE_SPECS in self.methods

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why these GPUs cannot be given in this way, as a sentence; empty if they can.

        A GPU without a minor number has no device node, as on WSL2 and Tegra, whose toolkit gives other ones.
        """
        without = [gpu.uuid for gpu in gpus if gpu.minor is None] if self.device_specs else []
        if not without:
            return ""
        return (
            f"--devices={DEVICE_SPECS} gives containers /dev/nvidiaN, and the driver tells no N of "
            f"{', '.join(without)}, as on WSL2 and Tegra; use envvar or cdi"
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer for one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()
    """Paths that are the same on the host and in the container, with permissions ``rw``."""
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    granted_to: str = ""
    """The container that it was made for, see `variables.GRANTED_TO`; empty: unknown."""

    @property
    def enforcement(self) -> Enforcement | None:
        """The enforcement that the variables name; None: the container has no limit."""
        enforcement = self.envs.get(variables.LIMITS)
        return Enforcement(enforcement) if enforcement else None

    @property
    def limit_mib(self) -> int | None:
        """The limit that the variables tell; None: the container has none."""
        limit = self.envs.get(variables.MEMORY_LIMIT)
        return int(limit) if limit else None


def grant(
    placement: Placement,
    shares: Shares,
    delivery: Delivery,
    pod_shares: int | None = None,
    present: Collection[str] = OPTIONAL_NODES,
    *,
    owner: GrantOwner = NOBODY,
) -> Grant:
    """Return the answer for one container.

    The two resources never set the same variable to different values for one container, except
    ``NVIDIA_VISIBLE_DEVICES`` where a container asks for both, which admission policies have to prevent: the kubelet
    would pick either value at random.

    `pod_shares` are those of the whole pod if they are known; otherwise the container's own are told, as with gpushare.
    `present` are those of `OPTIONAL_NODES` that exist on this node: a container with a missing one would not start.
    """
    gpus = [shares.gpus[position] for position in placement.positions]
    uuids = [shared.gpu.uuid for shared in gpus]
    # CDI names alone are complete. CUDA images set this variable to `all`, which NVIDIA's runtime would obey as well.
    visible = ",".join(uuids) if delivery.methods & {"envvar", "device-specs"} else "void"
    envs = {variables.VISIBLE_DEVICES: visible}
    mounts: tuple[Mount, ...] = ()
    if placement.demand.kind is Kind.MEMORY:
        own = sum(count for _, count in placement.shares)
        given = parts(placement.shares, shares, owner.limit_shares)
        # Both hold on each GPU of the container, so they are about the part on one GPU.
        largest = max(given, key=lambda part: part.mib)
        limited = limit_grant(given, delivery, owner)
        mounts = limited.mounts
        envs = {
            **limited.envs,
            **envs,
            variables.MEMORY_LIMIT: str(largest.limit_mib),
            variables.MEMORY_GUARANTEED: str(largest.mib),
            variables.IDX: ",".join(str(shared.position) for shared in gpus),
            variables.POD: str(own if pod_shares is None else pod_shares),
            variables.CONTAINER: str(own),
            variables.DEV: str(len(gpus[0].shares)),
        }
        if delivery.cgpu_disable:
            envs[variables.CGPU_DISABLE] = "true"
    elif placement.demand.kind is Kind.INSTANCE:
        envs[variables.LIMITS] = Enforcement.PARTITION.value
    nodes: list[str] = []
    if delivery.device_specs:
        nodes = [*CONTROL_NODES, *(node for node in OPTIONAL_NODES if node in present)]
        nodes += _device_nodes(shared.gpu for shared in gpus)
    cdi = tuple(f"{delivery.cdi_kind}={uuid}" for uuid in uuids) if "cdi" in delivery.methods else ()
    return Grant(envs, tuple(nodes), cdi, mounts, owner.key)


def _device_nodes(gpus: Iterable[Gpu]) -> list[str]:
    """Return the device nodes of GPUs: of a MIG instance that of its GPU, and those of its capabilities."""
    paths: dict[str, None] = {}
    for gpu in gpus:
        if gpu.minor is not None:
            paths[f"/dev/nvidia{gpu.minor}"] = None
        caps = () if gpu.instance is None else gpu.instance.caps
        paths.update((f"/dev/nvidia-caps/nvidia-cap{number}", None) for number in caps)
    return list(paths)


def parts(given: Iterable[tuple[int, int]], shares: Shares, limit_shares: int | None = None) -> tuple[Part, ...]:
    """Return the parts of a container by the GPU's number in the container; `given` are shares by position.

    `limit_shares` are the most of its GPU that it may use, None: those that it was given.

    CUDA numbers equal GPUs by their PCI addresses, as NVML's index does; positions may be in another order.
    """
    ordered = sorted(((shares.gpus[position], count) for position, count in given), key=lambda part: part[0].gpu.index)
    return tuple(
        Part(
            shared.gpu.uuid,
            count * shares.share_mib,
            shared.gpu.total_mib,
            shared.gpu.capacity_mib,
            partition=shared.gpu.instance is not None and count >= len(shared.shares),
            most_mib=None if limit_shares is None else limit_shares * shares.share_mib,
        )
        for shared, count in ordered
    )


# --- Limits -----------------------------------------------------------------------------------------------------------


def refusal(parts: Sequence[Part], delivery: Delivery, owner: GrantOwner = NOBODY) -> str:
    """Return why a container is refused its parts although they are free, in a sentence; empty: it is not refused."""
    weakest = _weakest(parts, delivery)
    if weakest is Enforcement.PARTITION:
        return ""
    refusals = (delivery.enforcements[part.uuid].refusal for part in parts if part.uuid in delivery.enforcements)
    if why := next(filter(None, refusals), ""):
        return why
    if delivery.refuse and delivery.extra is not None and weakest is Enforcement.CUSTOM:
        unknown = " and ".join(f"{{{name}}}" for name in delivery.extra.unknown(owner))
        return unknown and (
            f"the node's extra_grant needs {unknown}, and the pod of this container is not known: the node's agent has "
            "no access to the Kubernetes API, or has not seen the pod there; delete the pod to try again"
        )
    return ""


def limit_grant(parts: Sequence[Part], delivery: Delivery, owner: GrantOwner = NOBODY) -> Grant:
    """Return what keeps a container within its parts: variables and mounts.

    Of GPUs with different enforcements the weakest one counts; a container that cannot have it has advisory limits.
    `parts` are by the GPU's number in the container, at least one.
    """
    enforcement = _weakest(parts, delivery)
    daemon = delivery.mps.get(parts[0].uuid)
    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    if enforcement is Enforcement.DRIVER:
        # The toolkit's hook sets the pair for each GPU of the container. It takes base-10 MiB without a suffix, and a
        # request up to the limit. The driver adds soft limits to the cgroups above and leaves them there.
        largest = max(parts, key=lambda part: part.mib)
        soft_mib = min(largest.mib, largest.limit_mib) if delivery.soft_is_share else 0
        envs = {variables.DRIVER_REQUEST: str(soft_mib), variables.DRIVER_LIMIT: str(largest.limit_mib)}
    elif enforcement is Enforcement.MPS and len(parts) == 1 and daemon is not None and daemon.pipe_directory:
        # A container has one directory of sockets, and there is a daemon for each GPU. An ordinal that the container
        # does not have would remove all of its limits.
        envs = {variables.MPS_PIPE_DIRECTORY: daemon.pipe_directory, variables.MPS_MEMORY: f"0={parts[0].limit_mib}M"}
        if delivery.mps_compute:
            percent = -(-100 * parts[0].mib // parts[0].whole_mib)
            envs = {**envs, variables.MPS_THREADS: str(min(max(percent, 1), 100))}
        mounts = (
            Mount(daemon.pipe_directory, daemon.pipe_directory, read_only=False),
            Mount(delivery.mps_shm, SHM, read_only=False),
        )
    elif enforcement is Enforcement.CUSTOM and delivery.extra is not None and not delivery.extra.unknown(owner):
        envs, mounts = delivery.extra.filled(parts, owner)
    elif enforcement is not Enforcement.PARTITION:
        enforcement = Enforcement.ADVISORY
    # Ours come last: no other variable says what was given.
    envs = {**framework_envs(owner.frameworks, enforcement, parts), **envs, variables.LIMITS: enforcement.value}
    return Grant(envs, mounts=mounts)


def _weakest(parts: Sequence[Part], delivery: Delivery) -> Enforcement:
    return min((delivery.of(part) for part in parts), key=lambda enforcement: enforcement.strength)


# --- Frameworks, which keep their own caches within a part ------------------------------------------------------------

VARIABLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # Older versions of PyTorch refuse an option that they do not know, so a pod has to ask for this.
        "pytorch": ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:"),
        # JAX refuses this one beside the XLA_PYTHON_CLIENT_MEM_FRACTION that it replaces.
        "jax": ("XLA_CLIENT_MEM_FRACTION", ""),
    }
)
"""By the name of the framework: the variable, and the beginning of its value; the end is a fraction of the memory that
the framework sees."""

_SEES_WHOLE = frozenset({Enforcement.MPS, Enforcement.ADVISORY})
"""Under these a framework sees the whole GPU. Under `DRIVER` it sees the limit as all the memory, of which a fraction
would be a fraction of the part. Under `CUSTOM` that is unknown: HAMi-core shows the limit."""

_STEPS = 10_000
"""A fraction has four digits."""


def read_frameworks(text: str) -> tuple[tuple[str, ...], str]:
    """Return the frameworks that a pod's annotation `FRAMEWORKS` names, and why the others are ignored, in a sentence.

    The sentence does not repeat the annotation, which anyone who creates a pod can write. It is empty if none is
    ignored.
    """
    words = [word.strip().lower() for word in text[: LONGEST[FRAMEWORKS]].split(",")]
    known = tuple(name for name in VARIABLES if name in words)
    ignored = too_long(FRAMEWORKS, text) or any(word and word not in VARIABLES for word in words)
    return known, (
        f"the annotation {FRAMEWORKS} names more than is known, which is ignored; known are {', '.join(VARIABLES)}"
        if ignored
        else ""
    )


def framework_envs(frameworks: Iterable[str], enforcement: Enforcement, parts: Sequence[Part]) -> Mapping[str, str]:
    """Return the variables of these frameworks, names in `VARIABLES`, for a container.

    A framework has one fraction for all GPUs, so it is that of the smallest limit. A variable in the container's own
    env takes its place: the kubelet puts it after ours (kubelet_pods.go).
    """
    if enforcement not in _SEES_WHOLE:
        return {}
    steps = min(part.limit_mib * _STEPS // max(part.visible_mib, 1) for part in parts)
    # Neither framework accepts zero.
    fraction = f"{min(max(steps, 1), _STEPS) / _STEPS:.4f}"
    return {name: f"{begin}{fraction}" for name, begin in (VARIABLES[framework] for framework in frameworks)}

"""Derive from a container's placement its variables, device nodes, mounts and CDI names: the answer to Allocate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.gpus import NVIDIA, Gpu
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares

ENVVAR, DEVICE_SPECS, CDI, CARD = "envvar", "device-specs", "cdi", "card"
DELIVERIES = (ENVVAR, DEVICE_SPECS, CDI, CARD)
"""How a container can get its GPUs. `CARD` adds a node for those of other drivers, and alone is as with `ENVVAR`."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device nodes without which CUDA does not start."""
DISPLAY = "/dev/dri/card"
"""The beginning of the device nodes that set up displays too. Programs that compute do without them."""
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host in a container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class GrantOwner:
    """The container of a grant, as far as a scheduler's promise or the Kubernetes API tells."""

    pod_uid: str = ""
    """Empty: unknown."""
    container: str = ""
    frameworks: tuple[str, ...] = ()
    """The frameworks of its programs, names in `model.contract.variables.OF_FRAMEWORKS`."""
    limit_shares: int | None = None
    """The most shares of its GPU that it may use; None: those that it was given."""

    @property
    def key(self) -> str:
        """The value of `variables.GRANTED_TO`; empty: unknown."""
        return self.pod_uid and f"{self.pod_uid}/{self.container}"


NOBODY = GrantOwner()
"""The owner of a grant about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How new containers of a node get their GPUs."""

    methods: frozenset[str] = frozenset({"envvar"})
    """Some of `DELIVERIES`."""
    cdi_kind: str = "nvidia.com/gpu"
    cgpu_disable: bool = False
    """The node's label turns cGPU's isolation off in every container."""

    @property
    def device_specs(self) -> bool:
        """Whether containers are given device nodes by their paths."""
        return DEVICE_SPECS in self.methods

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why these GPUs cannot be given in this way, as a sentence; empty if they can.

        A GPU of NVIDIA's may have no device node of its own, as on WSL2 and Tegra, whose toolkit gives other ones.
        """
        without = [gpu.uuid for gpu in gpus if gpu.driver == NVIDIA and not gpu.device_paths]
        if not (without and self.device_specs):
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


NOTHING = Grant()


def grant(
    placement: Placement,
    shares: Shares,
    delivery: Delivery,
    pod_shares: int | None = None,
    present: Collection[str] = OPTIONAL_NODES,
    *,
    owner: GrantOwner = NOBODY,
    added: Grant = NOTHING,
) -> Grant:
    """Return the answer for one container.

    The two resources never set the same variable to different values for one container, except
    ``NVIDIA_VISIBLE_DEVICES`` where a container asks for both, which admission policies have to prevent: the kubelet
    would pick either value at random.

    `pod_shares` are those of the whole pod if they are known; otherwise the container's own are told, as with gpushare.
    `present` are those of `OPTIONAL_NODES` that exist on this node: a container with a missing one would not start.
    `added` are the variables and mounts that features add; no variable of theirs says what was given.
    """
    gpus = [shares.gpus[position] for position in placement.positions]
    # NVIDIA's runtime, which may be the node's default, refuses UUIDs that it does not know.
    uuids = [shared.gpu.uuid for shared in gpus if shared.gpu.driver == NVIDIA]
    # CDI names alone are complete. CUDA images set this variable to `all`, which NVIDIA's runtime would obey as well.
    visible = "void" if delivery.methods - {CARD} == {CDI} else ",".join(uuids) or "void"
    envs = {**added.envs, variables.VISIBLE_DEVICES: visible}
    if placement.demand.kind is Kind.MEMORY:
        own = sum(count for _, count in placement.shares)
        # Both hold on each GPU of the container, so they are about the part on one GPU.
        largest = max(count for _, count in placement.shares)
        limit = largest if owner.limit_shares is None else owner.limit_shares
        envs |= {
            variables.MEMORY_LIMIT: str(limit * shares.share_mib),
            variables.MEMORY_GUARANTEED: str(largest * shares.share_mib),
            variables.IDX: ",".join(str(shared.position) for shared in gpus),
            variables.POD: str(own if pod_shares is None else pod_shares),
            variables.CONTAINER: str(own),
            variables.DEV: str(len(gpus[0].shares)),
        }
        if delivery.cgpu_disable:
            envs[variables.CGPU_DISABLE] = "true"
    nodes: list[str] = []
    if delivery.device_specs and uuids:
        nodes = [*CONTROL_NODES, *(node for node in OPTIONAL_NODES if node in present)]
    nodes += gpu_nodes((shared.gpu for shared in gpus), delivery)
    cdi = tuple(f"{delivery.cdi_kind}={uuid}" for uuid in uuids) if CDI in delivery.methods else ()
    return Grant(envs, tuple(nodes), cdi, added.mounts, owner.key)


def gpu_nodes(gpus: Iterable[Gpu], delivery: Delivery) -> list[str]:
    """Return the device nodes of GPUs: of a MIG instance that of its GPU, and those of its capabilities.

    NVIDIA's toolkit makes those of its GPUs, unless they are wanted by their paths.
    """
    paths: dict[str, None] = {}
    for gpu in gpus:
        if gpu.driver == NVIDIA and not delivery.device_specs:
            continue
        wanted = (path for path in gpu.device_paths if CARD in delivery.methods or not path.startswith(DISPLAY))
        paths.update(dict.fromkeys(wanted))
        caps = () if gpu.instance is None else gpu.instance.caps
        paths.update((f"/dev/nvidia-caps/nvidia-cap{number}", None) for number in caps)
    return list(paths)


def closed(mode: int) -> bool:
    """Return whether users other than root, outside of the group of a device node with this mode, may not use it."""
    return mode & 0o006 != 0o006

"""Derive from a container's placement its variables, device nodes and CDI names: the answer to Allocate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract import variables
from gpu_device_plugin.core.model.limits import Enforcement
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.limits.extra_grant import NOBODY, Part
from gpu_device_plugin.core.node.limits.limit_grants import ADVISORY, NO_PLAN, EnforcementPlan, limit_grant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpu_device_plugin.core.model.gpus import Gpu
    from gpu_device_plugin.core.model.placing import Placement
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.limits.extra_grant import GrantOwner, Mount

DELIVERIES = ("envvar", "device-specs", "cdi")
"""The ways in which a container can get its GPUs."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device nodes without which CUDA does not start."""
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The ways in which containers of this node get their GPUs."""

    ways: frozenset[str] = frozenset({"envvar"})
    cdi_kind: str = "nvidia.com/gpu"
    cgpu_disable: bool = False
    """The node's label turns cGPU's isolation off in every container."""
    plan: EnforcementPlan = NO_PLAN
    """What keeps containers within their parts."""

    @property
    def device_specs(self) -> bool:
        """Whether containers are given device nodes by their paths."""
        return "device-specs" in self.ways


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer for one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()
    """Paths that are the same on the host and in the container, with permissions ``rw``."""
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def enforcement(self) -> Enforcement | None:
        """The means of limiting that the variables name; None: the container has no limit."""
        enforcement = self.envs.get(variables.LIMITS)
        return Enforcement(enforcement) if enforcement else None


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

    Args:
        placement: the GPUs of the container.
        shares: the node's GPUs.
        delivery: the ways in which containers of this node get their GPUs.
        pod_shares: shares of the whole pod if they are known; otherwise the container's own, as with gpushare.
        present: those of `OPTIONAL_NODES` that exist on this node; a container with a missing one would not start.
        owner: the container, as far as it is known.
    """
    gpus = [shares.gpus[position] for position in placement.positions]
    uuids = [shared.gpu.uuid for shared in gpus]
    # CDI names alone are complete. CUDA images set this variable to `all`, which NVIDIA's runtime would obey as well.
    visible = ",".join(uuids) if delivery.ways & {"envvar", "device-specs"} else "void"
    envs = {variables.VISIBLE_DEVICES: visible}
    mounts: tuple[Mount, ...] = ()
    if placement.demand.kind is Kind.MEMORY:
        own = sum(count for _, count in placement.shares)
        # The limit holds on each GPU of the container, so it is the part on one GPU.
        limit = str(max(count for _, count in placement.shares) * shares.share_mib)
        plain = delivery.plan.advisory and not owner.frameworks and gpus[0].gpu.instance is None
        limited = ADVISORY if plain else limit_grant(parts(placement.shares, shares), delivery.plan, owner)
        mounts = limited.mounts
        envs = {
            **limited.envs,
            **envs,
            variables.MEMORY_LIMIT: limit,
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
    cdi = tuple(f"{delivery.cdi_kind}={uuid}" for uuid in uuids) if "cdi" in delivery.ways else ()
    return Grant(envs, tuple(nodes), cdi, mounts)


def _device_nodes(gpus: Iterable[Gpu]) -> list[str]:
    """Return the device nodes of GPUs: of a MIG instance that of its GPU, and those of its capabilities."""
    paths: dict[str, None] = {}
    for gpu in gpus:
        if gpu.minor is not None:
            paths[f"/dev/nvidia{gpu.minor}"] = None
        caps = () if gpu.instance is None else gpu.instance.caps
        paths.update((f"/dev/nvidia-caps/nvidia-cap{number}", None) for number in caps)
    return list(paths)


def parts(given: Iterable[tuple[int, int]], shares: Shares) -> tuple[Part, ...]:
    """Return the parts of a container by the GPU's number in the container; `given` are shares by position.

    CUDA numbers equal GPUs by their PCI addresses, as NVML's index does; positions may be in another order.
    """
    ordered = sorted(((shares.gpus[position], count) for position, count in given), key=lambda each: each[0].gpu.index)
    return tuple(
        Part(
            shared.gpu.uuid,
            count * shares.share_mib,
            shared.gpu.total_mib,
            shared.gpu.total_mib - shared.gpu.reserved_mib,
            partition=shared.gpu.instance is not None and count >= len(shared.shares),
        )
        for shared, count in ordered
    )

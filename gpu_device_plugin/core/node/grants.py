"""What a container receives for its placement: variables, device nodes, CDI names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract import variables
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.limiting import unlimited

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.core.model.placing import Placement
    from gpu_device_plugin.core.model.shares import Shares

WAYS = ("envvar", "device-specs", "cdi")
"""How a GPU can reach a container."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device nodes without which CUDA does not start."""
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Delivery:
    """How this node brings GPUs into containers."""

    ways: frozenset[str] = frozenset({"envvar"})
    cdi_kind: str = "nvidia.com/gpu"
    cgpu_disable: bool = False
    """The node label asks that cGPU's isolation be off in every container."""
    cgroup: int | None = None
    """The version of control groups on the node; None: it is not known."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer for one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()
    """Paths that are the same on the host and in the container, with permissions ``rw``."""
    cdi_devices: tuple[str, ...] = ()


def grant(
    placement: Placement,
    shares: Shares,
    delivery: Delivery,
    pod_shares: int | None = None,
    present: Collection[str] = OPTIONAL_NODES,
) -> Grant:
    """Return what a container receives.

    The two resources never set the same variable to different values for one container, except
    ``NVIDIA_VISIBLE_DEVICES`` where a container asks for both, which admission policies have to prevent: the kubelet
    would pick either value at random.

    Args:
        placement: where the container was placed.
        shares: the node's GPUs.
        delivery: how GPUs reach containers here.
        pod_shares: shares of the whole pod if that is known; the container's own otherwise, as gpushare does it.
        present: those of `OPTIONAL_NODES` that are on this node; a container with others would not start.
    """
    gpus = [shares.gpus[position] for position in placement.positions]
    uuids = [shared.gpu.uuid for shared in gpus]
    # CDI names alone say it all. Images of CUDA carry `all`, which NVIDIA's runtime would honour besides.
    visible = ",".join(uuids) if delivery.ways & {"envvar", "device-specs"} else "void"
    envs = {variables.VISIBLE_DEVICES: visible}
    if placement.demand.kind is Kind.MEMORY:
        own = sum(count for _, count in placement.shares)
        # With several GPUs the limit of the driver holds for each of them, so it is one GPU's part.
        limit = str(max(count for _, count in placement.shares) * shares.share_mib)
        envs |= {
            variables.MEMORY_LIMIT: limit,
            variables.IDX: ",".join(str(shared.position) for shared in gpus),
            variables.POD: str(own if pod_shares is None else pod_shares),
            variables.CONTAINER: str(own),
            variables.DEV: str(len(gpus[0].shares)),
        }
        if not any(unlimited(shared.gpu, delivery.cgroup) for shared in gpus):
            envs |= {variables.DRIVER_REQUEST: limit, variables.DRIVER_LIMIT: limit}
        if delivery.cgpu_disable:
            envs[variables.CGPU_DISABLE] = "true"
    nodes: list[str] = []
    if "device-specs" in delivery.ways:
        nodes = [*CONTROL_NODES, *(node for node in OPTIONAL_NODES if node in present)]
        nodes += [f"/dev/nvidia{shared.gpu.minor}" for shared in gpus if shared.gpu.minor is not None]
    cdi = tuple(f"{delivery.cdi_kind}={uuid}" for uuid in uuids) if "cdi" in delivery.ways else ()
    return Grant(envs, tuple(nodes), cdi)

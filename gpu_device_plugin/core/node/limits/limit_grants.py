"""Derive from the enforcements of a container's GPUs the variables and mounts that keep it within its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract import variables
from gpu_device_plugin.core.contract.keys import FRAMEWORKS, LONGEST, too_long
from gpu_device_plugin.core.model.limits import Enforcement
from gpu_device_plugin.core.node.limits.extra_grant import NOBODY, Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.contract.mpsfiles import MpsGpu
    from gpu_device_plugin.core.model.limits import GpuEnforcement
    from gpu_device_plugin.core.node.limits.extra_grant import ExtraGrant, GrantOwner, Part

SHM = "/dev/shm"  # noqa: S108 - a mount point in the container, not a file of ours
"""Client and server of MPS share memory there."""


@dataclass(frozen=True, slots=True)
class EnforcementPlan:
    """The means by which new containers of a node are kept within their parts."""

    enforcements: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """By UUID; a GPU that is not among them has advisory limits."""
    mps: Mapping[str, MpsGpu] = field(default_factory=dict)
    """The MPS daemons of GPUs, by UUID."""
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

    # Computed once, and not in every call of the kubelet.
    barred: frozenset[str] = field(init=False)
    """The UUIDs of GPUs whose shares every container is refused."""
    may_refuse: bool = field(init=False)
    """Whether there may be a container to refuse."""
    advisory: bool = field(init=False)
    """Whether the limits on all GPUs are advisory."""

    def __post_init__(self) -> None:
        barred = frozenset(uuid for uuid, gpu in self.enforcements.items() if gpu.refusal)
        object.__setattr__(self, "barred", barred)
        object.__setattr__(self, "may_refuse", bool(barred) or (self.refuse and self.extra is not None))
        object.__setattr__(
            self, "advisory", all(gpu.enforcement is Enforcement.ADVISORY for gpu in self.enforcements.values())
        )


NO_PLAN = EnforcementPlan()
"""Of a node all of whose limits are advisory."""


@dataclass(frozen=True, slots=True)
class LimitGrant:
    """What the limit of one container adds to its grant."""

    enforcement: Enforcement
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


ADVISORY = LimitGrant(Enforcement.ADVISORY, {variables.LIMITS: Enforcement.ADVISORY.value})
"""Of a container that only its variables keep within its parts."""


PARTITION = LimitGrant(Enforcement.PARTITION, {variables.LIMITS: Enforcement.PARTITION.value})
"""Of a container with a whole MIG instance."""


def refusal(parts: Sequence[Part], plan: EnforcementPlan, owner: GrantOwner = NOBODY) -> str:
    """Return why a container is refused its parts although they are free, in a sentence; empty: it is not refused."""
    if _partition(parts):
        return ""
    found = (plan.enforcements[part.uuid].refusal for part in parts if part.uuid in plan.enforcements)
    if why := next(filter(None, found), ""):
        return why
    if plan.refuse and plan.extra is not None and _weakest(parts, plan) is Enforcement.CUSTOM:
        unknown = " and ".join(f"{{{name}}}" for name in plan.extra.unknown(owner))
        return unknown and (
            f"the node's extra_grant needs {unknown}, and the pod of this container is not known: the node's agent has "
            "no access to the Kubernetes API, or has not seen the pod there; delete the pod to try again"
        )
    return ""


def limit_grant(parts: Sequence[Part], plan: EnforcementPlan, owner: GrantOwner = NOBODY) -> LimitGrant:
    """Return what keeps a container within its parts; of GPUs with different means the weakest one counts.

    Args:
        parts: by the GPU's number in the container; not empty.
        plan: how the node enforces limits.
        owner: the container.
    """
    made = PARTITION if _partition(parts) else _grant(_weakest(parts, plan), parts, plan, owner)
    made = made or LimitGrant(Enforcement.ADVISORY)
    # Ours come last: no other variable says what was given.
    envs = {
        **framework_envs(owner.frameworks, made.enforcement, parts),
        **made.envs,
        variables.LIMITS: made.enforcement.value,
    }
    return LimitGrant(made.enforcement, envs, made.mounts)


def _partition(parts: Sequence[Part]) -> bool:
    """Return whether a container has whole MIG instances."""
    return bool(parts) and all(part.partition for part in parts)


def _weakest(parts: Sequence[Part], plan: EnforcementPlan) -> Enforcement:
    enforcements = [
        plan.enforcements[part.uuid].enforcement if part.uuid in plan.enforcements else Enforcement.ADVISORY
        for part in parts
    ]
    return min(enforcements, key=lambda enforcement: enforcement.strength)


def _grant(
    enforcement: Enforcement, parts: Sequence[Part], plan: EnforcementPlan, owner: GrantOwner
) -> LimitGrant | None:
    """Return what an enforcement adds; None if this container cannot have that."""
    if enforcement is Enforcement.DRIVER:
        # The toolkit's hook sets the pair for each GPU of the container. It takes base-10 MiB without a suffix, and a
        # request up to the limit. The driver adds soft limits to the cgroups above and leaves them there.
        limit = str(max(part.mib for part in parts))
        request = limit if plan.soft_is_share else "0"
        return LimitGrant(enforcement, {variables.DRIVER_REQUEST: request, variables.DRIVER_LIMIT: limit})
    if enforcement is Enforcement.MPS:
        daemon = plan.mps.get(parts[0].uuid)
        # A container has one directory of sockets, and there is a daemon for each GPU. An ordinal that the container
        # does not have would remove all of its limits.
        return None if len(parts) > 1 or daemon is None or not daemon.pipe_directory else _mps(parts[0], daemon, plan)
    if enforcement is Enforcement.CUSTOM and plan.extra is not None and not plan.extra.unknown(owner):
        envs, mounts = plan.extra.filled(parts, owner)
        return LimitGrant(enforcement, envs, mounts)
    return None


def _mps(part: Part, daemon: MpsGpu, plan: EnforcementPlan) -> LimitGrant:
    envs = {variables.MPS_PIPE_DIRECTORY: daemon.pipe_directory, variables.MPS_MEMORY: f"0={part.mib}M"}
    if plan.mps_compute:
        envs[variables.MPS_THREADS] = str(min(max(-(-100 * part.mib // part.whole_mib), 1), 100))
    return LimitGrant(
        Enforcement.MPS,
        envs,
        (
            Mount(daemon.pipe_directory, daemon.pipe_directory, read_only=False),
            Mount(plan.mps_shm, SHM, read_only=False),
        ),
    )


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
    """Return the variables of these frameworks for a container.

    A variable in the container's own env takes their place: the kubelet puts it after ours (kubelet_pods.go).

    Args:
        frameworks: names in `VARIABLES`.
        enforcement: the means by which the container is limited.
        parts: its part on each GPU. A framework has one fraction for all GPUs, so it is that of the smallest.
    """
    if enforcement not in _SEES_WHOLE:
        return {}
    steps = min(part.mib * _STEPS // max(part.visible_mib, 1) for part in parts)
    # Neither framework accepts zero.
    fraction = f"{min(max(steps, 1), _STEPS) / _STEPS:.4f}"
    return {name: f"{begin}{fraction}" for name, begin in (VARIABLES[framework] for framework in frameworks)}

"""Derive what keeps a container within its parts of GPUs, variables and mounts, or why it is refused them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.features.limits.rules.extra_grant import Part
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.contract.variables import OF_FRAMEWORKS
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import NOBODY, NOTHING, Grant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gpu_device_plugin.features.limits.rules.extra_grant import ExtraGrant
    from gpu_device_plugin.model.limits import GpuEnforcement
    from gpu_device_plugin.model.placing import Placement
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.rules.container_grants import GrantOwner, Mount
    from gpu_device_plugin.node.rules.node import Node


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """How new containers of a node are kept within their parts."""

    enforcements: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """By UUID; a GPU that is not among them has advisory limits."""
    soft_is_share: bool = False
    """The driver's soft limit is the container's part; otherwise zero."""
    extra: ExtraGrant | None = None
    """What the setting `extra_grant` adds under `CUSTOM`."""
    refuse: bool = False
    """A container to which the enforcement of its GPUs cannot apply is refused; otherwise its limits are advisory."""
    others: Mapping[Enforcement, Callable[[Sequence[Part]], Grant | None]] = field(default_factory=dict)
    """What the means of other features add for a container with these parts; None: they cannot limit it."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why every container is refused shares, by the UUIDs of the GPUs."""
        return {uuid: gpu.refusal for uuid, gpu in self.enforcements.items() if gpu.refusal}

    @property
    def names_pods(self) -> bool:
        """Whether what it adds for one container is wrong for any other."""
        custom = any(gpu.enforcement is Enforcement.CUSTOM for gpu in self.enforcements.values())
        return custom and self.extra is not None and bool(self.extra.of_the_pod)


def weakest(parts: Iterable[Part], enforcements: Mapping[str, GpuEnforcement]) -> Enforcement:
    """Return the weakest of what keeps a container within its parts, at least one; `enforcements` are by UUID."""
    return min((_of(part, enforcements) for part in parts), key=lambda enforcement: enforcement.strength)


def _of(part: Part, enforcements: Mapping[str, GpuEnforcement]) -> Enforcement:
    if part.partition:
        return Enforcement.PARTITION
    return enforcements[part.uuid].enforcement if part.uuid in enforcements else Enforcement.ADVISORY


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


def refuse_unlimited(
    node: Node, kind: Kind, device_ids: Collection[str], plan: LimitPlan, owner: GrantOwner
) -> Refusal | None:
    """Refuse a container whose memory cannot be limited although the administrator requires it.

    Whole GPUs have no limits. `owner` is the container, as far as it is known.
    """
    if not (plan.refuse or plan.refusals):  # as on most nodes, whose answers need not wait for what follows
        return None
    given = sorted(node.shares.spread(device_ids).items()) if kind is Kind.MEMORY else []
    if not given or not (why := refusal(parts(given, node.shares), plan, owner)):
        return None
    gpus = [node.shares.gpus[position] for position, _ in given]
    refusing = [shared for shared in gpus if shared.gpu.uuid in plan.refusals]
    return Refusal(RefusalCode.NO_LIMIT, f"{', '.join(shared.name for shared in refusing or gpus)}: {why}")


def refusal(parts: Sequence[Part], plan: LimitPlan, owner: GrantOwner = NOBODY) -> str:
    """Return why a container is refused its parts although they are free, in a sentence; empty: it is not refused."""
    enforcement = weakest(parts, plan.enforcements)
    if enforcement is Enforcement.PARTITION:
        return ""
    refusals = (plan.enforcements[part.uuid].refusal for part in parts if part.uuid in plan.enforcements)
    if why := next(filter(None, refusals), ""):
        return why
    if plan.refuse and plan.extra is not None and enforcement is Enforcement.CUSTOM:
        unknown = " and ".join(f"{{{name}}}" for name in plan.extra.unknown(owner))
        return unknown and (
            f"the node's extra_grant needs {unknown}, and the pod of this container is not known: the node's agent has "
            "no access to the Kubernetes API, or has not seen the pod there; delete the pod to try again"
        )
    return ""


def limit_grant(parts: Sequence[Part], plan: LimitPlan, owner: GrantOwner = NOBODY) -> Grant:
    """Return what keeps a container within its parts: variables and mounts.

    Of GPUs with different enforcements the weakest one counts; a container that cannot have it has advisory limits.
    `parts` are by the GPU's number in the container, at least one.
    """
    enforcement = weakest(parts, plan.enforcements)
    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    if enforcement is Enforcement.DRIVER:
        # The toolkit's hook sets the pair for each GPU of the container. It takes base-10 MiB without a suffix, and a
        # request up to the limit. The driver adds soft limits to the cgroups above and leaves them there.
        largest = max(parts, key=lambda part: part.mib)
        soft_mib = min(largest.mib, largest.limit_mib) if plan.soft_is_share else 0
        envs = {variables.DRIVER_REQUEST: str(soft_mib), variables.DRIVER_LIMIT: str(largest.limit_mib)}
    elif enforcement is Enforcement.CUSTOM and plan.extra is not None and not plan.extra.unknown(owner):
        envs, mounts = plan.extra.filled(parts, owner)
    elif enforcement in plan.others and (made := plan.others[enforcement](parts)) is not None:
        envs, mounts = made.envs, made.mounts
    elif enforcement is not Enforcement.PARTITION:
        enforcement = Enforcement.ADVISORY
    # Ours come last: no other variable says what was given.
    envs = {**framework_envs(owner.frameworks, enforcement, parts), **envs, variables.LIMITS: enforcement.value}
    return Grant(envs, mounts=mounts)


def added_for_limits(placement: Placement, shares: Shares, plan: LimitPlan, owner: GrantOwner = NOBODY) -> Grant:
    """Return what a container with this placement gets for its limits; whole GPUs have none."""
    if placement.demand.kind is Kind.MEMORY:
        return limit_grant(parts(placement.shares, shares, owner.limit_shares), plan, owner)
    return Grant({variables.LIMITS: Enforcement.PARTITION.value}) if placement.demand.kind is Kind.INSTANCE else NOTHING


# --- Frameworks, which keep their own caches within a part ------------------------------------------------------------

_SEES_WHOLE = frozenset({Enforcement.MPS, Enforcement.ADVISORY})
"""Under these a framework sees the whole GPU. Under `DRIVER` it sees the limit as all the memory, of which a fraction
would be a fraction of the part. Under `CUSTOM` that is unknown: HAMi-core shows the limit."""

_STEPS = 10_000
"""A fraction has four digits."""


def framework_envs(frameworks: Iterable[str], enforcement: Enforcement, parts: Sequence[Part]) -> Mapping[str, str]:
    """Return the variables of these frameworks, names in `OF_FRAMEWORKS`, for a container.

    A framework has one fraction for all GPUs, so it is that of the smallest limit. A variable in the container's own
    env takes its place: the kubelet puts it after ours (kubelet_pods.go).
    """
    if enforcement not in _SEES_WHOLE:
        return {}
    steps = min(part.limit_mib * _STEPS // max(part.visible_mib, 1) for part in parts)
    # Neither framework accepts zero.
    fraction = f"{min(max(steps, 1), _STEPS) / _STEPS:.4f}"
    return {name: f"{begin}{fraction}" for name, begin in (OF_FRAMEWORKS[framework] for framework in frameworks)}

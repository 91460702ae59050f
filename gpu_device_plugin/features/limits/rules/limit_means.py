"""Choose the means of limiting on a node's GPUs from its settings and labels, and from what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin.features.limits.rules.enforcement import Abilities, enforcements, wanted_enforcement
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan
from gpu_device_plugin.model.limits import LimitMeans
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpu_device_plugin.features.limits.rules.enforcement import WantedEnforcement
    from gpu_device_plugin.features.limits.rules.extra_grant import ExtraGrant, Part
    from gpu_device_plugin.model.gpus import Gpu
    from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.rules.container_grants import Grant


class OtherMeans(Protocol):
    """A means of limiting that is a feature of its own."""

    @property
    def enforcement(self) -> Enforcement:
        """Its name."""

    def lack(self, gpu: Gpu) -> str:
        """Return what it lacks on a GPU, as a clause; empty: it is there."""

    def grant(self, parts: Sequence[Part]) -> Grant | None:
        """Return what holds a container to its limits with it; None: it cannot limit a container with these parts."""

    def chosen(
        self,
        want: WantedEnforcement,
        gpus: Collection[Gpu],
        enforcements: Mapping[str, GpuEnforcement],
        *,
        refuse: bool,
    ) -> Mapping[str, str]:
        """Take note of the choice for these GPUs, by UUID; return which of them take no shares for its sake, and why.

        With `refuse` containers are refused where it is wanted and not there.
        """


def derive_means(
    shares: Shares,
    cgroup: int | None,
    labels: Mapping[str, str],
    others: Collection[OtherMeans] = (),
    *,
    limits: str,
    refuse: bool,
    compute: bool = False,
    soft_is_share: bool = False,
    extra: ExtraGrant | None = None,
) -> tuple[LimitPlan, LimitMeans]:
    """Return how new containers are kept within their parts, and what the node tells of that.

    `cgroup` is the node's cgroup version, `labels` are its own; `others` are the means beside those that need no more
    than driver and settings. The rest are settings: `limits`, whether `limits_fallback` is to refuse, whether
    `mps_compute` limits the multiprocessors, whether `soft_limit` is the share, and the content of `extra_grant`.
    """
    listed = {shared.position: shared for shared in shares.gpus if shared.listed and not shared.gone}
    whole = {at for at, shared in listed.items() if any(kind is Kind.INSTANCE for kind, _ in shared.offered)}
    gpus = {at: shared.gpu for at, shared in listed.items()}
    want = wanted_enforcement(limits, labels, compute=compute)
    abilities = Abilities(cgroup, extra is not None, {other.enforcement: other.lack for other in others})
    chosen, missing = enforcements(gpus, abilities, want, refuse=refuse, partitions=whole)
    plan = LimitPlan(
        {gpu.uuid: chosen[at] for at, gpu in gpus.items()},
        soft_is_share,
        extra,
        refuse and want.required,
        {other.enforcement: other.grant for other in others},
    )
    closed: dict[str, str] = {}
    for other in others:
        closed.update(other.chosen(want, gpus.values(), plan.enforcements, refuse=plan.refuse))
    return plan, LimitMeans(plan.enforcements, {**closed, **plan.refusals}, missing, plan.names_pods)

"""Choose how the memory limits of new containers are enforced on each GPU of a node, and say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from gpu_device_plugin.features.limits.rules.limit_grants import ExtraGrant, LimitPlan, Part
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, SCHEDULE_LABEL, SET_LIMITS_LABEL
from gpu_device_plugin.model.gpus import NVIDIA, Gpu
from gpu_device_plugin.model.limits import AUTO, LIMITS, Enforcement, GpuEnforcement, LimitMeans, numbered
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.container_grants import Grant

if TYPE_CHECKING:
    from gpu_device_plugin.model.nodes import NodeRecord


Lacks: TypeAlias = "Mapping[Enforcement, Callable[[Gpu], str]]"
"""What each means that an agent has lacks on a GPU, as a clause; empty: it is there."""
_REGIONS_SINCE: Mapping[str, str] = {"amdgpu": "6.16", "xe": "6.14"}
"""The first Linux whose driver tells the controller the memory of its GPUs."""
_PARTITION = re.compile(r"-p[0-9]+\Z")
NO_DIRECTORY = (
    "the setting memory_dir names no directory in which the agent meets the limit helper, which sets limits by dmem"
)
REFUSE = "refuse"
"""A value of the setting `limits_fallback`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node tells of limits by dmem, as clauses."""

    kernel: str = ""
    """Why the agent sees no memory of any GPU that the kernel counts; empty: it may see some."""
    helper: str = NO_DIRECTORY
    """Why the limit helper sets no limits; empty: it does."""


@dataclass(frozen=True, slots=True)
class WantedEnforcement:
    """The means that the administrator wants, by settings and node labels."""

    enforcements: tuple[Enforcement, ...]
    """The first of these that is there is used; none: the driver's or the kernel's limits where they are, else none."""
    source: str
    """The setting or label that says so, for a person."""
    compute: bool = False
    """Under MPS the multiprocessors are limited too."""
    required: bool = True
    """Containers may be refused where it is not there. ACK's label requires nothing: a node may carry it from a time
    when it was another product's, and its pods would all fail."""


_SCHEDULES: Mapping[str, tuple[tuple[Enforcement, ...], bool]] = MappingProxyType(
    {
        "cgpu": ((Enforcement.DRIVER, Enforcement.DMEM, Enforcement.MPS), False),
        "core_mem": ((Enforcement.MPS,), True),
        "mps": ((Enforcement.MPS,), False),
        "share": ((Enforcement.ADVISORY,), False),
    }
)
"""The meaning of ACK's label for limits: the wanted means, and whether multiprocessors are limited too. Its other
values (`default`, `topology`) say nothing of limits."""

_REASONS: Mapping[Enforcement, str] = MappingProxyType(
    {
        Enforcement.PARTITION: "MIG instances are allocated whole here, and the hardware keeps their memory apart",
        Enforcement.DRIVER: "the driver limits the memory of cgroups where nvidia-container-toolkit from 1.20.1 on "
        "asks it to",
        Enforcement.DMEM: "the limit helper has the kernel limit the memory of cgroups, by the controller dmem",
        Enforcement.MPS: "the server of MPS limits each process",
        Enforcement.CUSTOM: "the setting extra_grant adds a library, which nothing proves to hold",
        Enforcement.ADVISORY: "only the container's variables name the limit",
    }
)


def wanted_enforcement(limits: str, labels: Mapping[str, str]) -> WantedEnforcement:
    """Return the wanted enforcements of a node with the setting `limits` and these labels.

    `SET_LIMITS_LABEL` takes precedence over `SCHEDULE_LABEL`, and that over the setting.
    """
    own, schedule = labels.get(SET_LIMITS_LABEL, ""), labels.get(SCHEDULE_LABEL, "")
    if own in LIMITS:
        return WantedEnforcement(_enforcements(own), f"the node label {SET_LIMITS_LABEL}={own}")
    if schedule in _SCHEDULES:
        enforcements, compute = _SCHEDULES[schedule]
        source = f"the node label {SCHEDULE_LABEL}={schedule}"
        return WantedEnforcement(enforcements, source, compute, required=False)
    return WantedEnforcement(_enforcements(limits), f"the setting limits={limits}")


def _enforcements(limits: str) -> tuple[Enforcement, ...]:
    return () if limits == AUTO else (Enforcement(limits),)


def asked_enforcement(labels: Mapping[str, str], setting: str) -> Enforcement | None:
    """Return the weakest means that a node's labels, or else the setting `limits`, accept; None: any."""
    accepted = wanted_enforcement(setting if setting in set(Enforcement) else AUTO, labels).enforcements
    return accepted[-1] if accepted else None


def asked_of(node: NodeRecord, by_profile: Mapping[str, str]) -> Enforcement | None:
    """Return the same for a node of the cluster, given the setting `limits` by settings profile."""
    profile = node.labels.get(CONFIG_LABEL, "")
    return asked_enforcement(node.labels, by_profile.get(profile, by_profile.get(DEFAULT_PROFILE, "")))


def enforcements(
    gpus: Mapping[int, Gpu],
    lacks: Lacks,
    want: WantedEnforcement,
    *,
    refuse: bool,
    partitions: Collection[int] = (),
) -> tuple[Mapping[int, GpuEnforcement], str]:
    """Return the enforcement of each of these GPUs and MIG instances, by position, and which wanted ones are not there.

    That is a sentence for an Event, with what comes of it; empty: all are there.

    With `refuse`, containers are refused shares where no required enforcement is there; otherwise their limits are
    advisory. `partitions` are the MIG instances among the GPUs that are given whole. An agent does not have a means
    that is not in `lacks`.
    """
    refuse = refuse and want.required
    chosen: dict[int, GpuEnforcement] = {}
    missing: dict[str, list[int]] = {}
    for position, gpu in gpus.items():
        if position in partitions:
            chosen[position] = GpuEnforcement(Enforcement.PARTITION, _REASONS[Enforcement.PARTITION])
            continue
        wishes = _suited(want.enforcements or (Enforcement.DRIVER, Enforcement.DMEM), gpu)
        lacking = {wish: lacks[wish](gpu) if wish in lacks else f"this agent has no {wish}" for wish in wishes}
        available = next((enforcement for enforcement, lack in lacking.items() if not lack), None)
        if available is not None:
            asked = f"{want.source} asks for it, and " if want.enforcements else ""
            chosen[position] = GpuEnforcement(available, asked + _REASONS[available])
        elif not want.enforcements:
            chosen[position] = GpuEnforcement(Enforcement.ADVISORY, lacking[wishes[0]])
        else:
            why = f"{want.source} asks for {' or '.join(lacking)}: " + ", and ".join(lacking.values())
            refusal = f"enforced memory limits are required here and not available: {why}" if refuse else ""
            chosen[position] = GpuEnforcement(Enforcement.ADVISORY, why, refusal)
            missing.setdefault(why, []).append(position)
    effect = "containers are refused shares (limits_fallback: refuse)" if refuse else "the limits are advisory there"
    where = "; ".join(f"GPU {numbered(positions)}: {why}" for why, positions in missing.items())
    return chosen, where and f"{where}; {effect}"


def _suited(wishes: tuple[Enforcement, ...], gpu: Gpu) -> tuple[Enforcement, ...]:
    """Return those of several means that there are for GPUs of this driver; all, if there is none."""
    foreign = {Enforcement.DMEM} if gpu.driver == NVIDIA else {Enforcement.DRIVER, Enforcement.MPS}
    return tuple(wish for wish in wishes if wish not in foreign) or wishes


def lacks(cgroup: int | None = None, *, extra_grant: bool = False, dmem: Facts | None = None) -> Lacks:
    """Return what the means lack that need no feature of their own.

    `cgroup` is the node's cgroup version, None: unknown. With `extra_grant` that setting names a file. `dmem` is what
    the node tells of the kernel's limits.
    """
    # A change of the setting waits for a restart, and one of `limits` does not.
    no_file = "the agent read no file of the setting extra_grant when it started: name one, and restart the agent"
    return {
        Enforcement.DRIVER: partial(_lack_of_driver, cgroup),
        Enforcement.DMEM: partial(lack_of_dmem, cgroup, dmem or Facts()),
        Enforcement.CUSTOM: lambda _: "" if extra_grant else no_file,
        Enforcement.ADVISORY: lambda _: "",
    }


def _lack_of_driver(cgroup: int | None, gpu: Gpu) -> str:
    version = "unknown" if cgroup is None else cgroup
    of_one = "the driver's limits are not for MIG instances; a container that asks for all of one has it to itself"
    # If one of these is missing, the hook of nvidia-container-toolkit after 1.20.0 fails, and the container with it.
    lacking = {
        "the driver's limits are for GPUs of NVIDIA": gpu.driver != NVIDIA,
        "the GPU is in MIG mode": gpu.mig,
        of_one: gpu.instance is not None,
        "the driver has no memory limits, which come with r615": not gpu.memory_limits,
        f"the node's cgroup version is {version}, and must be 2 for the driver's limits": cgroup != 2,
    }
    return next((why for why, lacks in lacking.items() if lacks), "")


def lack_of_dmem(cgroup: int | None, facts: Facts, gpu: Gpu) -> str:
    """Return why dmem cannot limit the memory of a GPU, as a clause; empty: it can. `cgroup` is as for `lacks`."""
    if gpu.driver == NVIDIA:
        return "dmem is for GPUs of other drivers than NVIDIA's"
    if _PARTITION.search(gpu.uuid):
        return "dmem counts the memory of a board, and this is a partition of one"
    if cgroup != 2:
        return f"the node's cgroup version is {'unknown' if cgroup is None else cgroup}, and must be 2 for dmem"
    if not gpu.memory_limits:
        since = _REGIONS_SINCE.get(gpu.driver, "a later version")
        return facts.kernel or (
            f"the kernel does not count the memory of this GPU: dmem.capacity has no region of it, as {gpu.driver} has "
            f"from Linux {since} on"
        )
    return facts.helper


@runtime_checkable
class OtherMeans(Protocol):
    """A means of limiting that is a feature of its own, made before this one; a grant may name it beforehand."""

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
    soft_is_share: bool = False,
    extra: ExtraGrant | None = None,
    dmem: Facts | None = None,
) -> tuple[LimitPlan, LimitMeans]:
    """Return how new containers are kept within their parts, and what the node tells of that.

    `cgroup` is the node's cgroup version, `labels` are its own; `others` are the means beside those that need no more
    than driver and settings. The rest are settings: `limits`, whether `limits_fallback` is to refuse, whether
    `soft_limit` is the share, and the content of `extra_grant`; `dmem` is as for `lacks`.
    """
    listed = {shared.position: shared for shared in shares.gpus if shared.listed and not shared.gone}
    whole = {at for at, shared in listed.items() if any(kind is Kind.INSTANCE for kind, _ in shared.offered)}
    gpus = {at: shared.gpu for at, shared in listed.items()}
    want = wanted_enforcement(limits, labels)
    means = {
        **lacks(cgroup, extra_grant=extra is not None, dmem=dmem),
        **{other.enforcement: other.lack for other in others},
    }
    chosen, missing = enforcements(gpus, means, want, refuse=refuse, partitions=whole)
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

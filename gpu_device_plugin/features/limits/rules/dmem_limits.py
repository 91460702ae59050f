"""Decide which limits by the kernel's controller dmem are wanted, and whether they hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from gpu_device_plugin.features.limits.contract import LimitKey, LimitOutcome, LimitsState, MemoryLimit
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import parse_id

NOT_THERE = (
    "the limit helper, which sets limits by dmem, does not run on this node: install it with make deploy OVERLAY=amd "
    "WITH=limits, or OVERLAY=mixed-limits beside NVIDIA nodes"
)
NOT_YET = "the limit helper has not set it yet"
_NONE: Mapping[LimitKey, MemoryLimit] = MappingProxyType({})
ESCAPED_MIB = 64
"""More than the processes and the cgroup differ by because they are not read at the same moment."""


def by_kernel(holder: ContainerGpus) -> bool:
    """Whether the kernel was to limit the memory of a container by dmem."""
    return holder.enforcement is Enforcement.DMEM and not holder.whole


# --- What the helper is to set ----------------------------------------------------------------------------------------


def wanted_of_kernel(
    allocations: Iterable[Allocation],
    holders: Iterable[ContainerGpus],
    allowed_now: Mapping[Place, int],
    share_mib: int,
    ended: Collection[str] = frozenset(),
    *,
    before: Mapping[LimitKey, MemoryLimit] = _NONE,
) -> Mapping[Place, tuple[LimitKey, MemoryLimit]]:
    """Return the limits of all containers that the kernel is to limit, and of their pods, under an empty container.

    Nobody else sets them. The limit of a pod is there before its containers are, whose own follows as soon as one
    runs. It is the memory of all devices of the pod, with what its containers may use beyond them: those of an init
    container, which a later one has too, count once, and those of containers that were not limited count, too.

    Args:
        allocations: what the containers of this node hold, also those that do not run yet.
        holders: the same containers, with what they are guaranteed and may use.
        allowed_now: MiB for those whose limit may be another than when they started.
        share_mib: MiB of a share.
        ended: UIDs of pods that have ended.
        before: what was wanted last. As long as the API has not told what a pod may use, that is not lowered.
    """
    own: Counter[Place] = Counter()
    of_pods: dict[tuple[str, str], set[str]] = defaultdict(set)
    limited: set[tuple[str, str]] = set()
    for each in allocations:
        if each.kind is Kind.MEMORY and each.pod_uid not in {"", *ended}:
            for name in each.device_ids:
                uuid, _ = parse_id(name)
                own[each.pod_uid, each.container, uuid] += share_mib
                of_pods[each.pod_uid, uuid].add(name)
                if each.enforcement is Enforcement.DMEM:
                    limited.add((each.pod_uid, uuid))
    found: dict[Place, tuple[LimitKey, MemoryLimit]] = {}
    beyond: Counter[tuple[str, str]] = Counter()
    unknown: set[str] = set()
    for holder in holders:
        if holder.pod is None:
            unknown.add(holder.pod_uid)
        for uuid, granted_mib in holder.granted.items() if not holder.whole else ():
            place = (holder.pod_uid, holder.container, uuid)
            hard_mib = allowed_mib(holder, uuid, allowed_now.get(place))
            beyond[holder.pod_uid, uuid] += max(0, hard_mib - own.get(place, granted_mib))
            if by_kernel(holder) and holder.container_id:
                found[place] = LimitKey(holder.pod_uid, holder.container_id, uuid), MemoryLimit(hard_mib)
    for uid, uuid in limited:
        key, mib = LimitKey(uid, "", uuid), len(of_pods[uid, uuid]) * share_mib + beyond[uid, uuid]
        least_mib = before[key].hard_mib if uid in unknown and key in before else 0
        found[uid, "", uuid] = key, MemoryLimit(max(mib, least_mib))
    return {place: (key, limit) for place, (key, limit) in found.items() if key.plausible}


def allowed_mib(holder: ContainerGpus, uuid: str, now_mib: int | None) -> int:
    """Return the limit that a container is to have on a GPU; `now_mib` is what it may use now, None: its limit."""
    return max(1, holder.limit_mib(uuid) if now_mib is None else now_mib)


def pending(state: LimitsState | str, key: LimitKey, limit: MemoryLimit) -> str:
    """Return why a limit is not set, as a clause; empty: it is. `state` is the helper's, or why it has none."""
    if isinstance(state, str):
        return state
    outcome = state.outcomes.get(key)
    return NOT_YET if outcome is None or outcome.limit != limit else outcome.why


def unlimited(
    pods: Iterable[str],
    wanted: Mapping[Place, tuple[LimitKey, MemoryLimit]],
    last: Mapping[LimitKey, LimitOutcome],
) -> tuple[str, ...]:
    """Return why pods (UIDs) do not have their limits yet, a clause for each; none: they have.

    `last` is what the helper said last: the limit of a pod stays when the helper has gone.
    """
    found = []
    for uid in pods:
        limits = [(key, limit) for key, limit in wanted.values() if key.pod_uid == uid and not key.container_id]
        found += [pending(LimitsState(last), key, limit) for key, limit in limits] or [NOT_YET]
    return tuple(filter(None, found))


# --- Whether a limit holds --------------------------------------------------------------------------------------------

_MISSING = (
    "the kernel has no limit for this container's cgroup: the limit helper sets it again in some seconds, if it runs"
)
_UNREADABLE = {
    4: "the agent may not read the files of the container's cgroup",
    999: "the files of the container's cgroup cannot be read: it may just have ended",
}


def verified_by_kernel(
    holder: ContainerGpus,
    uuid: str,
    read: tuple[int, int | None, int | None],
    now_mib: int | None = None,
    *,
    processes_mib: int | None = None,
    pending: str = "",
) -> LimitState:
    """Return the state of a limit on one GPU.

    Args:
        holder: the container.
        uuid: that of the GPU.
        read: the code with which its cgroup was read, its hard limit and its use in MiB; see `messages.CgroupLimit`.
        now_mib: what the container may use now; None: its limit.
        processes_mib: what its processes use; None: not known.
        pending: why the helper has not set the limit, see `pending`.
    """
    code, hard_mib, used_mib = read
    if code in _UNREADABLE:
        return LimitState(Enforcement.DMEM, why=_UNREADABLE[code])
    most_mib = allowed_mib(holder, uuid, now_mib)
    if hard_mib == most_mib:
        why = _escapes(hard_mib, used_mib, processes_mib)
        return LimitState(Enforcement.DMEM, LimitStatus.UNVERIFIED if why else LimitStatus.HELD, hard_mib, why)
    if pending == NOT_YET:
        return LimitState(Enforcement.DMEM, found_mib=hard_mib, why=pending)
    if hard_mib is None:
        return LimitState(Enforcement.DMEM, LimitStatus.MISSING, why=pending or _MISSING)
    differs = f"kernel limit {hard_mib} MiB, granted {most_mib} MiB"
    why = f"{differs}: {pending or 'somebody else has changed it, and the limit helper sets it again, if it runs'}"
    return LimitState(Enforcement.DMEM, LimitStatus.DIFFERS, hard_mib, why)


def _escapes(hard_mib: int, used_mib: int | None, processes_mib: int | None) -> str:
    """Return why a limit that is set does not hold all that a container uses; empty: it does, as far as is known."""
    if used_mib is None:
        return ""
    if used_mib > hard_mib:
        return f"the limit of {hard_mib} MiB does not hold yet: the container uses {used_mib} MiB"
    if processes_mib is not None and processes_mib > used_mib + ESCAPED_MIB:
        return (
            f"{processes_mib - used_mib} MiB have escaped the limit: its processes use {processes_mib} MiB, and its "
            f"cgroup counts {used_mib} MiB; memory that the kernel moved out of the GPU and back is counted elsewhere"
        )
    return ""

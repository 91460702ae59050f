"""Decide, in the privileged helper, which limits are to be set now, and why one could not be set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_device_plugin.features.limits.contract import LimitKey, LimitOutcome, MemoryLimit

CHECK_S = 60.0
"""Seconds until a limit that was set is read again: the driver may be replaced, and root may change a limit."""
DMEM_CHECK_S = 5.0
"""The same for a limit of the kernel's. Who takes the controller off a cgroup takes all limits below it away."""
_RETRY_S = 1.0
"""Seconds until the first attempt after a failure; doubles up to those between two checks."""
_MOST_DOUBLINGS = 6

NO_CGROUPS = (
    "the limit helper does not see the cgroups of containers: mount the node's /sys/fs/cgroup into its pod, as "
    "deploy/optional/limits.yaml does"
)
NO_LEAF = (
    "the container's cgroup is not among the node's: it has just ended, or its runtime names cgroups in a way that the "
    "limit helper does not know"
)
NO_GPU = "the driver lists no such GPU"
WRITABLE = "run it as root, with the node's /sys/fs/cgroup mounted writable, as deploy/overlays/amd does"

_SUCCESS = 0
# Return codes of NVML.
_REASONS = {
    3: "the driver does not limit memory on this GPU or in this cgroup (NVML: not supported)",
    4: (
        "the driver lets only callers with CAP_SYS_ADMIN set limits (NVML: no permission): run the limit helper as "
        "deploy/optional/limits.yaml does"
    ),
    6: (
        "the kernel does not account GPU memory in the container's cgroup (NVML: not found): it needs "
        "CONFIG_CGROUP_DMEM and the controller dmem enabled on each level, or the driver loaded with RmMemacctMode=1"
    ),
    13: "the driver has no memory limits, which come with r615 (NVML: function not found)",
}
# The same codes, of the kernel's limits.
_DMEM_REASONS = {
    3: (
        "the controller dmem is not enabled in the cgroup, or has no region of the GPU: look for dmem in "
        "cgroup.controllers of each level, and in dmem.capacity"
    ),
    4: f"the limit helper may not write to the cgroup: {WRITABLE}",
    999: "the files of the cgroup cannot be read or written: it may just have ended",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last attempt to set one limit."""

    outcome: LimitOutcome
    due_s: float
    """When it is repeated."""
    failures: int = 0
    """In a row."""


def due(
    wanted: Mapping[LimitKey, MemoryLimit], attempts: Mapping[LimitKey, Attempt], now_s: float
) -> tuple[LimitKey, ...]:
    """Return which limits are to be set or read again now, in a fixed order."""
    return tuple(
        sorted(
            key
            for key, limit in wanted.items()
            if key not in attempts or attempts[key].outcome.limit != limit or attempts[key].due_s <= now_s
        )
    )


def attempted(limit: MemoryLimit, why: str, before: Attempt | None, now_s: float, check_s: float = CHECK_S) -> Attempt:
    """Return the attempt that ended now, with `why` it failed; empty: the limit is set, and checked after `check_s`."""
    outcome = LimitOutcome(limit, why)
    if not why:
        return Attempt(outcome, now_s + check_s)
    failures = 1 if before is None or before.outcome.limit != limit else before.failures + 1
    return Attempt(outcome, now_s + min(_RETRY_S * 2 ** min(failures - 1, _MOST_DOUBLINGS), check_s), failures)


def refused_soft_limits(
    wanted: Mapping[LimitKey, MemoryLimit], memory_mib: Mapping[str, int]
) -> Mapping[LimitKey, str]:
    """Return which limits are not set for their soft limits, and why: those of a GPU are more than its memory.

    `memory_mib` is by UUID. The driver adds a soft limit to the cgroups above for good, so whoever wrote the file of
    what is wanted could take a GPU from everybody.
    """
    soft = {key: limit.soft_mib for key, limit in wanted.items() if limit.soft_mib}
    sums: Counter[str] = Counter()
    for key, mib in soft.items():
        sums[key.uuid] += mib
    return {
        key: f"the soft limits of its GPU are {sums[key.uuid]} MiB together, and it has {memory_mib[key.uuid]} MiB"
        if key.uuid in memory_mib
        else NO_GPU
        for key in soft
        if sums[key.uuid] > memory_mib.get(key.uuid, 0)
    }


def why_not_set(limit: MemoryLimit, code: int, hard_mib: int | None) -> str:
    """Return why a limit is not set, by NVML's return `code` and the hard limit that was read back; empty: it is."""
    if code != _SUCCESS:
        return _REASONS.get(code, f"the driver fails to set the limit (NVML: error {code})")
    if hard_mib == limit.hard_mib:
        return ""
    read = "none" if hard_mib is None else f"{hard_mib} MiB"
    return f"the driver took a limit of {limit.hard_mib} MiB, and has {read} when it is read back"


def why_not_set_by_kernel(limit: MemoryLimit, code: int, hard_mib: int | None, used_mib: int | None) -> str:
    """Return the same of a limit by dmem: a kernel before 7.3 takes one below the use, and does not apply it."""
    if code in _DMEM_REASONS:
        return _DMEM_REASONS[code]
    if hard_mib == limit.hard_mib:
        return ""
    stays = "there is none" if hard_mib is None else f"it stays at {hard_mib} MiB"
    if used_mib is not None and used_mib > limit.hard_mib:
        return (
            f"the limit of {limit.hard_mib} MiB does not hold yet, and {stays}: {used_mib} MiB are in use, and kernels "
            "before 7.3 do not apply a limit below the use"
        )
    return f"the kernel took a limit of {limit.hard_mib} MiB, and {stays} when it is read back"

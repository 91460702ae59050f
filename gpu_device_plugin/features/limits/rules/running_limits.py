"""Decide which limits running containers are to have now, and from what the driver reads back whether theirs hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_device_plugin.features.limits.contract import LimitKey, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.rules.dmem_limits import pending
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus

NO_CGROUPS = (
    "the agent does not see the cgroups of other pods, so it cannot read the limit back: mount the node's "
    "/sys/fs/cgroup into the agent's pod, as deploy/daemonset.yaml shows (chart: agent.verifyLimits=true)"
)
NO_LEAF = (
    "the container's cgroup is not among the node's, so its limit cannot be read back: it has just ended, or its "
    "runtime names cgroups in a way that the agent does not know"
)
NO_CONTAINER = (
    "the limit is that of the container's cgroup, and the Kubernetes API, which knows the running container, has not "
    "told the agent of this pod: see the agent's settings api and its log"
)
NO_ANSWER = "the driver has not answered since the container started, so the limit could not be read back yet"

_MISSING = (
    "the driver has no limit for this container: install nvidia-container-toolkit 1.20.1 or newer, generate the node's "
    "CDI specification again if it has one, leave the mode legacy of nvidia-container-runtime, load the driver without "
    "RmMemacctMode=0, and then restart the pod"
)

# Return codes of NVML.
_SUCCESS = 0
_NO_LIMIT = frozenset({_SUCCESS, 3, 6})
_UNREADABLE = {
    4: (
        "the driver does not let the agent read limits back (NVML: no permission): give the agent's container the "
        "device nodes of the GPUs, by the runtime class nvidia"
    ),
    13: (
        "the driver has no memory limits, which come with r615: it was replaced by an older one since the container "
        "started; install a newer one, or restart the pod to have it limited by other means"
    ),
}

_PARTITION = LimitState(Enforcement.PARTITION, LimitStatus.HELD)
_BY_KIND = {
    Enforcement.MPS: (
        "NVIDIA's MPS limits each process of the container, by variables that the container itself may change, and "
        "nothing reads that back"
    ),
    Enforcement.CUSTOM: "a library that the administrator added sets the limit, and nothing reads it back",
}


def by_kind(holder: ContainerGpus) -> LimitState | None:
    """Return the state of a limit that no reading shows; None: it can be read back, or there is none."""
    if holder.enforcement is Enforcement.PARTITION:
        return _PARTITION
    if holder.enforcement is None or holder.enforcement not in _BY_KIND or holder.whole:
        return None
    return LimitState(holder.enforcement, why=_BY_KIND[holder.enforcement])


def by_driver(holder: ContainerGpus) -> bool:
    """Whether the driver was asked for a limit of the container, which can be read back while the container runs."""
    return holder.enforcement is Enforcement.DRIVER and not holder.whole


def unverified(why: str, enforcement: Enforcement = Enforcement.DRIVER) -> LimitState:
    """Return the state of a limit of the driver's, or the kernel's, that could not be read back."""
    return LimitState(enforcement, why=why)


def verified(
    holder: ContainerGpus, uuid: str, code: int, hard_mib: int | None, now_mib: int | None = None
) -> LimitState:
    """Return the state of a limit on one GPU that was read back with NVML's return `code`.

    Without a limit the cgroup's is not found (6), or not supported (3) where the driver does the accounting; an older
    driver has no such function (13). `hard_mib` is the hard limit; None: there is none, or it was not read. `now_mib`
    is what the container may use now, None: what it was granted.
    """
    if code != _SUCCESS or hard_mib is None:
        if code in _NO_LIMIT:
            return LimitState(Enforcement.DRIVER, LimitStatus.MISSING, why=_MISSING)
        return unverified(_UNREADABLE.get(code, f"the driver fails to read the limit back (NVML: error {code})"))
    if now_mib is not None:
        return _of_changing(holder, uuid, hard_mib, now_mib)
    granted_mib = holder.granted[uuid]
    if hard_mib == granted_mib:
        return LimitState(Enforcement.DRIVER, LimitStatus.HELD, hard_mib)
    differs = f"driver limit {hard_mib} MiB, granted {granted_mib} MiB"
    if hard_mib == max(holder.granted.values()):
        why = (
            f"{differs}: NVIDIA's runtime sets one limit for all GPUs of a container, that of its largest amount; "
            "request equal amounts"
        )
    else:
        why = f"{differs}: check whether the pod itself sets the variable {DRIVER_LIMIT}, which precedes the agent's"
    return LimitState(Enforcement.DRIVER, LimitStatus.DIFFERS, hard_mib, why)


def _of_changing(holder: ContainerGpus, uuid: str, hard_mib: int, now_mib: int) -> LimitState:
    """Return the state of a limit that may change while the container runs.

    NVIDIA's runtime sets the limit that the container starts with. Where the limit helper runs, that sets what the
    container may use now, some time after this has changed.
    """
    most_mib = holder.limit_mib(uuid)
    started_mib = most_mib if holder.started_mib is None else holder.started_mib
    if hard_mib in {started_mib, now_mib}:
        return LimitState(Enforcement.DRIVER, LimitStatus.HELD, hard_mib)
    if min(now_mib, holder.granted[uuid]) <= hard_mib <= most_mib:
        return LimitState(
            Enforcement.DRIVER,
            found_mib=hard_mib,
            why=f"the driver limits the container to {hard_mib} MiB on this GPU, and it may use {now_mib} MiB since a "
            "moment ago; the limit helper of the node changes it, if it runs",
        )
    why = (
        f"the driver limits the container to {hard_mib} MiB on this GPU; it was started with {started_mib} MiB, and "
        f"may use {now_mib} MiB now: check whether the pod itself sets the variable {DRIVER_LIMIT}, which precedes the "
        "agent's"
    )
    return LimitState(Enforcement.DRIVER, LimitStatus.DIFFERS, hard_mib, why)


# --- Limits that change while a container runs, which the helper sets ------------------------------------------------

NOT_THERE = (
    "the limit helper does not run on this node, so the limit stays as it was when the container started: apply "
    "deploy/optional/limits.yaml"
)
BEAT_S = 30.0
"""After so many seconds without a beat the helper does not run any more."""
SILENT = f"the limit helper of this node has not reported for more than {BEAT_S:g} s: check its pod"


def wanted_limits(
    holders: Iterable[ContainerGpus],
    allowed_now: Mapping[Place, int],
    before: Mapping[LimitKey, MemoryLimit],
    *,
    soft: bool = False,
) -> Mapping[Place, tuple[LimitKey, MemoryLimit]]:
    """Return the limits that the helper is to set, of running containers that the driver limits.

    The helper leaves a limit alone that is right already, so what a container started with need not be known here.

    Args:
        holders: what the containers of this node hold.
        allowed_now: MiB for those whose limit may be another than when they started.
        before: what was wanted last. A container that may not change any more gets its own limit back.
        soft: whether what a container is guaranteed is its soft limit.
    """
    found = {}
    for holder in holders:
        for uuid, granted_mib in holder.granted.items() if by_driver(holder) and holder.container_id else ():
            place = (holder.pod_uid, holder.container, uuid)
            key = LimitKey(holder.pod_uid, holder.container_id, uuid)
            if key.plausible and (place in allowed_now or key in before):
                hard_mib = max(1, allowed_now.get(place, holder.limit_mib(uuid)))
                found[place] = key, MemoryLimit(hard_mib, min(granted_mib, hard_mib) if soft else 0)
    return found


def reasons(wanted: Mapping[Place, tuple[LimitKey, MemoryLimit]], state: LimitsState | str) -> Mapping[Place, str]:
    """Return why each wanted limit is not set, for those that are not; `state` is the helper's, or why it has none."""
    return {place: why for place, (key, limit) in wanted.items() if (why := pending(state, key, limit))}

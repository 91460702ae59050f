"""Decide which GPUs need an MPS daemon, which containers may get shares or start beside it, and what clients get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.features.limits.rules.enforcement import WantedEnforcement
from gpu_device_plugin.features.limits.rules.limit_grants import Part
from gpu_device_plugin.features.mps.contract import STATE_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.gpus import NVIDIA, Gpu
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import Grant, Mount
from gpu_device_plugin.node.rules.ledger import Ledger

BEAT_S = 10.0
"""After so many seconds without a beat the supervisor does not run any more."""
START_S = 15.0
"""Longest wait in Allocate for a daemon, in seconds: the kubelet admits no other pod meanwhile."""
STOP_S = 10.0
"""Longest wait in PreStartContainer, in seconds; the kubelet gives up after 30, and tries again later."""

NOT_THERE = "the MPS supervisor does not run on this node: apply deploy/optional/mps.yaml"
NOT_MOUNTED = (
    "the agent has no directory of the MPS supervisor: apply deploy/optional/mps.yaml, "
    "and patch the agent with deploy/patches/mps-agent.yaml"
)
SILENT = (
    f"the MPS supervisor of this node has not reported for more than {BEAT_S:g} s: "
    "look at its pod, or apply deploy/optional/mps.yaml"
)
WITHOUT_MPS = "it has containers that were started without MPS"
SHM = "/dev/shm"  # noqa: S108 - a mount point in the container, not a file of ours
"""Client and server of MPS share memory there."""
_STOPPED = MpsGpu(MpsStatus.STOPPED)
_BROKEN = frozenset({MpsStatus.FAULT, MpsStatus.FAILED})


# --- Who is on a GPU --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpsOccupancy:
    """The containers that hold one GPU, or parts of it."""

    clients: bool = False
    """There are some that were started as clients of MPS."""
    others: bool = False
    """There are some that were not."""
    unknown: bool = False
    """There are some of which neither the kubelet's checkpoint nor our memory says it."""
    largest: int = 0
    """The most shares that one of them has."""
    most_mib: int = 0
    """The most that one of them was told that it may use."""


UNOCCUPIED = MpsOccupancy()


def occupancies(ledger: Ledger, given: Iterable[Allocation]) -> Mapping[str, MpsOccupancy]:
    """Return the containers on each GPU in use, by UUID.

    A container counts no longer once the kubelet's records call its devices free, although the GPU may not be released
    yet: that waits until no process is left on it, and the server of MPS is one. `given` are the devices of containers
    in the order of time: for a device in several of them the last one counts.
    """
    held = {name for name, state in ledger.id_states.items() if state.freed_at is None}
    plan: dict[str, bool] = {}
    largest: dict[str, int] = {}
    most: dict[str, int] = {}
    for allocation in given:
        names = allocation.device_ids & held
        plan.update(dict.fromkeys(names, allocation.enforcement is Enforcement.MPS))
        # The largest ever, since an init container that runs on beside its successor may have more.
        for uuid, count in Counter(parse_id(name)[0] for name in names).items():
            largest[uuid] = max(count, largest.get(uuid, 0))
            most[uuid] = max(allocation.limit_mib or 0, most.get(uuid, 0))
    kinds: dict[str, set[bool | None]] = {}
    for name in held:
        kinds.setdefault(parse_id(name)[0], set()).add(plan.get(name))
    return {
        uuid: MpsOccupancy(True in found, False in found, None in found, largest.get(uuid, 0), most.get(uuid, 0))
        for uuid, found in kinds.items()
    }


def wanted(
    ledger: Ledger,
    present: Mapping[str, MpsOccupancy],
    asked: Mapping[str, int],
    before: Mapping[str, int],
    share_mib: int,
) -> Mapping[str, int]:
    """Return what the supervisor shall run: a daemon on each GPU with clients, or about to get its first.

    The `ledger` must be certain: a daemon that is not wanted ends, and its clients with it. `present` are the
    containers on each GPU, `asked` the GPUs for a container that is being allocated, with its shares. What was wanted
    `before` stays for a GPU as long as its containers are not known.
    """
    gpus: dict[str, int] = {}
    for uuid in sorted({*present, *asked}):
        there = present.get(uuid, UNOCCUPIED)
        limit = max(there.largest * share_mib, asked.get(uuid, 0) * share_mib, there.most_mib)
        # Clients that run are not left without their daemon, whatever else is wrong.
        if there.clients or (uuid in asked and not there.others and not ledger.use(uuid).whole):
            gpus[uuid] = max(limit, before.get(uuid, 0)) if there.unknown else limit
        elif there.unknown and not there.others and uuid in before and not ledger.use(uuid).whole:
            gpus[uuid] = before[uuid]
    return gpus


# --- What the supervisor reports --------------------------------------------------------------------------------------


def daemon(daemons: Mapping[str, MpsGpu] | str, uuid: str) -> MpsGpu | str:
    """Return the daemon of one GPU, or why there is no supervisor. A GPU that the supervisor does not name has none."""
    return daemons if isinstance(daemons, str) else daemons.get(uuid, _STOPPED)


def troubles(daemons: Mapping[str, MpsGpu] | str, needed: Collection[str]) -> Mapping[str, str]:
    """Return what keeps the GPUs (by UUID) that need a daemon from having it, with the reason for each.

    The reason of a supervisor that does not run has the empty string as its key. A daemon that starts is no trouble.
    """
    if not needed:
        return {}
    if isinstance(daemons, str):
        return {"": daemons}
    found = {uuid: daemons[uuid] for uuid in sorted(needed) if uuid in daemons}
    return {uuid: _state(gpu) for uuid, gpu in found.items() if gpu.status in _BROKEN}


def _state(gpu: MpsGpu) -> str:
    return f"{gpu.status}: {gpu.why}" if gpu.why else str(gpu.status)


# --- Where MPS is wanted ----------------------------------------------------------------------------------------------


def wanted_on(gpus: Iterable[Gpu], chosen: Mapping[str, GpuEnforcement], want: WantedEnforcement) -> frozenset[str]:
    """Return the GPUs (by UUID) on which the administrator wants MPS, even if it is not there.

    `chosen` are the enforcements of the shared GPUs, by UUID.
    """
    if Enforcement.MPS not in want.enforcements:
        return frozenset()
    uuids = (gpu.uuid for gpu in gpus if not gpu.mig and gpu.instance is None and gpu.driver == NVIDIA)
    return frozenset(
        uuid for uuid in uuids if uuid in chosen and chosen[uuid].enforcement in {Enforcement.MPS, Enforcement.ADVISORY}
    )


def lack(daemons: Mapping[str, MpsGpu] | str, gpu: Gpu) -> str:
    """Return what MPS lacks on a GPU, as a clause; empty: it is there. `daemons` are as for `daemon`."""
    if gpu.driver != NVIDIA:
        return "MPS is for GPUs of NVIDIA"
    if isinstance(daemons, str):
        return daemons
    if gpu.mig:
        return "the GPU is in MIG mode"
    if gpu.instance is not None:
        return "MPS is not run on MIG instances"
    # A GPU that the supervisor has not listed yet has no daemon yet, as one without shares in use.
    daemon = daemons.get(gpu.uuid)
    if daemon is not None and daemon.status in _BROKEN:
        return f"the MPS daemon of the GPU is in the state {daemon.status}{daemon.why and f' ({daemon.why})'}"
    return ""


# --- Allocate ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpsGpuContext:
    """One GPU of which a container is about to be given shares."""

    name: str
    """For people, such as ``GPU 0``."""
    wanted: bool
    """MPS is the means that the administrator wants on this GPU."""
    occupancy: MpsOccupancy
    daemon: MpsGpu | str
    """See `daemon`."""
    part_mib: int = 0
    """The container's part of this GPU."""


def waits(contexts: Sequence[MpsGpuContext]) -> bool:
    """Return whether the daemon that a container with shares of these GPUs needs has to be started first."""
    return _concerns_mps(contexts) and len(contexts) == 1 and _lack(contexts[0])[1]


def _concerns_mps(contexts: Sequence[MpsGpuContext]) -> bool:
    return any(context.wanted or context.occupancy.clients for context in contexts)


def choose(contexts: Sequence[MpsGpuContext], *, refuse: bool, waited: str = "") -> Enforcement | Refusal | None:
    """Return the enforcement for a container with shares of these GPUs; None: MPS has no say in it.

    A GPU with clients of MPS stays with MPS, whatever is wanted meanwhile: its compute mode lets no other process use
    it. A GPU with other containers gets no daemon, which would shut them out.

    With `refuse` a container that cannot have what is wanted is refused; otherwise its limit is advisory. `waited` is
    the end of a sentence on a daemon that was waited for in vain.
    """
    if not _concerns_mps(contexts):
        return None
    clients = any(context.occupancy.clients for context in contexts)
    if len(contexts) > 1:
        names = ", ".join(context.name for context in contexts)
        refusal = Refusal(
            RefusalCode.MPS_SEVERAL_GPUS,
            f"GPU memory: shares of {names} requested, and under MPS a container has one daemon, which is that of one "
            "GPU; ask for memory of one GPU, or for whole GPUs",
        )
        return refusal if refuse or clients else Enforcement.ADVISORY
    lack, passes = _lack(contexts[0])
    if not lack:
        return Enforcement.MPS
    if refuse:
        return Refusal(RefusalCode.MPS_NOT_READY, lack + waited if passes else lack)
    # Beside clients of MPS it has to be one too. It starts when the daemon is ready, see `why_not_start`.
    return Enforcement.MPS if clients else Enforcement.ADVISORY


def _lack(context: MpsGpuContext) -> tuple[str, bool]:
    """Return what a GPU lacks for a client of MPS, in a sentence (empty: nothing), and whether waiting may help."""
    name, gpu = context.name, context.daemon
    if context.occupancy.others:
        return f"{name} has containers that were started without MPS, and gets MPS when they have ended", False
    if isinstance(gpu, str):
        return f"{name} needs MPS: {gpu}", False
    if gpu.status in _BROKEN:
        return f"the MPS daemon of {name} does not serve new clients ({_state(gpu)})", False
    if gpu.status is not MpsStatus.READY:
        return f"the MPS daemon of {name} is not ready ({_state(gpu)})", True
    if 0 < gpu.limit_mib < context.part_mib:
        return f"the MPS daemon of {name} lets a process have only {gpu.limit_mib} MiB", True
    return "", False


# --- What containers get ----------------------------------------------------------------------------------------------


def client_grant(
    parts: Sequence[Part], daemons: Mapping[str, MpsGpu], shm: str, *, compute: bool = False
) -> Grant | None:
    """Return what makes a container with these parts a client of MPS; None: it cannot be one.

    `daemons` are by the GPU's UUID, and `shm` is the directory of the host that clients have as /dev/shm. With
    `compute` the multiprocessors are limited in proportion to the memory.
    """
    daemon = daemons.get(parts[0].uuid)
    # A container has one directory of sockets, and there is a daemon for each GPU. An ordinal that the container
    # does not have would remove all of its limits.
    if len(parts) > 1 or daemon is None or not daemon.pipe_directory:
        return None
    envs = {variables.MPS_PIPE_DIRECTORY: daemon.pipe_directory, variables.MPS_MEMORY: f"0={parts[0].limit_mib}M"}
    if compute:
        percent = -(-100 * parts[0].mib // parts[0].whole_mib)
        envs[variables.MPS_THREADS] = str(min(max(percent, 1), 100))
    mounts = (
        Mount(daemon.pipe_directory, daemon.pipe_directory, read_only=False),
        Mount(shm, SHM, read_only=False),
    )
    return Grant(envs, mounts=mounts)


# --- PreStartContainer ------------------------------------------------------------------------------------------------


def why_not_start(
    name: str,
    uuid: str,
    daemons: Mapping[str, MpsGpu] | str,
    written: Mapping[str, MpsGpu],
    *,
    client: bool,
    refuse: bool,
) -> str:
    """Return why a container with this GPU must not start now, as a sentence; empty if it may.

    A client of MPS would run without a limit if it started before its daemon, or fail. Another container would fail:
    under MPS a GPU has the compute mode EXCLUSIVE_PROCESS. A supervisor that was killed leaves that mode behind, in
    which one process can use the GPU and a second one fails; a container with `refuse` does not start then, since a
    sentence that names the remedy is better than an error of CUDA in the middle of its work.

    `name` is the GPU's for people; `daemons` are those that the supervisor runs, or why there is none, and `written`
    those in the last state that a supervisor wrote, even if it no longer runs. A `client` was started as one of MPS.
    With `refuse` a container waits for a supervisor that does not run, or has failed to set the compute mode back;
    otherwise it starts. Where nobody asks for MPS, files that somebody left behind keep no container waiting.
    """
    if isinstance(daemons, str) and not refuse:
        return ""
    if client:
        if isinstance(daemons, str):
            return f"{name} needs MPS: {daemons}"
        gpu = daemons.get(uuid, _STOPPED)
        return "" if gpu.status is MpsStatus.READY else f"the MPS daemon of {name} is not ready ({_state(gpu)})"
    gpu = written.get(uuid, _STOPPED)
    if gpu.status is MpsStatus.STOPPED or (gpu.status is MpsStatus.FAILED and not refuse):
        return ""
    if isinstance(daemons, str):
        return (
            f"{name} was run by MPS and may still be in the compute mode EXCLUSIVE_PROCESS: {daemons}; "
            f"or run `nvidia-smi -i {uuid} -c DEFAULT` and remove {STATE_FILE}"
        )
    return f"{name} is still run by MPS ({_state(gpu)})"

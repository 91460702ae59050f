"""Choose the means by which the memory limits of new containers hold on each GPU of a node, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.features.mps.rules.mps_wishes import NOT_THERE
from gpu_device_plugin.model.contract.keys import SCHEDULE_LABEL, SET_LIMITS_LABEL
from gpu_device_plugin.model.contract.mpsfiles import MpsStatus
from gpu_device_plugin.model.limits import CHOOSABLE, Enforcement, GpuEnforcement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpu_device_plugin.model.contract.mpsfiles import MpsGpu
    from gpu_device_plugin.model.gpus import Gpu

AUTO = "auto"
"""A value of the setting `limits`: the driver's limits where they are, and nothing is asked for where they are not."""
LIMITS = (AUTO, *CHOOSABLE)
"""The values of the setting `limits` and of the node label `SET_LIMITS_LABEL`."""
REFUSE = "refuse"
"""A value of the setting `limits_fallback`."""
CGROUP = 2
"""The cgroup version for which NVIDIA's toolkit can limit GPU memory."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a node has, beside its GPUs, to keep containers within their parts."""

    cgroup: int | None = None
    """Its cgroup version; None if unknown."""
    mps: Mapping[str, MpsGpu] | str = NOT_THERE
    """The daemons of its MPS supervisor, by the GPU's UUID, or why there is none."""
    extra_grant: bool = False
    """The setting `extra_grant` names a file."""


@dataclass(frozen=True, slots=True)
class WantedEnforcement:
    """The means that the administrator wants, by settings and node labels."""

    enforcements: tuple[Enforcement, ...]
    """The first of these that is there is used; none: the driver's limits where they are, else none."""
    source: str
    """The setting or label that says so, for a person."""
    compute: bool = False
    """Under MPS the multiprocessors are limited too."""
    required: bool = True
    """Containers may be refused where it is not there. ACK's label requires nothing: a node may carry it from a time
    when it was another product's, and its pods would all fail."""


_SCHEDULES: Mapping[str, tuple[tuple[Enforcement, ...], bool]] = MappingProxyType(
    {
        "cgpu": ((Enforcement.DRIVER, Enforcement.MPS), False),
        "core_mem": ((Enforcement.MPS,), True),
        "mps": ((Enforcement.MPS,), False),
        "share": ((Enforcement.ADVISORY,), False),
    }
)
"""The meaning of ACK's label for limits: the wanted means, and whether multiprocessors are limited too. Its other
values (`default`, `topology`) say nothing of limits."""

_REASONS: Mapping[Enforcement, str] = MappingProxyType(
    {
        Enforcement.PARTITION: "MIG instances are given whole here, and the hardware keeps their memory apart",
        Enforcement.DRIVER: "the driver limits the memory of cgroups where nvidia-container-toolkit from 1.20.1 on "
        "asks it to",
        Enforcement.MPS: "the server of MPS limits each process",
        Enforcement.CUSTOM: "the setting extra_grant adds a library, which nothing proves to hold",
        Enforcement.ADVISORY: "nothing but the container's variables names the limit",
    }
)


def wanted_enforcement(limits: str, labels: Mapping[str, str], *, compute: bool = False) -> WantedEnforcement:
    """Return the wanted enforcements of a node with these settings, `limits` and `mps_compute`, and labels.

    `SET_LIMITS_LABEL` takes precedence over `SCHEDULE_LABEL`, and that over the setting.
    """
    own, schedule = labels.get(SET_LIMITS_LABEL, ""), labels.get(SCHEDULE_LABEL, "")
    if own in LIMITS:
        return WantedEnforcement(_enforcements(own), f"the node label {SET_LIMITS_LABEL}={own}", compute)
    if schedule in _SCHEDULES:
        enforcements, with_compute = _SCHEDULES[schedule]
        source = f"the node label {SCHEDULE_LABEL}={schedule}"
        return WantedEnforcement(enforcements, source, compute or with_compute, required=False)
    return WantedEnforcement(_enforcements(limits), f"the setting limits={limits}", compute)


def _enforcements(limits: str) -> tuple[Enforcement, ...]:
    return () if limits == AUTO else (Enforcement(limits),)


def mps_gpus(gpus: Iterable[Gpu], chosen: Mapping[str, GpuEnforcement], want: WantedEnforcement) -> frozenset[str]:
    """Return the GPUs (by UUID) on which the administrator wants MPS, even if it is not there.

    `chosen` are the enforcements of the shared GPUs, by UUID.
    """
    if Enforcement.MPS not in want.enforcements:
        return frozenset()
    uuids = (gpu.uuid for gpu in gpus if not gpu.mig and gpu.instance is None)
    return frozenset(
        uuid for uuid in uuids if uuid in chosen and chosen[uuid].enforcement in {Enforcement.MPS, Enforcement.ADVISORY}
    )


def enforcements(
    gpus: Mapping[int, Gpu],
    abilities: Abilities,
    want: WantedEnforcement,
    *,
    refuse: bool,
    partitions: Collection[int] = (),
) -> tuple[Mapping[int, GpuEnforcement], str]:
    """Return the enforcement of each of these GPUs and MIG instances, by position, and which wanted ones are not there.

    That is a sentence for an Event, with what comes of it; empty: all are there.

    With `refuse`, containers are refused shares where no required enforcement is there; otherwise their limits are
    advisory. `partitions` are the MIG instances among the GPUs that are given whole.
    """
    refuse = refuse and want.required
    chosen: dict[int, GpuEnforcement] = {}
    missing: dict[str, list[int]] = {}
    for position, gpu in gpus.items():
        if position in partitions:
            chosen[position] = GpuEnforcement(Enforcement.PARTITION, _REASONS[Enforcement.PARTITION])
            continue
        lacks = {wish: _lack(wish, gpu, abilities) for wish in want.enforcements or (Enforcement.DRIVER,)}
        available = next((enforcement for enforcement, lack in lacks.items() if not lack), None)
        if available is not None:
            asked = f"{want.source} asks for it, and " if want.enforcements else ""
            chosen[position] = GpuEnforcement(available, asked + _REASONS[available])
        elif not want.enforcements:
            chosen[position] = GpuEnforcement(Enforcement.ADVISORY, lacks[Enforcement.DRIVER])
        else:
            why = f"{want.source} asks for {' or '.join(lacks)}: " + ", and ".join(lacks.values())
            refusal = f"memory limits that hold are required here and not there: {why}" if refuse else ""
            chosen[position] = GpuEnforcement(Enforcement.ADVISORY, why, refusal)
            missing.setdefault(why, []).append(position)
    effect = "containers are refused shares (limits_fallback: refuse)" if refuse else "the limits are advisory there"
    lacking = "; ".join(f"GPU {_listed(positions)}: {why}" for why, positions in missing.items())
    return chosen, lacking and f"{lacking}; {effect}"


def summary(gpus: Mapping[int, GpuEnforcement]) -> str:
    """Return the means of a node with their reasons in a sentence for a log; empty for a node without GPUs."""
    alike: dict[tuple[Enforcement, str, bool], list[int]] = {}
    for position, gpu in sorted(gpus.items()):
        alike.setdefault((gpu.enforcement, gpu.why, bool(gpu.refusal)), []).append(position)
    return "; ".join(
        f"{'refused' if refused else enforcement}{f' on GPU {_listed(positions)}' if len(alike) > 1 else ''}: {why}"
        for (enforcement, why, refused), positions in alike.items()
    )


def _listed(positions: list[int]) -> str:
    return ", ".join(map(str, positions))


def _lack(enforcement: Enforcement, gpu: Gpu, abilities: Abilities) -> str:
    """Return what an enforcement lacks on a GPU, as a clause; empty: it is there."""
    if enforcement is Enforcement.DRIVER:
        return _lack_of_driver(gpu, abilities.cgroup)
    if enforcement is Enforcement.MPS:
        return _lack_of_mps(gpu, abilities.mps)
    if enforcement is Enforcement.CUSTOM and not abilities.extra_grant:
        # A change of the setting waits for a restart, and one of `limits` does not.
        return "the agent read no file of the setting extra_grant when it started: name one, and restart the agent"
    return ""


def _lack_of_driver(gpu: Gpu, cgroup: int | None) -> str:
    # If one of these is missing, the hook of nvidia-container-toolkit after 1.20.0 fails, and the container with it.
    if gpu.mig:
        return "the GPU is in MIG mode"
    if gpu.instance is not None:
        return "the driver's limits are not for MIG instances; a container that asks for all of one has it to itself"
    if not gpu.memory_limits:
        return "the driver has no memory limits, which come with r615"
    if cgroup != CGROUP:
        version = "unknown" if cgroup is None else cgroup
        return f"the node's cgroup version is {version}, and must be 2 for the driver's limits"
    return ""


def _lack_of_mps(gpu: Gpu, daemons: Mapping[str, MpsGpu] | str) -> str:
    if isinstance(daemons, str):
        return daemons
    if gpu.mig:
        return "the GPU is in MIG mode"
    if gpu.instance is not None:
        return "MPS is not run on MIG instances"
    # A GPU that the supervisor has not listed yet has no daemon yet, as one without shares in use.
    daemon = daemons.get(gpu.uuid)
    if daemon is not None and daemon.status in {MpsStatus.FAULT, MpsStatus.FAILED}:
        return f"the MPS daemon of the GPU is in the state {daemon.status}{daemon.why and f' ({daemon.why})'}"
    return ""

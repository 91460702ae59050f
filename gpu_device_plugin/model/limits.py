"""The means that keep a container within its part of a GPU's memory, and whether they were verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Enforcement(StrEnum):
    """A means of keeping a container within its part of a GPU's memory, the strongest first."""

    PARTITION = "partition"
    """The container has a whole MIG instance, whose memory the hardware keeps apart."""
    DRIVER = "driver"
    """The driver (r615 or newer) limits the memory of the container's cgroup."""
    DMEM = "dmem"
    """The kernel's cgroup controller dmem limits the memory of the container's cgroup, as the limit helper tells it."""
    MPS = "mps"
    """The server of NVIDIA's MPS limits the memory of each process of the container."""
    CUSTOM = "custom"
    """A library of the administrator's, added by the setting `extra_grant`. Nothing proves that it holds."""
    ADVISORY = "advisory"
    """Only the container's variables name the limit."""

    @cached_property
    def strength(self) -> int:
        """Higher for a stronger means."""
        return len(Enforcement) - list(Enforcement).index(self)


CHOOSABLE = tuple(enforcement for enforcement in Enforcement if enforcement is not Enforcement.PARTITION)
"""The means that a setting or a label can ask for, the strongest first. A partition is a matter of what a pod asks."""


AUTO = "auto"
"""A value of the setting `limits`: the driver's limits or the kernel's where they are, and nothing is asked for where
they are not."""
LIMITS = (AUTO, *CHOOSABLE)
"""The values of the setting `limits` and of the node label `SET_LIMITS_LABEL`."""


class LimitStatus(StrEnum):
    """The result of reading back the limit of a running container."""

    HELD = "held"
    """The driver has the limit that the container was granted."""
    DIFFERS = "differs"
    """The driver has another limit."""
    MISSING = "missing"
    """The driver has no limit for this container although it was asked for one."""
    UNVERIFIED = "unverified"
    """The limit cannot be read back: by its kind, or for the reason given."""

    @property
    def broken(self) -> bool:
        """Whether the driver was seen not to keep the container within its part."""
        return self in {LimitStatus.DIFFERS, LimitStatus.MISSING}

    @property
    def severity(self) -> int:
        """Higher for a worse state: of several limits the worst one counts."""
        return (LimitStatus.HELD, LimitStatus.UNVERIFIED, LimitStatus.DIFFERS, LimitStatus.MISSING).index(self)


@dataclass(frozen=True, slots=True)
class LimitState:
    """Whether the limit of one container on one GPU holds."""

    enforcement: Enforcement
    """The means that the container was started with, which the node's present one may differ from."""
    held: LimitStatus = LimitStatus.UNVERIFIED
    found_mib: int | None = None
    """The limit that the driver has, in MiB; None: it has none, or it is unknown."""
    why: str = ""
    """The reason, and for a person the remedy, as a sentence without a full stop; empty if the limit is held."""


@dataclass(frozen=True, slots=True)
class GpuEnforcement:
    """The means by which new containers on one GPU are kept within their parts."""

    enforcement: Enforcement
    why: str
    """Why this one, as a sentence without a full stop."""
    refusal: str = ""
    """Why containers are refused shares of this GPU: the wanted means is not there, and none other may take its place.
    Empty: they are not refused."""


@dataclass(frozen=True, slots=True)
class LimitMeans:
    """The means of limiting on a node's GPUs, as a feature chooses them."""

    gpus: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """By the UUIDs of the GPUs that are shared."""
    closed: Mapping[str, str] = field(default_factory=dict)
    """Why GPUs (by UUID) are given whole only, as a clause."""
    missing: str = ""
    """The wanted means that are not there, in a sentence for an Event; empty: all are there."""
    names_pods: bool = False
    """What a container gets for its limits is wrong for any other."""


def summary(gpus: Mapping[int, GpuEnforcement]) -> str:
    """Return the means of a node with their reasons in a sentence for a log; empty for a node without GPUs."""
    alike: dict[tuple[Enforcement, str, bool], list[int]] = {}
    for position, gpu in sorted(gpus.items()):
        alike.setdefault((gpu.enforcement, gpu.why, bool(gpu.refusal)), []).append(position)
    return "; ".join(
        f"{'refused' if refused else enforcement}{f' on GPU {numbered(positions)}' if len(alike) > 1 else ''}: {why}"
        for (enforcement, why, refused), positions in alike.items()
    )


def numbered(positions: list[int]) -> str:
    """Return the numbers of some GPUs for a sentence."""
    return ", ".join(map(str, positions))

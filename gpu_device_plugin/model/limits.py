"""What keeps a container within its part of a GPU's memory, and whether it was seen to do so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Enforcement(StrEnum):
    """A means of keeping a container within its part of a GPU's memory, the strongest first."""

    PARTITION = "partition"
    """The container has a whole MIG instance, whose memory the hardware keeps apart."""
    DRIVER = "driver"
    """The driver (r615 or newer) limits the memory of the container's cgroup."""
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

"""The devices allocated to a container, as known from the kubelet's records, a ResourceClaim or our own answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind


class AllocationSource(StrEnum):
    """Where an allocation is known from."""

    CHECKPOINT = "checkpoint"
    """The kubelet's checkpoint shows it."""
    REMEMBERED = "remembered"
    """The checkpoint showed it before the kubelet lost its record."""
    CLAIM = "claim"
    """A ResourceClaim was prepared with it."""
    ANSWER = "answer"
    """We granted it, and the checkpoint does not show it yet."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one resource, or of one claim, that one container holds."""

    pod_uid: str
    """As the kubelet knows the pod; empty: not known."""
    container: str
    """Empty: not known."""
    kind: Kind | None
    """None: the devices are those of a resource that is not ours."""
    device_ids: frozenset[str]
    source: AllocationSource = AllocationSource.CHECKPOINT
    through: str = ""
    """The name of the resource in the kubelet's records, or the UID of the claim."""
    enforcement: Enforcement | None = None
    """The means of limiting that the container was given; None: it was given none, or by an agent that did not say."""
    limit_mib: int | None = field(default=None, compare=False)
    """The MiB of each GPU that the container was told that it may use at most; None: not known. Not compared: not every
    record of a hold has it."""
    gpus: frozenset[str] | None = field(default=None, compare=False)
    """Of another plugin's devices: the UUIDs of the NVIDIA GPUs that the container was given with them, as far as the
    plugin named them; None: it was given none, or that is not known. Not compared, as `limit_mib`."""
    granted_to: str = field(default="", compare=False)
    """The container that the answer was made for with which this one was started, ``<UID of its pod>/<name>``; empty:
    not known."""

    @property
    def misdirected(self) -> bool:
        """Whether the container was started with the answer for another one."""
        return self.granted_to not in {"", f"{self.pod_uid}/{self.container}"}


Place: TypeAlias = tuple[str, str, str]
"""One container on one GPU: pod UID as the kubelet knows it, container name, UUID of the GPU."""

Slot: TypeAlias = "tuple[str, str, Kind]"
"""One container's use of one resource: pod UID as in the kubelet's records, container name, kind."""

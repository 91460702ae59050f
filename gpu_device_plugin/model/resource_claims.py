"""ResourceClaims of Kubernetes (DRA), reduced to the fields that decisions about GPUs need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a claim asks for, by one of its requests; of one with alternatives, the first alternative."""

    name: str
    device_class: str = ""
    memory_mib: int | None = None
    """Memory of each device, rounded up; None: it names none."""
    compute: int = 0
    """Percent of the multiprocessors of each device."""
    count: int = 1
    """Number of devices; 0: all that match."""
    admin: bool = False
    """It asks for access beside those who have the device."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the scheduler allocated to a claim."""

    request: str
    """The name of the request that it meets, without that of an alternative."""
    driver: str
    pool: str
    """Our pools have the names of their nodes."""
    name: str
    share_id: str = ""
    """Distinguishes the parts of a device that many claims share; empty for a device of one claim alone."""
    memory_mib: int | None = None
    """The part of its memory that was taken for the claim, rounded up; None: the allocation names none."""
    compute: int = 0
    """The percentage of its multiprocessors that was taken for the claim."""
    admin: bool = False
    """Access beside those who have the device; nothing was taken."""
    undivided: bool = False
    """The claim or its DeviceClass says that it takes no part of the device, but all of it."""

    @property
    def whole(self) -> bool:
        """Whether the claim has the device alone and without a limit; so it has one of which no part was allocated."""
        return not self.admin and (self.undivided or not self.memory_mib)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a claim or its DeviceClass says to a driver about some devices."""

    values: Mapping[str, Any]
    """As the author wrote them: nothing about them was checked."""
    requests: frozenset[str] = frozenset()
    """The requests whose devices they concern, without names of alternatives; none: all requests."""
    of_class: bool = False
    """The DeviceClass says so; what the claim itself says takes precedence."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod, as the pod names it."""

    entry: str
    """Its name in the pod; empty: kube-scheduler made the claim of an extended resource that the pod asks for."""
    claim: str = ""
    """The name of the ResourceClaim; empty: it was not made from its template yet."""
    template: str = ""
    """The name of the ResourceClaimTemplate; empty: the pod names the claim itself."""


class Consumer(NamedTuple):
    """A pod that may use a claim."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim."""

    uid: str
    namespace: str
    name: str
    created: str = ""
    """RFC 3339, in UTC."""
    deleting: bool = False
    requests: tuple[DeviceRequest, ...] = ()
    allocated: bool = False
    devices: tuple[Device, ...] = ()
    """Of all drivers."""
    parameters: tuple[Parameters, ...] = ()
    """For our driver only, those of the DeviceClass first."""
    consumers: tuple[Consumer, ...] = ()
    """The pods that it is reserved for."""
    resource_version: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def devices_of(self, driver: str) -> tuple[Device, ...]:
        """Return the devices that one driver has to provide."""
        return tuple(device for device in self.devices if device.driver == driver)

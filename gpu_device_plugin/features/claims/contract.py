"""ResourceClaims, and the names by which our DRA driver is known: its devices, their attributes, and parameters.

Administrators and users write these names in DeviceClasses and ResourceClaims, so they change no more than an API does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_device_plugin.model.contract.variables import OF_FRAMEWORKS
from gpu_device_plugin.model.limits import CHOOSABLE, Enforcement
from gpu_device_plugin.model.memory import parse_mib

RESOURCE_CLAIMS = "resourceclaims"
"""The plural name of the kind in the API."""
DRIVER = "gpu-device-plugin"
"""The name of the DRA driver, and the domain of its attributes and capacities."""
CDI_KIND = f"{DRIVER}/claim"
"""Vendor and class of the CDI devices that the driver makes, one for each prepared claim."""

SHARED = "shared-gpu"
"""Value of the attribute `TYPE`: a GPU or MIG instance that many claims can have parts of."""
WHOLE = "whole-gpu"
"""Value of the attribute `TYPE`: a GPU that one claim has alone."""
MIG = "mig"
"""Value of the attribute `TYPE`: a MIG instance that one claim has alone."""
MONITOR = "monitor"
"""Value of the attribute `TYPE`: a device for programs that look at a GPU beside those who have it."""

# Attributes and capacities of a device, in the driver's domain.
TYPE = "type"
AS_WHOLE = "whole"
"""Of a `SHARED` device that a claim can have alone as well: the type that it is to such a claim, `WHOLE` or `MIG`."""
UUID = "uuid"
PRODUCT = "productName"
ARCHITECTURE = "architecture"
KERNEL_DRIVER = "kernelDriver"
"""The kernel driver of the GPU, as in ``nvidia``; not of the DRA driver."""
DRIVER_VERSION = "driverVersion"
COMPUTE_UNITS = "computeUnits"
INDEX = "index"
NUMA_NODE = "numaNode"
NVLINK_GROUP = "nvlinkGroup"
"""A number that the GPUs share which NVLinks connect, directly or through others."""
LIMITS = "limits"
"""What keeps a container within its part of the memory, a `model.limits.Enforcement`."""
PARENT_UUID = "parentUUID"
"""Of a MIG instance: the UUID of its GPU."""
PROFILE = "profile"
"""Of a MIG instance, for example ``1g.10gb``."""
GPU_INSTANCE = "gi"
"""Of a MIG instance: the ID of its GPU instance."""
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
"""The standard name, with its own domain."""
MEMORY = "memory"
"""Capacity: GPU memory, as a quantity of bytes."""
COMPUTE = "compute"
"""Capacity: percent of the GPU's multiprocessors."""

UNHEALTHY_TAINT = "gpu-device-plugin/unhealthy"
"""Key of the taint of a device whose GPU is out of service; its value says why in a word, as in ``xid-79``."""

CORDON_TAINT = "gpu-device-plugin/cordoned"
"""Key of the taint of a device whose GPU is put aside: no new claim gets it, and those that have it keep it."""

API_VERSION = "gpu-device-plugin/v1"
CONFIG_KIND = "GpuShareConfig"
"""``apiVersion`` and ``kind`` of the parameters that a claim or a DeviceClass may carry for this driver."""
TAKE_WHOLE = "whole"
"""The parameter of the DeviceClasses of whole devices: what a claim has is no part, and has no limit."""

SHARED_CLASS = "gpushare"
"""The DeviceClass of shares that our manifests define."""
WHOLE_CLASS = "gpushare-whole"
"""The DeviceClass of whole GPUs that our manifests define, which serves the extended resource gpu-count too."""
MIG_CLASS = "gpushare-mig"
"""The DeviceClass of whole MIG instances that our manifests define."""

_UUID = re.compile(r"(gpu|mig)(-[0-9a-f]{4,12}){5}", re.ASCII)
_CHIP = re.compile(r"gpu-([0-9a-f]{16})(-p[0-7])?", re.ASCII)
_SLOT = re.compile(r"pci-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])(-p[0-7])?", re.ASCII)
_INSTANCE = "mig-"
_WHOLE_ENDING = "-whole"
_MONITOR_ENDING = "-monitor"


def device_name(uuid: str) -> str:
    """Return the name of the device by which a GPU or MIG instance is offered: its UUID in lower case, as a DNS label.

    A claim names its device for as long as it is allocated, over restarts and changes of the hardware: a name by an
    index could come to mean another GPU.
    """
    return uuid.lower().translate({ord(":"): "-", ord("."): "-"})


def parse_device_name(name: str) -> str:
    """Return the UUID of a device, as drivers write it; empty: it is not ours, or one by which a GPU is looked at."""
    return _as_driver(name.removesuffix(_WHOLE_ENDING))


def is_former_name(name: str) -> bool:
    """Return whether a device is one that former agents offered whole, beside another one for the parts."""
    return name.endswith(_WHOLE_ENDING)


def monitor_name(uuid: str) -> str:
    """Return the name of the device by which a GPU, or a MIG instance, is looked at."""
    return device_name(uuid) + _MONITOR_ENDING


def parse_monitor_name(name: str) -> str:
    """Return the UUID of what a device looks at, as drivers write it; empty: it is no such device of ours."""
    watched = name.removesuffix(_MONITOR_ENDING)
    return _as_driver(watched) if watched != name else ""


def is_instance(uuid: str) -> bool:
    """Return whether a UUID, or the name of a device of ours, is of a MIG instance."""
    return uuid[:4].lower() == _INSTANCE


def _as_driver(name: str) -> str:
    """Return the UUID from which `device_name` made a name; empty: from none."""
    if _UUID.fullmatch(name):
        return name[:3].upper() + name[3:]
    if chip := _CHIP.fullmatch(name):
        return f"GPU-{chip[1].upper()}{chip[2] or ''}"
    if slot := _SLOT.fullmatch(name):
        return f"PCI-{slot[1]}:{slot[2]}:{slot[3]}.{slot[4]}{slot[5] or ''}"
    return ""


# --- ResourceClaims of Kubernetes, reduced to the fields that decisions about GPUs need -------------------------------


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


# --- The parameters of a claim, or of its DeviceClass, for our driver -------------------------------------------------

_FIELDS = ("limits", "computePercent", "frameworks", "memoryLimit", TAKE_WHOLE)
_MOST_MIB = 1 << 30
"""A larger amount of memory is a mistake."""
_SHOWN = 64
"""Most characters of a stranger's word that a message repeats."""


class ParametersError(ValueError):
    """Parameters that cannot be used; the message is a sentence without a full stop that names the fault."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """The parameters of the devices of one request."""

    limits: Enforcement | None = None
    """The weakest means of limiting memory that will do; None: whatever the node has."""
    compute: int | None = None
    """Percent of the multiprocessors; None: what the claim took of them, or no limit."""
    frameworks: tuple[str, ...] = ()
    """Names in `model.contract.variables.OF_FRAMEWORKS`."""
    memory_limit_mib: int | None = None
    """The most memory of its GPU that a container of the claim may use; None: what was allocated."""


NO_CONFIG = ShareConfig()


def share_config(claim: Claim, request: str) -> ShareConfig:
    """Return the parameters for the devices of one request: each field from the claim, else from the DeviceClass.

    Raises:
        ParametersError: some of them cannot be used.
    """
    merged: dict[str, Any] = {}
    for each in claim.parameters:
        if not each.requests or request in each.requests:
            merged |= _fields(each.values, "its DeviceClass" if each.of_class else "the claim")
    return ShareConfig(
        merged.get("limits"), merged.get("computePercent"), merged.get("frameworks", ()), merged.get("memoryLimit")
    )


def _fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the parameters of one author, and return their fields."""
    version, kind = values.get("apiVersion"), values.get("kind")
    if (version, kind) != (API_VERSION, CONFIG_KIND):
        raise ParametersError(
            f"{where} has parameters that are not of apiVersion {API_VERSION} and kind {CONFIG_KIND}, but of "
            f"{_said(version)} and {_said(kind)}"
        )
    unknown = sorted(key for key in values if key not in {"apiVersion", "kind", *_FIELDS})
    if unknown:
        raise ParametersError(f"{where} has the parameter {_said(unknown[0])}, and there are only {', '.join(_FIELDS)}")
    found: dict[str, Any] = {}
    if type(values.get(TAKE_WHOLE, False)) is not bool:
        raise ParametersError(f"{where} has whole {_said(values[TAKE_WHOLE])}; write true or false")
    if "limits" in values:
        if values["limits"] not in CHOOSABLE:
            raise ParametersError(f"{where} has limits {_said(values['limits'])}; write one of {', '.join(CHOOSABLE)}")
        found["limits"] = Enforcement(values["limits"])
    if "computePercent" in values:
        percent = values["computePercent"]
        if type(percent) is not int or not 1 <= percent <= 100:
            raise ParametersError(f"{where} has computePercent {_said(percent)}; write a whole number from 1 to 100")
        found["computePercent"] = percent
    if "frameworks" in values:
        found["frameworks"] = _frameworks(values["frameworks"], where)
    if "memoryLimit" in values:
        found["memoryLimit"] = _memory(values["memoryLimit"], where)
    return found


def _frameworks(names: object, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name in OF_FRAMEWORKS for name in names):
        raise ParametersError(
            f"{where} has frameworks {_said(names)}; write a list of some of {', '.join(OF_FRAMEWORKS)}"
        )
    return tuple(name for name in OF_FRAMEWORKS if name in names)


def _memory(value: object, where: str) -> int:
    try:
        mib = parse_mib(value) if isinstance(value, str) else 0
    except ValueError:
        mib = 0
    if not 1 <= mib <= _MOST_MIB:
        raise ParametersError(f"{where} has memoryLimit {_said(value)}; write an amount of memory, such as 12Gi")
    return mib


def _said(value: object) -> str:
    """Return a stranger's value for a message, without anything that could control a terminal."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

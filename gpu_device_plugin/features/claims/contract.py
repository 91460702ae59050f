"""The names by which our DRA driver is known: driver, devices, their attributes and taints, and its parameters.

Administrators and users write them in DeviceClasses and ResourceClaims, so they change no more than an API does.
"""

from __future__ import annotations

import re

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
DRIVER_VERSION = "driverVersion"
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
_INSTANCE = "mig-"
_WHOLE_ENDING = "-whole"
_MONITOR_ENDING = "-monitor"


def device_name(uuid: str) -> str:
    """Return the name of the device by which a GPU or MIG instance is offered: its UUID in lower case.

    A claim names its device for as long as it is allocated, over restarts and changes of the hardware: a name by an
    index could come to mean another GPU.
    """
    return uuid.lower()


def parse_device_name(name: str) -> str:
    """Return the UUID of a device, as NVML writes it; empty: it is none of ours, or one by which a GPU is looked at."""
    uuid = name.removesuffix(_WHOLE_ENDING)
    return _as_nvml(uuid) if _UUID.fullmatch(uuid) else ""


def is_former_name(name: str) -> bool:
    """Return whether a device is one that former agents offered whole, beside another one for the parts."""
    return name.endswith(_WHOLE_ENDING)


def monitor_name(uuid: str) -> str:
    """Return the name of the device by which a GPU, or a MIG instance, is looked at."""
    return uuid.lower() + _MONITOR_ENDING


def parse_monitor_name(name: str) -> str:
    """Return the UUID of what a device looks at, as NVML writes it; empty: it is no such device of ours."""
    uuid = name.removesuffix(_MONITOR_ENDING)
    return _as_nvml(uuid) if uuid != name and _UUID.fullmatch(uuid) else ""


def is_instance(uuid: str) -> bool:
    """Return whether a UUID, or the name of a device of ours, is of a MIG instance."""
    return uuid[:4].lower() == _INSTANCE


def _as_nvml(uuid: str) -> str:
    return uuid[:3].upper() + uuid[3:]

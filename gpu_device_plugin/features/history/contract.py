"""The last hour of a node's GPUs and containers, and records of incidents, as its agent serves them in JSON.

The keys of the JSON are the names of the fields, which tell their units. Agents encode these values and readers decode
them by msgspec, which checks their types; unknown keys are ignored, so an agent may be newer than its readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gpu_device_plugin.model.contract.node_use import NodeUse
from gpu_device_plugin.model.telemetry import GpuTelemetry

HISTORY_PATH = "/history/"
"""``/history/`` has all GPUs, ``/history/gpus/N`` the GPU at that position with its containers, and
``/history/namespaces/NAME`` the containers of a namespace with their GPUs."""
INCIDENTS_PATH = "/incidents/"
"""``/incidents/`` has an `IncidentList`, ``/incidents/NAME`` an `Incident`."""
STEP_S = 15.0
"""Seconds from one value to the next."""
STEPS = 240
"""Values of a series."""
LAST_HOUR = "the last hour"
"""The time that a node remembers, for people."""
LARGEST_INCIDENT = 512 << 10
"""Bytes of an incident's file, and of its answer."""


def gpu_path(position: int) -> str:
    """Return the path of the history of a GPU with its containers."""
    return f"{HISTORY_PATH}gpus/{position}"


def namespace_path(namespace: str) -> str:
    """Return the path of the history of a namespace's containers with their GPUs."""
    return f"{HISTORY_PATH}namespaces/{namespace}"


Series: TypeAlias = tuple[int | None, ...]
"""One value for each step, the newest last; None: not known, or the agent did not read then. All series of a
`NodeHistory` have the same length."""


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU or MIG instance."""

    gpu: int
    """Its position."""
    uuid: str
    total_mib: int
    used_mib: Series = ()
    """All memory in use."""
    sm_percent: Series = ()
    """Part of the time in which a kernel ran."""
    power_w: Series = ()
    temperature_c: Series = ()
    throttle: Series = ()
    """Bits of `model.telemetry.Throttle`."""
    pcie_percent: Series = ()
    """Bytes over PCIe in the busier direction, of the most that the link can carry as it is now."""
    ecc_errors: Series = ()
    """Corrected and uncorrected memory errors together, a counter since the driver was loaded or the GPU reset."""
    nvlink_errors: Series = ()
    """Errors of all links together, a counter since the driver was loaded."""
    condition: GpuTelemetry | None = None
    """The newest reading in full; None: the condition is not read."""


@dataclass(frozen=True, slots=True)
class ContainerHistory:
    """One container on one GPU."""

    namespace: str
    pod: str
    """Its name; its UID where the agent does not know the name."""
    container: str
    gpu: int
    """The GPU's position."""
    granted_mib: int
    """Its guarantee; 0: it was not given this GPU."""
    most_mib: int
    """The most that it may use."""
    used_mib: Series = ()
    sm_percent: Series = ()
    """Part of the time in which it kept multiprocessors busy."""
    cpu_throttled_percent: Series = ()
    """Part of the CPU's scheduling periods in which it was held back by its CPU limit (cgroup cpu.stat)."""


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The last hour of a node, or less."""

    at: str
    """RFC 3339: when the newest values were read."""
    step_s: float
    """Seconds between two values."""
    gpus: tuple[GpuHistory, ...] = ()
    containers: tuple[ContainerHistory, ...] = ()
    """Those that hold or use a GPU, and those that ended within the hour, as far as there was room."""
    left_out: int = 0
    """Containers beyond the room for them."""
    version: int = 1


class IncidentKind(StrEnum):
    """What caused a record."""

    XID = "xid"
    GPU_FAILED = "gpu-failed"
    OVER_USE_EVICTION = "over-use-eviction"
    OUT_OF_MEMORY = "out-of-memory"
    """The kernel killed a process of a container on a GPU for lack of main memory."""
    CONTAINER_DIED = "container-died"
    """A container on a GPU ended with an error."""


@dataclass(frozen=True, slots=True)
class IncidentProcess:
    """A process on a GPU. Neither its command line nor its environment is kept."""

    gpu: int
    pid: int
    namespace: str
    """Empty with the names of pod and container: it belongs to no pod, or that is not known."""
    pod: str
    container: str
    used_mib: int | None = None
    sm_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What the agent did, or was told by the driver."""

    at: str
    """RFC 3339."""
    text: str


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """What happened, in short."""

    name: str
    """Of its file: the time, the kind and the GPU, in letters, digits and hyphens."""
    at: str
    """RFC 3339."""
    kind: IncidentKind
    sentence: str
    gpu: int | None = None
    """The position of the GPU."""
    uuid: str = ""
    namespace: str = ""
    """With `pod` and `container`: whom it happened to; empty for one of a GPU."""
    pod: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """A record of what led to an incident."""

    summary: IncidentSummary
    node: str
    history: NodeHistory
    """The minutes before, of the GPUs and containers concerned."""
    use: NodeUse
    """Limits and use at that moment, of the GPUs concerned."""
    processes: tuple[IncidentProcess, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """Those of the minutes before, the newest last."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class IncidentList:
    """The incidents that a node remembers, the newest first."""

    incidents: tuple[IncidentSummary, ...] = ()

"""Histories and incidents as agents tell them, with curves that are easily recognised."""

from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.history.contract import (
    ContainerHistory,
    Decision,
    GpuHistory,
    Incident,
    IncidentKind,
    IncidentProcess,
    IncidentSummary,
    NodeHistory,
    Series,
)
from gpu_device_plugin.model.contract.node_use import GpuUse, NodeUse
from gpu_device_plugin.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from tests.reports import part

AT = "2026-11-23T09:29:45Z"
GAP = slice(100, 120)
"""The steps of an hour in which the agent was away: five minutes."""


def rising(low: int, high: int, size: int = 240, gap: slice | None = GAP) -> Series:
    """Return values that rise from `low` to `high`, with a gap."""
    values: list[int | None] = [low + (high - low) * at // (size - 1) for at in range(size)]
    if gap is not None:
        values[gap] = [None] * len(values[gap])
    return tuple(values)


def throttled(size: int = 240, bits: int = Throttle.HEAT | Throttle.HARDWARE, since: int = 200) -> Series:
    """Return a GPU that is slowed from a step on, with the same gap."""
    values: list[int | None] = [bits if at >= since else 0 for at in range(size)]
    values[GAP] = [None] * len(values[GAP])
    return tuple(values)


CONDITION = GpuTelemetry(
    "GPU-6f1c2f4e-0",
    temperature_c=91,
    memory_temperature_c=88,
    slowdown_c=93,
    fan_percent=70,
    power_mw=68_400,
    power_limit_mw=70_000,
    sm_clock_mhz=810,
    sm_clock_max_mhz=1590,
    memory_clock_mhz=5000,
    memory_clock_max_mhz=5001,
    throttle=int(Throttle.HEAT),
    persistence=True,
    sm_percent=97,
    memory_percent=60,
    encoder_percent=0,
    decoder_percent=0,
    pcie_generation=3,
    pcie_generation_max=3,
    pcie_width=8,
    pcie_width_max=16,
    pcie_replays=0,
    ecc_corrected=12,
    ecc_uncorrected=0,
    remapped_rows=1,
    repair_pending=True,
    repair_failed=False,
    nvlink_errors=0,
)


def gpu(position: int = 0, **more: Any) -> GpuHistory:
    """Return a T4 that warms up until it is slowed."""
    found = GpuHistory(
        position,
        f"GPU-{position}f1c2f4e-0",
        15360,
        used_mib=rising(1024, 13_824),
        sm_percent=rising(0, 97),
        power_w=rising(20, 68),
        temperature_c=rising(40, 91),
        throttle=throttled(),
        pcie_percent=rising(0, 30),
        condition=CONDITION,
    )
    return replace(found, **more)


def used_by(pod: str, position: int = 0, **more: Any) -> ContainerHistory:
    """Return a container `main` of a pod, `NAMESPACE/NAME`, that was given 5 GiB."""
    namespace, _, name = pod.partition("/")
    found = ContainerHistory(
        namespace, name, "main", position, 5120, 5120, rising(512, 5120), rising(0, 60), cpu_throttled_percent=()
    )
    return replace(found, **more)


def hour(*containers: ContainerHistory, gpus: tuple[GpuHistory, ...] = (gpu(),), left_out: int = 0) -> NodeHistory:
    """Return the last hour of a node."""
    return NodeHistory(AT, 15.0, gpus, containers, left_out)


def summary(name: str = "20261123-092500-xid-gpu0", **more: Any) -> IncidentSummary:
    """Return an XID on GPU 0."""
    found = IncidentSummary(
        name,
        "2026-11-23T09:25:00Z",
        IncidentKind.XID,
        "GPU 0 reported XID 48: a double-bit memory error",
        0,
        "GPU-0f1c2f4e-0",
    )
    return replace(found, **more)


def incident(about: IncidentSummary | None = None, node: str = "t4-1") -> Incident:
    """Return the whole record of one, with a process and a decision."""
    quarter = replace(
        gpu(),
        used_mib=rising(1024, 13_824, 60, None),
        sm_percent=rising(0, 97, 60, None),
        power_w=(),
        temperature_c=rising(60, 71, 60, None),
        throttle=(0,) * 60,
        pcie_percent=(),
    )
    web = used_by("default/web-0", used_mib=rising(512, 5120, 60, None), sm_percent=rising(0, 60, 60, None))
    return Incident(
        about or summary(),
        node,
        NodeHistory("2026-11-23T09:25:00Z", 15.0, (quarter,), (web,)),
        NodeUse(
            "2026-11-23T09:25:00Z",
            {0: GpuUse(13_824, 312)},
            (part("web-0", granted=5120, used=5120, enforcement=Enforcement.DRIVER, held=LimitStatus.HELD),),
        ),
        (IncidentProcess(0, 4711, "default", "web-0", "main", 5120, 60), IncidentProcess(0, 12, "", "", "", 312)),
        (Decision("2026-11-23T09:24:58Z", "the driver reported Xid 48 of GPU 0"),),
    )

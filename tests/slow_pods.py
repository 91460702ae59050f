"""Histories of a GPU as an agent serves them: pods that one cause slows, and pods that nothing slows.

All are of the pod ``default/train`` on GPU 0 of a node, with the neighbour ``ml/other`` where there is one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_device_plugin.features.history.contract import ContainerHistory, GpuHistory, NodeHistory, Series
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.model.times import epoch_s

AT = "2026-11-28T12:00:00Z"
NOW = (epoch_s(AT) or 0.0) + 5
STEP_S = 15.0
LENGTH = 240
UUID = "GPU-6f1c2f4e-0000-0000-0000-000000000000"
TOTAL_MIB = 81_920
CONDITION = GpuTelemetry(
    UUID,
    temperature_c=62,
    slowdown_c=92,
    power_mw=540_000,
    power_limit_mw=700_000,
    sm_clock_mhz=1905,
    sm_clock_max_mhz=1980,
    throttle=0,
    sm_percent=95,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    ecc_corrected=3,
    ecc_uncorrected=0,
    repair_pending=False,
    repair_failed=False,
)
"""Of a GPU that is well and works."""
NOT_READ = GpuTelemetry(UUID)


def series(*values: int | None) -> Series:
    """Return a series that repeats these values, and ends with the last one."""
    return (values * (LENGTH // len(values) + 1))[-LENGTH:]


def lately(before: int | None, minutes: float, value: int | None) -> Series:
    """Return a series that has had another value in the last minutes."""
    steps = int(minutes * 60 / STEP_S)
    return (before,) * (LENGTH - steps) + (value,) * steps


def train(**changes: object) -> ContainerHistory:
    """Return the pod's container, which works, with half of the GPU's memory, of which it uses three quarters."""
    own = ContainerHistory("default", "train", "main", 0, 40_960, 40_960, series(30_720), series(60, 45, 70), series(2))
    return replace(own, **changes)  # type: ignore[arg-type]


def other(sm: Series = (), used: Series = (), **changes: object) -> ContainerHistory:
    """Return the neighbour's, which is idle unless told otherwise."""
    their = ContainerHistory(
        "ml", "other", "main", 0, 40_960, 40_960, used or series(9_000), sm or series(0), series(0)
    )
    return replace(their, **changes)  # type: ignore[arg-type]


def history(
    *containers: ContainerHistory,
    telemetry: GpuTelemetry | None = CONDITION,
    step_s: float = STEP_S,
    at: str = AT,
    **gpu: object,
) -> NodeHistory:
    """Return the history of GPU 0 with these containers; the amounts of the GPU are the sums of theirs."""
    containers = containers or (train(),)
    told = GpuHistory(
        0,
        telemetry.uuid if telemetry is not None else UUID,
        TOTAL_MIB,
        used_mib=_sum(each.used_mib for each in containers),
        sm_percent=_sum(each.sm_percent for each in containers),
        power_w=series(540),
        temperature_c=series(62),
        throttle=series(0),
        pcie_percent=series(3),
        condition=telemetry,
    )
    return NodeHistory(at, step_s, (replace(told, **gpu),), containers)  # type: ignore[arg-type]


def _sum(several: Iterable[Series]) -> Series:
    steps = zip(*(each for each in several if each), strict=True)
    return tuple(min(TOTAL_MIB, sum(value or 0 for value in step)) for step in steps)


def on(position: int, of: NodeHistory) -> NodeHistory:
    """Return the same history of another GPU."""
    (gpu,) = of.gpus
    containers = tuple(replace(each, gpu=position) for each in of.containers)
    return replace(of, gpus=(replace(gpu, gpu=position, uuid=f"GPU-{position}"),), containers=containers)


def slowed(bits: int, clock_mhz: int, **condition: object) -> NodeHistory:
    """Return the history of a GPU that its driver has slowed for 20 minutes."""
    now = replace(CONDITION, throttle=bits, sm_clock_mhz=clock_mhz, **condition)  # type: ignore[arg-type]
    return history(throttle=lately(0, 20, bits), telemetry=now)


def degraded(**condition: object) -> NodeHistory:
    """Return the history of a GPU whose memory has faults."""
    return history(telemetry=replace(CONDITION, **condition))  # type: ignore[arg-type]


CAUSES: Mapping[str, tuple[NodeHistory, str]] = {
    "heat": (slowed(Throttle.HEAT, 1200, temperature_c=88), "slowed-by-heat"),
    "heat, by the hardware": (
        slowed(Throttle.HARDWARE_HEAT | Throttle.HARDWARE, 700, temperature_c=93),
        "slowed-by-heat",
    ),
    "a very low power limit": (
        slowed(Throttle.POWER_CAP, 900, power_mw=299_000, power_limit_mw=300_000),
        "slowed-by-power-cap",
    ),
    "a lowered power limit": (
        slowed(Throttle.POWER_CAP, 1400, power_mw=499_000, power_limit_mw=500_000, power_limit_default_mw=700_000),
        "slowed-by-power-cap",
    ),
    "the power brake": (slowed(Throttle.POWER_BRAKE | Throttle.HARDWARE, 600), "slowed-by-power-brake"),
    "hardware slowdown": (slowed(Throttle.HARDWARE, 900), "slowed-by-hardware"),
    "sync boost": (slowed(Throttle.SYNC, 1300), "slowed-by-sync"),
    "low clocks": (degraded(sm_clock_mhz=795), "clocks-low"),
    "a busy neighbour": (
        history(train(sm_percent=series(30, 35)), other(series(65, 70)), sm_percent=series(98, 100)),
        "neighbours-busy",
    ),
    "too little CPU": (
        history(train(sm_percent=series(4, 9, 0, 6), cpu_throttled_percent=series(85, 70))),
        "starved-of-cpu",
    ),
    "thrashing, as seen by its memory": (
        history(train(used_mib=series(40_700, 40_500, 40_900, 37_000, 40_800), sm_percent=series(20, 25))),
        "memory-thrash",
    ),
    "thrashing, as seen by PCIe": (
        history(train(used_mib=series(40_900), sm_percent=series(20, 25)), pcie_percent=series(95, 60, 90)),
        "memory-thrash",
    ),
    "PCIe traffic": (
        history(train(sm_percent=series(20, 12)), pcie_percent=series(97, 91)),
        "pcie-saturated",
    ),
    "a narrow link": (
        history(pcie_percent=series(35, 60), telemetry=replace(CONDITION, pcie_width=4)),
        "pcie-link-slow",
    ),
    "a slow link": (
        history(pcie_percent=series(35, 60), telemetry=replace(CONDITION, pcie_generation=1)),
        "pcie-link-slow",
    ),
    "uncorrected errors": (degraded(ecc_uncorrected=2), "gpu-degraded"),
    "many corrected errors": (degraded(ecc_corrected=40_000), "gpu-degraded"),
    "a row that waits": (degraded(repair_pending=True), "gpu-degraded"),
    "a row that cannot be replaced": (degraded(repair_failed=True), "gpu-degraded"),
    "memory that others fill": (
        history(train(used_mib=series(20_000)), other(used=series(61_000))),
        "memory-full",
    ),
}
"""What slows the pod, by name: its history, and the code of the verdict that comes first."""

_JUST_STARTED = lately(None, 1, 60)
_MIG = replace(NOT_READ, uuid="MIG-6f1c2f4e-0000-0000-0000-000000000000")

HEALTHY: Mapping[str, NodeHistory] = {
    "idle": history(train(sm_percent=series(0), used_mib=series(900))),
    "idle on a GPU that saves power": history(
        train(sm_percent=series(0, 1)),
        throttle=series(int(Throttle.POWER_CAP | Throttle.HEAT)),
        telemetry=replace(CONDITION, sm_clock_mhz=345, pcie_generation=1, sm_percent=0),
    ),
    "idle beside a busy neighbour": history(train(sm_percent=series(0)), other(series(99))),
    "busy training": history(train(sm_percent=series(99, 97, 100))),
    "busy training at the usual power limit": history(
        train(sm_percent=series(99, 97, 100)),
        throttle=series(int(Throttle.POWER_CAP)),
        telemetry=replace(
            CONDITION,
            throttle=int(Throttle.POWER_CAP),
            sm_clock_mhz=1590,
            power_mw=699_000,
            power_limit_default_mw=700_000,
        ),
    ),
    "busy training with all memory allocated at its start": history(
        train(sm_percent=series(99, 98), used_mib=series(40_900), cpu_throttled_percent=series(0)),
        pcie_percent=series(12, 25),
    ),
    "copies beside kernels": history(train(sm_percent=series(98, 97)), pcie_percent=series(92, 88)),
    "bursty inference": history(
        train(sm_percent=series(0, 0, 55, 0, 70, 0, 0, 8), used_mib=series(12_000, 12_300, 11_000)),
        throttle=series(0, 0, 0, int(Throttle.POWER_CAP), 0, 0, 0, 0),
    ),
    "warming up": history(
        train(
            used_mib=tuple(None if at < 200 else 500 * (at - 199) for at in range(LENGTH)),
            sm_percent=lately(None, 10, 0),
            cpu_throttled_percent=lately(None, 10, 65),
        ),
        pcie_percent=lately(0, 10, 30),
    ),
    "just started": history(
        train(used_mib=lately(None, 1, 4_000), sm_percent=_JUST_STARTED, cpu_throttled_percent=lately(None, 1, 90)),
        throttle=lately(0, 1, int(Throttle.HEAT)),
        sm_percent=lately(0, 1, 60),
    ),
    "a short blip of heat": history(throttle=lately(0, 1.5, int(Throttle.HEAT))),
    "heat that is over": history(throttle=series(*([int(Throttle.HEAT)] * 180 + [0] * 60))),
    "a MIG instance": history(
        train(sm_percent=()),
        telemetry=_MIG,
        sm_percent=(),
        throttle=(),
        power_w=(),
        temperature_c=(),
        pcie_percent=(),
    ),
    "a MIG instance, told with the condition of its GPU": history(
        train(sm_percent=()),
        telemetry=replace(CONDITION, throttle=int(Throttle.HEAT), pcie_width=4),
        uuid=_MIG.uuid,
        sm_percent=(),
        throttle=series(int(Throttle.HEAT)),
        pcie_percent=series(99),
    ),
    "a whole GPU": history(
        train(granted_mib=TOTAL_MIB, most_mib=TOTAL_MIB, used_mib=series(70_000), sm_percent=series(96)),
    ),
    "a whole GPU, allocated at its start": history(
        train(granted_mib=TOTAL_MIB, most_mib=TOTAL_MIB, used_mib=series(80_900), sm_percent=series(96)),
        used_mib=series(81_500),
    ),
    "borrowing": history(
        train(granted_mib=20_480, most_mib=81_920, used_mib=series(38_000)), other(series(9, 0), series(30_000))
    ),
    "an MPS client beside idle neighbours": history(
        train(sm_percent=series(93, 88)), other(series(1, 0, 2)), other(pod="third", used=series(4_000))
    ),
    "a neighbour that needs little": history(train(sm_percent=series(80, 85)), other(series(12, 14))),
    "two that leave the GPU room": history(train(sm_percent=series(30)), other(series(35))),
    "a container without a CPU limit": history(train(cpu_throttled_percent=())),
}
"""By name; nothing slows these pods."""

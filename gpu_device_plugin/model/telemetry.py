"""The telemetry of a GPU at one moment, of which the setting `condition` names groups, and the faults that it shows.

Temperature, power, clocks, load, links and memory errors. Whether a GPU is in service is another matter, see
`node.rules.gpu_health`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TelemetryGroup(StrEnum):
    """What is read together, and can be left out together."""

    THERMAL = "thermal"
    POWER = "power"
    CLOCKS = "clocks"
    LOAD = "load"
    PCIE = "pcie"
    NVLINK = "nvlink"
    MEMORY_ERRORS = "memory-errors"


class Throttle(IntFlag):
    """Why the clocks of a GPU are lower than they could be: those of NVML's nvmlClocksEventReasons that slow work."""

    POWER_CAP = 0x4
    """The power limit (SwPowerCap)."""
    HARDWARE = 0x8
    """The GPU slowed itself to half its clocks or less: temperature, power brake or power draw (HwSlowdown)."""
    SYNC = 0x10
    """It keeps to the clocks of the slowest GPU of its sync boost group (SyncBoost)."""
    HEAT = 0x20
    """The driver's thermal limit (SwThermalSlowdown)."""
    HARDWARE_HEAT = 0x40
    """The GPU's own thermal limit (HwThermalSlowdown)."""
    POWER_BRAKE = 0x80
    """The machine's power supply asked for it (HwPowerBrakeSlowdown)."""


SLOWING = 0xFC
"""All bits of `Throttle`."""
BY_HEAT = Throttle.HEAT | Throttle.HARDWARE_HEAT


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """What the driver says of one GPU at one moment. None: it does not tell, or the group is not read.

    Counters count since the driver was loaded, unless their text says otherwise. MIG instances have none of their own.
    """

    uuid: str
    # thermal
    temperature_c: int | None = None
    """Of the GPU, degrees Celsius (nvmlDeviceGetTemperature)."""
    memory_temperature_c: int | None = None
    """NVML_FI_DEV_MEMORY_TEMP; most GPUs without HBM have none."""
    slowdown_c: int | None = None
    """The temperature at which the hardware slows the GPU (NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)."""
    fan_percent: int | None = None
    """The intended speed of the fan, percent of the maximum, which may be above 100; None where the machine cools."""
    # power
    power_mw: int | None = None
    """Milliwatts that the board draws (nvmlDeviceGetPowerUsage)."""
    power_limit_mw: int | None = None
    """The limit in force (nvmlDeviceGetEnforcedPowerLimit)."""
    power_limit_default_mw: int | None = None
    """The limit of such a board unless somebody sets another (nvmlDeviceGetPowerManagementDefaultLimit)."""
    energy_mj: int | None = None
    """Millijoules since the driver was loaded (nvmlDeviceGetTotalEnergyConsumption)."""
    # clocks
    sm_clock_mhz: int | None = None
    """Clock of the multiprocessors now (NVML_CLOCK_SM)."""
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle: int | None = None
    """Bits of `Throttle` (nvmlDeviceGetCurrentClocksEventReasons); the driver's other bits are left out."""
    persistence: bool | None = None
    """Whether the driver stays loaded without clients (persistence mode)."""
    # load
    sm_percent: int | None = None
    """Part of the last sample period, 1/6 s to 1 s, in which a kernel ran (nvmlDeviceGetUtilizationRates)."""
    memory_percent: int | None = None
    """Part of that period in which memory was read or written."""
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    # pcie
    pcie_generation: int | None = None
    """Of the link now. An idle GPU may lower it to save power; its width stays."""
    pcie_generation_max: int | None = None
    """The most that GPU and slot can (nvmlDeviceGetMaxPcieLinkGeneration)."""
    pcie_width: int | None = None
    """Lanes in use now."""
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    """Packets sent again (nvmlDeviceGetPcieReplayCounter)."""
    pcie_sent_bytes: int | None = None
    """From the GPU to the host, a counter (NVML_FI_DEV_PCIE_COUNT_TX_BYTES)."""
    pcie_received_bytes: int | None = None
    """From the host to the GPU, a counter (NVML_FI_DEV_PCIE_COUNT_RX_BYTES)."""
    # nvlink
    nvlink_errors: int | None = None
    """Replays, recoveries and CRC errors of all links together."""
    # memory-errors
    ecc_corrected: int | None = None
    """Corrected memory errors since the driver was loaded or the GPU reset (volatile)."""
    ecc_uncorrected: int | None = None
    """Uncorrected ones, counted the same way."""
    retired_pages: int | None = None
    """Pages of memory that are out of use for good; GPUs before Ampere."""
    remapped_rows: int | None = None
    """Rows of memory that were replaced for good, after correctable and uncorrectable errors; from Ampere on."""
    repair_pending: bool | None = None
    """Pages or rows wait to be replaced at the next reset of the GPU."""
    repair_failed: bool | None = None
    """A row could not be replaced."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one GPU, as the driver lists it: its compute, graphics and MPS entries merged."""

    pid: int
    """In the PID namespace of the reader."""
    used_mib: int | None
    """All memory of the process on this GPU; None: the driver does not know."""
    sm_percent: int | None = None
    """Its use of the GPU's multiprocessors in the last interval, 0 to 100; None: unknown."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The processes and the memory of one GPU at one moment."""

    uuid: str
    processes: tuple[GpuProcess, ...] | None
    """None: the driver does not list processes on this GPU (MIG, an old driver), or the GPU cannot be read."""
    used_mib: int | None = None
    """Memory in use by anybody, without the driver's own reservation; None: unknown."""


FAULTS: Mapping[str, tuple[str, Callable[[GpuTelemetry], bool]]] = MappingProxyType(
    {
        "ecc-uncorrected": ("uncorrected memory errors", lambda gpu: bool(gpu.ecc_uncorrected)),
        "memory-repair-pending": ("a repair of its memory waits for a reset", lambda gpu: bool(gpu.repair_pending)),
        "memory-not-repaired": ("a repair of its memory failed", lambda gpu: bool(gpu.repair_failed)),
        "slowed-by-heat": (
            "its clocks are lowered by heat",
            lambda gpu: bool((gpu.throttle or 0) & BY_HEAT),
        ),
    }
)
"""The faults for which the agent puts a GPU aside where the setting `cordon_on` has their codes, each with a clause
about the GPU. `features.cordon.node` counts how long they last; here every program can read the setting."""

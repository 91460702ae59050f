"""The telemetry of a GPU at one moment, of which the setting `condition` names groups, and the faults that it shows.

Temperature, power, clocks, load, links and memory errors. Whether a GPU is in service is another matter, see
`node.rules.gpu_health`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import Any


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
_PERCENT, _MILLI, _MEGA = 0.01, 0.001, 1e6


def _gauge(name: str, meaning: str, unit: float = 1) -> Any:
    """Declare a field with the rest of its gauge's name, what it means, and the base units in one of the field's."""
    return field(default=None, metadata={"gauge": (name, meaning, unit)})


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """What the driver says of one GPU at one moment. None: it does not tell, or the group is not read.

    Each is a gauge, which has no series where the driver does not tell. Counters count since the driver was loaded,
    unless their text says otherwise. MIG instances have none of their own.
    """

    uuid: str
    # thermal
    temperature_c: int | None = _gauge("temperature_celsius", "Temperature of the GPU.")
    """Of the GPU, degrees Celsius (nvmlDeviceGetTemperature)."""
    memory_temperature_c: int | None = _gauge("memory_temperature_celsius", "Temperature of the GPU's memory.")
    """NVML_FI_DEV_MEMORY_TEMP; most GPUs without HBM have none."""
    slowdown_c: int | None = _gauge("slowdown_temperature_celsius", "Temperature at which the hardware slows the GPU.")
    """The temperature at which the hardware slows the GPU (NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)."""
    fan_percent: int | None = _gauge("fan_speed_ratio", "Intended speed of the fan, of its maximum.", _PERCENT)
    """The intended speed of the fan, percent of the maximum, which may be above 100; None where the machine cools."""
    # power
    power_mw: int | None = _gauge("power_watts", "Power that the board draws.", _MILLI)
    """Milliwatts that the board draws (nvmlDeviceGetPowerUsage)."""
    power_limit_mw: int | None = _gauge("power_limit_watts", "Power limit in force.", _MILLI)
    """The limit in force (nvmlDeviceGetEnforcedPowerLimit)."""
    power_limit_default_mw: int | None = _gauge("power_limit_default_watts", "Default power limit.", _MILLI)
    """The limit of such a board unless somebody sets another (nvmlDeviceGetPowerManagementDefaultLimit)."""
    energy_mj: int | None = _gauge("energy_joules_total", "Energy since the driver was loaded.", _MILLI)
    """Millijoules since the driver was loaded (nvmlDeviceGetTotalEnergyConsumption)."""
    # clocks
    sm_clock_mhz: int | None = _gauge("sm_clock_hertz", "Clock of the multiprocessors.", _MEGA)
    """Clock of the multiprocessors now (NVML_CLOCK_SM)."""
    sm_clock_max_mhz: int | None = _gauge("sm_clock_max_hertz", "Highest clock of the multiprocessors.", _MEGA)
    memory_clock_mhz: int | None = _gauge("memory_clock_hertz", "Clock of the memory.", _MEGA)
    memory_clock_max_mhz: int | None = _gauge("memory_clock_max_hertz", "Highest clock of the memory.", _MEGA)
    throttle: int | None = None
    """Bits of `Throttle` (nvmlDeviceGetCurrentClocksEventReasons); the driver's other bits are left out."""
    persistence: bool | None = _gauge("persistence_mode", "1 if the driver stays loaded without clients.")
    # load
    sm_percent: int | None = _gauge(
        "utilization_ratio", "Fraction of the time in which a kernel ran, 0 to 1.", _PERCENT
    )
    """Part of the last sample period, 1/6 s to 1 s, in which a kernel ran (nvmlDeviceGetUtilizationRates)."""
    memory_percent: int | None = _gauge(
        "memory_busy_ratio", "Fraction of the time in which memory was read or written.", _PERCENT
    )
    encoder_percent: int | None = _gauge("encoder_utilization_ratio", "Use of the video encoder, 0 to 1.", _PERCENT)
    decoder_percent: int | None = _gauge("decoder_utilization_ratio", "Use of the video decoder, 0 to 1.", _PERCENT)
    # pcie
    pcie_generation: int | None = _gauge("pcie_generation", "Generation of the PCIe link; an idle GPU may lower it.")
    """Of the link now. An idle GPU may lower it to save power; its width stays."""
    pcie_generation_max: int | None = _gauge("pcie_generation_max", "Highest generation that GPU and slot support.")
    """The most that GPU and slot can (nvmlDeviceGetMaxPcieLinkGeneration)."""
    pcie_width: int | None = _gauge("pcie_lanes", "Lanes of the PCIe link.")
    pcie_width_max: int | None = _gauge("pcie_lanes_max", "Most lanes that GPU and slot support.")
    pcie_replays: int | None = _gauge("pcie_replays_total", "Packets that were resent over PCIe.")
    """Packets sent again (nvmlDeviceGetPcieReplayCounter)."""
    pcie_sent_bytes: int | None = _gauge("pcie_sent_bytes_total", "Bytes from the GPU to the host.")
    """From the GPU to the host, a counter (NVML_FI_DEV_PCIE_COUNT_TX_BYTES)."""
    pcie_received_bytes: int | None = _gauge("pcie_received_bytes_total", "Bytes from the host to the GPU.")
    """From the host to the GPU, a counter (NVML_FI_DEV_PCIE_COUNT_RX_BYTES)."""
    # nvlink
    nvlink_errors: int | None = _gauge("nvlink_errors_total", "Replays, recoveries and CRC errors of all NVLinks.")
    # memory-errors
    ecc_corrected: int | None = _gauge(
        "ecc_corrected_errors_total", "Corrected memory errors since the driver was loaded."
    )
    """Corrected memory errors since the driver was loaded or the GPU reset (volatile)."""
    ecc_uncorrected: int | None = _gauge(
        "ecc_uncorrected_errors_total", "Uncorrected memory errors since the driver was loaded."
    )
    """Uncorrected ones, counted the same way."""
    retired_pages: int | None = _gauge("retired_pages", "Pages of memory out of use for good.")
    """Pages of memory that are out of use for good; GPUs before Ampere."""
    remapped_rows: int | None = _gauge("remapped_rows", "Rows of memory replaced for good.")
    """Rows of memory that were replaced for good, after correctable and uncorrectable errors; from Ampere on."""
    repair_pending: bool | None = _gauge("memory_repair_pending", "1 if pages or rows wait for a reset to be replaced.")
    repair_failed: bool | None = _gauge("memory_repair_failed", "1 if a row could not be replaced.")


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


FAULTS: Mapping[str, tuple[str, Callable[[GpuTelemetry], bool]]] = {
    "ecc-uncorrected": ("uncorrected memory errors", lambda gpu: bool(gpu.ecc_uncorrected)),
    "memory-repair-pending": ("a repair of its memory waits for a reset", lambda gpu: bool(gpu.repair_pending)),
    "memory-not-repaired": ("a repair of its memory failed", lambda gpu: bool(gpu.repair_failed)),
    "slowed-by-heat": (
        "its clocks are lowered by heat",
        lambda gpu: bool((gpu.throttle or 0) & BY_HEAT),
    ),
}
"""The faults for which the agent puts a GPU aside where the setting `cordon_on` has their codes, each with a clause
about the GPU. `features.cordon.node` counts how long they last; here every program can read the setting."""
